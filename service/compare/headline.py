"""One sentence: the verdict and the largest cause, with figures."""

from __future__ import annotations

from collections.abc import Sequence

from service.compare.deltas import (
    CauseDelta,
    FigureDelta,
    LayerDelta,
    Reason,
    RowKind,
    Side,
    Verdict,
)
from service.compare.words import count, number, percent, seconds, signed, span

_SHOWN_INPUTS = 2


def headline(
    verdict: Verdict, sides: tuple[Side, Side], figures: Sequence[FigureDelta],
    layers: Sequence[LayerDelta], causes: Sequence[CauseDelta], reasons: Sequence[Reason],
) -> str:  # fmt: skip
    """Say what came of it, what most of it is spent on and where, and what went in otherwise."""
    base, head = sides
    went_in = _went_in(reasons)
    if verdict is Verdict.SAME:
        return f"no difference: {number(head.cycles)} cycles, {seconds(head.latency_s)}{went_in}"
    if verdict is Verdict.EQUAL_LATENCY:
        return f"equal latency, {seconds(head.latency_s)}, but {_other(figures, layers)}{went_in}"
    share = percent(base.latency_s, head.latency_s).lstrip("+-")
    took = f"{seconds(base.latency_s)} -> {seconds(head.latency_s)}"
    return (
        f"{verdict} by {share}: {took}, {number(base.cycles)} -> {number(head.cycles)} cycles"
        f"{_most(layers, causes)}{went_in}"
    )


def _most(layers: Sequence[LayerDelta], causes: Sequence[CauseDelta]) -> str:
    """The largest cause and the largest layer, among those that moved as the whole did."""
    total = sum(row.delta_cycles for row in causes)
    if not total:
        return ""
    cause = max(causes, key=lambda row: row.delta_cycles * (1 if total > 0 else -1))
    layer = max(layers, key=lambda row: row.delta_cycles * (1 if total > 0 else -1))
    where = "between layers" if layer.is_rest else span(layer.nodes)
    return (
        f"; most by {cause.cause} ({signed(cause.delta_cycles)} cycles) and in {where}"
        f" ({signed(layer.delta_cycles)})"
    )


def _other(figures: Sequence[FigureDelta], layers: Sequence[LayerDelta]) -> str:
    """What differs although the latency does not: the figure that moved most."""
    moved = [row for row in figures if row.base != row.head]
    known = [row for row in moved if row.base and row.head is not None]
    if known:
        most = max(known, key=lambda row: abs((row.ratio or 0.0) - 1))
        assert most.base is not None and most.head is not None
        return (
            f"{most.name} {number(most.base)} -> {number(most.head)}"
            f" ({percent(most.base, most.head)})"
        )
    if moved:
        return f"{moved[0].name} differs"
    rows = sum(row.kind is not RowKind.SAME for row in layers)
    return f"{count(rows, 'layer')} differ" if rows else "kernels or placement differ"


def _went_in(reasons: Sequence[Reason]) -> str:
    told = [row.sentence for row in reasons if row.kind.is_input]
    if not told:
        return ""
    more = f" and {len(told) - _SHOWN_INPUTS} more" if len(told) > _SHOWN_INPUTS else ""
    return f"; differs: {'; '.join(told[:_SHOWN_INPUTS])}{more}"
