"""The box of a tensor that one tile of a domain touches, in closed form.

A tile gives every axis a size; where it stands is an affine start per axis (multiples of the size,
since tiles are laid edge to edge).  For each index expression the *width* (number of positions,
sound for every tile) and the *start* (affine in loop variables) follow without enumerating tiles.
// and % keep their width tight when tile sizes divide the period, which is why divisors are good
tile sizes for reshapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from worker.compiler.ir.affine import Affine, FloorDiv, Lookup, Mod, Var


@dataclass(frozen=True, slots=True)
class Reach:
    """What is known of an expression over one tile: start = phase (mod step); width positions.

    step 0 means that the start is the constant `phase`.
    """

    width: int
    step: int
    phase: int


def reach(expr: Affine, tile: Mapping[str, int], extents: Mapping[str, int]) -> Reach:
    """Width and alignment of `expr` over tiles of size `tile` in a domain of `extents`.

    Raises:
        KeyError: the expression has a lookup (its reach is the whole dimension).
    Cost: linear in the expression.
    """
    width, step, phase = 1, 0, expr.const
    for atom, coeff in expr.terms:
        part = _atom_reach(atom, tile, extents)
        width += abs(coeff) * (part.width - 1)
        step = gcd(step, coeff * part.step)
        phase += coeff * (part.phase if coeff > 0 else part.phase + part.width - 1)
    return Reach(width, step, phase)


def _atom_reach(
    atom: Var | FloorDiv | Mod | Lookup, tile: Mapping[str, int], extents: Mapping[str, int]
) -> Reach:
    match atom:
        case Var(name):
            size = tile[name]
            return Reach(size, size if size < extents[name] else 0, 0)
        case FloorDiv(arg, divisor):
            inner = reach(arg, tile, extents)
            if inner.step % divisor == 0:
                offset = inner.phase % divisor
                width = (offset + inner.width - 1) // divisor + 1
                return Reach(width, inner.step // divisor, inner.phase // divisor)
            offset = _largest_offset(inner, divisor)
            return Reach((offset + inner.width - 1) // divisor + 1, 1, 0)
        case Mod(arg, divisor):
            inner = reach(arg, tile, extents)
            offset = _largest_offset(inner, divisor)
            if offset + inner.width > divisor:
                return Reach(divisor, 0, 0)
            if inner.step % divisor == 0:
                return Reach(inner.width, 0, offset)
            common = gcd(inner.step, divisor)
            return Reach(inner.width, common, inner.phase % common)
        case Lookup(slot):
            raise KeyError(f"lookup of slot {slot} has no static reach")


def _largest_offset(inner: Reach, divisor: int) -> int:
    """Largest value of start % divisor."""
    common = gcd(inner.step, divisor) if inner.step else divisor
    return divisor - common + inner.phase % common


def start(
    expr: Affine,
    starts: Mapping[str, Affine],
    tile: Mapping[str, int],
    extents: Mapping[str, int],
) -> Affine:
    """Smallest value of `expr` over the tile standing at `starts`; see `reach` for its width."""
    total = Affine((), expr.const)
    for atom, coeff in expr.terms:
        match atom:
            case Var(name):
                low = starts[name]
            case FloorDiv(arg, divisor):
                low = start(arg, starts, tile, extents).floordiv(divisor)
            case Mod(arg, divisor):
                inner = reach(arg, tile, extents)
                crosses = _largest_offset(inner, divisor) + inner.width > divisor
                low = Affine() if crosses else start(arg, starts, tile, extents).mod(divisor)
            case Lookup(slot):
                raise KeyError(f"lookup of slot {slot} has no static start")
        if coeff < 0:
            low = low + (_atom_reach(atom, tile, extents).width - 1)
        total = total + low * coeff
    return total
