"""`tilewright certify`: certificates of schedules, checked one tiling at a time."""

from __future__ import annotations

import csv
import json
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import lower_toys as toys
import pytest
from click.testing import Result
from onnx_models import conv_net, saved
from typer.testing import CliRunner

from service.cli.main import app
from worker.compiler.cache import MemoryCache
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.signature import canonicalize
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.text import parse_schedule, print_schedule
from worker.compiler.strategies.naive.certificate import Certificate, Space
from worker.compiler.strategies.naive.check import check
from worker.compiler.strategies.naive.strategy import NAIVE
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress


def scheduled(graph: Graph, machine: Machine) -> Schedule:
    found = next(iter(NAIVE.candidates(canonicalize(graph).graph, machine)))
    assert isinstance(found, Schedule)
    return parse_schedule(print_schedule(found))  # the note stands in its text


def said(schedule: Schedule) -> Certificate:
    [found] = filter(None, map(Certificate.said, schedule.notes))
    return found


def test_small_spaces_are_looked_at_as_a_whole() -> None:
    """And the best of them is what was found, but for what nothing is looked for."""
    schedule = scheduled(toys.matmul_graph(6, 5, 4, DType.F32), toys.flat_machine(2, 160))
    found = check(schedule, toys.flat_machine(2, 160))
    assert found is not None
    assert found.is_whole
    assert found.holds
    assert found.bound <= found.least <= found.best * (1 + 1e-6)
    assert found.best == pytest.approx(said(schedule).best)


@pytest.mark.parametrize(
    ("preset", "shape"),
    [("a100", (512, 384, 256)), ("stcp920-inferred", (96, 128, 64)), ("simba", (64, 64, 64))],
)
def test_of_large_spaces_a_thousand_tilings_are_drawn(
    preset: str, shape: tuple[int, int, int]
) -> None:
    machine = load_preset(preset)
    dtype = DType.I8 if preset == "simba" else DType.F16
    schedule = scheduled(toys.matmul_graph(*shape, dtype), machine)
    found = check(schedule, machine)
    assert found is not None
    assert not found.is_whole
    assert found.holds
    assert found.tilings >= 500
    assert check(schedule, machine) == found  # the same ones again


def test_spaces_are_told_and_read_back() -> None:
    spaces = (
        Space(("LLB", "L1"), joins=True, registers="REG", alone=True, strips=8, beside=True),
        Space(("SMEM",), joins=False, registers="", alone=False, strips=1, beside=False),
    )
    told = Certificate(12.5, 12.25, 13.0, spaces, 7, 2, 3)
    assert str(told) == (
        "best tiling 12.500, another 13.000, none below 12.250 in LLB/L1 joined summed in REG alone"
        " in 8 strips beside, SMEM: 7 boxes, 2 ruled out, 3 tilings"
    )
    assert Certificate.said(str(told)) == told
    lone = replace(told, second=None)
    assert Certificate.said(str(lone)) == lone
    assert Certificate.said("something else") is None
    with pytest.raises(ValueError, match="fast"):
        Certificate.said(str(told).replace("SMEM", "SMEM fast"))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certified")
    options = CompileOptions.from_json({"strategy": "naive", "verify": "none"})
    chip = {"preset": "kapla-edge"}
    request = JobRequest(saved(conv_net(), folder), "m", chip, options, folder / "b")
    run_job(request, folder / "out", MemoryCache(), NoProgress())
    return folder / "out" / "m.twb"


def certified(bundle: Path) -> Result:
    return CliRunner().invoke(app, ["certify", str(bundle), "--json"])


def changed(bundle: Path, path: Path, change: Callable[[str], str]) -> Path:
    """The bundle with other schedules; its manifest names their digests."""
    import hashlib

    with zipfile.ZipFile(bundle) as old, zipfile.ZipFile(path, "w") as new:
        members = {info.filename: old.read(info) for info in old.infolist()}
        manifest = json.loads(members["manifest.json"])
        schedules = {row["schedule"] for row in manifest["provenance"]}
        for row in manifest["members"]:
            if row["name"] in schedules:
                data = change(members[row["name"]].decode()).encode()
                members[row["name"]] = data
                row["sha256"], row["size_bytes"] = hashlib.sha256(data).hexdigest(), len(data)
        members["manifest.json"] = json.dumps(manifest).encode()
        for name, data in members.items():
            new.writestr(name, data)
    return path


def test_a_bundle_is_checked_kernel_by_kernel(bundle: Path) -> None:
    result = certified(bundle)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["items"]
    assert rows
    for row in rows:
        assert row["strategy"] == "naive"
        assert row["certificate"]["holds"]
        assert row["certificate"]["bound"] <= row["certificate"]["least"]
    shown = CliRunner().invoke(app, ["certify", str(bundle)])
    assert f"{len(rows)} of {len(rows)} kernels have a certificate, 0 of which" in shown.stdout


def test_the_layer_table_has_certificates(bundle: Path) -> None:
    """As the summary has them, in report.json and in layers.csv."""
    folder = bundle.parent
    report = json.loads((folder / "report.json").read_bytes())
    kernels = report["summaries"]["naive"]["kernels"]
    assert kernels
    named = {kernel["predicted_cycles"]: kernel for kernel in kernels}
    with (folder / "layers.csv").open(newline="") as file:
        table = [row for row in csv.DictReader(file) if row["part"] != "nodes"]
    assert len(table) == len(report["layers"])
    for line, row in zip(table, report["layers"], strict=True):
        kernel = named[row["predicted_cycles"]]
        for name in ("best", "bound", "gap", "second", "boxes", "cut", "tilings"):
            assert row[f"naive_{name}"] == kernel[name]
            assert line[f"naive_{name}"] == ("" if kernel[name] is None else str(kernel[name]))
        assert row["naive_spaces"] == ", ".join(kernel["spaces"])


def test_a_bound_that_is_too_high_is_seen(bundle: Path, tmp_path: Path) -> None:
    def claim(text: str) -> str:
        lines = text.splitlines(keepends=True)
        for k, line in enumerate(lines):
            if line.startswith("note best tiling "):
                before, _, rest = line.partition(" none below ")
                _, _, where = rest.partition(" in ")
                best = float(before.removeprefix("note best tiling ").partition(",")[0])
                lines[k] = f"{before} none below {1.5 * best:.3f} in {where}"
        return "".join(lines)

    result = certified(changed(bundle, tmp_path / "high.twb", claim))
    assert result.exit_code == 1, result.output
    rows = json.loads(result.stdout)["items"]
    assert not any(row["certificate"]["holds"] for row in rows)


def test_a_runner_up_that_is_better_is_seen(bundle: Path, tmp_path: Path) -> None:
    def claim(text: str) -> str:
        return re.sub(r"(best tiling [\d.]+, another )(?:[\d.]+|none)", r"\g<1>0.001", text)

    result = certified(changed(bundle, tmp_path / "second.twb", claim))
    assert result.exit_code == 1, result.output


def test_a_space_that_the_machine_has_not_is_damage(bundle: Path, tmp_path: Path) -> None:
    path = changed(bundle, tmp_path / "other.twb", lambda text: text.replace(" in GBUF", " in L7"))
    result = certified(path)
    assert result.exit_code not in (0, 1)
    assert "TW-RUN-001" in result.output


def test_what_claims_nothing_is_said(tmp_path: Path) -> None:
    options = CompileOptions.from_json(
        {"strategy": "naive", "verify": "none", "strategy_options": {"naive": {"tiles": "grown"}}}
    )
    chip = {"preset": "kapla-edge"}
    request = JobRequest(saved(conv_net(), tmp_path), "m", chip, options, tmp_path / "b")
    run_job(request, tmp_path / "out", MemoryCache(), NoProgress())
    result = certified(tmp_path / "out" / "m.twb")
    assert result.exit_code == 0, result.output
    assert all(row["certificate"] is None for row in json.loads(result.stdout)["items"])
