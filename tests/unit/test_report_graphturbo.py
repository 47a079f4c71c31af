"""What the report says of GraphTurbo: totals by calls, nulls where nothing is known, the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema_rs
import msgspec
import pytest
from graphturbo_summaries import lone, stages
from onnx_models import repeated_layers, saved
from strategy_options import of_variant
from typer.testing import CliRunner

from service.cli.main import app
from service.cli.summaries import print_summaries
from worker.compiler.cache import MemoryCache
from worker.compiler.frontend.limits import Limits
from worker.compiler.machine import load_preset
from worker.compiler.options import CompileOptions
from worker.compiler.pipeline import compile_model
from worker.compiler.strategies.graphturbo.descriptor import GraphTurboOptions, Variant
from worker.compiler.strategies.graphturbo.report_summary import GraphTurboSummary
from worker.compiler.strategies.graphturbo.summary import UnitSummary
from worker.compiler.strategies.sections import UnitNotes
from worker.job.ports import open_ports
from worker.job.request import NoProgress
from worker.job.simulation import simulate_model
from worker.report.document import Verification, report_document
from worker.report.nulls import null_reasons
from worker.report.page import report_page
from worker.report.summary_page import summaries_html

COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
MAYBE: dict[str, Any] = {"type": ["integer", "null"], "minimum": 0}
SHARE: dict[str, Any] = {"type": ["number", "null"]}
TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
FLAG: dict[str, Any] = {"type": "boolean"}


def record(**fields: dict[str, Any]) -> dict[str, Any]:
    """Exactly these fields."""
    return {"type": "object", "properties": fields, "required": list(fields),
            "additionalProperties": False}  # fmt: skip


def listed(row: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": row}


SCOPES = record(lb=COUNT, gb=COUNT, home=COUNT)
SCHEMA = record(
    schema_version={"const": 1},
    variant={"enum": [str(v) for v in Variant]},
    total=record(
        units=COUNT, calls=COUNT, layers=COUNT, operators=COUNT, groups=COUNT, instances=COUNT,
        tensors_by_scope=SCOPES, lb_tensors_pct=SHARE, spills=COUNT, spilled_bytes=COUNT,
        movements=COUNT, movement_bytes=COUNT, units_by_order=record(bfs=COUNT, dfs=COUNT,
        exact=COUNT), predicted_cycles=COUNT,
        simulated_cycles=MAYBE, prediction_error_pct=SHARE,
    ),
    units=listed(record(
        unit=COUNT, label=TEXT, calls=COUNT, layers=COUNT, operators=COUNT, instances=COUNT,
        samples_per_cluster=COUNT, iterations=COUNT, is_ahead=FLAG,
        groups=listed(record(layers=listed(COUNT), factor=MAYBE, peak_bytes=COUNT)),
        orders=listed(record(name={"enum": ["bfs", "dfs", "exact"]}, peak_bytes=COUNT,
                             spilled_bytes=COUNT, chosen=FLAG)),
        tensors_by_scope=SCOPES,
        spills=listed(record(tensor=TEXT, bytes=COUNT, scope={"enum": ["lb", "gb", "home"]},
                             rule=TEXT)),
        movements=listed(record(kind=TEXT, count=COUNT, bytes=COUNT)),
        predicted_cycles=COUNT, simulated_cycles=MAYBE,
        sections=listed(record(name=TEXT, predicted_cycles=COUNT)),
    )),
)  # fmt: skip


def section(*units: UnitSummary, variant: Variant = Variant.FULL) -> dict[str, Any]:
    found = msgspec.json.encode(GraphTurboSummary.about(units, variant))
    return json.loads(found)  # type: ignore[no-any-return]


def report(*units: UnitSummary, variant: Variant = Variant.FULL) -> dict[str, Any]:
    """The part of a report that shows these units."""
    return {"schema_version": 2, "summaries": {"graphturbo": section(*units, variant=variant)}}


@pytest.mark.parametrize("variant", list(Variant))
@pytest.mark.parametrize(
    "units", [(stages(),), (lone(),), (stages(None, 5), lone()), (stages(), stages(), lone())]
)
def test_the_section_has_the_shape_of_its_contract(
    units: tuple[UnitSummary, ...], variant: Variant
) -> None:
    jsonschema_rs.validator_for(SCHEMA).validate(section(*units, variant=variant))


def test_totals_count_a_unit_as_often_as_it_is_called() -> None:
    # by hand: the stages three times, the lone layer once
    assert section(stages(calls=3), lone())["total"] == {
        "units": 2,
        "calls": 3 + 1,
        "layers": 3 * 4 + 1,
        "operators": 3 * 7 + 1,
        "groups": 3 * 4 + 1,
        "instances": 3 * 15 + 1,
        "tensors_by_scope": {"lb": 36, "gb": 6, "home": 4},
        "lb_tensors_pct": round(100 * 36 / 46, 4),
        "spills": 3,
        "spilled_bytes": 3072,
        "movements": 27,
        "movement_bytes": 3 * 9216,
        "units_by_order": {"bfs": 0, "dfs": 1, "exact": 0},
        "predicted_cycles": 3 * 1100 + 300,
        "simulated_cycles": 3 * 1200 + 300,
        "prediction_error_pct": round(100 * (3600 - 3900) / 3900, 4),
    }


def test_the_total_of_cycles_is_unknown_when_one_unit_is() -> None:
    total = section(stages(None), lone())["total"]
    assert total["simulated_cycles"] is None
    assert total["prediction_error_pct"] is None
    assert total["predicted_cycles"] == 1400


def test_a_group_that_cannot_be_cut_is_one_instance_and_null() -> None:
    unit = section(lone())["units"][0]
    assert unit["instances"] == 1
    assert unit["groups"] == [{"layers": [0], "factor": None, "peak_bytes": 1 << 20}]


def test_nulls_of_the_section_have_sentences() -> None:
    blank = {"summary": {}, "verification": {}, "layers": []}
    found = null_reasons({**blank, **report(stages(None), lone())})
    assert set(found) == {
        "summaries.graphturbo.total.simulated_cycles",
        "summaries.graphturbo.total.prediction_error_pct",
        "summaries.graphturbo.units.simulated_cycles",
        "summaries.graphturbo.units.groups.factor",
    }
    assert all("does not say" not in str(sentence) for sentence in found.values())
    assert null_reasons({**blank, "schema_version": 2, "summaries": {}}) == {}


def test_units_without_a_note_have_no_summary() -> None:
    silent = UnitNotes("graphturbo", 0, ("conv",), 1, (), 5)
    assert GraphTurboSummary.of([silent], GraphTurboOptions()) is None
    assert summaries_html({"schema_version": 2, "summaries": {}}) == []


def cells(fragment: str) -> list[list[list[str]]]:
    """Text of every cell: tables, rows, cells; fails on what is not well-formed."""
    root = ElementTree.fromstring(f"<r>{fragment}</r>")
    return [
        [["".join(cell.itertext()) for cell in row] for row in table.iter("tr")]
        for table in root.iter("table")
    ]


def test_the_page_shows_every_group_order_spill_movement_and_section() -> None:
    tables = cells("".join(summaries_html(report(stages(calls=3), lone()))))
    total, units, groups, orders, spills, movements, sections = tables
    assert ["tensors_by_scope.lb", "36"] in total
    assert units[1][:8] == ["3", "conv<1> .. relu_5 (11 nodes)", "3", "4", "7", "4", "15", "dfs"]
    assert units[2][7] == ""
    assert [row[2] for row in groups[1:]] == ["8", "4", "2", "1", ""]
    assert [row[1:4] for row in orders[1:]] == [["bfs", "no", "9,216"], ["dfs", "yes", "5,120"]]
    assert spills[1:] == [["3", "t7", "1,024", "gb", "longest live range"]]
    assert movements[1:] == [["3", "copy", "2", "2,048"], ["3", "concat", "7", "7,168"]]
    assert sections[1:] == [["3", "3 layers, 4 clusters", "700"], ["3", "1 layer", "400"]]


def test_the_page_leaves_out_tables_without_rows() -> None:
    fragment = "".join(summaries_html(report(lone())))
    assert len(cells(fragment)) == 3
    assert "Spilled" not in fragment
    assert "orders" not in fragment.lower().replace("units_by_order", "")


def test_the_command_line_prints_units(capsys: pytest.CaptureFixture[str]) -> None:
    print_summaries(report(stages(calls=3), lone(), variant=Variant.V3))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "graphturbo, variant v3:"
    rows = [line.split("\t") for line in lines if "\t" in line]
    assert rows[0][0] == "unit"
    assert rows[1] == ["3", "3", "4", "7", "4", "15", "dfs", "12", "2", "1", "1", "1100", "1200",
                       "conv<1> .. relu_5 (11 nodes)"]  # fmt: skip
    assert rows[2][6] == "-"
    print_summaries({})
    assert capsys.readouterr().out == ""


def test_a_whole_report_carries_the_section(tmp_path: Path) -> None:
    machine = load_preset("a100")
    options = CompileOptions(strategy="graphturbo", strategy_options=of_variant(Variant.V2))
    plain = CompileOptions(strategy="naive")
    ports = open_ports(machine, plain, MemoryCache(), NoProgress())
    path = saved(repeated_layers(2), tmp_path)
    compiled = compile_model(path, "m", machine, plain, ports, Limits())
    sims, whole = simulate_model(compiled, MemoryCache())
    verification = Verification("none", "none", None, None, None, None, "not asked for")
    without = report_document(compiled, sims, whole, plain, verification, {})
    assert without["strategies"][0]["reason"] == "asked for by name"  # type: ignore[index,call-overload]
    assert without["summaries"] == {}
    assert "<h2>GraphTurbo" not in report_page(without, compiled, sims, whole)
    note = msgspec.json.encode(stages()).decode()
    nodes = ("conv<1>", "relu_5 (11 nodes)")
    units = (UnitNotes("graphturbo", 0, nodes, 2, (note,), 1100),)
    document = report_document(compiled, sims, whole, options, verification, {}, units)
    placed = replace(stages(sims[0].cycles, calls=2), unit=0)
    assert document["summaries"] == {"graphturbo": section(placed, variant=Variant.V2)}
    page = report_page(document, compiled, sims, whole)
    assert "conv&lt;1&gt; .. relu_5 (11 nodes)" in page
    (tmp_path / "report.json").write_text(json.dumps(document))
    shown = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "graphturbo, variant v2:" in shown.stdout
