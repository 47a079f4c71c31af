"""Emitting computes, with the transfers of operands their engine cannot address (staged)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from worker.compiler.cost.compute import pace_of, work
from worker.compiler.cost.feeds import feeds_of
from worker.compiler.cost.streams import HeldAs
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import affine_values
from worker.compiler.ir.op import Access, TensorOp
from worker.compiler.isa.program import Opcode
from worker.compiler.lower.emit.carry import End, TransferEmitter
from worker.compiler.lower.emit.fold import (
    ZERO,
    Flat,
    blocks_of,
    first_lane,
    flat_touch,
    iterations_of,
    over_lanes,
    steps_of,
)
from worker.compiler.lower.grid import Clipped, Grid, Ints, clip, per_shape
from worker.compiler.lower.resolve import Ref, Refs
from worker.compiler.lower.rows.batch import Batch
from worker.compiler.lower.rows.storage import Touch
from worker.compiler.schedule.grid import expr_range, instance_of
from worker.compiler.schedule.nodes import Compute
from worker.compiler.schedule.walk import Leaf, reach_memory


class ComputeEmitter:
    """Emits the computes of one unit."""

    def __init__(self, transfers: TransferEmitter) -> None:
        self.transfers = transfers
        self.nest = transfers.nest
        self.machine = transfers.machine
        self.storages = transfers.storages
        self.tensors = transfers.tensors
        self.op_number = {op.name: k for k, op in enumerate(transfers.nest.schedule.graph.ops)}
        self.next_staged = 0

    def emit(
        self,
        number: int,
        leaf: Leaf,
        compute: Compute,
        refs: Refs,
        grid: Grid,
        position: Ints,
        core: Ints,
    ) -> list[Batch]:
        op = self.nest.schedule.graph.op(compute.op)
        box = clip(compute.box, [a.extent for a in op.domain], grid.values)
        points = np.broadcast_to(box.num_elems, grid.shape)
        keep = over_lanes(points, grid, np.max) > 0
        ranges = {
            a.name: (s, s + np.maximum(e, 1) - 1)
            for a, s, e in zip(op.domain, box.start, box.extent, strict=True)
        }
        step = steps_of(leaf, grid)
        reach = reach_memory(compute.engine, self.machine)
        batches: list[Batch] = []
        touches: list[Touch] = []
        done: list[Ref] = []
        for slot, (access, ref) in enumerate(zip(op.reads, refs.reads, strict=True)):
            if ref in done and not ref.staged:
                continue
            done.append(ref)
            if not ref.staged:
                touches.extend(self._direct(ref, leaf, grid, is_write=False))
                continue
            buffered = _buffered(self._staged(core, step))
            batches += self._stage(
                number, slot, leaf, access, ref, ranges, points, grid,
                position + len(batches), core, reach, buffered,
            )  # fmt: skip
            touches.append(_taken(buffered))
        at = position + staged_width(refs) - 1 - refs.write.staged
        store: list[Batch] = []
        if refs.write.staged:
            buffered = _buffered(self._staged(core, step))
            touches.append(buffered)
            store = self._stage(
                number, len(refs.reads), leaf, op.write, refs.write, ranges, points, grid, at + 1,
                core, reach, _taken(buffered),
            )  # fmt: skip
        else:
            touches.extend(self._direct(refs.write, leaf, grid, is_write=True))
        flat = Flat.of(keep.shape, keep)
        if flat.count == 0:
            return []
        registers = self.machine.engine(compute.engine).accumulators
        far = None if refs.write.scope is None else self.nest.scopes[refs.write.scope].memory
        stays = bool(registers) and far == registers
        held = self._held(op, refs, compute.engine)
        costs = self._costs(op, compute, box, grid, stays=stays, held=held)
        cycles, drawn, returned, inside, starved = (
            over_lanes(np.broadcast_to(each, grid.shape), grid, np.max) for each in costs
        )
        macs = over_lanes(points, grid, np.sum) * work(op, 1)
        memory = self.machine.level(self.machine.engine(compute.engine).memory)
        columns = flat.full(core), flat(drawn), flat(returned)
        ports = self.transfers.routes.engine_numbers(memory, *columns)
        src = next((r.scope for r in refs.reads if r.scope is not None and not r.staged), None)
        dst = None if refs.write.staged else refs.write.scope
        batches.append(
            Batch(
                flat.count, flat.full(at), columns[0], Opcode.COMPUTE,
                self.transfers.engine_number[compute.engine], number, self.op_number[op.name], ZERO,
                flat(macs), flat(cycles), columns[1], columns[2], flat(inside),
                flat(starved), ZERO, ports,
                -1 if src is None else src,
                -1 if dst is None else dst, flat(self._slot_offset(src, grid)),
                flat(self._slot_offset(dst, grid)), flat(iterations_of(leaf, grid)),
                tuple(flat_touch(t, flat) for t in touches),
                digits=blocks_of(grid, leaf, flat),
            )
        )  # fmt: skip
        return [*batches, *store]

    def _held(self, op: TensorOp, refs: Refs, engine: str) -> HeldAs:
        """In what types its operands stand in the engine's memory."""
        memory, found = self.machine.engine(engine).memory, dict[str, DType]()
        for access, ref in zip((*op.reads, op.write), (*refs.reads, refs.write), strict=True):
            if ref.scope is not None and not ref.staged:
                scope = self.nest.scopes[ref.scope]
                if scope.memory == memory:
                    found[access.tensor] = scope.dtype
        return found

    def _direct(self, ref: Ref, leaf: Leaf, grid: Grid, *, is_write: bool) -> tuple[Touch, ...]:
        if ref.scope is None:
            return self.storages.touch_home(ref.tensor, leaf, grid, is_write=is_write)
        return self.storages.touch(ref.scope, leaf, grid, is_write=is_write)

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
        slot: int,
        leaf: Leaf,
        access: Access,
        ref: Ref,
        box: Mapping[str, tuple[Ints, Ints]],
        points: Ints,
        grid: Grid,
        position: Ints,
        core: Ints,
        reach: str,
        buffered: Touch,
    ) -> list[Batch]:
        """The transfer of a staged operand: what the compute touches of it, both ways."""
        is_write = not buffered.is_write
        start, extents, elems = self._touched(access, ref, box, points, grid)
        passed = self.transfers.bursts.packed(elems * self.tensors[ref.tensor].dtype.size_bytes)
        if ref.scope is None:
            assert isinstance(leaf.node, Compute)
            op = self.nest.schedule.graph.op(leaf.node.op)
            passed = self.transfers.bursts.of_access(op, access, leaf.node, extents, points)
        far = self.transfers.end(ref, leaf, grid, core, start, is_write=is_write)
        near = End(reach, -1, instance_of(reach, core, self.machine), ZERO, far.dtype, (buffered,))
        kept = len(grid.frames) - grid.num_lane_axes
        folded = replace(grid, frames=grid.frames[:kept], shape=grid.shape[:kept])
        total = over_lanes(np.broadcast_to(elems, grid.shape), grid, np.sum) * far.dtype.size_bytes
        far = End(
            far.level, far.buffer, first_lane(far.instance, grid), first_lane(far.offset, grid),
            far.dtype,
            tuple(replace(t, storage=first_lane(t.storage, grid)) for t in far.touches),
        )  # fmt: skip
        is_ring = ref.scope is not None and self.nest.scopes[ref.scope].queue is not None
        if is_write:
            opcode = Opcode.PUSH if is_ring else Opcode.STORE
        else:
            opcode = Opcode.POP if is_ring else Opcode.LOAD
        src, dst = (near, far) if is_write else (far, near)
        drawn, returned = (
            over_lanes(np.broadcast_to(each, grid.shape), grid, np.sum) for each in passed
        )
        batch = self.transfers.transfer(
            number, slot, folded, first_lane(position, grid), core, opcode, src, dst, total,
            (drawn, returned), total > 0, is_write, slot,
        )  # fmt: skip
        return [] if batch is None else [batch]

    def _touched(
        self,
        access: Access,
        ref: Ref,
        box: Mapping[str, tuple[Ints, Ints]],
        points: Ints,
        grid: Grid,
    ) -> tuple[list[Ints], list[Ints], Ints]:
        """(first element, elements from there to the last, per dimension; how many) that a staged
        access touches.

        A data-dependent index touches one element per point, anywhere.
        """
        shape = self.tensors[ref.tensor].shape
        tile = self.nest.scopes[ref.scope].tile if ref.scope is not None else None
        if any(e.has_lookup for e in access.index):
            origin = [
                ZERO if tile is None else affine_values(tile[d].start, grid.values)
                for d in range(len(shape))
            ]
            return origin, self._extents(access, shape, box), points
        start: list[Ints] = []
        elems: Ints = np.array(1, dtype=np.int64)
        for expr, extent in zip(access.index, shape, strict=True):
            low, _ = expr_range(expr, box)
            start.append(np.minimum(np.maximum(low, 0), extent - 1))
        extents = self._extents(access, shape, box)
        for width in extents:
            elems = elems * width
        return start, extents, np.minimum(elems, points)

    @staticmethod
    def _extents(
        access: Access, shape: Sequence[int], box: Mapping[str, tuple[Ints, Ints]]
    ) -> list[Ints]:
        """Elements from the first to the last that are touched, per dimension; of one that depends
        on data, all of it."""
        found: list[Ints] = []
        for expr, extent in zip(access.index, shape, strict=True):
            if expr.has_lookup:
                found.append(np.array(extent, dtype=np.int64))
                continue
            low, high = expr_range(expr, box)
            found.append(np.maximum(np.minimum(high, extent - 1) - np.maximum(low, 0) + 1, 0))
        return found

    def _costs(
        self, op: TensorOp, compute: Compute, box: Clipped, grid: Grid, *, stays: bool, held: HeldAs
    ) -> tuple[Ints, ...]:
        """(engine cycles, bytes drawn, returned and inside the array, cycles that ports cost) at
        all iterations; asks the cost model once per distinct box shape.  `stays`: sums stand in
        registers; `held` as of `pace_of`."""
        engine = self.machine.engine(compute.engine)
        feeds = feeds_of(op, engine, self.tensors, stays=stays, held=held)
        pace = pace_of(op, engine, self.tensors, stays=stays, held=held).by(compute.intrinsic)
        at_once = pace.fed_at_once

        def price(extents: tuple[int, ...]) -> tuple[int, ...]:
            taken = pace.cycles(extents, grid.num_lanes)
            starved = taken - at_once.cycles(extents, grid.num_lanes)
            moved = feeds.of(extents, grid.num_lanes)
            inside = feeds.inside(extents, grid.num_lanes)
            return taken, *moved, inside, max(0, starved)

        return per_shape(box.extent, price, 5)


def staged_width(refs: Refs) -> int:
    """How many instructions one iteration of a leaf may become."""
    return sum(ref.staged for ref in (*refs.reads, refs.write)) + 1


def _buffered(storage: Ints) -> Touch:
    """The write of a staged operand."""
    return Touch(storage, is_write=True, waits_ready=True, waits_free=True)


def _taken(buffered: Touch) -> Touch:
    """The read that matches a `_buffered` write."""
    return Touch(buffered.storage, is_write=False, waits_ready=True, waits_free=False)
