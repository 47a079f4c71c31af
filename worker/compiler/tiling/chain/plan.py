"""A planned row chain: its tiles, who computes them, what it holds, and what no plan may do."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

from worker.compiler.ir.affine import Affine
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import MemoryLevel
from worker.compiler.schedule.nodes import Box
from worker.compiler.tiling.align import buffer_bytes
from worker.compiler.tiling.chain.cut import Cut
from worker.compiler.tiling.chain.facts import Chain

MAX_RECOMPUTED = 0.25
"""Work done more than once, at most, as a part of the chain's own."""
MAX_COUNTED = 1 << 22
"""Points of an operator that may be recomputed: the checker counts them one by one."""


@dataclass(frozen=True, slots=True)
class Split:
    """How the tiles along one row axis are shared out."""

    ways: int
    """Cores."""
    trips: int
    """Tiles per core."""


@dataclass(frozen=True, slots=True)
class ChainPlan:
    """A chain with its tiles, its cores and its prediction."""

    chain: Chain
    cut: Cut
    splits: tuple[Split, ...]
    """Per row axis of the cut, outermost first."""
    engines: tuple[tuple[str, str], ...]
    """(operator, engine)."""
    memory: str
    """The local buffer."""
    location_of: Mapping[str, str]
    """Where outside operands are and results go; home where it says nothing."""
    home: str
    copies: Mapping[str, int]
    """Per tensor that has a Place."""
    footprint_bytes: int
    """Of one core: all Places of the chain."""
    predicted_cycles: int

    def storage(self, tensor: str) -> DType:
        """Type in which the local buffer holds a tensor."""
        return held_dtype(self.chain, tensor)

    def depth(self, rows: tuple[int, ...]) -> int:
        """Number of row axes up to the last one that a box moves with over time."""
        return max((k + 1 for k in rows if self.splits[k].trips > 1), default=0)


def held_dtype(chain: Chain, tensor: str) -> DType:
    """A reduction accumulates in the accumulator type of its result."""
    dtype = chain.tensors[tensor].dtype
    reduces = any(op.write.tensor == tensor and op.reduce is not None for op in chain.ops)
    return dtype.accumulator if reduces else dtype


def follows_slices(cut: Cut, boxes: Mapping[str, Box]) -> bool:
    """Whether what a chain fetches of tensors around it moves with the slices held of them.

    `boxes`: what is held.  A chain takes all of a dimension whose index has a // or % that starts
    off the grid of its tiles (`touched`), though the slice may be narrower.
    """
    return all(
        not held.start.variables() or _moves_alike(fetched.start, held.start)
        for one in cut.fetched
        if one.tensor in boxes
        for fetched, held in zip(one.box, boxes[one.tensor], strict=True)
    )


def _moves_alike(at: Affine, slice_at: Affine) -> bool:
    """Whether a start has the variables of a slice's start, with the same steps."""
    return all(at.coeff(name) == slice_at.coeff(name) for name in slice_at.variables())


def footprint_bytes(
    chain: Chain,
    cut: Cut,
    location_of: Mapping[str, str],
    level: MemoryLevel,
    copies: Mapping[str, int],
) -> int:
    """Bytes of all Places of one core."""
    return sum(
        buffer_bytes(
            tuple(span.extent for span in held.box),
            held_dtype(chain, held.tensor),
            level,
            copies.get(held.tensor, 1),
        )
        for held in (*cut.fetched, *cut.made)
        if location_of.get(held.tensor) != level.name
    )


def is_allowed(
    chain: Chain, cut: Cut, splits: tuple[Split, ...], private: Collection[str] = ()
) -> bool:
    """Results that leave are computed once; the rest repeats little of its work.

    What goes to a buffer that no other instance uses (`private`) may be there a second time.
    """
    again = total = 0.0
    for part in cut.ops:
        points = prod(span.extent for span in part.box)
        repeats = repeats_of(part.rows, splits)
        runs = prod(splits[k].ways * splits[k].trips for k in part.rows)
        is_repeated = repeats > 1 or part.has_halo
        is_stored = part.op.write.tensor in chain.leaving
        if is_repeated and (is_stored or part.op.num_points > MAX_COUNTED):
            return False
        if is_stored and part.op.write.tensor not in private and chain.overlaps(part.op):
            return False
        once = min(points * runs, prod(s.extent for s in chain.slices[part.op.name]))
        total += once
        again += points * runs * repeats - once if is_repeated else 0
    return again <= MAX_RECOMPUTED * total


def repeats_of(rows: tuple[int, ...], splits: tuple[Split, ...]) -> int:
    """How often an operator that moves with `rows` computes the same box, over all cores."""
    depth = max((k + 1 for k in rows if splits[k].trips > 1), default=0)
    return prod(
        split.ways * (split.trips if k < depth else 1)
        for k, split in enumerate(splits)
        if k not in rows
    )
