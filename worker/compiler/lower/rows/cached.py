"""What a cache in front of home holds already of a kernel's transfers: a rule on the program.

The cache is taken for one of the least recently used lines, as large as its level's `usable_bytes`,
and the order for that of `lower.issue`; time decides nothing.  Two things are claimed:

- *Shared*: cores that fetch the same region in the same step bring it in together.  Each takes its
  part of the bytes from home (`Resource.sharers`), so nobody gets for nothing what is on its way.
- *Kept*: what a leaf moves does not depend on a loop around it, so the loop's iterations but the
  first find it, and those but the last need not write it back: the line is still dirty then.

Each holds only if all that is moved at home in between, by any leaf on any core, fits beside it.
That is bounded from above by distinct lines, region by region (`_Use.lines`), so a claim is never
more than such a cache would find; it may be less: regions that overlap in part, what another leaf
has moved, and what survives a kernel are not claimed.
Source: R. L. Mattson et al., Evaluation techniques for storage hierarchies, IBM Systems Journal
9(2), 1970: a reference hits if the distinct lines since the last one to the same fit in the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod

import numpy as np
import numpy.typing as npt

from worker.compiler.ir.affine import Affine
from worker.compiler.ir.evaluate import affine_values
from worker.compiler.ir.op import Tensor
from worker.compiler.lower.grid import Grid, Ints, drop_last
from worker.compiler.lower.issue import Ahead, Timing
from worker.compiler.lower.resolve import Refs
from worker.compiler.lower.rows.hazards import access_box
from worker.compiler.machine.machine import Machine, Managed
from worker.compiler.schedule.grid import instance_of
from worker.compiler.schedule.nodes import Box, LoopKind, Move
from worker.compiler.schedule.walk import Frame, Leaf, Walk

Flags = npt.NDArray[np.bool_]
ONE: Ints = np.array(1, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Found:
    """What a cache does for the transfers of one leaf; arrays broadcast to its grid."""

    sharers: Ints
    """Cores that bring in the same together."""
    is_held: Flags
    """Whether nothing of it passes the port of home."""


def has_cache(machine: Machine) -> bool:
    """Whether transfers may pass a cache."""
    return any(level.managed is Managed.CACHE for level in machine.levels[1:])


class Cached:
    """The claims of one kernel on a machine whose home stands behind a cache."""

    def __init__(
        self,
        nest: Walk,
        refs: Sequence[Refs],
        ahead: Sequence[Ahead | None],
        timing: Sequence[Timing],
        machine: Machine,
    ) -> None:
        self.machine = machine
        self.cache = next(m for m in machine.levels[1:] if m.managed is Managed.CACHE)
        self.ahead = ahead
        self.uses: dict[tuple[int, int], _Use] = {}
        tensors = nest.schedule.graph.tensors
        for leaf, leaf_refs in zip(nest.leaves, refs, strict=True):
            for slot, box, keys, is_known in _operands(nest, leaf, leaf_refs):
                tensor = (*leaf_refs.reads, leaf_refs.write)[slot].tensor
                self.uses[leaf.number, slot] = _Use(
                    leaf, tensors[tensor], slot == len(leaf_refs.reads), box, keys,
                    self.cache.align_bytes, is_known,
                    timing[leaf.number].front is not None,
                )  # fmt: skip
        self._by_frame: dict[str, list[_Use]] = {}
        for use in self.uses.values():
            for frame in use.leaf.frames:
                self._by_frame.setdefault(frame.path, []).append(use)
        self._written = {use.tensor.name for use in self.uses.values() if use.is_write}
        self._keeping: dict[tuple[int, int], tuple[Frame, ...]] = {}

    def find(self, number: int, slot: int, grid: Grid, core: Ints, num_bytes: Ints) -> Found | None:
        """What is claimed of the transfers of operand `slot` of a leaf; None: nothing.

        `num_bytes`: of each iteration.  Cost: a few passes over the cores, and over the iterations
        where a tile's place is not linear in the loops or its size varies.
        """
        use = self.uses.get((number, slot))
        if use is None or not use.is_known:
            return None
        if any(f.is_folded for f in use.leaf.frames) and not use.is_linear:
            return None  # lanes that share an instruction need not add up to the same
        lines = use.lines(use.cores)
        sharers, is_held = ONE, np.zeros((), dtype=np.bool_)
        if not use.is_write and lines <= self.cache.usable_bytes:
            sharers = self._sharers(use, grid, core, num_bytes)
        if self.cache.instances == 1 or use.tensor.name not in self._written:
            for frame in self._frames(number, slot, use):
                if not _is_constant(num_bytes, grid, frame):
                    continue
                value = grid.values[frame.var]
                value = drop_last(value, value.ndim - num_dims(grid))
                is_held = is_held | (value < frame.trip - 1 if use.is_write else value > 0)
        if not is_held.any() and np.all(sharers == 1):
            return None
        return Found(sharers, is_held)

    def _frames(self, number: int, slot: int, use: _Use) -> tuple[Frame, ...]:
        """Loops from one iteration to the next of which the cache keeps what an operand moves."""
        if (number, slot) not in self._keeping:
            self._keeping[number, slot] = tuple(
                frame
                for frame in use.leaf.frames
                if frame.is_repeating and frame.trip > 1 and not use.varies(frame)
                if not use.is_early and self._between(use, frame) <= self.cache.usable_bytes
            )
        return self._keeping[number, slot]

    def _between(self, use: _Use, frame: Frame) -> int:
        """Most bytes of lines that are moved at home from one iteration of a loop to the next.

        A stretch of the program as long as one iteration holds, of every leaf, consecutive entries
        of at most two.  Where the leaf is issued ahead across loops further out, the stretch may
        hold what else stands in one iteration of them, too.
        """
        around = _crossed(self.ahead[use.leaf.number], frame)
        total: dict[str, int] = {}
        for other in self._by_frame[around[0].path]:
            inside = [f for f in around if f in other.leaf.frames]
            crossed = {*inside, *_crossed(self.ahead[other.leaf.number], inside[-1])}
            at = other.leaf.frames.index(inside[-1])
            moving = (*other.cores, *(f for f in other.leaf.frames[at + 1 :] if f.is_repeating))
            count = other.lines(moving)
            times = 2 if any(other.varies(f) for f in crossed) else 1
            name = other.tensor.name
            total[name] = min(total.get(name, 0) + times * count, other.whole)
        return sum(total.values())

    def _sharers(self, use: _Use, grid: Grid, core: Ints, num_bytes: Ints) -> Ints:
        """How many cores fetch the same in the same step."""
        is_apart = max(self.machine.home.instances, self.cache.instances) > 1
        if use.is_linear and isinstance(use.leaf.node, Move) and not is_apart:
            alike = use.alike
            if alike is not None:
                return np.array(alike, dtype=np.int64)
        keys = [affine_values(key, grid.values) for key in use.keys]
        keys = [drop_last(key, key.ndim - num_dims(grid)) for key in keys]
        if isinstance(use.leaf.node, Move):
            if use.is_linear:  # then what cores have in common is the same in every step
                keys = [_first_step(key, grid) for key in keys]
        else:
            keys.append(num_bytes)  # operands are cut by all axes of the operator
        for level in (self.machine.home, self.cache):
            if level.instances > 1:
                keys.append(instance_of(level.name, core, self.machine))
        return equal_cores([k for k in keys if k.ndim], grid)


@dataclass(frozen=True, eq=False)
class _Use:
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
    is_known: bool
    """Whether keys tell all iterations apart."""
    is_early: bool
    """Whether some of it is issued where an earlier layer starts."""

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
        return _up(self.tensor.size_bytes, self.line) + self.line

    @cached_property
    def _region(self) -> int:
        """Bytes of the lines that one iteration touches, at most."""
        size = self.tensor.dtype.size_bytes
        shape = self.tensor.shape
        extents = [min(span.extent, n) for span, n in zip(self.box, shape, strict=True)]
        strides = [size * prod(shape[d + 1 :]) for d in range(len(shape))]
        inner = len(shape)
        while inner and (inner == len(shape) or extents[inner] == shape[inner]):
            inner -= 1  # dimensions from here on follow each other without a gap
        run = size * prod(extents[inner:])
        pitch = gcd(self.line, *(
            gcd(stride, *(c * stride for _, c in span.start.terms), span.start.const * stride)
            if d < inner
            else gcd(*(c * stride for _, c in span.start.terms), span.start.const * stride)
            for d, (span, stride) in enumerate(zip(self.box, strides, strict=True))
        ))  # fmt: skip
        each = _up(run + self.line - pitch, self.line)
        return min(prod(extents[:inner]) * each, self.whole)

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


def equal_cores(keys: Sequence[Ints], grid: Grid) -> Ints:
    """At every iteration, how many cores have equal keys in that step; broadcasts to the grid."""
    axes = [k for k, f in enumerate(grid.frames) if f.kind is LoopKind.CORES]
    varied = [k for k in axes if any(key.shape[k] > 1 for key in keys)]
    alike = prod(grid.shape[k] for k in axes if k not in varied)
    mixed = [key for key in keys if any(key.shape[k] > 1 for k in varied)]
    if not mixed:
        return np.array(alike, dtype=np.int64)
    code, radix = np.zeros((), dtype=np.int64), 1
    for key in mixed:
        low, span = int(key.min()), int(key.max()) - int(key.min()) + 1
        if radix * span >= _MOST_CODES:
            distinct, where = np.unique(code, return_inverse=True)
            code, radix = where.reshape(code.shape).astype(np.int64), len(distinct)
        code, radix = code * span + (key - low), radix * span
    shape = code.shape
    last = np.moveaxis(code, varied, range(-len(varied), 0))
    steps = last.reshape(-1, prod(shape[k] for k in varied))
    order = np.argsort(steps, axis=1, kind="stable")
    ranked = np.take_along_axis(steps, order, axis=1)
    begins = np.ones(ranked.shape, dtype=np.bool_)
    begins[:, 1:] = ranked[:, 1:] != ranked[:, :-1]
    group = np.cumsum(begins.ravel()) - 1
    counts = np.empty(ranked.shape, dtype=np.int64)
    np.put_along_axis(counts, order, np.bincount(group)[group].reshape(ranked.shape), axis=1)
    return np.moveaxis(counts.reshape(last.shape), range(-len(varied), 0), varied) * alike


_MOST_CODES = 1 << 62


def num_dims(grid: Grid) -> int:
    """Axes of a leaf's grid without those of lanes that share an instruction."""
    return len(grid.frames) - grid.num_lane_axes


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


def _first_step(values: Ints, grid: Grid) -> Ints:
    """The same at the first iteration of all loops but those over cores."""
    for axis, frame in enumerate(grid.frames[: values.ndim]):
        if frame.kind is not LoopKind.CORES:
            values = values.take([0], axis)
    return values


def _is_constant(values: Ints, grid: Grid, frame: Frame) -> bool:
    axis = grid.frames.index(frame)
    if values.ndim == 0 or values.shape[axis] == 1:
        return True
    return bool(np.all(values == values.take([0], axis)))


def _crossed(ahead: Ahead | None, frame: Frame) -> tuple[Frame, ...]:
    """A loop and those around it that a leaf is issued ahead across, outermost first."""
    if ahead is None or frame not in ahead.frames:
        return (frame,)
    return ahead.frames[: ahead.frames.index(frame) + 1]


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
