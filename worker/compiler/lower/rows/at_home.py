"""What the leaves of a kernel move from and to home, and how many lines of a cache that takes.

Numbers of lines are bounds from above: regions that overlap count as often as they are apart in the
schedule, and no more than the whole tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod
from typing import TypeAlias

from worker.compiler.ir.affine import Affine
from worker.compiler.ir.op import Tensor
from worker.compiler.lower.issue import Ahead, Timing
from worker.compiler.lower.resolve import Refs
from worker.compiler.lower.rows.hazards import access_box
from worker.compiler.machine.bursts import burst_bytes, pitch_of
from worker.compiler.machine.machine import MemoryLevel
from worker.compiler.schedule.nodes import Box, Move
from worker.compiler.schedule.walk import Frame, Leaf, Walk

Uses: TypeAlias = "Mapping[tuple[int, int], Use]"
"""By number of the leaf and slot of its operand: reads come first, then the write."""


@dataclass(frozen=True, eq=False)
class Use:
    """An operand at home of one leaf."""

    leaf: Leaf
    tensor: Tensor
    is_write: bool
    box: Box
    """What an iteration touches of the tensor."""
    keys: tuple[Affine, ...]
    """Equal at two iterations: these touch the same."""
    line: int
    """Bytes of a line."""
    align: int
    """Bytes that a tensor's address at home is a multiple of."""
    is_known: bool
    """Whether keys tell all iterations apart."""
    ahead: Ahead | None
    """How far it is issued ahead."""
    early: int
    """Entries that are issued where an earlier layer starts."""
    may_be_unread: bool = False
    """Whether some iterations are left out, since nothing reads what they bring."""

    @cached_property
    def is_linear(self) -> bool:
        return all(key.is_linear for key in self.keys)

    @cached_property
    def cores(self) -> tuple[Frame, ...]:
        """Loops whose iterations are one step."""
        return tuple(f for f in self.leaf.frames if not f.is_repeating)

    @cached_property
    def _variables(self) -> frozenset[str]:
        found = (s.start for s in self.box)
        return frozenset(name for key in (*self.keys, *found) for name in key.variables())

    @cached_property
    def whole(self) -> int:
        """Bytes of all lines of the tensor."""
        return _up(self.tensor.size_bytes + self.line - gcd(self.line, self.align), self.line)

    @cached_property
    def _region(self) -> int:
        """Bytes of the lines that one iteration touches, at most."""
        shape, size = self.tensor.shape, self.tensor.dtype.size_bytes
        extents = [min(span.extent, n) for span, n in zip(self.box, shape, strict=True)]
        pitches = [pitch_of(span.start) for span in self.box]
        return burst_bytes(extents, shape, size, pitches, self.align, self.line)

    @cached_property
    def alike(self) -> int | None:
        """Cores that touch the same in a step, if the others are told apart one by one: each loop
        over cores that a linear key names has a key where it is the only one; else None."""
        loops = {f.var: f.trip for f in self.cores}
        named = [loops.keys() & set(key.variables()) for key in self.keys]
        used = set().union(*named)
        if any({name} not in named for name in used):
            return None
        return prod(trip for name, trip in loops.items() if name not in used)

    def varies(self, frame: Frame) -> bool:
        """Whether iterations of a loop touch different regions."""
        return frame.var in self._variables

    def lines(self, frames: Iterable[Frame]) -> int:
        """Bytes of the distinct lines that the iterations of some loops touch, at most."""
        return min(self._region * prod(f.trip for f in frames if self.varies(f)), self.whole)


def uses_of(
    nest: Walk,
    refs: Sequence[Refs],
    ahead: Sequence[Ahead | None],
    timing: Sequence[Timing],
    cache: MemoryLevel,
    home: MemoryLevel,
) -> Uses:
    """All operands that transfers move from or to home through a cache."""
    tensors = nest.schedule.graph.tensors
    found: dict[tuple[int, int], Use] = {}
    for leaf, leaf_refs in zip(nest.leaves, refs, strict=True):
        front = timing[leaf.number].front
        for slot, box, keys, is_known in _operands(nest, leaf, leaf_refs):
            ref = (*leaf_refs.reads, leaf_refs.write)[slot]
            found[leaf.number, slot] = Use(
                leaf, tensors[ref.tensor], slot == len(leaf_refs.reads), box, keys,
                cache.align_bytes, home.align_bytes, is_known, ahead[leaf.number],
                0 if front is None else front.entries, leaf_refs.may_be_unread,
            )  # fmt: skip
    return found


def crossed(ahead: Ahead | None, frame: Frame) -> tuple[Frame, ...]:
    """A loop and those around it that a leaf is issued ahead across, outermost first."""
    if ahead is None or frame not in ahead.frames:
        return (frame,)
    return ahead.frames[: ahead.frames.index(frame) + 1]


def _operands(
    nest: Walk, leaf: Leaf, refs: Refs
) -> Iterator[tuple[int, Box, tuple[Affine, ...], bool]]:
    """Operands that a leaf moves from or to home: (slot, box, keys, whether these say it all).

    The slots of reads come first, then that of the write.
    """
    ends = (*refs.reads, refs.write)
    if isinstance(leaf.node, Move):
        starts = tuple(span.start for span in leaf.node.box)
        for slot, ref in enumerate(ends):
            if ref.scope is None:
                yield slot, leaf.node.box, starts, True
        return
    op = nest.schedule.graph.op(leaf.node.op)
    for slot, (access, ref) in enumerate(zip((*op.reads, op.write), ends, strict=True)):
        if ref.scope is None and ref.staged:
            named = {name for expr in access.index for name in expr.variables()}
            spans = zip(op.domain, leaf.node.box, strict=True)
            keys = tuple(span.start for axis, span in spans if axis.name in named)
            box = access_box(op, access, leaf.node)
            yield slot, box, keys, not any(e.has_lookup for e in access.index)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
