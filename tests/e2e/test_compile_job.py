"""Whole jobs on small models: files in, verified artifacts out."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import conv_net, repeated_layers, saved, with_host_part

from worker.compiler.cache import MemoryCache
from worker.compiler.errors import CompilerError, OptionError
from worker.compiler.options import CompileOptions, VerifyMode
from worker.compiler.package.runtime import run_bundle
from worker.job.job import JobRequest, run_job

PRESETS = ("stcp920-inferred", "a100", "kapla-16x16")


class Recorder:
    """A progress sink that remembers."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, str]] = []
        self.counts: list[tuple[int, int, int]] = []
        self.artifacts: list[str] = []

    def stage(self, name: str, state: str) -> None:
        self.stages.append((name, state))

    def units(self, solved: int, cached: int, total: int) -> None:
        self.counts.append((solved, cached, total))

    def artifact(self, name: str, file_name: str) -> None:
        del file_name
        self.artifacts.append(name)


def compile_to(
    folder: Path,
    model: onnx.ModelProto,
    preset: str = "stcp920-inferred",
    cache: MemoryCache | None = None,
    **options: Any,
) -> tuple[dict[str, Any], Recorder, str]:
    folder.mkdir(parents=True, exist_ok=True)
    chosen = CompileOptions(**{"verify": VerifyMode.FULL, **options})
    # Equal kernels of several tests are compiled once: libraries are found by what is in them.
    libraries = folder.parents[1] / "build"
    request = JobRequest(saved(model, folder), "model", {"preset": preset}, chosen, libraries)
    progress = Recorder()
    used = MemoryCache() if cache is None else cache
    outcome = run_job(request, folder / "out", used, progress)
    report = json.loads((folder / "out" / "report.json").read_bytes())
    return report, progress, outcome.bundle_digest


def run_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out" / "run.json").read_bytes())
    return found


@pytest.mark.parametrize("preset", PRESETS)
def test_conv_net_verifies_and_its_report_is_consistent(tmp_path: Path, preset: str) -> None:
    report, progress, digest = compile_to(tmp_path / "a", conv_net(), preset)
    out = tmp_path / "a" / "out"
    assert report["schema_version"] == 3
    assert report["verification"]["passed"] is True
    assert report["verification"]["max_rel_err"] <= 1e-5
    assert all(check["passed"] for check in report["sanity"])
    summary = report["summary"]
    assert sum(row["cycles_total"] for row in report["layers"]) == summary["latency_cycles"]
    assert summary["latency_cycles"] >= summary["lower_bound_cycles"] > 0
    assert summary["host_ops"] == 0
    assert summary["accelerator_mac_pct"] == 100.0
    expected_macs = 12 * 12 * 8 * 9 * (3 + 8) + 288 * 10
    assert summary["macs"] == expected_macs
    assert {row["node"] for row in report["placement"]} >= {"stem/conv", "block/add", "head"}
    assert {row["reason_code"] for row in report["placement"]} <= {"OFFLOADED", "VIEW"}
    finished = [name for name, state in progress.stages if state == "finished"]
    assert finished == ["ingest", "simplify", "convert", "partition", "schedule", "codegen",
                        "simulate", "package", "verify", "report"]  # fmt: skip
    assert set(progress.artifacts) == {"graph", "placement", "schedule", "trace", "bundle",
                                       "layers", "report_html", "report", "run"}  # fmt: skip
    assert hashlib.sha256((out / "model.twb").read_bytes()).hexdigest() == digest
    rows = list(csv.DictReader(io.StringIO((out / "layers.csv").read_text())))
    assert sum(int(r["cycles_total"]) for r in rows) == summary["latency_cycles"]
    assert [r["part"] for r in rows][:2] == ["kernel", "nodes"]
    trace = json.loads(gzip.decompress((out / "trace.json.gz").read_bytes()))
    assert any(e.get("ph") == "X" for e in trace["traceEvents"])


def test_report_page_needs_no_network_and_escapes_names(tmp_path: Path) -> None:
    model = conv_net()
    model.graph.node[0].name = '<script>alert("x")</script>'
    compile_to(tmp_path / "a", model)
    page = (tmp_path / "a" / "out" / "report.html").read_text()
    assert "<script" not in page
    assert "http:" not in page
    assert "https:" not in page
    assert page.count("<svg") >= 4


def test_bundle_runs_on_new_inputs(tmp_path: Path) -> None:
    compile_to(tmp_path / "a", conv_net(), verify=VerifyMode.NONE)
    x = np.random.default_rng(11).standard_normal((1, 3, 12, 12)).astype(np.float32)
    got = run_bundle(tmp_path / "a" / "out" / "model.twb", {"x": x}, tmp_path / "build")
    import onnxruntime

    session = onnxruntime.InferenceSession(conv_net().SerializeToString())
    (want,) = session.run(["y"], {"x": x})
    np.testing.assert_allclose(got["y"], want, rtol=1e-5, atol=1e-6)


def test_bundle_has_every_member_of_the_contract(tmp_path: Path) -> None:
    compile_to(tmp_path / "a", with_host_part(), verify=VerifyMode.NONE)
    with zipfile.ZipFile(tmp_path / "a" / "out" / "model.twb") as bundle:
        names = set(bundle.namelist())
        manifest = json.loads(bundle.read("manifest.json"))
        assert all(e.date_time == (1980, 1, 1, 0, 0, 0) for e in bundle.infolist())
    assert {"manifest.json", "model/graph.json", "program.bin", "program.txt", "schedule.json",
            "weights.safetensors", "report.json", "trace.json.gz",
            "kernels/tilewright_rt.h"} <= names  # fmt: skip
    assert any(n.startswith("host/") for n in names)
    assert {m["name"] for m in manifest["members"]} == names - {"manifest.json"}


def test_equal_layers_are_one_unit_and_the_second_compile_solves_nothing(tmp_path: Path) -> None:
    cache = MemoryCache()
    naive = {"strategy": "naive"}
    first, _, one = compile_to(tmp_path / "a", repeated_layers(), cache=cache, **naive)
    cold = run_of(tmp_path / "a")
    assert first["summary"]["kernels"] == 8
    assert first["summary"]["kernels_unique"] == 2
    assert (cold["cache"]["hits"], cold["cache"]["misses"]) == (0, 2)
    assert set(cold["timings"]) >= {"ingest", "schedule", "verify"}
    _, progress, two = compile_to(tmp_path / "b", repeated_layers(), cache=cache, **naive)
    warm = run_of(tmp_path / "b")
    assert (warm["cache"]["hits"], warm["cache"]["misses"]) == (2, 0)
    assert warm["cache"]["units"] == dict.fromkeys(cold["cache"]["units"], "hit")
    assert one == two
    written = sorted(path.name for path in (tmp_path / "a" / "out").iterdir())
    assert "run.json" in written
    for name in written:
        if name != "run.json":
            cold_bytes = (tmp_path / "a" / "out" / name).read_bytes()
            assert (tmp_path / "b" / "out" / name).read_bytes() == cold_bytes, name
    assert {solved for solved, _, _ in progress.counts} == {0}


def test_cache_is_keyed_by_machine_and_required_entries_are_demanded(tmp_path: Path) -> None:
    cache = MemoryCache()
    compile_to(tmp_path / "a", repeated_layers(), cache=cache)
    with pytest.raises(OptionError) as refusal:
        compile_to(tmp_path / "b", repeated_layers(), "a100", cache=cache, require_cache=True)
    assert refusal.value.code == "TW-OPT-002"


def test_host_parts_have_reasons_and_still_verify(tmp_path: Path) -> None:
    report, _, _ = compile_to(tmp_path / "a", with_host_part())
    rows = {row["node"]: row for row in report["placement"]}
    assert rows["top"]["target"] == "host"
    assert rows["top"]["reason_code"] != "OFFLOADED"
    assert len(rows["top"]["reason"]) > 10
    assert report["verification"]["passed"] is True
    names = [row["name"] for row in report["verification"]["outputs"]]
    assert "before TopK: m0" in names  # what the selection was given is judged too
    assert [n for n in names if not n.startswith(("kernel ", "before "))] == ["y"]
    assert report["summary"]["boundary_bytes"] > 0
    assert [row["placement"] for row in report["layers"]].count("host") == 1


def test_fail_on_fallback_names_every_fallen_node(tmp_path: Path) -> None:
    with pytest.raises(CompilerError) as refusal:
        compile_to(tmp_path / "a", with_host_part(), fail_on_fallback=True)
    assert refusal.value.code == "TW-UNSUP-001"
    assert refusal.value.entry.exit_code == 4
    assert [f.node for f in refusal.value.findings] == ["top"]


def test_symbols_are_bound_by_the_user(tmp_path: Path) -> None:
    with pytest.raises(CompilerError) as refusal:
        compile_to(tmp_path / "a", conv_net("batch"))
    assert refusal.value.code == "TW-MODEL-012"
    report, _, _ = compile_to(tmp_path / "b", conv_net("batch"), symbols=(("batch", 3),))
    assert report["verification"]["passed"] is True


def test_sample_mode_checks_each_unique_kernel_once(tmp_path: Path) -> None:
    report, _, _ = compile_to(tmp_path / "a", repeated_layers(), verify=VerifyMode.SAMPLE)
    names = [row["name"] for row in report["verification"]["outputs"]]
    assert sum(n.startswith("kernel ") for n in names) == report["summary"]["kernels_unique"]
    assert report["verification"]["passed"] is True


def test_without_a_compiler_everything_but_verification_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    report, _, _ = compile_to(tmp_path / "own" / "libraries" / "a", repeated_layers())
    assert report["verification"]["passed"] is None
    assert "compiler" in report["verification"]["detail"].lower()
    assert report["summary"]["latency_cycles"] > 0


def test_an_operator_that_fits_nowhere_goes_to_the_host_with_the_lever(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    tiny = {
        "inherits": "kapla-16x16",
        "name": "tiny",
        "levels": [{"name": "GBUF", "capacity_bytes": 32}],
    }
    request = JobRequest(
        saved(repeated_layers(1), folder), "m", tiny, CompileOptions(verify=VerifyMode.FULL),
        tmp_path / "build",
    )  # fmt: skip
    run_job(request, folder / "out", MemoryCache(), Recorder())
    report = json.loads((folder / "out" / "report.json").read_bytes())
    rows = {row["node"]: row for row in report["placement"]}
    assert report["verification"]["passed"] is True
    fallen = [row for row in rows.values() if row["target"] == "host"]
    assert [row["node"] for row in fallen] == ["layer0/matmul"]
    for row in fallen:
        assert row["reason_code"] == "DOES_NOT_FIT"
        assert "GBUF needs 48 bytes, has 32" in row["reason"]
        assert "raise the capacity of GBUF" in row["reason"]


_CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from onnx_models import conv_net, one_conv, saved
from worker.compiler.cache import MemoryCache
from worker.compiler.options import CompileOptions
from worker.job.job import JobRequest, run_job
from worker.job.request import NoProgress
folder = Path(sys.argv[1])
for strategy, preset, model in (
    ("naive", "a100", conv_net()),
    ("graphturbo", "stcp920-inferred", conv_net()),
    # Its tilings cost alike by the dozen, and which of them come first decides.
    ("naive", "stcp920-inferred", one_conv(56, 64, 128, kernel=1, stride=2)),
):
    options = CompileOptions.from_json({"verify": "none", "strategy": strategy})
    request = JobRequest(saved(model, folder), "m", {"preset": preset}, options,
                         folder / "build")
    out = folder / f"{strategy}-{preset}"
    print(run_job(request, out, MemoryCache(), NoProgress()).bundle_digest)
"""


def _vectors() -> list[str]:
    """What numpy uses of this processor and can do without."""
    found = np.show_config(mode="dicts")
    assert isinstance(found, dict)
    return list(found["SIMD Extensions"].get("found", []))


def test_hash_seeds_and_processors_make_no_difference(tmp_path: Path) -> None:
    """Vectors as wide as they come, those of most machines, and none."""
    tests = str(Path(__file__).parent.parent)
    digests = set()
    vectors = _vectors()
    most = [name for name in vectors if name == "X86_V4" or "AVX512" in name]
    for seed, without in (("1", []), ("4242", most), ("7", vectors)):
        folder = tmp_path / seed
        folder.mkdir()
        child = subprocess.run(
            [sys.executable, "-c", _CHILD, str(folder), tests],
            env={
                **os.environ, "PYTHONHASHSEED": seed, "NPY_DISABLE_CPU_FEATURES": " ".join(without)
            },
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        digests.add(child.stdout.strip())
    assert len(digests) == 1
    assert len(digests.pop().split()) == 3
    for cell in ("naive-a100", "graphturbo-stcp920-inferred"):
        files = {(tmp_path / seed / cell / "layers.csv").read_bytes() for seed in ("1", "4242")}
        assert len(files) == 1


def test_zip_bundle_with_external_data_verifies(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    model = repeated_layers()
    onnx.save_model(
        model,
        folder / "net.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    with zipfile.ZipFile(folder / "net.zip", "w") as archive:
        archive.write(folder / "net.onnx", "deep/net.onnx")
        archive.write(folder / "weights.bin", "deep/weights.bin")
    request = JobRequest(
        folder / "net.zip",
        "net",
        {"preset": "a100"},
        CompileOptions(verify=VerifyMode.FULL),
        tmp_path / "build",
    )
    run_job(request, folder / "out", MemoryCache(), Recorder())
    report = json.loads((folder / "out" / "report.json").read_bytes())
    assert report["verification"]["passed"] is True
