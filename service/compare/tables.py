"""A comparison as tables, the same in every form it is printed in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from service.compare.deltas import CauseDelta, Comparison, KernelDelta, LayerDelta, RowKind
from service.compare.words import number, percent, signed, span, value
from worker.compiler.errors import Detail

MOST_ROWS = 10
"""Of a table that is not asked for whole."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts, the largest change first."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Mapping[str, str], ...]
    left_out: int = 0
    """Rows that were not asked for."""


def tables(found: Comparison, *, is_whole: bool) -> tuple[Table, ...]:
    """What differs, as tables; those without a row are left out.

    `is_whole`: every row that differs, not only the largest `MOST_ROWS` of a table.
    """
    made = (
        Table("why", ("what", "difference", "cycles"), tuple(_reasons(found))),
        Table("figures", ("figure", "base", "head", "change", "%"), tuple(_figures(found))),
        Table("cycles by cause", ("cause", "base", "head", "change"), tuple(_causes(found))),
        Table("layers", ("nodes", "op", "base", "head", "change", "mostly", "kind"),
              tuple(_layers(found))),
        Table("kernels", ("nodes", "base", "head", "change", "pJ", "differs"),
              tuple(_kernels(found))),
        Table("placement", ("node", "base", "head", "why"), tuple(_placement(found))),
    )  # fmt: skip
    return tuple(_cut(table, is_whole) for table in made if table.rows)


def _cut(table: Table, is_whole: bool) -> Table:
    if is_whole or len(table.rows) <= MOST_ROWS:
        return table
    left = len(table.rows) - MOST_ROWS
    return Table(table.title, table.columns, table.rows[:MOST_ROWS], left)


def _reasons(found: Comparison) -> Iterator[dict[str, str]]:
    for row in found.reasons:
        cycles = "" if row.cycles is None else signed(row.cycles)
        yield {"what": str(row.kind), "difference": row.sentence, "cycles": cycles}


def _figures(found: Comparison) -> Iterator[dict[str, str]]:
    for row in found.figures:
        if row.base == row.head:
            continue
        known = row.base is not None and row.head is not None
        yield {
            "figure": row.name,
            "base": value(row.base),
            "head": value(row.head),
            "change": signed(row.delta) if row.delta is not None else "",
            "%": percent(row.base or 0.0, row.head or 0.0) if known else "",
        }


def _causes(found: Comparison) -> Iterator[dict[str, str]]:
    for row in found.causes:
        if row.delta_cycles:
            yield {"cause": row.cause, **_cycles(row)}


def _layers(found: Comparison) -> Iterator[dict[str, str]]:
    for row in found.moved:
        where = span(row.nodes)
        mostly = row.causes[0] if row.causes else None
        yield {
            "nodes": f"{where}: between its groups" if row.is_rest else where,
            "op": row.op_type,
            **_cycles(row),
            "mostly": "" if mostly is None else f"{mostly.cause} {signed(mostly.delta_cycles)}",
            "kind": str(row.kind) if row.kind is not RowKind.REGROUPED else _regrouped(row),
        }


def _regrouped(row: LayerDelta) -> str:
    return f"regrouped, {len(row.base_rows)} -> {len(row.head_rows)} rows"


def _kernels(found: Comparison) -> Iterator[dict[str, str]]:
    moved = [row for row in found.kernels if row.kind is not RowKind.SAME]
    for row in sorted(moved, key=lambda row: -abs(row.delta_cycles)):
        yield {
            "nodes": span(row.nodes),
            **_cycles(row),
            "pJ": percent(row.base_energy_pj, row.head_energy_pj),
            "differs": _differs(row),
        }


def _differs(row: KernelDelta) -> str:
    numbers = len(row.base_kernels), len(row.head_kernels)
    if row.kind in (RowKind.ADDED, RowKind.REMOVED):
        return str(row.kind)
    parts = [] if numbers == (1, 1) else [f"{numbers[0]} -> {numbers[1]} kernels"]
    for change in row.changes:
        if change.what == "schedule":
            parts.append("loops")
        elif not isinstance(change.base, list) and not isinstance(change.head, list):
            parts.append(f"{change.what} {_short(change.base)} -> {_short(change.head)}")
    return ", ".join(parts)


def _short(held: Detail) -> str:
    return number(held) if isinstance(held, int) and not isinstance(held, bool) else value(held)


def _placement(found: Comparison) -> Iterator[dict[str, str]]:
    for row in found.placement:
        yield {
            "node": row.head_node,
            "base": f"{row.base_target} ({row.base_reason_code})",
            "head": f"{row.head_target} ({row.head_reason_code})",
            "why": row.head_reason,
        }


def _cycles(row: CauseDelta | LayerDelta | KernelDelta) -> dict[str, str]:
    return {
        "base": number(row.base_cycles),
        "head": number(row.head_cycles),
        "change": signed(row.delta_cycles),
    }


def lines_of_sides(found: Comparison) -> tuple[str, ...]:
    """What was compared, and what could not be told of it."""
    lines = []
    for word, side in (("base", found.base), ("head", found.head)):
        by = "" if side.strategy is None else f", by {side.strategy}"
        lines.append(f"{word}: {side.name}: {side.model} on {side.hardware}{by}")
    lines += [f"not compared: {text}" for text in not_compared(found)]
    return tuple(lines)


def not_compared(found: Comparison) -> tuple[str, ...]:
    """What one side cannot tell, once."""
    sides = (("base", found.base), ("head", found.head))
    return tuple(f"{text} of {word}" for word, side in sides for text in side.missing)
