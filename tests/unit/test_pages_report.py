"""A report as a page shows it, numbers as people read them, causes as a bar."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from service.pages import units
from service.pages.layer import layer_view, what_if_view
from service.pages.report import Report, layers_of, report_of, table_of
from worker.report.cause_bars import FAMILIES, STYLE, cause_bar, class_of


def document(**changes: Any) -> dict[str, Any]:
    """A fused kernel of two groups, then a host part."""
    group = {"macs": 1, "repeated_macs": 0}
    layers = [
        {"index": 0, "onnx_nodes": ["a", "b"], "op_type": "Conv+Relu", "placement": "accelerator",
         "cycles_total": 100, "causes": [{"cause": "engine:PE", "cycles": 70},
                                         {"cause": "launch", "cycles": 30}],
         "macs": 2, "repeated_macs": 0, "start_cycle": 0, "end_cycle": 100,
         "lower_bound_cycles": 50, "bytes_L1_read": 10, "bytes_L1_write": 0,
         "groups": [
             {"onnx_nodes": ["a"], "op_type": "Conv", "cycles": 60,
              "causes": [{"cause": "engine:PE", "cycles": 60}], **group},
             {"onnx_nodes": ["b"], "op_type": "Relu", "cycles": 10,
              "causes": [{"cause": "engine:PE", "cycles": 10}], **group}]},
        {"index": 1, "onnx_nodes": ["c"], "op_type": "TopK", "placement": "host",
         "cycles_total": 300, "causes": [{"cause": "host", "cycles": 300}], "groups": []},
    ]  # fmt: skip
    return {
        "summary": {"latency_cycles": 400, "latency_s": 4e-7, "causes": []},
        "model": {"name": "m"}, "hardware": {"name": "h", "clock_hz": 1e9}, "verification": {},
        "layers": layers, **changes,
    }  # fmt: skip


def test_rows_are_parts_and_sum_to_the_whole() -> None:
    report = report_of(document())
    assert isinstance(report, Report)
    rows = layers_of(report)
    assert [(row.part, row.index, row.cycles) for row in rows] == [
        ("kernel", 0, 30), ("nodes", 0, 60), ("nodes", 0, 10), ("whole", 1, 300),
    ]  # fmt: skip
    assert sum(row.pct for row in rows) == pytest.approx(100)
    assert [row.bound_by for row in rows] == ["launch", "engine:PE", "engine:PE", "host"]


def test_the_table_has_every_row_once() -> None:
    report = report_of(document())
    assert isinstance(report, Report)
    table = table_of(report)
    at = {name: k for k, name in enumerate(table["columns"])}
    assert [row[at["cycles"]] for row in table["rows"]] == [30, 60, 10, 300]
    named = [
        {table["causes"][cause]: cycles for cause, cycles in row[at["causes"]]}
        for row in table["rows"]
    ]
    assert named[0] == {"launch": 30}
    assert named[3] == {"host": 300}
    assert table["rows"][0][at["end"]] == 100


def test_a_layer_says_what_is_known_of_it() -> None:
    report = report_of(document())
    assert isinstance(report, Report)
    kernel, group, _, host = (layer_view(report, layer) for layer in layers_of(report))
    assert kernel["levels"] == [("L1", 10, 0)]
    assert kernel["distance"] == pytest.approx(30 / 50)
    assert group["distance"] is None
    assert group["seconds"] == pytest.approx(60e-9)
    assert host["runs_on_host"]


@pytest.mark.parametrize(
    "changes",
    [{"summary": {}}, {"summary": None}, {"layers": {}}, {"hardware": []}, {"strategies": [1]}],
    ids=["no latency", "no summary", "layers", "hardware", "strategies"],
)
def test_another_shape_is_a_sentence(changes: dict[str, Any]) -> None:
    found = report_of(document(**changes))
    assert isinstance(found, str)
    assert "another shape" in found


def test_odd_layers_are_shown_as_far_as_they_go() -> None:
    report = report_of(document(layers=[{}, {"cycles_total": "x", "causes": 3, "onnx_nodes": 7}]))
    assert isinstance(report, Report)
    assert [(row.cycles, row.onnx_nodes, row.causes) for row in layers_of(report)] == [
        (0, [], []), (0, [], []),
    ]  # fmt: skip
    assert len(table_of(report)["rows"]) == 2


def test_what_helps_most_stands_first() -> None:
    rows = [
        {"resource": "a", "factor": 1.0}, {"resource": "b", "factor": 1.2},
        {"resource": "c", "factor": 1.9}, {"resource": "d", "factor": 1.0005},
    ]  # fmt: skip
    view = what_if_view({"what_if": rows, "candidates": []})
    assert [row["resource"] for row in view["gains"]] == ["c", "b"]
    assert view["others"] == ["a", "d"]
    assert view["most"] == 1.9


def test_numbers_as_people_read_them() -> None:
    assert units.quantity(108727, "s") == "109 ks"
    assert units.whole(108727) == "108,727"
    assert units.capacity(65536) == "64 KiB"
    assert units.capacity(1.5 * 2**30) == "1.5 GiB"
    assert units.energy(1.728e8) == "173 µJ"
    assert units.percent(76.051) == "76.1 %"
    assert units.ratio(1.42) == "1.42×"
    assert [units.span(s) for s in (0.42, 75.0, 7200.0, 200_000.0)] == [
        "0.42 s", "1.25 min", "2 h", "2.31 d",
    ]  # fmt: skip
    for shown in (units.quantity, units.whole, units.capacity, units.energy, units.percent,
                  units.ratio, units.span):  # fmt: skip
        assert shown(None) == "–"


def test_a_bar_is_as_wide_as_its_causes() -> None:
    root = ET.fromstring(cause_bar([("engine:PE", 60), ("launch", 20)], 100, "of <it>"))
    assert root.attrib["aria-label"] == "of <it>"
    first, second = root
    scale = 880 / 100
    assert float(first.attrib["width"]) == pytest.approx(60 * scale, abs=1)
    assert float(second.attrib["x"]) == pytest.approx(60 * scale, abs=1)
    assert "60 cycles, 60.0 %" in (first[0].text or "")


def test_every_kind_of_cause_has_a_colour_on_pages_and_in_the_report() -> None:
    from service.pages.render import STATIC

    style = (STATIC / "style.css").read_text()
    for kind in FAMILIES:
        name = class_of(f"{kind}:X")
        assert name == f"cause-{kind}"
        for sheet in (style, STYLE):
            assert f".{name} {{" in sheet or f".{name}{{" in sheet, (kind, sheet[:20])
    assert class_of("something-new:X") == "cause-latency"
