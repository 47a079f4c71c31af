"""What a report shows: contract columns, well-formed plots, escaped names, honest sanity block."""

from __future__ import annotations

import csv
import io
from xml.etree import ElementTree

import pytest

from worker.report.insights import insights
from worker.report.layers import layers_csv
from worker.report.plots import energy_bars, layer_bars, occupancy, roofline, si
from worker.simulator.results import Bound, CallTiming, Cause, EnergyLine, ModelSimulation


def simulation(cycles: int, **blamed: int) -> ModelSimulation:
    causes = tuple(Cause(name.replace("__", ":"), number) for name, number in blamed.items())
    return ModelSimulation(
        cycles=cycles,
        calls=(CallTiming(0, "unit", 0, cycles, 0, 1.0, causes),),
        host_cycles=0,
        launch_cycles=0,
        boundary_bytes=0,
        traffic=(),
        energy=(EnergyLine("mac", 1.0, 0.5, 2.0),),
        macs=0,
        repeated_macs=0,
        causes=causes,
        roofline=Bound("traffic:DRAM", 1),
        peak_bytes=(),
        checks=(),
    )


def row(index: int, cycles: int, cause: str = "engine:MXU", **extra: object) -> dict[str, object]:
    base: dict[str, object] = {
        "index": index,
        "onnx_nodes": [f"n{index}"],
        "op_type": "Conv",
        "placement": "accelerator",
        "cycles_total": cycles,
        "bound_by": cause,
        "causes": [{"cause": cause, "cycles": cycles}],
        "lower_bound_cycles": cycles,
    }
    return {**base, **extra}


def test_csv_keeps_nulls_empty_and_never_starts_a_formula() -> None:
    rows = [
        {"a": None, "b": 0, "c": ["x", "y"], "d": "=cmd()", "e": -3},
        {"a": 1.5, "b": 2, "c": [{"k": "p", "v": 3}, {"k": "=q", "v": 4}], "d": "-x", "e": 4},
    ]
    read = list(csv.DictReader(io.StringIO(layers_csv(rows, 100).decode())))  # type: ignore[arg-type]
    assert read[0] == {"part": "whole", "a": "", "b": "0", "c": "x|y", "d": "'=cmd()", "e": "-3"}
    assert read[1]["d"] == "'-x"
    assert read[1]["c"] == "p=3|'=q=4"


@pytest.mark.parametrize(
    "svg",
    [
        roofline([("<a> & b", 2.0, 100.0, 10), ("b", 0.0, 5.0, 3)], 4096.0, 64.0),
        roofline([], 1.0, 1.0),
        layer_bars([('"quoted" <x>', 100, 40, [("launch", 100)]), ("zero", 0, 0, [])]),
        layer_bars([]),
        occupancy("L1", 1024, [(0, 10), (5, 1000), (9, 0)], 12),
        energy_bars(
            [("mac", 5.0, 4.0, 6.0), ("level:<DRAM>", 3.0, 3.0, 3.0), ("none", *[0.0] * 3)]
        ),
        energy_bars([]),
    ],
)
def test_plots_are_well_formed_and_escaped(svg: str) -> None:
    root = ElementTree.fromstring(svg)
    assert root.tag == "svg"
    for element in root.iter():
        for key, value in element.attrib.items():
            if key in ("x", "y", "width", "height", "cx", "cy", "r"):
                assert float(value) == float(value)
                if key in ("width", "height", "r"):
                    assert float(value) >= 0


def test_bars_are_to_scale() -> None:
    """Causes of a layer stand on each other; the last has none said."""
    causes = [("engine:MXU", 80), ("launch", 20)]
    root = ElementTree.fromstring(layer_bars([("a", 100, 25, causes), ("b", 50, 50, [])]))
    bars = [e.attrib for e in root.iter("rect") if e.attrib["class"] != "over"]
    heights = [float(bar["height"]) for bar in bars]
    assert heights[0] == pytest.approx(4 * heights[1], rel=1e-3)
    assert heights[2] == pytest.approx((heights[0] + heights[1]) / 2, rel=1e-3)
    assert float(bars[1]["y"]) + heights[1] == pytest.approx(float(bars[0]["y"]), abs=0.02)


def test_insights_name_causes_above_a_fifth_of_the_cycles() -> None:
    quiet = [row(0, 10), row(1, 10)]
    assert [f["id"] for f in insights(quiet, simulation(20))] == ["hot-layer"]  # type: ignore[arg-type,index,call-overload]
    rows = [row(0, 60, "port:DRAM.read"), row(1, 40), row(2, 25, "latency")]
    blamed = {"port__DRAM.read": 45, "port__DRAM.write": 15, "engine__MXU": 10, "launch": 30}
    found = insights(rows, simulation(125, **blamed, latency=25))  # type: ignore[arg-type]
    ids = ["hot-layer", "memory-bound", "launch-overhead", "latency-bound"]
    assert [f["id"] for f in found] == ids  # type: ignore[index,call-overload]
    assert "most of it at port:DRAM.read" in found[1]["message"]  # type: ignore[index,call-overload,operator]
    assert [f["nodes"] for f in found[1:]] == [["n0"], [], ["n2"]]  # type: ignore[index,call-overload]
    away = insights([row(0, 9)], simulation(100, host=30, **{"host-link": 61, "engine__MXU": 9}))  # type: ignore[arg-type]
    assert [f["id"] for f in away] == ["host-parts"]  # type: ignore[index,call-overload]
    slow = insights([row(0, 90, lower_bound_cycles=10)], simulation(90))  # type: ignore[arg-type]
    assert "far-from-bound" in [f["id"] for f in slow]  # type: ignore[index,call-overload]


def test_numbers_have_prefixes() -> None:
    assert [si(v, "J") for v in (0.0527, 4e-6, 3e-12, 0.0)] == ["52.7 mJ", "4 µJ", "3 pJ", "0 J"]
    assert [si(v, "B") for v in (12, 1500, 2.5e6, 3e9, 4e12)] == [
        "12 B",
        "1.5 kB",
        "2.5 MB",
        "3 GB",
        "4 TB",
    ]
