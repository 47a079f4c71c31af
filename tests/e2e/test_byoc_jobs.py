"""Whole jobs with conversions, several targets and weighed regions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import conv_net, repeated_layers, saved, with_host_part

from worker.compiler.cache import MemoryCache
from worker.compiler.errors import CompilerError, ModelError, OptionError
from worker.compiler.options import CompileOptions, PartitionChoice, Precision, VerifyMode
from worker.compiler.package.runtime import run_bundle
from worker.job.job import JobRequest, run_job
from worker.job.request import NoProgress

Array = npt.NDArray[Any]


def compiled(
    folder: Path,
    model: onnx.ModelProto,
    hardware: dict[str, Any],
    samples: Path | None = None,
    **options: Any,
) -> tuple[dict[str, Any], str, Path]:
    """(report, bundle digest, folder of the results)."""
    folder.mkdir(parents=True, exist_ok=True)
    chosen = CompileOptions(**{"verify": VerifyMode.FULL, **options})
    request = JobRequest(
        saved(model, folder), "model", hardware, chosen, folder.parent / "build", samples
    )
    outcome = run_job(request, folder / "out", MemoryCache(), NoProgress())
    report = json.loads((folder / "out" / "report.json").read_bytes())
    return report, outcome.bundle_digest, folder / "out"


def test_a_float_model_runs_on_an_integer_accelerator(tmp_path: Path) -> None:
    report, digest, out = compiled(tmp_path / "a", conv_net(), {"preset": "dpu-zu"})
    assert report["verification"]["passed"] is True
    assert report["verification"]["reference"].startswith("ONNX Runtime on the converted model")
    rows = {row["node"]: row for row in report["placement"]}
    assert rows["stem/conv"]["target"] == "accelerator"
    assert rows["stem/conv"]["reason_code"] == "COMPOSITE"
    assert rows["head"]["target"] == "host"
    assert "Gemm" in rows["head"]["reason"]
    assert all(row["reason"] for row in report["placement"])
    names = [row["node"] for row in report["placement"]]
    assert len(names) == len(set(names))
    inserted = [row for row in report["placement"] if row["is_inserted"]]
    assert inserted
    assert report["summary"]["accelerator_ops"] + report["summary"]["host_ops"] == 8
    assert report["conversion"]["targets"]["accelerator"]["dtype"] == "i8"
    kinds = {b["kind"] for b in report["conversion"]["boundaries"]}
    assert kinds == {"quantize", "dequantize"}
    assert all(b["sqnr_db"] > 20 for b in report["conversion"]["boundaries"])
    (noise,) = [n for n in report["verification"]["sqnr"] if n["value"] == "y"]
    assert noise["sqnr_db"] > 20
    assert noise["passed"] is True
    assert {c["kind"] for c in report["layouts"]} >= {"prepacked_constant"}
    assert "SYNTHETIC_CALIBRATION" in {w["code"] for w in report["warnings"]}
    (region,) = report["partition"]["regions"]
    assert region["execute_cycles"] > 0
    assert region["host_cycles"] > 0
    assert region["launch_cycles"] == 3000  # one launch for the whole region
    page = (out / "report.html").read_text(encoding="utf-8")
    for heading in ("Partition", "What decided about regions", "Number formats", "would help most"):
        assert heading in page
    again = compiled(tmp_path / "b", conv_net(), {"preset": "dpu-zu"})
    assert again[1] == digest
    x = np.random.default_rng(0).standard_normal((1, 3, 12, 12)).astype(np.float32)
    results = run_bundle(out / "model.twb", {"x": x}, tmp_path / "build")
    assert results["y"].shape == (1, 10)
    assert results["y"].sum() == pytest.approx(1.0, abs=1e-4)


def test_given_samples_set_the_ranges(tmp_path: Path) -> None:
    samples = tmp_path / "samples.npz"
    rng = np.random.default_rng(2)
    np.savez(samples, x=rng.uniform(-0.25, 0.25, (3, 1, 3, 12, 12)).astype(np.float32))
    report, _, _ = compiled(
        tmp_path / "a", conv_net(), {"preset": "ethos-u65"}, samples, calibration="0" * 64
    )
    first = report["conversion"]["boundaries"][0]
    assert (first["value"], first["kind"]) == ("x", "quantize")
    assert first["scale"] == pytest.approx(0.5 / 255, rel=0.02)
    assert "SYNTHETIC_CALIBRATION" not in {w["code"] for w in report["warnings"]}
    np.savez(samples, image=np.zeros((1, 3, 12, 12), np.float32))
    with pytest.raises(ModelError, match="'image'") as refused:
        compiled(tmp_path / "b", conv_net(), {"preset": "ethos-u65"}, samples)
    assert refused.value.code == "TW-CAL-002"


def test_noise_is_that_of_fresh_samples_of_the_same_kind(tmp_path: Path) -> None:
    """Ranges of small samples clip standard normal inputs: those say nothing about the users'."""
    rng = np.random.default_rng(5)

    def drawn(count: int) -> Array:
        return (rng.standard_normal((count, 1, 3, 12, 12)) * 0.05).astype(np.float32)

    path = tmp_path / "samples.npz"
    np.savez(path, x=drawn(16))
    report, _, out = compiled(
        tmp_path / "a", conv_net(), {"preset": "ethos-u65"}, path, calibration="0" * 64
    )
    check = report["verification"]
    assert check["scored_on"] == (
        "4 samples held out from calibration, calibrated with 12"
    )  # fmt: skip
    told = next(n["sqnr_db"] for n in check["sqnr"] if n["value"] == "y")
    exact = onnxruntime.InferenceSession(conv_net().SerializeToString())
    signal = noise = 0.0
    for x in drawn(16):
        want = exact.run(["y"], {"x": x})[0].astype(np.float64)
        got = run_bundle(out / "model.twb", {"x": x}, tmp_path / "build")["y"]
        signal += float(np.square(want).sum())
        noise += float(np.square(want - got).sum())
    assert told == pytest.approx(10 * np.log10(signal / noise), abs=1.0)


def test_one_sample_scores_what_it_calibrated_and_the_report_says_so(tmp_path: Path) -> None:
    path = tmp_path / "samples.npz"
    np.savez(path, x=np.random.default_rng(5).standard_normal((1, 3, 12, 12)).astype(np.float32))
    report, _, _ = compiled(
        tmp_path / "a", conv_net(), {"preset": "ethos-u65"}, path, calibration="0" * 64
    )
    assert "none to hold out" in report["verification"]["scored_on"]
    assert "SCORED_ON_CALIBRATION" in {w["code"] for w in report["warnings"]}


def test_half_precision_is_cast_inside_the_region(tmp_path: Path) -> None:
    report, _, _ = compiled(tmp_path, conv_net(), {"preset": "xavier"}, precision=Precision.F16)
    assert report["verification"]["passed"] is True
    assert report["summary"]["host_ops"] == 0
    assert [b["kind"] for b in report["conversion"]["boundaries"]] == ["cast", "cast"]
    assert min(n["sqnr_db"] for n in report["verification"]["sqnr"]) > 40
    casts = [row for row in report["placement"] if row["is_inserted"]]
    assert {row["target"] for row in casts} == {"accelerator"}


def test_nothing_is_quantised_for_nothing(tmp_path: Path) -> None:
    report, _, _ = compiled(tmp_path, repeated_layers(2), {"preset": "dpu-zu"})
    assert report["partition"]["regions"] == []
    assert report["conversion"]["boundaries"] == []
    assert report["verification"]["max_rel_err"] <= 1e-5
    assert "CONVERSION_UNUSED" in {w["code"] for w in report["warnings"]}


def test_a_format_the_target_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError) as refused:
        compiled(tmp_path, conv_net(), {"preset": "xavier"}, precision=Precision.U8)
    assert refused.value.code == "TW-OPT-003"
    assert "f16" in refused.value.message


def detour() -> onnx.ModelProto:
    """A small pointwise island between two sorts: not worth a trip over the link."""
    k = numpy_helper.from_array(np.array([64], dtype=np.int64), "k")
    nodes = [
        helper.make_node("TopK", ["x", "k"], ["v", "i"], name="before"),
        helper.make_node("Relu", ["v"], ["r"], name="island"),
        helper.make_node("TopK", ["r", "k"], ["y", "j"], name="after"),
    ]
    graph = helper.make_graph(
        nodes,
        "detour",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 128])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 64])],
        [k],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_automatic_mode_keeps_small_islands_on_the_host(tmp_path: Path) -> None:
    greedy, _, _ = compiled(
        tmp_path / "g", detour(), {"preset": "a100"}, partition=PartitionChoice.GREEDY
    )
    auto, _, _ = compiled(
        tmp_path / "a", detour(), {"preset": "a100"}, partition=PartitionChoice.AUTO
    )
    assert greedy["summary"]["accelerator_ops"] == 1
    assert auto["summary"]["accelerator_ops"] == 0
    assert auto["summary"]["latency_cycles"] < greedy["summary"]["latency_cycles"]
    (row,) = [r for r in auto["placement"] if r["node"] == "island"]
    assert row["reason_code"] == "WEIGHED"
    (decision,) = auto["partition"]["decisions"]
    assert decision["action"] == "dropped"
    for side in ("accelerator_cycles", "transfer_cycles", "launch_cycles", "host_cycles"):
        assert decision[side] > 0


@pytest.mark.parametrize(
    "preset",
    ["xavier", *(pytest.param(p, marks=pytest.mark.campaign) for p in ("a100", "kapla-16x16"))],
)
def test_automatic_mode_is_never_slower(tmp_path: Path, preset: str) -> None:
    for name, model in (("conv", conv_net()), ("host", with_host_part())):
        cycles = []
        for choice in (PartitionChoice.CRITERIA, PartitionChoice.AUTO):
            report, _, _ = compiled(
                tmp_path / name / choice, model, {"preset": preset}, partition=choice
            )
            assert report["verification"]["passed"] is True
            cycles.append(report["summary"]["latency_cycles"])
        assert cycles[1] <= cycles[0]


TWO_TARGETS: dict[str, Any] = {
    "inherits": "xavier",
    "engines": [{"name": "TC", "macs_per_cycle": {"f32": 128}}],
    "name": "two",
    "capabilities": None,
    "targets": [
        {
            "name": "tensor",
            "priority": 10,
            "engines": ["TC", "CUDA"],  # biases are added on CUDA
            "capabilities": {
                "dtypes": ["f16", "f32"],
                "max_rank": 4,
                "ops": [{"op_type": "Conv"}, {"op_type": "Gemm"}],
            },
        },
        {
            "name": "general",
            "engines": ["CUDA"],
            "launch_latency_cycles": 777,
            "capabilities": {"dtypes": ["f32"], "max_rank": 8, "groups": ["broad"]},
        },
    ],
}


def test_two_accelerators_in_one_machine(tmp_path: Path) -> None:
    report, _, _ = compiled(tmp_path, conv_net(), TWO_TARGETS)
    assert report["verification"]["passed"] is True
    targets = {row["node"]: row["target"] for row in report["placement"]}
    assert targets["stem/conv"] == targets["block/conv"] == targets["head"] == "tensor"
    assert targets["relu"] == targets["pool"] == targets["prob"] == "general"
    assert report["summary"]["host_ops"] == 0
    general = [r for r in report["partition"]["regions"] if r["target"] == "general"]
    assert general
    for region in general:
        assert region["launch_cycles"] == 777 * region["kernels"]


def test_fallback_is_refused_by_name_when_asked(tmp_path: Path) -> None:
    with pytest.raises(CompilerError) as refused:
        compiled(tmp_path, conv_net(), {"preset": "dpu-zu"}, fail_on_fallback=True)
    assert refused.value.code == "TW-UNSUP-001"
    assert {f.node for f in refused.value.findings} == {"head", "prob"}
