"""Intervals that move with the number of an instance: [slope * g + base, + width).

All instances of a group share one width, so one buffer size and one kernel serve them all.  What is
not of this form exactly (a floor division whose step does not divide, two consumers that move at
different speeds) is covered by the narrowest such interval that was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from worker.compiler.ir.affine import Affine, FloorDiv, Lookup, Mod, Var


class Line(NamedTuple):
    """Half-open [slope * g + base, slope * g + base + width) for instance g."""

    slope: int
    base: int
    width: int

    def start(self, g: int) -> int:
        """First position of instance `g`."""
        return self.slope * g + self.base

    def clipped(self, g: int, extent: int) -> int:
        """Positions of instance `g` inside [0, extent)."""
        low = self.slope * g + self.base
        return max(0, min(low + self.width, extent) - max(low, 0))

    def stays_inside(self, extent: int, factor: int) -> bool:
        """Whether every instance lies in [0, extent)."""
        travel = self.slope * (factor - 1)
        first, last = self.base + min(0, travel), self.base + max(0, travel)
        return first >= 0 and last + self.width <= extent

    def inside(self, extent: int) -> tuple[int, int]:
        """The first and the last instance that lies in [0, extent), of a line that moves.

        The last is before the first where none does.
        """
        room = extent - self.width - self.base
        if self.slope > 0:
            return -(self.base // self.slope), room // self.slope
        return -(-room // self.slope), -self.base // self.slope


def whole(extent: int) -> Line:
    """All of [0, extent), for every instance."""
    return Line(0, 0, extent)


def fit(starts: Sequence[int], ends: Sequence[int]) -> Line:
    """A narrow line that covers [starts[g], ends[g]) for every g; `starts` is not empty.

    The slopes tried are the mean speed of the starts rounded either way, and the first step; the
    narrowest wins, ties to the first.  Cost: linear.
    """
    last = len(starts) - 1
    if not last:
        return Line(0, starts[0], ends[0] - starts[0])
    mean = (starts[last] - starts[0]) // last
    best: Line | None = None
    for slope in (mean, mean + 1, starts[1] - starts[0]):
        base = min(s - slope * g for g, s in enumerate(starts))
        width = max(e - slope * g for g, e in enumerate(ends)) - base
        if best is None or width < best.width:
            best = Line(slope, base, width)
    assert best is not None
    return best


def hull(a: Line, b: Line, factor: int) -> Line:
    """A line that covers both for g in [0, factor): exact where their slopes agree."""
    if a.slope == b.slope:
        base = min(a.base, b.base)
        return Line(a.slope, base, max(a.base + a.width, b.base + b.width) - base)
    starts = [min(a.start(g), b.start(g)) for g in range(factor)]
    ends = [max(a.start(g) + a.width, b.start(g) + b.width) for g in range(factor)]
    return fit(starts, ends)


def covering(line: Line, extent: int, factor: int) -> Line:
    """The least widening of `line` under which the instances together cover [0, extent)."""
    if not line.slope:
        return whole(extent)
    step, travel = abs(line.slope), line.slope * (factor - 1)
    first = line.base + min(0, travel)
    base, width = line.base - max(0, first), line.width + max(0, first)
    width = max(width, step, extent - (base + max(0, travel)))
    return Line(line.slope, base, width)


def image(expr: Affine, lines: Mapping[str, Line], factor: int) -> Line | None:
    """Where `expr` goes when every variable moves along its line; None if it has a lookup.

    Covers all values (widths of the terms add up: exact when every variable occurs once).
    Cost: linear in the expression, times `factor` for // and % whose divisor does not divide.
    """
    slope, base, width = 0, expr.const, 1
    for atom, coeff in expr.terms:
        part = _atom_image(atom, lines, factor)
        if part is None:
            return None
        slope += coeff * part.slope
        base += coeff * (part.base if coeff > 0 else part.base + part.width - 1)
        width += abs(coeff) * (part.width - 1)
    return Line(slope, base, width)


def _atom_image(
    atom: Var | FloorDiv | Mod | Lookup, lines: Mapping[str, Line], factor: int
) -> Line | None:
    match atom:
        case Var(name):
            return lines[name]
        case FloorDiv(arg, divisor):
            inner = image(arg, lines, factor)
            return None if inner is None else quotient(inner, divisor, factor)
        case Mod(arg, divisor):
            inner = image(arg, lines, factor)
            return None if inner is None else _remainder(inner, divisor, factor)
        case Lookup():
            return None


def quotient(line: Line, divisor: int, factor: int) -> Line:
    """Where floor(x / divisor) goes for x on `line`."""
    if line.slope % divisor == 0:
        low = line.base // divisor
        return Line(line.slope // divisor, low, (line.base + line.width - 1) // divisor - low + 1)
    starts = [line.start(g) for g in range(factor)]
    return fit(
        [s // divisor for s in starts], [(s + line.width - 1) // divisor + 1 for s in starts]
    )


def _remainder(line: Line, divisor: int, factor: int) -> Line:
    starts = [line.start(g) for g in range(1 if line.slope % divisor == 0 else factor)]
    crosses: Iterable[bool] = (s % divisor + line.width > divisor for s in starts)
    if any(crosses):
        return whole(divisor)
    lows = [s % divisor for s in starts]
    if len(lows) == 1:
        return Line(0, lows[0], line.width)
    found = fit(lows, [s + line.width for s in lows])
    return found if found.width < divisor else whole(divisor)
