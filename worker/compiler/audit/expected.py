"""The instructions a schedule asks for, and what each of them touches.

Decided from the tree alone: one instruction per iteration of a Move and of a Compute (lanes that
hold only computes are one), and a transfer for every operand that the engine can't address.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt

from worker.compiler.audit import accesses
from worker.compiler.audit.accesses import Row, Touched
from worker.compiler.audit.parts import Part, parts_of
from worker.compiler.audit.sets import Patterns
from worker.compiler.audit.storage import Stores, entry_of, spot_of
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Access, TensorOp
from worker.compiler.isa.program import Opcode
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.grid import (
    Ints,
    Range,
    access_range,
    coordinates,
    core_ids,
    instance_of,
    span_range,
)
from worker.compiler.schedule.nodes import Compute, LoopKind, Move, Schedule
from worker.compiler.schedule.unread import Unread
from worker.compiler.schedule.walk import (
    Frame,
    Leaf,
    Scope,
    Walk,
    compute_ends,
    move_ends,
    reach_memory,
    reached,
)

_ZERO: Ints = np.zeros((), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class End:
    """One end of a transfer."""

    level: str
    buffer: int
    instance: Ints
    offset: Ints
    dtype: DType


@dataclass(frozen=True, slots=True)
class Batch:
    """Instructions of one leaf.  Arrays broadcast to `shape`; those of rows to `lanes` as well."""

    shape: tuple[int, ...]
    lanes: tuple[int, ...]
    keep: npt.NDArray[np.bool_]
    core: Ints
    opcode: Opcode
    src: int
    dst: int
    src_offset: Ints
    dst_offset: Ints
    num_bytes: Ints
    src_port: tuple[str, Ints] | None
    """Level and instance that a transfer reads; None: it is a compute."""
    dst_port: tuple[str, Ints] | None
    rows: tuple[tuple[Row, Ints], ...]
    """Each with the points per lane; a lane without points touches nothing."""


class Expected:
    """Lists the batches of a schedule; `is_precise`: reads without what their indices skip.
    `chosen`: values of loops over cores, where not all are looked at."""

    def __init__(
        self, schedule: Schedule, flat: Walk, stores: Stores, machine: Machine, *, is_precise: bool,
        chosen: Mapping[str, Ints] | None = None,
    ) -> None:  # fmt: skip
        self.graph = schedule.graph
        self.flat = flat
        self.chosen = chosen
        self.stores = stores
        self.machine = machine
        self.patterns = Patterns()
        self.unread = Unread(flat, machine)
        self.reading = self.patterns if is_precise else None
        self.given = {*self.graph.inputs, *self.graph.constants}
        self._coords: Mapping[str, Ints] = {}
        self._tiles: dict[str, tuple[Range, ...]] = {}
        """Of scopes, by path, at `_coords`: a part asks for them as ends and as rooms."""

    def parts(self, leaf: Leaf, most: int) -> Iterator[Part]:
        """The iterations of a leaf, in order, at most about `most` of them in each part."""
        return parts_of(leaf, self._folded(leaf), most, self.chosen)

    def batches(self, part: Part) -> Iterator[Batch]:
        """Batches of one part, those of one iteration in the order in which they run."""
        core = core_ids(part.leaf.core_base, part.leaf.frames, part.coords)
        if isinstance(part.leaf.node, Move):
            yield self._move(part, part.leaf.node, core)
        else:
            yield from self._compute(part, part.leaf.node, core)

    def results(self) -> Iterator[tuple[str, int, Touched, Touched]]:
        """(tensor, store, all its elements, those that are written) of every operator that writes
        to the unit's outputs."""
        for op in self.graph.ops:
            if op.write.tensor in self.graph.outputs:
                box = {a.name: (_ZERO, np.array(a.extent - 1)) for a in op.domain}
                touched = accesses.written(op.write, box, self.patterns)
                name = op.write.tensor
                whole = accesses.whole(self.graph.tensors[name].shape)
                yield name, self.stores.of_home(name), whole, touched

    def _tile(self, scope: Scope, coords: Mapping[str, Ints]) -> tuple[Range, ...]:
        """Bounds of a scope's tile at every iteration of a part."""
        if coords is not self._coords:
            self._coords, self._tiles = coords, {}
        if scope.path not in self._tiles:
            self._tiles[scope.path] = tuple(span_range(span, coords) for span in scope.tile)
        return self._tiles[scope.path]

    def _folded(self, leaf: Leaf) -> tuple[Frame, ...]:
        """Loops over lanes around nothing but computes."""
        return tuple(
            frame
            for frame in leaf.frames
            if frame.kind is LoopKind.LANES
            and all(
                isinstance(other.node, Compute)
                and not any(f.kind is LoopKind.CORES for f in _inside(other, frame))
                for other in self.flat.leaves
                if frame in other.frames
            )
            and not any(frame in scope.frames for scope in self.flat.scopes)
        )

    def _move(self, part: Part, move: Move, core: Ints) -> Batch:
        coords = part.coords
        ends = move_ends(part.leaf, move, self.machine.home.name)
        assert not isinstance(ends, str), ends  # schedules are verified
        tensor = self.graph.tensors[move.tensor]
        start, elems = [], np.ones((), dtype=np.int64)
        box = [span_range(span, coords) for span in move.box]
        for (low, high), size in zip(box, tensor.shape, strict=True):
            start.append(np.maximum(low, 0))
            elems = elems * np.maximum(np.minimum(high + 1, size) - np.maximum(low, 0), 0)
        src = self._end(move.tensor, ends.reads[0], coords, core, start)
        dst = self._end(move.tensor, ends.write, coords, core, start)
        slower = min(src, dst, key=lambda end: self.machine.level_index(end.level))
        keep = elems > 0 if move.fill is None else np.ones((), dtype=np.bool_)
        wanted = self.unread.wanted(part.leaf.number, coords)
        if wanted is not None:
            keep = keep & wanted
        cut = accesses.moved(box, tensor.shape, is_cut=True)
        full = accesses.moved(box, tensor.shape, is_cut=move.fill is None)
        one = np.ones((), dtype=np.int64)
        # One that only fills, all of its box being padding, reads nothing.
        reads = self._row(move.tensor, ends.reads[0], cut, coords, is_write=False, is_copy=True)
        writes = self._row(move.tensor, ends.write, full, coords, is_write=True, is_copy=True)
        rows = (*((row, elems) for row in reads), *((row, one) for row in writes))
        return Batch(
            part.shape, (), keep, core, self._opcode(ends.reads[0], ends.write, src, dst),
            src.buffer, dst.buffer, src.offset, dst.offset, elems * slower.dtype.size_bytes,
            (src.level, src.instance), (dst.level, dst.instance), rows,
        )  # fmt: skip

    def _opcode(self, read: Scope | None, write: Scope | None, src: End, dst: End) -> Opcode:
        if write is not None and write.queue is not None:
            return Opcode.PUSH
        if read is not None and read.queue is not None:
            return Opcode.POP
        i, j = self.machine.level_index(src.level), self.machine.level_index(dst.level)
        return Opcode.COPY if i == j else Opcode.LOAD if i < j else Opcode.STORE

    def _end(
        self, tensor: str, scope: Scope | None, coords: Mapping[str, Ints], core: Ints,
        start: Sequence[Ints],
    ) -> End:  # fmt: skip
        """The end of a transfer whose first element is `start`."""
        described = self.graph.tensors[tensor]
        if scope is None:
            home = self.machine.home.name
            offset = _row_major(start, described.shape) * described.dtype.size_bytes
            return End(home, -1, instance_of(home, core, self.machine), offset, described.dtype)
        number = self.stores.all[self.stores.of_scope(scope)].buffer
        buffer = self.stores.buffers[number]
        spot = spot_of(scope, buffer, coords, self.machine)
        inside = [
            low - first for low, (first, _) in zip(start, self._tile(scope, coords), strict=True)
        ]
        offset = spot.local * buffer.slot_bytes
        offset = offset + _row_major(inside, buffer.extents) * scope.dtype.size_bytes
        return End(scope.memory, number, spot.instance, offset, scope.dtype)

    def _row(
        self, tensor: str, scope: Scope | None, touched: Touched, coords: Mapping[str, Ints],
        *, is_write: bool, amount: Ints = _ZERO, need: int = 0, is_own: bool = False,
        is_copy: bool = False,
    ) -> Iterator[Row]:  # fmt: skip
        """An access; nothing for reads of what is there from the start and stays."""
        if scope is not None:
            number = self.stores.of_scope(scope)
            entry = entry_of(scope, coords)
            slot = self.stores.slot_of(scope, coords)
        elif tensor not in self.given:
            number, entry = self.stores.of_home(tensor), _ZERO
            slot = np.array(self.stores.all[number].first_slot)
        else:
            return
        entry = self.stores.all[number].first_entry + entry
        if scope is None:
            tile = accesses.whole(self.graph.tensors[tensor].shape)
        else:
            tile = accesses.room(self._tile(scope, coords))
        yield Row(
            number, entry, slot, tile, touched, is_write, amount, need, is_own, is_copy
        )  # fmt: skip

    def _compute(self, part: Part, compute: Compute, core: Ints) -> Iterator[Batch]:
        leaf, coords, shape, lanes = part.leaf, part.coords, part.shape, part.lanes
        op = self.graph.op(compute.op)
        reach = reach_memory(compute.engine, self.machine)
        ends = compute_ends(leaf, compute, self.graph, self.machine)
        box = accesses.compute_box(op, compute, coords)
        points = accesses.num_points(box)
        keep = _over_lanes(points, shape, lanes).max(axis=-1) > 0
        reads: list[Row] = []
        own: list[Row] = []
        stores: list[Row] = []
        first: Scope | None = None
        staged = 0
        for access, scope in zip(op.reads, ends.reads, strict=True):
            far = self._touches(op, access, scope, box, coords)
            if self.is_staged(scope, leaf, compute):
                staged += 1
                near = reach, self._staging(part, core, staged, is_write=True)
                yield self._staged(
                    part, access, scope, far, (box, points, keep), core, near, is_write=False
                )
                reads.append(replace(near[1], is_write=False))
                continue
            first = first or scope
            (own if far and far[0].is_own else reads).extend(far)
        scope = ends.write
        far = self._touches(op, op.write, scope, box, coords, is_write=True)
        is_staged = self.is_staged(scope, leaf, compute)
        if is_staged:
            staging = self._staging(part, core, 0, is_write=True)
            stores.append(staging)
        here = None if is_staged else scope
        yield Batch(
            shape, lanes, keep, core, Opcode.COMPUTE, self._buffer(first),
            self._buffer(here), self._slot_offset(first, coords), self._slot_offset(here, coords),
            _ZERO, None, None,
            tuple((row, points) for row in (*reads, *(stores if is_staged else far), *own)),
        )  # fmt: skip
        if is_staged:
            near = reach, replace(staging, is_write=False)
            yield self._staged(
                part, op.write, scope, far, (box, points, keep), core, near, is_write=True
            )

    def _touches(
        self, op: TensorOp, access: Access, scope: Scope | None, box: Mapping[str, Range],
        coords: Mapping[str, Ints], *, is_write: bool = False,
    ) -> list[Row]:  # fmt: skip
        shape = self.graph.tensors[access.tensor].shape
        if is_write:
            touched = accesses.written(access, box, self.patterns)
            amount, need = accesses.contribution(op, box)
            return list(self._row(access.tensor, scope, touched, coords, is_write=True,
                                  amount=amount, need=need))  # fmt: skip
        touched = accesses.read(access, box, scope, shape, coords, self.reading)
        is_own = access.tensor == op.write.tensor
        return list(self._row(access.tensor, scope, touched, coords, is_write=False, is_own=is_own))

    def _buffer(self, scope: Scope | None) -> int:
        return -1 if scope is None else self.stores.all[self.stores.of_scope(scope)].buffer

    def _slot_offset(self, scope: Scope | None, coords: Mapping[str, Ints]) -> Ints:
        if scope is None:
            return _ZERO
        buffer = self.stores.buffers[self._buffer(scope)]
        return spot_of(scope, buffer, coords, self.machine).local * buffer.slot_bytes

    def is_staged(self, scope: Scope | None, leaf: Leaf, compute: Compute) -> bool:
        """Whether the engine can't address it: elsewhere, or a ring beside another core."""
        levels = reached(compute.engine, self.machine)
        if scope is None:
            return self.machine.home.name not in levels
        if scope.memory not in levels:
            return True
        if scope.queue is None:
            return False
        coords = coordinates(leaf.frames)
        cores = (core_ids(at.core_base, at.frames, coords) for at in (leaf, scope))
        mine, ring = (instance_of(scope.memory, core, self.machine) for core in cores)
        return bool(np.any(mine != ring))

    def _staging(self, part: Part, core: Ints, operand: int, *, is_write: bool) -> Row:
        """The whole of a staged operand; transfers run at most one step ahead."""
        store = self.stores.all[self.stores.of_staging(part.leaf.path, operand, part.total)]
        entry = store.first_entry + part.first + np.arange(prod(part.shape), dtype=np.int64)
        slot = store.first_slot + _first_lane(core, part.shape) * 2 + part.step % 2
        number = self.stores.of_staging(part.leaf.path, operand, part.total)
        return Row(number, entry.reshape(part.shape), slot, None, None, is_write, _ZERO)

    def _staged(
        self, part: Part, access: Access, scope: Scope | None, far: list[Row],
        work: tuple[Mapping[str, Range], Ints, npt.NDArray[np.bool_]], core: Ints,
        near: tuple[str, Row], *, is_write: bool,
    ) -> Batch:  # fmt: skip
        """The transfer of an operand that the engine can't address."""
        coords, shape, lanes = part.coords, part.shape, part.lanes
        box, points, _ = work
        reach, staging = near
        start, elems = self._first_and_number(access, scope, box, points, coords)
        end = self._end(access.tensor, scope, coords, core, start)
        total = _over_lanes(elems, shape, lanes).sum(axis=-1) * end.dtype.size_bytes
        here = (reach, _first_lane(instance_of(reach, core, self.machine), shape))
        there = (end.level, _first_lane(end.instance, shape))
        offset = _first_lane(end.offset, shape)
        is_ring = scope is not None and scope.queue is not None
        rows = [(row, points) for row in far]
        whole = staging, points
        if is_write:
            opcode = Opcode.PUSH if is_ring else Opcode.STORE
            return Batch(shape, lanes, total > 0, core, opcode, -1, end.buffer, _ZERO,
                         offset, total, here, there, (whole, *rows))  # fmt: skip
        opcode = Opcode.POP if is_ring else Opcode.LOAD
        return Batch(shape, lanes, total > 0, core, opcode, end.buffer, -1, offset,
                     _ZERO, total, there, here, (*rows, whole))  # fmt: skip

    def _first_and_number(
        self, access: Access, scope: Scope | None, box: Mapping[str, Range], points: Ints,
        coords: Mapping[str, Ints],
    ) -> tuple[list[Ints], Ints]:  # fmt: skip
        """First element that a staged access touches, and how many it is charged for.

        A data-dependent index is charged for one element per point, wherever it is.
        """
        shape = self.graph.tensors[access.tensor].shape
        if any(expr.has_lookup for expr in access.index):
            if scope is None:
                return [_ZERO] * len(shape), points
            return [first for first, _ in self._tile(scope, coords)], points
        start: list[Ints] = []
        elems: Ints = np.ones((), dtype=np.int64)
        for (low, high), size in zip(access_range(access, box, shape), shape, strict=True):
            low, high = np.maximum(low, 0), np.minimum(high, size - 1)
            start.append(np.minimum(low, size - 1))
            elems = elems * np.maximum(high - low + 1, 0)
        return start, np.minimum(elems, points)


def _inside(leaf: Leaf, frame: Frame) -> tuple[Frame, ...]:
    """Loops around a leaf that are inside `frame`."""
    return leaf.frames[leaf.frames.index(frame) + 1 :]


def _row_major(position: Sequence[Ints], extents: Sequence[int]) -> Ints:
    total: Ints = _ZERO
    for index, extent in zip(position, extents, strict=True):
        total = total * extent + index
    return total


def _first_lane(values: Ints, shape: tuple[int, ...]) -> Ints:
    while values.ndim > len(shape):
        values = values[..., 0]
    return values


def _over_lanes(values: Ints, shape: tuple[int, ...], lanes: tuple[int, ...]) -> Ints:
    """[*shape, lanes]"""
    return np.broadcast_to(values, (*shape, *lanes)).reshape(*shape, prod(lanes))
