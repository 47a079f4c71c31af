"""Leaves become batches of instructions: one per Move; staged transfers and one per Compute.

All iterations of a leaf are handled at once.  A Move whose box is clipped to nothing is dropped,
unless it has a fill: then it still writes padding and stays as a transfer of 0 bytes.
Bytes of a converting Move are counted in the element type of its slower end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt

from worker.compiler.cost.compute import engine_cycles, work
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Access, TensorOp
from worker.compiler.isa.program import Opcode
from worker.compiler.lower.batch import Batch
from worker.compiler.lower.grid import (
    Clipped,
    Grid,
    Ints,
    bounds,
    clip,
    core_ids,
    evaluate,
    flat_offset,
    positions,
)
from worker.compiler.lower.issue import Ahead, Timing
from worker.compiler.lower.nest import FrameKind, Leaf, Nest
from worker.compiler.lower.resolve import Ref, Refs, engine_memory, is_producer
from worker.compiler.lower.storage import Storages, Touch
from worker.compiler.lower.transfers import Roads, instance_numbers
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Compute, Move

ZERO: Ints = np.array(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _End:
    """One end of a transfer at all iterations."""

    level: str
    buffer: int
    """Index of the buffer, -1 at home."""
    instance: Ints
    offset: Ints
    """Bytes from the base of the buffer or operand."""
    dtype: DType
    touches: tuple[Touch, ...]


class Emitter:
    """Emits the batches of every leaf of one unit."""

    def __init__(
        self, nest: Nest, machine: Machine, storages: Storages, disjoint_home: frozenset[str]
    ) -> None:
        self.nest = nest
        self.machine = machine
        self.storages = storages
        self.disjoint_home = disjoint_home
        self.roads = Roads(machine)
        self.tensors = nest.schedule.graph.tensors
        self.op_number = {op.name: k for k, op in enumerate(nest.schedule.graph.ops)}
        self.engine_number = {e.name: k for k, e in enumerate(machine.engines)}
        self.next_staged = 0

    def leaf(
        self, number: int, leaf: Leaf, refs: Refs, timing: Timing, ahead: Ahead | None
    ) -> list[Batch]:
        """Batches of one leaf.  Cost: linear in its iterations, with numpy's constant."""
        grid = Grid.of(leaf.frames)
        position = positions(leaf.frames, timing, ahead, grid)
        core = core_ids(leaf.core_base, leaf.frames, grid.values)
        if isinstance(leaf.node, Move):
            batch = self._move(number, leaf, leaf.node, refs, grid, position, core)
            return [] if batch is None else [batch]
        return self._compute(number, leaf, leaf.node, refs, grid, position, core)

    # -- moves ------------------------------------------------------------------------------------

    def _move(
        self,
        number: int,
        leaf: Leaf,
        move: Move,
        refs: Refs,
        grid: Grid,
        position: Ints,
        core: Ints,
    ) -> Batch | None:
        box = clip(move.box, self.tensors[move.tensor].shape, grid.values)
        src = self._end(refs.reads[0], leaf, grid, core, box.start, is_write=False)
        dst = self._end(refs.write, leaf, grid, core, box.start, is_write=True)
        slower = min(src, dst, key=lambda end: self.machine.level_index(end.level))
        num_bytes = box.num_elems * slower.dtype.size_bytes
        keep = None if move.fill is not None else num_bytes > 0
        opcode, outward = self._opcode(leaf, refs, src.level, dst.level)
        return self._transfer(
            number, grid, position, core, opcode, src, dst, num_bytes, keep, outward
        )

    def _opcode(self, leaf: Leaf, refs: Refs, src: str, dst: str) -> tuple[Opcode, bool]:
        """Opcode, and whether a transfer within one level is issued by the outgoing engine."""
        written, read = refs.write.scope, refs.reads[0].scope
        if written is not None and self.nest.scopes[written].queue is not None:
            return Opcode.PUSH, is_producer(self.nest.scopes[written], leaf)
        if read is not None and self.nest.scopes[read].queue is not None:
            return Opcode.POP, False
        i, j = self.machine.level_index(src), self.machine.level_index(dst)
        if i == j:
            return Opcode.COPY, False
        return (Opcode.LOAD, False) if i < j else (Opcode.STORE, True)

    def _end(
        self,
        ref: Ref,
        leaf: Leaf,
        grid: Grid,
        core: Ints,
        start: Sequence[Ints],
        *,
        is_write: bool,
    ) -> _End:
        tensor = self.tensors[ref.tensor]
        if ref.scope is None:
            home = self.machine.home.name
            offset = flat_offset(start, tensor.shape) * tensor.dtype.size_bytes
            touches = self._home_touches(ref.tensor, is_write=is_write)
            return _End(
                home, -1, instance_numbers(home, core, self.machine), offset, tensor.dtype, touches
            )
        scope, buffer = self.nest.scopes[ref.scope], self.storages.buffers[ref.scope]
        _, instance, local = self.storages.place(ref.scope, grid.values)
        inside = [
            low - evaluate(span.start, grid.values)
            for low, span in zip(start, scope.tile, strict=True)
        ]
        offset = local * buffer.slot_bytes
        offset = offset + flat_offset(inside, buffer.extents) * scope.dtype.size_bytes
        touches = self.storages.touch(ref.scope, leaf, grid.values, is_write=is_write)
        return _End(scope.memory, ref.scope, instance, offset, scope.dtype, touches)

    def _home_touches(self, tensor: str, *, is_write: bool) -> tuple[Touch, ...]:
        storage = self.storages.of_home(tensor)
        if storage is None:
            return ()
        ordered = tensor not in self.disjoint_home
        number = np.array(storage, dtype=np.int64)
        return (Touch(number, is_write, ordered or not is_write, ordered and is_write),)

    def _transfer(
        self,
        number: int,
        grid: Grid,
        position: Ints,
        core: Ints,
        opcode: Opcode,
        src: _End,
        dst: _End,
        num_bytes: Ints,
        keep: npt.NDArray[np.bool_] | None,
        outward: bool,
    ) -> Batch | None:
        path = self.roads.path(src.level, dst.level, outward=outward)
        ports = self.roads.resource_numbers(path, core, src.instance, dst.instance)
        flat = _Flat.of(grid.shape, keep)
        if flat.count == 0:
            return None
        return Batch(
            flat.count, flat.full(position), flat.full(core), opcode,
            self.engine_number[path.engine], number, -1, flat(num_bytes), ZERO, ZERO,
            path.latency_cycles, tuple(flat(p) for p in ports), src.buffer, dst.buffer,
            flat(src.offset), flat(dst.offset),
            tuple(_flat_touch(t, flat) for t in (*src.touches, *dst.touches)),
        )  # fmt: skip

    # -- computes ---------------------------------------------------------------------------------

    def _compute(
        self,
        number: int,
        leaf: Leaf,
        compute: Compute,
        refs: Refs,
        grid: Grid,
        position: Ints,
        core: Ints,
    ) -> list[Batch]:
        op = self.nest.schedule.graph.tensor_op(compute.op)
        box = clip(compute.box, [a.extent for a in op.domain], grid.values)
        points = np.broadcast_to(box.num_elems, grid.shape)
        keep = _over_lanes(points, grid, np.max) > 0
        low = {a.name: s for a, s in zip(op.domain, box.start, strict=True)}
        high = {
            a.name: s + np.maximum(e, 1) - 1
            for a, s, e in zip(op.domain, box.start, box.extent, strict=True)
        }
        step = _steps(leaf, grid)
        reach = engine_memory(compute.engine, self.machine)
        batches: list[Batch] = []
        touches: list[Touch] = []
        done: list[Ref] = []
        for access, ref in zip(op.reads, refs.reads, strict=True):
            if ref in done and not ref.staged:
                continue
            done.append(ref)
            if not ref.staged:
                touches.extend(self._direct(ref, leaf, grid, is_write=False))
                continue
            buffered = _buffered(self._staged(core, step))
            batches += self._stage(
                number, leaf, access, ref, (low, high), points, grid,
                position + len(batches), core, reach, buffered,
            )  # fmt: skip
            touches.append(_taken(buffered))
        at = position + staged_width(refs) - 1 - refs.write.staged
        store: list[Batch] = []
        if refs.write.staged:
            buffered = _buffered(self._staged(core, step))
            touches.append(buffered)
            store = self._stage(
                number, leaf, op.write, refs.write, (low, high), points, grid, at + 1, core, reach,
                _taken(buffered),
            )  # fmt: skip
        else:
            touches.extend(self._direct(refs.write, leaf, grid, is_write=True))
        flat = _Flat.of(keep.shape, keep)
        if flat.count == 0:
            return []
        cycles = _over_lanes(
            np.broadcast_to(self._cycles(op, compute, box, grid), grid.shape), grid, np.max
        )
        macs = _over_lanes(points, grid, np.sum) * work(op, 1)
        src = next((r.scope for r in refs.reads if r.scope is not None and not r.staged), None)
        dst = None if refs.write.staged else refs.write.scope
        batches.append(
            Batch(
                flat.count, flat.full(at), flat.full(core), Opcode.COMPUTE,
                self.engine_number[compute.engine], number, self.op_number[op.name], ZERO,
                flat(macs), flat(cycles), 0, (), -1 if src is None else src,
                -1 if dst is None else dst, flat(self._slot_offset(src, grid)),
                flat(self._slot_offset(dst, grid)), tuple(_flat_touch(t, flat) for t in touches),
            )
        )  # fmt: skip
        return [*batches, *store]

    def _direct(self, ref: Ref, leaf: Leaf, grid: Grid, *, is_write: bool) -> tuple[Touch, ...]:
        if ref.scope is None:
            return self._home_touches(ref.tensor, is_write=is_write)
        return self.storages.touch(ref.scope, leaf, grid.values, is_write=is_write)

    def _slot_offset(self, scope: int | None, grid: Grid) -> Ints:
        if scope is None:
            return ZERO
        local = self.storages.place(scope, grid.values)[2]
        return np.asarray(local * self.storages.buffers[scope].slot_bytes)

    def _staged(self, core: Ints, step: Ints) -> Ints:
        number = self.storages.of_staged(self.next_staged, core, step)
        self.next_staged += 1
        return number

    def _stage(
        self,
        number: int,
        leaf: Leaf,
        access: Access,
        ref: Ref,
        box: tuple[Mapping[str, Ints], Mapping[str, Ints]],
        points: Ints,
        grid: Grid,
        position: Ints,
        core: Ints,
        reach: str,
        buffered: Touch,
    ) -> list[Batch]:
        """The transfer of a staged operand: what the compute touches of it, both ways."""
        is_write = not buffered.is_write
        start, elems = self._touched(access, ref, box, points, grid)
        far = self._end(ref, leaf, grid, core, start, is_write=is_write)
        near = _End(
            reach, -1, instance_numbers(reach, core, self.machine), ZERO, far.dtype, (buffered,)
        )
        kept = len(grid.frames) - grid.num_lane_axes
        folded = Grid(grid.frames[:kept], grid.shape[:kept], grid.values)
        total = _over_lanes(np.broadcast_to(elems, grid.shape), grid, np.sum) * far.dtype.size_bytes
        far = _End(
            far.level, far.buffer, _first_lane(far.instance, grid), _first_lane(far.offset, grid),
            far.dtype,
            tuple(replace(t, storage=_first_lane(t.storage, grid)) for t in far.touches),
        )  # fmt: skip
        is_ring = ref.scope is not None and self.nest.scopes[ref.scope].queue is not None
        if is_write:
            opcode = Opcode.PUSH if is_ring else Opcode.STORE
        else:
            opcode = Opcode.POP if is_ring else Opcode.LOAD
        src, dst = (near, far) if is_write else (far, near)
        batch = self._transfer(
            number, folded, _first_lane(position, grid), core, opcode, src, dst, total, total > 0,
            is_write,
        )  # fmt: skip
        return [] if batch is None else [batch]

    def _touched(
        self,
        access: Access,
        ref: Ref,
        box: tuple[Mapping[str, Ints], Mapping[str, Ints]],
        points: Ints,
        grid: Grid,
    ) -> tuple[list[Ints], Ints]:
        """(first element, number of elements) that a staged access touches.

        A data-dependent index touches one element per point, anywhere.
        """
        shape = self.tensors[ref.tensor].shape
        tile = self.nest.scopes[ref.scope].tile if ref.scope is not None else None
        if any(e.has_lookup for e in access.index):
            origin = [
                ZERO if tile is None else evaluate(tile[d].start, grid.values)
                for d in range(len(shape))
            ]
            return origin, points
        start: list[Ints] = []
        elems: Ints = np.array(1, dtype=np.int64)
        for expr, extent in zip(access.index, shape, strict=True):
            low, high = bounds(expr, *box)
            low, high = np.maximum(low, 0), np.minimum(high, extent - 1)
            start.append(np.minimum(low, extent - 1))
            elems = elems * np.maximum(high - low + 1, 0)
        return start, np.minimum(elems, points)

    def _cycles(self, op: TensorOp, compute: Compute, box: Clipped, grid: Grid) -> Ints:
        """Engine cycles at all iterations; asks the cost model once per distinct box shape."""
        engine = self.machine.engine(compute.engine)
        distinct = [np.unique(e) for e in box.extent]
        radix = prod(len(d) for d in distinct)
        code: Ints = ZERO
        for extent, values in zip(box.extent, distinct, strict=True):
            code = code * len(values) + np.searchsorted(values, extent)
        used = np.unique(code) if radix > 1 << 20 else np.flatnonzero(
            np.bincount(np.ravel(code), minlength=radix)
        )
        costs: list[int] = []
        for number in used.tolist():
            extents: list[int] = []
            for values in reversed(distinct):
                number, digit = divmod(number, len(values))
                extents.append(int(values[digit]))
            costs.append(
                engine_cycles(op, tuple(reversed(extents)), engine, self.tensors, grid.num_lanes)
            )
        return np.array(costs, dtype=np.int64)[np.searchsorted(used, code)]


def staged_width(refs: Refs) -> int:
    """How many instructions one iteration of a leaf may become."""
    return sum(ref.staged for ref in (*refs.reads, refs.write)) + 1


@dataclass(frozen=True, slots=True)
class _Flat:
    """Broadcasts to the grid, keeps the wanted iterations, as one dimension."""

    shape: tuple[int, ...]
    keep: npt.NDArray[np.bool_] | None
    count: int

    @staticmethod
    def of(shape: tuple[int, ...], keep: npt.NDArray[np.bool_] | None) -> _Flat:
        if keep is None or bool(np.all(keep)):
            return _Flat(shape, None, prod(shape))
        mask = np.broadcast_to(keep, shape).ravel()
        return _Flat(shape, mask, int(mask.sum()))

    def __call__(self, values: Ints) -> Ints:
        return values if values.ndim == 0 else self.full(values)

    def full(self, values: Ints) -> Ints:
        """Always [count], also for scalars."""
        if values.ndim > len(self.shape):
            # Lane axes are folded: every lane agrees on what is not summed.
            values = _drop_last(values, values.ndim - len(self.shape))
        column = np.broadcast_to(values, self.shape).ravel()
        return column if self.keep is None else column[self.keep]


def _buffered(storage: Ints) -> Touch:
    """The write of a staged operand."""
    return Touch(storage, is_write=True, waits_ready=True, waits_free=True)


def _taken(buffered: Touch) -> Touch:
    """The read that matches a `_buffered` write."""
    return Touch(buffered.storage, is_write=False, waits_ready=True, waits_free=False)


def _flat_touch(touch: Touch, flat: _Flat) -> Touch:
    return replace(touch, storage=flat.full(touch.storage))


def _first_lane(values: Ints, grid: Grid) -> Ints:
    if grid.num_lane_axes == 0 or values.ndim == 0:
        return values
    return _drop_last(values, grid.num_lane_axes)


def _drop_last(values: Ints, count: int) -> Ints:
    """First element along each of the last `count` axes."""
    for _ in range(count):
        values = values[..., 0]
    return values


def _over_lanes(values: Ints, grid: Grid, combine: object) -> Ints:
    """Reduce the lane axes, which are last."""
    if grid.num_lane_axes == 0:
        return values
    axes = tuple(range(values.ndim - grid.num_lane_axes, values.ndim))
    return np.asarray(combine(values, axis=axes))  # type: ignore[operator]


def _steps(leaf: Leaf, grid: Grid) -> Ints:
    """Number of the iteration within its core."""
    step: Ints = ZERO
    for frame in leaf.frames:
        if frame.kind in (FrameKind.TIME, FrameKind.PIPE):
            step = step * frame.trip + grid.values[frame.var]
    return step
