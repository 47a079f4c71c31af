"""The example's NPU on whole small nets: its simulator's cycles beside the prediction, its bits."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from vendor_nets import NETS

from benchmarks.zoo import ZooModel, materialized
from worker.compiler import vendors
from worker.compiler.cache import MemoryCache
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.simplify import simplify
from worker.compiler.machine import load_machine, parse_document
from worker.compiler.options import CompileOptions, VerifyMode
from worker.compiler.oracles import asked
from worker.compiler.package.runtime import load_bundle
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress
from worker.verification.inputs import seeded_inputs

EXAMPLE = Path(__file__).parents[2] / "examples" / "vendor_npu"
GROUPS = {
    vendors.SERIALIZERS: "SERIALIZER", vendors.ENGINES: "ENGINE", vendors.ORACLES: "ORACLE",
}  # fmt: skip
ON_HOST = {"transformer": {"MatMul", "Softmax", "Transpose"}}
"""Beside conversions: products of two activations, and what turns axes or adds over them."""
SHARED = Path(os.environ.get("TILEWRIGHT_TEST_MODELS", "/nowhere")) / "third_party"


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As pip would have it, without pip."""
    own = vendors.entry_points

    def found(group: str) -> list[EntryPoint]:
        mine = EntryPoint("npu", f"vendor_npu.descriptor:{GROUPS[group]}", group)
        return [*own(group=group), mine]

    before = set(sys.modules)
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.setattr(vendors, "entry_points", found)
    listed = (
        vendors.installed_serializers, vendors.installed_engines, vendors.installed_oracles,
    )  # fmt: skip
    for each in listed:
        each.cache_clear()
    yield
    for each in listed:
        each.cache_clear()
    for name in set(sys.modules) - before:
        if name.split(".")[0] == "vendor_npu":
            del sys.modules[name]


def chip() -> dict[str, Any]:
    return parse_document((EXAMPLE / "chip.yaml").read_text())


def ran(
    folder: Path, model: Path, beside: tuple[str, ...] = ("kernels", "interpreter"), **symbols: int
) -> tuple[dict[str, Any], int]:
    """(report, cycles by the NPU's own clock), with its bits held against other engines'."""
    bound = tuple(sorted(symbols.items()))
    options = CompileOptions(strategy="naive", verify=VerifyMode.SAMPLE, symbols=bound)
    request = JobRequest(model, "net", chip(), options, folder / "build")
    run_job(request, folder / "out", MemoryCache(), NoProgress())
    report = json.loads((folder / "out" / "report.json").read_bytes())
    assert report["verification"]["passed"] is True
    inputs = seeded_inputs(simplify(bind(load_model(model, Limits(), "net"), symbols)), 7)
    outputs, cycles = {}, 0
    for engine in ("", *beside):
        loaded = load_bundle(
            folder / "out" / "net.twb", folder / "build", engine=engine, clock=lambda: 0.0
        )
        found = loaded.runner.run(inputs)
        outputs[engine] = {name: value.tobytes() for name, value in found.items()}
        if not engine:
            assert set(loaded.engines) == {"vendor_npu_sim"}
            profile = loaded.runner.profile()
            assert profile is not None
            cycles = sum(call.cycles or 0 for call in profile.calls)
    assert all(outputs[""] == outputs[engine] for engine in beside)
    return report, cycles


def model_named(name: str, folder: Path) -> Path:
    if name in NETS:
        return NETS[name](folder / "net.onnx")
    path = SHARED / f"{name}.onnx"
    if not path.exists():
        pytest.skip("the shared models are not here")
    return path


def held(name: str, report: dict[str, Any], cycles: int) -> None:
    """Regions are all on the NPU and take what was predicted: what kernels take here, with their
    launches, beside what the simulator counts."""
    predicted = sum(row["cycles_total"] for row in report["layers"] if row["placement"] != "host")
    sys.stdout.write(f"{name}: predicted {predicted}, simulated {cycles}\n")
    assert abs(cycles - predicted) <= 0.1 * predicted
    assert not [row for row in report["warnings"] if row["code"] == "SERIALIZER_REFUSED"]
    on_host = {p["op_type"] for p in report["placement"] if p["target"] == "host"}
    assert on_host - {"QuantizeLinear", "DequantizeLinear"} == ON_HOST.get(name, set())


@pytest.mark.parametrize("name", [*NETS, "mnist_cnn"])
def test_cycles_are_within_a_tenth_of_the_prediction(name: str, tmp_path: Path) -> None:
    report, cycles = ran(tmp_path, model_named(name, tmp_path))
    held(name, report, cycles)
    with zipfile.ZipFile(tmp_path / "out" / "net.twb") as archive:
        assert b"intrinsic=product" in archive.read("schedule.json")


@pytest.mark.document
@pytest.mark.parametrize(("name", "symbols"), [("resnet18", {}), ("mobilenet_v2", {"N": 1})])
def test_whole_classifiers_run_on_it(name: str, symbols: dict[str, int], tmp_path: Path) -> None:
    if not (SHARED.parent / f"{name}.skel.onnx.gz").exists():
        pytest.skip("the shared models are not here")
    model = materialized(ZooModel(name, name), tmp_path)
    held(name, *ran(tmp_path, model, ("kernels",), **symbols))


def test_the_oracle_answers_as_the_data_sheet_says() -> None:
    """A row a cycle for every 16 of depth and 32 columns, and 8 to fill."""
    machine = asked(load_machine(chip()), MemoryCache())
    (intrinsic,) = machine.engine("ARRAY").intrinsics
    (size,) = intrinsic.sizes
    for rows, columns, depth in ((1, 1, 1), (64, 32, 256), (7, 32, 17), (64, 5, 240)):
        assert size.cycles((rows, columns, depth)) == 8 + rows * -(-depth // 16)
    assert size.peak == 64 * 32 * 256 / (8 + 64 * 16)
