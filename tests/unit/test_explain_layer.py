"""`tilewright explain layer`: what a kernel does, held against its report and against compiles."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import lower_toys as toys
import pytest
from click.testing import Result
from onnx_models import conv_net, saved, with_host_part
from typer.testing import CliRunner

from service.cli.main import app
from worker.children.explain_child import explained
from worker.compiler.cache import MemoryCache
from worker.compiler.errors import CompilerError, OptionError
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import digest, load_machine, load_preset, preset_names
from worker.compiler.options import CompileOptions
from worker.explain import layer
from worker.explain.doubled import doubled
from worker.explain.nest import lines_of
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress

CHIP: dict[str, Any] = {
    "schema_version": 1,
    "name": "plain",
    "inherits": "kapla-16x16",
    "levels": [{"name": "DRAM", "burst_bytes": 1, "sustained_fraction": 1,
                "read_bytes_per_cycle": 32, "write_bytes_per_cycle": 32},
               {"name": "GBUF", "capacity_bytes": 2048}],
}  # fmt: skip
"""Moves any byte alone, so that its traffic is what instructions carry."""


def compiled(folder: Path, hardware: dict[str, Any], model: Any = conv_net) -> Path:
    """The folder of a job's results."""
    folder.mkdir(parents=True, exist_ok=True)
    options = CompileOptions.from_json({"strategy": "naive", "verify": "none"})
    request = JobRequest(saved(model(), folder), "m", hardware, options, folder / "b")
    run_job(request, folder / "out", MemoryCache(), NoProgress())
    return folder / "out"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("explained"), CHIP)


def kernels(folder: Path) -> list[dict[str, Any]]:
    """Layers that run on the accelerator."""
    report = json.loads((folder / "report.json").read_bytes())
    return [row for row in report["layers"] if row["signature"]]


def told(folder: Path, index: int, *, asks: bool = True) -> dict[str, Any]:
    """What the payload says, as JSON carries it."""
    request = {"source": str(folder / "m.twb"), "index": index, "asks": asks}
    found: dict[str, Any] = json.loads(json.dumps(explained(request)))
    return found


@pytest.fixture(scope="module")
def everything(results: Path) -> dict[int, dict[str, Any]]:
    """Of every kernel, by layer."""
    return {row["index"]: told(results, row["index"]) for row in kernels(results)}


def explain(*words: object) -> Result:
    return CliRunner().invoke(app, ["explain", "layer", *map(str, words)])


def test_it_says_what_the_report_says(results: Path, everything: dict[int, dict[str, Any]]) -> None:
    """Cycles and causes of every layer, and the bytes of its moves are those of its ports."""
    for row in kernels(results):
        found = everything[row["index"]]
        assert found["cycles"] == row["cycles_total"] - row["overhead_cycles"]
        assert found["predicted_cycles"] == row["predicted_cycles"]
        assert sum(cause["cycles"] for cause in found["causes"]) == found["cycles"]
        assert found["onnx_nodes"] == row["onnx_nodes"]
        moves = [line for line in found["nest"] if line["moved_bytes"] is not None]
        for words, column in ((" DRAM -> ", "bytes_DRAM_read"), (" -> DRAM: ", "bytes_DRAM_write")):
            assert sum(m["moved_bytes"] for m in moves if words in m["text"]) == row[column]
    alone = told(results, row["index"], asks=False)
    assert alone == {**found, "candidates": [], "what_if": []}


def test_its_own_schedule_is_among_what_its_strategy_offers(
    everything: dict[int, dict[str, Any]],
) -> None:
    for found in everything.values():
        (own,) = (one for one in found["candidates"] if one["is_chosen"])
        assert own["cycles"] == found["cycles"]
        assert own["cycles"] == min(one["cycles"] for one in found["candidates"])


WIDER = {"read_bytes_per_cycle": 64, "write_bytes_per_cycle": 64}
DOUBLED: dict[str, dict[str, Any]] = {
    "DRAM.bytes_per_cycle": {"levels": [{**CHIP["levels"][0], **WIDER}, CHIP["levels"][1]]},
    "GBUF.capacity_bytes": {
        "levels": [CHIP["levels"][0], {"name": "GBUF", "capacity_bytes": 4096}]
    },
    "PE.macs_per_cycle": {"engines": [{"name": "PE", "macs_per_cycle": {
        "i16": 128, "f16": 128, "i8": 128, "u8": 128, "f32": 32}}]},
}  # fmt: skip


@pytest.mark.parametrize("resource", DOUBLED)
def test_twice_as_much_is_what_a_compile_of_that_chip_takes(
    everything: dict[int, dict[str, Any]], tmp_path: Path, resource: str
) -> None:
    changed = compiled(tmp_path, {**CHIP, **DOUBLED[resource]})
    other = {row["index"]: row for row in kernels(changed)}
    gains = []
    for index, kernel in everything.items():
        (found,) = (w for w in kernel["what_if"] if w["resource"] == resource)
        want = other[index]
        assert found["cycles"] == want["cycles_total"] - want["overhead_cycles"]
        gains.append(found["factor"])
    assert max(gains) > 1.01


def test_cells_that_keep_rows_have_more_of_twice_as_many_registers() -> None:
    of_registers = {"levels": [{"name": "SPAD", "capacity_bytes": 2 * 87_696}]}
    want = load_machine({"name": "more", "inherits": "eyeriss", **of_registers})
    changes = {change.resource: change.machine for change in doubled(load_preset("eyeriss"))}
    assert changes["SPAD.capacity_bytes"].engines == want.engines
    assert changes["SPAD.bytes_per_cycle"].engines == load_preset("eyeriss").engines


def test_it_is_printed(results: Path) -> None:
    row = kernels(results)[0]
    done = explain(row["index"], results)
    assert done.exit_code == 0, done.output
    for words in (
        f"layer {row['index']}, by naive", "no schedule takes less than", "bytes in use at most",
        "operators (* is summed over)", "cores", " x, ", "what its strategy offers",
        "with twice as much, or half the wait",
    ):  # fmt: skip
        assert words in done.stdout, words


def test_what_is_no_kernel_is_refused(tmp_path: Path) -> None:
    folder = compiled(tmp_path, CHIP, with_host_part)
    report = json.loads((folder / "report.json").read_bytes())
    host = next(row["index"] for row in report["layers"] if not row["signature"])
    with pytest.raises(CompilerError, match="it runs on the host"):
        told(folder, host)
    missing = explain(999, folder)
    assert missing.exit_code == 3
    assert "no layer 999" in missing.output
    assert explain(0).exit_code == 3
    assert CliRunner().invoke(app, ["explain", "TW-SPEC-001", "3"]).exit_code == 3


def test_a_strategy_that_is_not_here_is_not_asked(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str, options: CompileOptions) -> None:
        raise OptionError("TW-OPT-001", f"no strategy {name} is installed here")

    monkeypatch.setattr(layer, "entrant", absent)
    found = told(results, kernels(results)[0]["index"])
    assert found["note"] == "no strategy naive is installed here"
    assert found["candidates"] == found["what_if"] == []
    assert found["nest"]


def test_loops_and_lists_move_the_same() -> None:
    schedule, machine = toys.naive_matmul(8, 8, 32, (2, 4, 2), 2), toys.flat_machine()
    listed = lower_unit(schedule, machine, "0" * 64)
    looped = lower_unit(schedule, machine, "0" * 64, most_rows=0)
    assert len(looped.loops.table) > len(listed.loops.table) == 0
    lines = lines_of(schedule, listed)
    assert lines == lines_of(schedule, looped)
    leaves = [line for line in lines if line.instructions is not None]
    assert sum(line.instructions or 0 for line in leaves) == listed.num_instructions
    assert all(line.instructions for line in leaves)


@pytest.mark.parametrize("preset", preset_names())
def test_one_thing_is_doubled_at_a_time(preset: str) -> None:
    machine = load_preset(preset)
    found = list(doubled(machine))
    assert len({change.resource for change in found}) == len(found)
    assert len({digest(change.machine) for change in found} | {digest(machine)}) > len(found)
    for change in found:
        differs = [
            f.name for f in fields(machine)
            if getattr(machine, f.name) != getattr(change.machine, f.name)
        ]  # fmt: skip
        expected = {"levels", "engines", "links", "num_cores", "signal_cycles",
                    "engine_signal_cycles"}  # fmt: skip
        assert set(differs) <= expected
        # Registers that are spread over an array's cells are the cells' as well.
        is_spread = any(
            e.dataflow is not None and f"{e.dataflow.registers}.capacity_bytes" == change.resource
            for e in machine.engines
        )
        assert len(differs) == 1 + is_spread or change.resource == "num_cores"


@pytest.fixture(scope="module")
def directed(results: Path) -> tuple[int, Path]:
    """A layer, and its directives as exported."""
    out = results.parent / "directives"
    done = CliRunner().invoke(
        app, ["export", str(results), "--to", "directives", "-o", str(out), "--json"]
    )
    assert done.exit_code == 0, done.output
    row = next(row for row in json.loads(done.stdout)["items"] if row["state"] == "exported")
    known = row["kernel"].split("_")[2]
    index = next(k["index"] for k in kernels(results) if k["signature"].startswith(known))
    return index, out / f"{row['as']}.directives"


def test_a_layer_is_weighed_as_its_directives_have_it(
    results: Path, directed: tuple[int, Path]
) -> None:
    index, file = directed
    done = explain(index, results, "--directives", file, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    own, new = found["weighed"]
    assert (own["schedule"], new["schedule"]) == ("naive", "directives")
    assert {**own, "schedule": ""} == {**new, "schedule": ""}
    assert (found["candidates"], found["predicted_cycles"]) == ([], None)
    shown = explain(index, results, "--directives", file)
    assert f"layer {index}, by directives" in shown.output
    assert "home_bytes" in shown.output


def test_directives_that_are_none_or_do_not_fit_the_chip_are_the_users(
    results: Path, directed: tuple[int, Path], tmp_path: Path
) -> None:
    index, file = directed
    other = tmp_path / "other.directives"
    other.write_text("layer nothing()\n")
    done = explain(index, results, "--directives", other)
    assert done.exit_code == 2
    assert "TW-DIRECTIVE-001" in done.output
    other.write_text(
        file.read_text().replace(")  # ", ") copies=2048  # ").replace("copies=2 ", "")
    )
    done = explain(index, results, "--directives", other)
    assert done.exit_code == 2
    assert "TW-DIRECTIVE-001" in done.output
    assert "capacity" in done.output
    done = CliRunner().invoke(app, ["explain", "TW-INT-001", "--directives", str(file)])
    assert done.exit_code == 3
    assert "takes nothing behind the code" in done.output
