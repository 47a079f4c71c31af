"""How many elements of a tensor an operator touches: exactly where that is cheap, never more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod

import numpy as np

from worker.compiler.ir.affine import Affine
from worker.compiler.ir.distinct import distinct
from worker.compiler.ir.evaluate import affine_values
from worker.compiler.ir.op import Access, TensorOp

_MOST_POINTS = 1 << 16
"""Indices evaluated one by one: what is larger counts by steps."""


@lru_cache(maxsize=4096)
def touched_elems(op: TensorOp, access: Access, shape: tuple[int, ...]) -> int:
    """Distinct elements inside a tensor of `shape` that an access touches over the whole domain.

    A lower bound, exact for strided windows, permutations and whatever else has dimensions that
    are apart or few points.  Of a looked-up tensor, where the indices are unknown: an element a
    point, or all that the other dimensions choose from, whichever is less; no schedule can ask for
    less, since it does not know the indices either.

    Cost: linear in the access, in places in the points of the axes that one dimension uses.
    """
    extents = {axis.name: axis.extent for axis in op.domain}
    looked_up = [k for k, expr in enumerate(access.index) if expr.has_lookup]
    total = prod(shape[k] for k in looked_up)
    for dims in _apart([k for k in range(len(shape)) if k not in looked_up], access.index):
        total *= _distinct([access.index[k] for k in dims], [shape[k] for k in dims], extents)
    return min(total, op.num_points)


def _apart(dims: Sequence[int], index: Sequence[Affine]) -> list[list[int]]:
    """Dimensions in groups that share no variable."""
    groups: list[tuple[set[str], list[int]]] = []
    for k in dims:
        names, members = set(index[k].variables()), [k]
        for other in [g for g in groups if g[0] & names]:
            groups.remove(other)
            names |= other[0]
            members = other[1] + members
        groups.append((names, members))
    return [members for _, members in groups]


def _distinct(index: Sequence[Affine], shape: Sequence[int], extents: Mapping[str, int]) -> int:
    """Distinct index tuples inside `shape`."""
    if len(index) == 1 and index[0].is_linear:
        found = _in_line(index[0], shape[0], extents)
        if found is not None:
            return found
    names = sorted({name for expr in index for name in expr.variables()})
    sizes = [extents[name] for name in names]
    if prod(sizes) <= _MOST_POINTS and prod(shape) <= _MOST_POINTS**2:
        axes = np.ix_(*(np.arange(size) for size in sizes))
        coords = dict(zip(names, axes, strict=True))
        flat, inside = np.zeros(sizes, np.int64), np.ones(sizes, np.bool_)
        for expr, size in zip(index, shape, strict=True):
            values = affine_values(expr, coords)
            flat = flat * size + values
            inside &= (values >= 0) & (values < size)
        return int(distinct(flat[inside]).size)
    return by_steps(index, shape, extents)


def _in_line(expr: Affine, size: int, extents: Mapping[str, int]) -> int | None:
    """Values in [0, size) of a linear expression; None where they are not evenly spaced."""
    steps = sorted((abs(expr.coeff(n)), extents[n] - 1) for n in expr.variables() if extents[n] > 1)
    low = expr.const + sum(
        min(0, expr.coeff(name) * (extents[name] - 1)) for name in expr.variables()
    )
    pitch = steps[0][0] if steps else 1
    reach = 0
    for step, times in steps:
        if step % pitch or step > reach + pitch:
            return None
        reach += step * times
    first = max(0, -(low // pitch)) if low < 0 else 0
    last = min(reach // pitch, (size - 1 - low) // pitch)
    return max(0, last - first + 1)


def by_steps(index: Sequence[Affine], shape: Sequence[int], extents: Mapping[str, int]) -> int:
    """A sum of variables takes at least as many values as their steps add up to, and an axis counts
    in one dimension only; what reaches beyond the ends may be all there."""
    used: set[str] = set()
    total = 1
    for expr, size in zip(index, shape, strict=True):
        if not expr.is_linear:
            low, high, _ = expr.bounds({n: (0, extents[n] - 1) for n in expr.variables()})
            total *= low >= 0 and high < size
            continue
        travel = {n: expr.coeff(n) * (extents[n] - 1) for n in expr.variables()}
        low = expr.const + sum(min(0, far) for far in travel.values())
        high = expr.const + sum(max(0, far) for far in travel.values())
        steps = sum(extents[n] - 1 for n in travel if travel[n] and n not in used)
        total *= max(0, 1 + steps - max(0, -low) - max(0, high - size + 1))
        used.update(travel)
    return total
