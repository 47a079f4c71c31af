"""The page's part on GraphTurbo: totals, units, and what was weighed inside each of them."""

from __future__ import annotations

from collections.abc import Mapping

from worker.compiler.errors import Detail
from worker.report.tables import flat, html_table, rows_of

_UNIT_COLUMNS = (
    "unit", "label", "calls", "layers", "operators", "groups", "instances", "order",
    "samples_per_cluster", "iterations", "is_ahead", "lb", "gb", "home", "spills",
    "predicted_cycles", "simulated_cycles",
)  # fmt: skip
_PARTS = (
    ("groups", "Groups and their split",
     ("unit", "layers", "factor", "peak_bytes")),
    ("orders", "Orders of the instances",
     ("unit", "name", "chosen", "peak_bytes", "spilled_bytes")),
    ("spills", "Spilled tensors", ("unit", "tensor", "bytes", "scope", "rule")),
    ("movements", "Data movements", ("unit", "kind", "count", "bytes")),
    ("sections", "Sections of the units", ("unit", "name", "predicted_cycles")),
)  # fmt: skip


def graphturbo_html(section: Detail) -> list[str]:
    """Headings and tables of the report's `graphturbo` section; nothing where it is null."""
    if not isinstance(section, dict):
        return []
    units = rows_of(section, "units")
    figures = [{"figure": "variant", "value": section.get("variant")}]
    parts = [
        "<h2>GraphTurbo</h2>",
        html_table(("figure", "value"), [*figures, *flat(section.get("total"))]),
        "<h2>GraphTurbo: units</h2>",
        html_table(_UNIT_COLUMNS, [unit_row(unit) for unit in units]),
    ]
    for key, title, columns in _PARTS:
        rows = [{"unit": unit.get("unit"), **row} for unit in units for row in rows_of(unit, key)]
        if rows:
            parts += [f"<h2>GraphTurbo: {title.lower()}</h2>", html_table(columns, rows)]
    return parts


def unit_row(unit: Mapping[str, Detail]) -> dict[str, Detail]:
    """One unit of the section as a row of plain cells: lists by their lengths."""
    scopes = unit.get("tensors_by_scope")
    chosen = [row.get("name") for row in rows_of(unit, "orders") if row.get("chosen") is True]
    return {
        **unit,
        **(scopes if isinstance(scopes, dict) else {}),
        "groups": len(rows_of(unit, "groups")),
        "spills": len(rows_of(unit, "spills")),
        "order": chosen[0] if chosen else None,
    }
