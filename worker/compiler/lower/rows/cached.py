"""What a cache in front of home holds already of a kernel's transfers: a rule on the program.

The cache is taken for one of the least recently used lines, as large as its level's `usable_bytes`,
and the order for that of `lower.issue`; time decides nothing.  Three things are claimed:

- *Shared*: cores that fetch the same region in the same step bring it in together.  Each takes its
  part of the bytes from home (`Resource.sharers`), so nobody gets for nothing what is on its way.
- *Kept*: what a leaf moves does not depend on a loop around it, so the loop's iterations but the
  first find it, and those but the last need not write it back: the line is still dirty then.
- *Handed over*: what parts of a sequence have moved, later ones find (`Earlier`).

Each holds only if all that is moved at home in between, by any leaf on any core, fits beside it.
That is bounded from above by distinct lines, region by region (`Use.lines`), so a claim is never
more than such a cache would find; it may be less: regions that overlap in part and what survives a
kernel are not claimed.
Source: R. L. Mattson et al., Evaluation techniques for storage hierarchies, IBM Systems Journal
9(2), 1970: a reference hits if the distinct lines since the last one to the same fit in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from worker.compiler.ir.evaluate import affine_values
from worker.compiler.lower.grid import Grid, Ints, drop_last
from worker.compiler.lower.issue import Ahead, Timing
from worker.compiler.lower.resolve import Refs
from worker.compiler.lower.rows.at_home import Use, crossed, uses_of
from worker.compiler.lower.rows.earlier import Earlier
from worker.compiler.machine.machine import Machine, Managed
from worker.compiler.schedule.grid import instance_of
from worker.compiler.schedule.nodes import LoopKind, Move
from worker.compiler.schedule.unread import Unread
from worker.compiler.schedule.walk import Frame, Walk

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
        unread: Unread,
        machine: Machine,
    ) -> None:
        self.machine = machine
        self.unread = unread
        self.cache = next(m for m in machine.levels[1:] if m.managed is Managed.CACHE)
        self.uses = uses_of(nest, refs, ahead, timing, self.cache, machine.home)
        self._earlier = Earlier(self.uses.values(), nest.ranges, self.cache.usable_bytes)
        self._by_frame: dict[str, list[Use]] = {}
        for use in self.uses.values():
            for frame in use.leaf.frames:
                self._by_frame.setdefault(frame.path, []).append(use)
        self._written = {use.tensor.name for use in self.uses.values() if use.is_write}
        self._handed: dict[tuple[int, int], bool] = {}
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
        wanted = self.unread.wanted(number, grid.values)
        if wanted is not None and bool(np.all(wanted)):
            wanted = None
        lines = use.lines(use.cores)
        sharers, is_held = ONE, np.zeros((), dtype=np.bool_)
        if not use.is_write and lines <= self.cache.usable_bytes:
            sharers = self._sharers(use, grid, core, num_bytes, wanted)
        if self.cache.instances == 1 and not use.is_write and self._is_handed(number, slot, use):
            return Found(ONE, np.ones((), dtype=np.bool_))
        is_alone = self.cache.instances == 1 or use.tensor.name not in self._written
        if is_alone and wanted is None:  # else the iteration that would bring it may be left out
            for frame in self._frames(number, slot, use):
                if not isinstance(use.leaf.node, Move) and _varies(num_bytes, grid, frame):
                    continue  # an operand that is cut by other axes of the operator
                value = grid.values[frame.var]
                value = drop_last(value, value.ndim - num_dims(grid))
                is_held = is_held | (value < frame.trip - 1 if use.is_write else value > 0)
        if not is_held.any() and np.all(sharers == 1):
            return None
        return Found(sharers, is_held)

    def _is_handed(self, number: int, slot: int, use: Use) -> bool:
        """Whether the cache has all of an operand from what stands in front of it."""
        if (number, slot) not in self._handed:
            self._handed[number, slot] = self._earlier.hands(use)
        return self._handed[number, slot]

    def _frames(self, number: int, slot: int, use: Use) -> tuple[Frame, ...]:
        """Loops from one iteration to the next of which the cache keeps what an operand moves."""
        if (number, slot) not in self._keeping:
            self._keeping[number, slot] = tuple(
                frame
                for frame in use.leaf.frames
                if frame.is_repeating and frame.trip > 1 and not use.varies(frame)
                if not use.early and self._between(use, frame) <= self.cache.usable_bytes
            )
        return self._keeping[number, slot]

    def _between(self, use: Use, frame: Frame) -> int:
        """Most bytes of lines that are moved at home from one iteration of a loop to the next.

        A stretch of the program as long as one iteration holds, of every leaf, consecutive entries
        of at most two.  Where the leaf is issued ahead across loops further out, the stretch may
        hold what else stands in one iteration of them, too.
        """
        around = crossed(use.ahead, frame)
        total: dict[str, int] = {}
        for other in self._by_frame[around[0].path]:
            inside = [f for f in around if f in other.leaf.frames]
            turning = {*inside, *crossed(other.ahead, inside[-1])}
            at = other.leaf.frames.index(inside[-1])
            moving = (*other.cores, *(f for f in other.leaf.frames[at + 1 :] if f.is_repeating))
            count = other.lines(moving)
            times = 2 if any(other.varies(f) for f in turning) else 1
            name = other.tensor.name
            total[name] = min(total.get(name, 0) + times * count, other.whole)
        return sum(total.values())

    def _sharers(
        self, use: Use, grid: Grid, core: Ints, num_bytes: Ints, wanted: Flags | None
    ) -> Ints:
        """How many cores fetch the same in one step, of those that are `wanted` (None: all)."""
        is_apart = max(self.machine.home.instances, self.cache.instances) > 1
        if use.is_linear and isinstance(use.leaf.node, Move) and not is_apart and wanted is None:
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
        if wanted is not None:
            keys.append(wanted.astype(np.int64))
        for level in (self.machine.home, self.cache):
            if level.instances > 1:
                keys.append(instance_of(level.name, core, self.machine))
        return equal_cores([k for k in keys if k.ndim], grid)


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


def _first_step(values: Ints, grid: Grid) -> Ints:
    """The same at the first iteration of all loops but those over cores."""
    for axis, frame in enumerate(grid.frames[: values.ndim]):
        if frame.kind is not LoopKind.CORES:
            values = values.take([0], axis)
    return values


def _varies(values: Ints, grid: Grid, frame: Frame) -> bool:
    """Whether values differ between iterations of a loop."""
    axis = grid.frames.index(frame)
    if values.ndim == 0 or values.shape[axis] == 1:
        return False
    return bool(np.any(values != values.take([0], axis)))
