"""Boxes compared by their starts alone, for all iterations at once.

What most instructions touch is what was brought for them: the starts differ by a constant, whatever
the loops do, and then nothing has to be looked at iteration by iteration.
"""

from __future__ import annotations

from collections.abc import Mapping

from worker.compiler.ir.affine import Affine, Var
from worker.compiler.ir.op import Access
from worker.compiler.schedule.nodes import Box, Span


def within(inner: Box, outer: Box) -> bool:
    """Whether `inner` lies in `outer` whatever the variables are; False where that depends."""
    for one, other in zip(inner, outer, strict=True):
        ahead = one.start - other.start
        if not ahead.is_const or ahead.const < 0 or ahead.const + one.extent > other.extent:
            return False
    return True


def accessed(access: Access, spans: Mapping[str, Span]) -> Box | None:
    """What an access touches of spans of its axes, or a box around it; None with // % or lookups.

    Where the spans leave their axes, so may the box.
    """
    found: list[Span] = []
    for expr in access.index:
        start, extent = Affine((), expr.const), 1
        for atom, coeff in expr.terms:
            if not isinstance(atom, Var):
                return None
            span = spans[atom.name]
            first = span.start if coeff > 0 else span.start + (span.extent - 1)
            start = start + first * coeff
            extent += abs(coeff) * (span.extent - 1)
        found.append(Span(start, extent))
    return tuple(found)


def moved_by(expr: Affine) -> tuple[str, int] | None:
    """(axis, constant) of an index that is one axis plus a constant, else None."""
    if len(expr.terms) != 1:
        return None
    ((atom, coeff),) = expr.terms
    return (atom.name, expr.const) if isinstance(atom, Var) and coeff == 1 else None


def stays_inside(span: Span, extent: int, trips: Mapping[str, int]) -> tuple[bool, bool]:
    """Whether a span never begins before 0, and never ends after `extent`."""
    if span.start.has_lookup:
        return False, False
    low, high, _ = span.start.bounds({v: (0, trips[v] - 1) for v in span.start.variables()})
    return low >= 0, high + span.extent <= extent
