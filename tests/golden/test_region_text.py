"""A region as C, as JSON graph and as disassembled stream, as golden files."""

from __future__ import annotations

from pathlib import Path

import pytest
from corpus_files import CORPUS, body, machine_named
from region_bundles import bundled, members
from typer.testing import CliRunner

from service.cli.main import app
from worker.compiler.codegen.region_driver import generate_region, generate_regions_header
from worker.compiler.isa.program import OperandRole
from worker.compiler.lower.lower import lower_unit
from worker.compiler.package.executable import level_specs
from worker.compiler.package.region_code import (
    DataEntry,
    EntryRole,
    RegionCall,
    RegionCode,
    driver_of,
)
from worker.compiler.package.stream.codec import encode_stream
from worker.compiler.package.stream.tasks import unit_tasks
from worker.compiler.schedule.text import parse_schedule

GOLDEN = Path(__file__).parent / "region"
_ROLE = {
    OperandRole.INPUT: EntryRole.INPUT,
    OperandRole.CONSTANT: EntryRole.CONSTANT,
    OperandRole.OUTPUT: EntryRole.OUTPUT,
}


def rows_twice() -> RegionCode:
    """The pair of operators of the corpus, run twice: the second time on a view of
    what the first has written."""
    schedule = parse_schedule(body(CORPUS / "11_fused_rows.schedule"))
    machine = machine_named("one_core")
    unit = lower_unit(schedule, machine, "11_fused_rows")
    entries = [
        DataEntry(f"host/{o.tensor}", _ROLE[o.role], o.dtype, o.shape, 256 * k, o.size_bytes)
        for k, o in enumerate(unit.operands)
    ]
    written = [k for k, o in enumerate(unit.operands) if o.role is OperandRole.OUTPUT]
    (last,) = written
    given = entries[last]
    entries[last] = DataEntry(
        given.name, EntryRole.INTERMEDIATE, given.dtype, given.shape, given.address,
        given.size_bytes,
    )  # fmt: skip
    entries.append(
        DataEntry("seen as */ rows", EntryRole.INTERMEDIATE, given.dtype, given.shape,
                  given.address, given.size_bytes, last)
    )  # fmt: skip
    entries.append(
        DataEntry("y", EntryRole.OUTPUT, given.dtype, given.shape, 2048, given.size_bytes)
    )
    first = tuple(range(len(unit.operands)))
    again = tuple(len(first) + (k == last) for k in first)
    calls = (
        RegionCall(0, first, 5000, "Softmax", ("first",)),
        RegionCall(0, again, 0, "Softmax", ("second", "näxt")),
    )
    return RegionCode(
        3, "npu", "tw_region_3", tuple(entries), (unit,), ("tw_unit_golden",), calls,
        (unit_tasks(schedule, unit, machine),), level_specs(machine), machine.num_cores,
    )  # fmt: skip


def compare(name: str, text: str, request: pytest.FixtureRequest) -> None:
    path = GOLDEN / name
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


def test_c_text(request: pytest.FixtureRequest) -> None:
    driver = driver_of(rows_twice())
    compare("rows_twice.region.c", generate_region(driver), request)
    compare("rows_twice.regions.h", generate_regions_header([driver], "TW_REGIONS_H"), request)


def test_disassembly(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    stream = tmp_path / "stream.bin"
    stream.write_bytes(encode_stream(rows_twice()))
    result = CliRunner().invoke(app, ["disassemble", str(stream)])
    assert result.exit_code == 0, result.output
    assert body(CORPUS / "11_fused_rows.one_core.program") in result.stdout
    compare("rows_twice.stream", result.stdout, request)


def test_json_graph(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    files = members(bundled("view", tmp_path))
    compare("view.graph.json", files["regions/0/graph.json"].decode(), request)
