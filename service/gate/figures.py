"""The figures that rules of a gate file may name, and where a report has them.

Units are in the names: `mb` are 10^6 bytes, `kib` 1024, `mj` 10^-3 J.  What a report does not have
(a memory that the chip lacks, an energy that is unknown) is None.  Imports no compiler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from worker.report.parts import causes_in, layer_parts

Report = Mapping[str, Any]

KIB = 1024.0
MB = 1e6
PJ_OF_MJ = 1e9


@dataclass(frozen=True, slots=True)
class Figure:
    """What a figure is, for messages and for the schema."""

    meaning: str
    is_more_better: bool = False
    of_layers: bool = False
    """A layer has it, too: a rule may name nodes."""
    of_causes: bool = False
    """It is time, which causes share out among them: a rule may name causes."""


FIGURES: Mapping[str, Figure] = {
    "latency_ms": Figure("time of one run, ms", of_layers=True, of_causes=True),
    "latency_cycles": Figure("cycles of one run", of_layers=True, of_causes=True),
    "throughput_per_s": Figure("runs per second, one after the other", is_more_better=True),
    "energy_mj": Figure("energy of one run, mJ", of_layers=True),
    "power_w": Figure("mean power of a run, W"),
    "edp": Figure("energy x time of a run, pJ s"),
    "offchip_mb": Figure("bytes through the ports of the home memory, 10^6"),
    "peak_kib": Figure("home memory that a run needs, KiB"),
    "weight_kib": Figure("of it, constants, KiB"),
    "boundary_mb": Figure("bytes copied over the host link, 10^6"),
    "host_ops": Figure("nodes that the host runs"),
    "accelerator_mac_pct": Figure("multiply-accumulates in kernels, %", is_more_better=True),
    "utilization_pct": Figure("of the busiest kind of engine, %", is_more_better=True),
    "kernels": Figure("launches"),
    "kernels_unique": Figure("different kernels"),
    "instructions": Figure("instructions of all launches"),
    "launch_cycles": Figure("cycles of starting kernels"),
    "host_cycles": Figure("cycles of host parts"),
    "repeated_macs": Figure("multiply-accumulates computed again"),
    "distance_to_bound": Figure("cycles / what no schedule can beat"),
}
OF_A_LEVEL: Mapping[str, Figure] = {
    "traffic_mb": Figure("bytes through the ports of a memory, 10^6", of_layers=True),
    "peak_level_kib": Figure("most held at once in the fullest instance of a memory, KiB"),
}
"""Written with the memory's name: `traffic_mb:DRAM`."""


def figure_of(name: str) -> Figure | None:
    """The figure of a name; None: there is none."""
    stem, colon, level = name.partition(":")
    if colon:
        return OF_A_LEVEL.get(stem) if level else None
    return FIGURES.get(name)


def whole_figure(report: Report, name: str) -> float | None:
    """A figure of the whole run."""
    summary = report["summary"]
    stem, colon, level = name.partition(":")
    match stem:
        case "latency_ms":
            return _scaled(summary.get("latency_s"), 1e3)
        case "energy_mj":
            return _scaled(summary.get("energy_pj"), 1 / PJ_OF_MJ)
        case "power_w":
            energy, seconds = summary.get("energy_pj"), summary.get("latency_s")
            return None if energy is None or not seconds else energy * 1e-12 / seconds
        case "offchip_mb":
            chosen = [row for row in report["strategies"] if row.get("chosen")]
            return _scaled(chosen[0].get("offchip_bytes"), 1 / MB) if chosen else None
        case "peak_kib":
            return _scaled(summary.get("home_arena_bytes"), 1 / KIB)
        case "weight_kib":
            return _scaled(summary.get("weight_bytes"), 1 / KIB)
        case "boundary_mb":
            return _scaled(summary.get("boundary_bytes"), 1 / MB)
        case "traffic_mb" if colon:
            moved = (summary.get("traffic_bytes") or {}).get(level)
            return None if moved is None else (moved["read"] + moved["write"]) / MB
        case "peak_level_kib" if colon:
            return _scaled((summary.get("peak_bytes") or {}).get(level), 1 / KIB)
        case _:
            return _scaled(summary.get(name), 1.0)


def caused_figure(report: Report, causes: object, name: str, pattern: str) -> float | None:
    """Time that the causes of a pattern are to blame for; 0 where none has it."""
    if not isinstance(causes, list):
        return None
    cycles = sum(n for cause, n in causes_in(causes) if fnmatchcase(cause, pattern))
    return time_figure(report, cycles, name)


def has_cause(report: Report, pattern: str) -> bool:
    """Whether any of a run's cycles have a cause of a pattern."""
    causes = causes_in(report["summary"].get("causes"))
    return any(fnmatchcase(cause, pattern) for cause, _ in causes)


@dataclass(frozen=True, slots=True)
class Layer:
    """A group of nodes that a rule looks at."""

    nodes: tuple[str, ...]
    value: float | None


def layer_figures(
    report: Report, name: str, node: str, cause: str | None = None
) -> Iterator[Layer]:
    """A figure of every layer that has a node of the pattern.

    Time is known of every group of a fused kernel, energy and traffic of the kernel only.
    """
    rows = report["layers"]
    if is_of_groups(name):
        rows = layer_parts(rows, report["summary"]["latency_cycles"])
    for row in rows:
        nodes = tuple(row["onnx_nodes"])
        if row.get("part") == "kernel" or not any(fnmatchcase(n, node) for n in nodes):
            continue
        if cause is not None:
            yield Layer(nodes, caused_figure(report, row.get("causes"), name, cause))
        else:
            yield Layer(nodes, row_figure(report, row, name))


def energy_items(report: Report) -> dict[str, float]:
    """What the energy of a run is made of, mJ by item (`mac`, `level:DRAM`, `static`, ...)."""
    found: dict[str, float] = {}
    told = report.get("energy")
    for row in told if isinstance(told, list) else ():
        value = _scaled(row.get("pj"), 1 / PJ_OF_MJ) if isinstance(row, dict) else None
        if value is not None:
            found[str(row.get("item"))] = value
    return found


def is_of_groups(name: str) -> bool:
    """Whether groups of a fused kernel have a figure of their own."""
    return name in ("latency_ms", "latency_cycles")


def row_figure(report: Report, row: Mapping[str, Any], name: str) -> float | None:
    """A figure of one row of the layers."""
    stem, _, level = name.partition(":")
    match stem:
        case "latency_ms" | "latency_cycles":
            return time_figure(report, row["cycles_total"], name)
        case "energy_mj":
            return _scaled(row.get("energy_pj"), 1 / PJ_OF_MJ)
        case "traffic_mb":
            read, written = (row.get(f"bytes_{level}_{way}") for way in ("read", "write"))
            return None if read is None or written is None else (read + written) / MB
        case _:
            return None


def time_figure(report: Report, cycles: float, name: str) -> float:
    """Cycles as `latency_cycles` or `latency_ms`."""
    return cycles if name == "latency_cycles" else cycles / report["hardware"]["clock_hz"] * 1e3


def _scaled(value: object, factor: float) -> float | None:
    return value * factor if isinstance(value, int | float) else None
