"""The rows of a report's layers, fused kernels taken apart.  Imports no compiler.

The report may be anybody's: a row whose groups have another shape stays whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

_OF_A_GROUP = ("onnx_nodes", "op_type", "causes", "macs", "repeated_macs")
_OF_BOTH = ("index", "group_id", "signature", "placement", "placement_reason")


class _Cause(msgspec.Struct):
    cause: str
    cycles: int


class _Group(msgspec.Struct):
    onnx_nodes: list[str]
    op_type: str
    cycles: int
    causes: list[_Cause]
    macs: int
    repeated_macs: int


class _Fused(msgspec.Struct):
    """What is needed of a row to take it apart."""

    cycles_total: int
    causes: list[_Cause]
    macs: int
    repeated_macs: int
    groups: list[_Group]


def causes_in(told: object) -> list[tuple[str, int]]:
    """Causes with their cycles, as a report tells them; none where they have another shape."""
    try:
        return [(c.cause, c.cycles) for c in msgspec.convert(told, list[_Cause])]
    except msgspec.ValidationError:
        return []


def layer_parts(layers: object, total_cycles: int) -> list[dict[str, Any]]:
    """A row for every group of nodes; `part` says what it is of.

    `whole`: a kernel of one group, or a host part.  `nodes`: one group of a fused kernel.
    `kernel`: a fused kernel, before its groups, with the cycles and multiply-accumulates that none
    of them has, and with all that is known of the kernel only.  Cycles of all rows sum to those of
    the layers, and so does everything else that can be summed.
    """
    found: list[dict[str, Any]] = []
    for row in layers if isinstance(layers, list) else ():
        if not isinstance(row, dict):
            continue
        groups: Sequence[Mapping[str, Any]] = row["groups"] if _is_fused(row) else ()
        own = {key: value for key, value in row.items() if key != "groups"}
        if not groups:
            found.append({"part": "whole", **own})
            continue
        left = row["cycles_total"] - sum(group["cycles"] for group in groups)
        causes = _less(row["causes"], groups)
        found.append({
            "part": "kernel", **own, "cycles_total": left, "pct_cycles": _pct(left, total_cycles),
            "bound_by": causes[0]["cause"] if causes else None, "causes": causes,
            **{key: row[key] - sum(g[key] for g in groups) for key in ("macs", "repeated_macs")},
        })  # fmt: skip
        found.extend(_part(row, group, total_cycles) for group in groups)
    columns = list(dict.fromkeys(key for row in found for key in row))
    return [{key: row.get(key) for key in columns} for row in found]


def _is_fused(row: Mapping[str, Any]) -> bool:
    try:
        msgspec.convert(row, _Fused)
    except msgspec.ValidationError:
        return False
    return bool(row["groups"])


def _part(row: Mapping[str, Any], group: Mapping[str, Any], total_cycles: int) -> dict[str, Any]:
    causes = group["causes"]
    return {
        "part": "nodes",
        **{key: row.get(key) for key in _OF_BOTH},
        **{key: group[key] for key in _OF_A_GROUP},
        "cycles_total": group["cycles"],
        "pct_cycles": _pct(group["cycles"], total_cycles),
        "bound_by": causes[0]["cause"] if causes else None,
    }


def _less(
    causes: Sequence[Mapping[str, Any]], groups: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """What causes of a kernel are to blame for beside those of its groups."""
    left = {cause["cause"]: cause["cycles"] for cause in causes}
    for group in groups:
        for cause in group["causes"]:
            left[cause["cause"]] = left.get(cause["cause"], 0) - cause["cycles"]
    rows = sorted(left.items(), key=lambda row: (-row[1], row[0]))
    return [{"cause": name, "cycles": cycles} for name, cycles in rows if cycles]


def _pct(part: int, whole: int) -> float | None:
    return round(100.0 * part / whole, 4) if whole else None
