"""What GraphTurbo did, as `report` prints it: totals and one row per unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.cli.output import print_fields, print_table, print_text

_TOTALS = (
    "units",
    "calls",
    "layers",
    "operators",
    "groups",
    "instances",
    "lb_tensors_pct",
    "spills",
    "spilled_bytes",
    "movements",
    "movement_bytes",
    "predicted_cycles",
    "simulated_cycles",
    "prediction_error_pct",
)
_COLUMNS = (
    "unit",
    "calls",
    "layers",
    "operators",
    "groups",
    "instances",
    "order",
    "lb",
    "gb",
    "home",
    "spills",
    "predicted_cycles",
    "simulated_cycles",
    "label",
)


def print_graphturbo(section: object) -> None:
    """Print the report's `graphturbo` section; nothing where it is null or absent."""
    if not isinstance(section, dict):
        return
    print_text(f"graphturbo, variant {section.get('variant')}:")
    total = section.get("total")
    print_fields(total if isinstance(total, dict) else {}, _TOTALS)
    units = section.get("units")
    print_table(_COLUMNS, [_row(unit) for unit in units] if isinstance(units, list) else [])


def _row(unit: Mapping[str, Any]) -> dict[str, Any]:
    """A unit with its lists counted and its chosen order named."""
    chosen = [order.get("name") for order in unit.get("orders") or [] if order.get("chosen")]
    return {
        **unit,
        **(unit.get("tensors_by_scope") or {}),
        "groups": len(unit.get("groups") or []),
        "spills": len(unit.get("spills") or []),
        "order": chosen[0] if chosen else None,
    }
