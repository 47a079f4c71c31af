"""How GraphTurbo's summary is shown: totals, units, and on the page what was weighed in each."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from worker.compiler.errors import Detail
from worker.compiler.strategies.graphturbo.report_summary import GraphTurboSummary, UnitRow
from worker.compiler.strategies.sections import Figures, Table, TextBlock

_UNIT_COLUMNS = (
    "unit", "label", "calls", "layers", "operators", "groups", "instances", "order",
    "samples_per_cluster", "iterations", "is_ahead", "lb", "gb", "home", "spills",
    "predicted_cycles", "simulated_cycles",
)  # fmt: skip
_PARTS = (
    ("groups", "groups and their split", ("unit", "layers", "factor", "peak_bytes")),
    ("orders", "orders of the instances",
     ("unit", "name", "chosen", "peak_bytes", "spilled_bytes")),
    ("spills", "spilled tensors", ("unit", "tensor", "bytes", "scope", "rule")),
    ("movements", "data movements", ("unit", "kind", "count", "bytes")),
    ("sections", "sections of the units", ("unit", "name", "predicted_cycles")),
)  # fmt: skip
_NOT_IN_TEXT = {"tensors_by_scope", "units_by_order"}
_TEXT_COLUMNS = (
    "unit", "calls", "layers", "operators", "groups", "instances", "order", "lb", "gb", "home",
    "spills", "predicted_cycles", "simulated_cycles", "label",
)  # fmt: skip


def page_blocks(summary: GraphTurboSummary) -> Iterator[TextBlock]:
    """Totals, units, and the lists that are not empty."""
    total = msgspec.to_builtins(summary.total)
    yield Figures("GraphTurbo", {"variant": str(summary.variant), **total})
    yield Table("GraphTurbo: units", _UNIT_COLUMNS, tuple(map(_unit, summary.units)))
    for key, title, columns in _PARTS:
        rows = tuple(
            {"unit": unit.unit, **row}
            for unit in summary.units
            for row in msgspec.to_builtins(getattr(unit, key))
        )
        if rows:
            yield Table(f"GraphTurbo: {title}", columns, rows)


def text_blocks(summary: GraphTurboSummary) -> Iterator[TextBlock]:
    """Totals and one row per unit."""
    total = msgspec.to_builtins(summary.total)
    shown = {name: value for name, value in total.items() if name not in _NOT_IN_TEXT}
    yield Figures(f"graphturbo, variant {summary.variant}", shown)
    yield Table("", _TEXT_COLUMNS, tuple(map(_unit, summary.units)))


def _unit(unit: UnitRow) -> dict[str, Detail]:
    """One unit as a row of plain cells: lists by their lengths."""
    chosen = [str(order.name) for order in unit.orders if order.chosen]
    return {
        **msgspec.to_builtins(unit),
        **msgspec.to_builtins(unit.tensors_by_scope),
        "groups": len(unit.groups),
        "spills": len(unit.spills),
        "order": chosen[0] if chosen else None,
    }
