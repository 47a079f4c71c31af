"""What the leaves of a unit do, as tables: boxes, operands, expressions, orders of sums.

Made from the schedule once, when a region is packed; a reader needs nothing but these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from worker.compiler.codegen.kernel import Arithmetic, arithmetic_of
from worker.compiler.cost.compute import work
from worker.compiler.errors import InternalError
from worker.compiler.ir.affine import Affine, const, var
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Access, TensorOp
from worker.compiler.ir.scalar_type import promoted
from worker.compiler.isa.program import UnitProgram
from worker.compiler.lower.resolve import Ref, flatten, resolve
from worker.compiler.machine.machine import Machine
from worker.compiler.package.stream.expressions import Expressions, number_bits
from worker.compiler.package.stream.records import (
    ELEMENT_TYPES,
    NONE,
    REDUCTIONS,
    TABLE_OF,
    TASKS,
    Fill,
    FrameKind,
    LeafKind,
    Op,
)
from worker.compiler.package.unit_tasks import UnitTasks
from worker.compiler.schedule.nodes import Box, Compute, Init, LoopKind, Move, Schedule
from worker.compiler.schedule.walk import Frame, Leaf, Scope, iteration_weights

Names = Mapping[str, tuple[Op, int]]
_AXES = tuple(AxisKind)


def unit_tasks(schedule: Schedule, unit: UnitProgram, machine: Machine) -> UnitTasks:
    """What every leaf of a lowered schedule does.

    Raises:
        InternalError: the program is none of this schedule.
    Cost: as generating the kernel's C, which says in which order it sums up.
    """
    return _Builder(schedule, unit, machine).made()


class _Builder:
    def __init__(self, schedule: Schedule, unit: UnitProgram, machine: Machine) -> None:
        self.schedule = schedule
        self.graph = schedule.graph
        self.unit = unit
        self.machine = machine
        self.nest = flatten(schedule, machine)
        self.refs = resolve(self.nest, machine)
        self.arithmetic = arithmetic_of(schedule, unit, machine)
        self.expressions = Expressions()
        self.rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in TASKS}
        self.buffer_of = {buffer.path: k for k, buffer in enumerate(unit.buffers)}
        self.operand_of = {operand.tensor: k for k, operand in enumerate(unit.operands)}
        if tuple(leaf.path for leaf in self.nest.leaves) != unit.nodes:
            raise InternalError(
                "TW-INT-001", "the program's nodes are not the schedule's", stage="package"
            )

    def made(self) -> UnitTasks:
        for scope in self.nest.scopes:
            self.rows["scopes"].append(self.scope(scope))
        for leaf in self.nest.leaves:
            self.rows["leaves"].append(self.leaf(leaf))
        self.rows["expressions"] = list(self.expressions.rows)
        self.rows["lines"] = list(self.expressions.lines)
        tables = {name: np.array(rows, dtype=TABLE_OF[name].dtype) for name, rows in
                  self.rows.items()}  # fmt: skip
        for table in tables.values():
            table.setflags(write=False)
        return UnitTasks(tables)

    def add(self, name: str, rows: Sequence[tuple[Any, ...]]) -> tuple[int, int]:
        """(first, how many) of rows put at the end of a table."""
        first = len(self.rows[name])
        self.rows[name] += rows
        return first, len(rows)

    def scope(self, scope: Scope) -> tuple[Any, ...]:
        names = _counters(scope.frames)
        buffer = self.unit.buffers[self.buffer_of[scope.path]]
        entry = const(0)
        for frame in scope.frames:
            entry = entry * frame.trip + var(frame.var)
        core = _core(scope.core_base, scope.frames)
        slot = const(0)
        if scope.copies > 1:
            counted = scope.frames[-1:] if scope.queue is not None else scope.frames
            for frame in counted:
                if frame.kind is not LoopKind.CORES:
                    slot = slot * frame.trip + var(frame.var)
            slot = slot.mod(scope.copies)
        if buffer.blocks > 1:
            width = self.machine.num_cores // self.machine.level(scope.memory).instances
            block = (core.mod(width) - buffer.first_core).floordiv(buffer.block_stride)
            slot = slot + block * buffer.copies
        value = 0
        if scope.init is Init.IDENTITY:
            value = self.identity(scope)
        dims = self.add(
            "dims",
            [
                (self.expressions.affine(span.start, names), 0, extent)
                for span, extent in zip(scope.tile, buffer.extents, strict=True)
            ],
        )
        said = (self.expressions.affine(e, names) for e in (entry, slot, core))
        return (
            self.buffer_of[scope.path], int(scope.init is Init.IDENTITY), (0, 0, 0), value, *said,
            *dims, 0,
        )  # fmt: skip

    def identity(self, scope: Scope) -> int:
        """What a buffer of sums begins with."""
        for op in self.graph.ops:
            if op.write.tensor == scope.tensor and op.reduce is not None:
                return number_bits(op.reduce.identity(scope.dtype), scope.dtype)
        raise InternalError(
            "TW-INT-001", f"no reduction writes {scope.tensor}", stage="package"
        )  # fmt: skip

    def leaf(self, leaf: Leaf) -> tuple[Any, ...]:
        frames = self.add(
            "frames",
            [
                (frame.trip, weight, _kind(frame), frame.stride)
                for frame, weight in zip(leaf.frames, iteration_weights(leaf.frames), strict=True)
            ],
        )
        refs = self.refs[leaf.number]
        if isinstance(leaf.node, Move):
            move, tensor = leaf.node, self.graph.tensors[leaf.node.tensor]
            box = self.box(leaf.frames, move.box, [(0, extent) for extent in tensor.shape])
            plain, filled = Access(move.tensor, ()), Access(move.tensor, (), move.fill)
            outside = Fill.NONE if move.fill is None else Fill.VALUE
            into = self.stored_type(refs.write)
            rows = [
                self.access(refs.reads[0], plain, {}, Fill.NONE, tensor.dtype),
                self.access(refs.write, filled, {}, outside, into),
            ]
            accesses = self.add("accesses", rows)
            return (
                leaf.number, int(LeafKind.MOVE), 0, 0, 0, *frames, *box, *accesses, NONE, 0, 0, 0,
                0, 0, leaf.core_base, 0, 0,
            )  # fmt: skip
        return self.compute(leaf, leaf.node, frames)

    def compute(self, leaf: Leaf, compute: Compute, frames: tuple[int, int]) -> tuple[Any, ...]:
        op, refs = self.graph.op(compute.op), self.refs[leaf.number]
        says: Arithmetic = self.arithmetic[leaf.path]
        names: Names = {a.name: (Op.COORDINATE, k) for k, a in enumerate(op.domain)}
        limits = [(_AXES.index(axis.kind), axis.extent) for axis in op.domain]
        box = self.box(leaf.frames, compute.box, limits)
        rows = [
            self.access(
                ref,
                access,
                names,
                _outside(access, selects),
                promoted(self.graph.tensors[access.tensor].dtype),
            )
            for access, ref, selects in zip(op.reads, refs.reads, says.selects, strict=True)
        ]
        rows.append(
            self.access(refs.write, op.write, names, Fill.NONE, DType.F64)
        )  # fmt: skip
        accesses = self.add("accesses", rows)
        number = {axis.name: k for k, axis in enumerate(op.domain)}
        order = says.order
        groups = self.add(
            "groups",
            [(number[name], k) for k, group in enumerate(order.groups) for name in group],
        )
        reduce = 0 if op.reduce is None else 1 + REDUCTIONS.index(op.reduce)
        body = self.expressions.body(op.body, self.read_types(op), names)
        return (
            leaf.number, int(LeafKind.COMPUTE), reduce, int(order.kind), 0, *frames, *box,
            *accesses, body, order.width, *groups, order.run, order.around,
            leaf.core_base, 0, work(op, 1),
        )  # fmt: skip

    def read_types(self, op: TensorOp) -> tuple[DType, ...]:
        return tuple(self.graph.tensors[access.tensor].dtype for access in op.reads)

    def box(
        self, frames: Sequence[Frame], box: Box, limits: Sequence[tuple[int, int]]
    ) -> tuple[int, int]:
        names = _counters(frames)
        return self.add(
            "spans",
            [
                (self.expressions.affine(span.start, names), axis, (0, 0, 0), span.extent, limit)
                for span, (axis, limit) in zip(box, limits, strict=True)
            ],
        )

    def stored_type(self, ref: Ref) -> DType:
        """In which the storage of an operand holds its elements."""
        if ref.scope is None:
            return self.graph.tensors[ref.tensor].dtype
        return self.nest.scopes[ref.scope].dtype

    def access(
        self, ref: Ref, access: Access, names: Names, outside: Fill, fills: DType
    ) -> tuple[Any, ...]:
        """A row of `accesses`; `fills`: type of its fill."""
        tensor = self.graph.tensors[access.tensor]
        index = [self.expressions.affine(e, names) for e in access.index] or [NONE] * len(
            tensor.shape
        )
        dims = self.add(
            "dims",
            [(number, 0, extent) for number, extent in zip(index, tensor.shape, strict=True)],
        )
        fill = 0
        if outside is not Fill.NONE and access.fill is not None:
            fill = number_bits(access.fill, fills)
        return (
            NONE if ref.scope is None else ref.scope,
            self.operand_of[access.tensor] if ref.scope is None else NONE,
            ELEMENT_TYPES.index(tensor.dtype), int(ref.staged), int(outside), 0, *dims, 0, fill,
        )  # fmt: skip


def _outside(access: Access, selects: bool) -> Fill:
    if access.fill is None:
        return Fill.NONE
    return Fill.VALUE if selects else Fill.MEMORY


def _kind(frame: Frame) -> FrameKind:
    if frame.is_folded:
        return FrameKind.INSIDE
    return FrameKind.CORES if frame.kind is LoopKind.CORES else FrameKind.TIME


def _counters(frames: Sequence[Frame]) -> Names:
    return {frame.var: (Op.COUNTER, k) for k, frame in enumerate(frames)}


def _core(base: int, frames: Sequence[Frame]) -> Affine:
    core = const(base)
    for frame in frames:
        if frame.kind is LoopKind.CORES:
            core = core + var(frame.var) * frame.stride
    return core
