"""A layer's panel: why it takes its cycles, the loop nest that runs, what would help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.pages.report import Layer, Report
from worker.report.cause_bars import FAMILIES, cause_bar, family

GAIN = 0.001
"""Share of the cycles below which a resource brings nothing."""
_FIGURES = (
    ("cycles_total", "cycles", "with its launch"),
    ("lower_bound_cycles", "lower bound", "no schedule of this kernel takes less"),
    ("roofline_cycles", "roofline", "of this kernel alone"),
    ("predicted_cycles", "predicted", "by its strategy's own model"),
    ("macs", "MACs", "multiply-accumulates"),
    ("cores", "cores", "that its widest nest is shared out to"),
)


def layer_view(report: Report, layer: Layer) -> dict[str, Any]:
    """Values of `layer.html`."""
    told = layer.told
    levels = []
    for key in told:
        if key.startswith("bytes_") and key.endswith("_read"):
            level = key.removeprefix("bytes_").removesuffix("_read")
            levels.append((level, _number(told, key), _number(told, f"bytes_{level}_write")))
    floor = _number(told, "lower_bound_cycles")
    clock = report.hardware.clock_hz
    return {
        "layer": layer,
        "figures": [
            (name, _number(told, key), note) for key, name, note in _FIGURES
            if _number(told, key) is not None
        ],
        "seconds": layer.cycles / clock if clock else None,
        "distance": layer.cycles / floor if floor else None,
        "levels": [row for row in levels if row[1] or row[2]],
        "tile": told.get("tile"),
        "utilization": _number(told, "utilization_pct"),
        "energy_pj": _number(told, "energy_pj"),
        "peak_buffer_bytes": _number(told, "peak_buffer_bytes"),
        "bar": cause_bar(layer.causes, layer.cycles, f"Cycles of layer {layer.row} by cause"),
        "sentences": FAMILIES,
        "family": family,
        "runs_on_host": layer.placement == "host",
        "placement_reason": told.get("placement_reason"),
    }  # fmt: skip


def nest_view(found: Mapping[str, Any]) -> dict[str, Any]:
    """Values of `nest.html`, of what `explain layer` says."""
    total = max(int(found["cycles"]), 1)
    return {
        "found": found,
        "lines": found["nest"],
        "room": [
            {**room, "pct": 100 * room["peak_bytes"] / max(room["usable_bytes"], 1)}
            for room in found["room"]
        ],
        "total": total,
    }


def what_if_view(found: Mapping[str, Any]) -> dict[str, Any]:
    """Values of `help.html`: what brings something, the most first, and what does not."""
    rows = found["what_if"]
    gains = [row for row in rows if row["factor"] is None or abs(row["factor"] - 1) >= GAIN]
    gains.sort(key=lambda row: -(row["factor"] or 0))
    return {
        "found": found,
        "gains": gains,
        "others": [row["resource"] for row in rows if row not in gains],
        "most": max((row["factor"] or 0.0 for row in gains), default=1.0),
        "candidates": found["candidates"],
    }


def _number(row: Mapping[str, Any], key: str) -> int | float | None:
    value = row.get(key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
