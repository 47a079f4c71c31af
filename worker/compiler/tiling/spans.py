"""Spans: where in a tensor one tile of an operator reads or writes, affine in loop variables."""

from __future__ import annotations

from collections.abc import Mapping

from worker.compiler.ir.affine import Affine, FloorDiv, Lookup, Var
from worker.compiler.ir.op import Access
from worker.compiler.schedule.nodes import Box, Span


def affine_span(
    expr: Affine, start: Mapping[str, Affine], extent: Mapping[str, int]
) -> tuple[Affine, int]:
    """(first, width): over a tile, `expr` lies in [first, first + width].

    `start` gives each axis's first value as an expression of loop variables, `extent` its length.
    Tight for linear maps; for // and % as tight as the alignment of `start` allows: a tile whose
    start is a known residue of the divisor does not straddle more periods than it must.
    """
    first = Affine((), expr.const)
    width = 0
    for atom, coeff in expr.terms:
        if isinstance(atom, Lookup):
            raise KeyError("a data-dependent index has no span")
        if isinstance(atom, Var):
            part, size = start[atom.name], extent[atom.name] - 1
        else:
            inner, reach = affine_span(atom.arg, start, extent)
            divisor = atom.divisor
            residue = inner.mod(divisor)
            aligned = residue.is_const
            if isinstance(atom, FloorDiv):
                part = inner.floordiv(divisor)
                size = (
                    (residue.const + reach) // divisor
                    if aligned
                    else (reach + divisor - 1) // divisor
                )
            elif (aligned and residue.const + reach < divisor) or _steps_inside(
                inner, reach + 1, divisor
            ):
                part, size = residue, reach
            else:
                part, size = Affine(), divisor - 1
        if coeff > 0:
            first = first + part * coeff
        else:
            first = first + (part + size) * coeff
        width += abs(coeff) * size
    return first, width


def _steps_inside(start: Affine, step: int, period: int) -> bool:
    """True when tiles of `step` elements never straddle a multiple of `period`."""
    return (
        period % step == 0
        and start.const % step == 0
        and all(coeff % step == 0 for _, coeff in start.terms)
    )


def access_box(
    access: Access,
    shape: tuple[int, ...],
    start: Mapping[str, Affine],
    extent: Mapping[str, int],
) -> Box:
    """The box of `access`'s tensor that one tile touches.

    Without a fill the box of a fixed start is cut to the tensor, which saves buffer space.
    """
    spans: list[Span] = []
    for expr, size in zip(access.index, shape, strict=True):
        first, width = affine_span(expr, start, extent)
        if first.is_const and access.fill is None:
            width = min(width, size - 1 - max(first.const, 0))
        spans.append(Span(first, width + 1))
    return tuple(spans)


def hull(one: Box, other: Box) -> Box | None:
    """The smallest box around two whose starts differ by constants; None when they do not."""
    spans: list[Span] = []
    for a, b in zip(one, other, strict=True):
        offset = b.start - a.start
        if not offset.is_const:
            return None
        low = min(0, offset.const)
        high = max(a.extent, offset.const + b.extent)
        spans.append(Span(a.start + low, high - low))
    return tuple(spans)


def box_elems(box: Box) -> int:
    """Elements of the unclipped box."""
    total = 1
    for span in box:
        total *= span.extent
    return total
