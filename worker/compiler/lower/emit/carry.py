"""Emitting transfers: addresses, ports and tokens of both ends at all iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import affine_values
from worker.compiler.isa.program import Opcode
from worker.compiler.lower.emit.fold import ZERO, Flat, blocks_of, flat_touch
from worker.compiler.lower.grid import Grid, Ints, flat_offset
from worker.compiler.lower.resolve import Ref
from worker.compiler.lower.rows.batch import Batch
from worker.compiler.lower.rows.storage import Storages, Touch
from worker.compiler.lower.transfers import Path, Routes
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.grid import instance_of
from worker.compiler.schedule.walk import Leaf, Walk


@dataclass(frozen=True, slots=True)
class End:
    """One end of a transfer at all iterations."""

    level: str
    buffer: int
    """Index of the buffer, -1 at home."""
    instance: Ints
    offset: Ints
    """Bytes from the base of the buffer or operand."""
    dtype: DType
    touches: tuple[Touch, ...]


class TransferEmitter:
    """Emits transfers of one unit."""

    def __init__(self, nest: Walk, machine: Machine, storages: Storages) -> None:
        self.nest = nest
        self.machine = machine
        self.storages = storages
        self.routes = Routes(machine)
        self.tensors = nest.schedule.graph.tensors
        self.engine_number = {e.name: k for k, e in enumerate(machine.engines)}

    def end(
        self,
        ref: Ref,
        leaf: Leaf,
        grid: Grid,
        core: Ints,
        start: Sequence[Ints],
        *,
        is_write: bool,
    ) -> End:
        """The end of a transfer at `ref` whose first element is `start`."""
        tensor = self.tensors[ref.tensor]
        if ref.scope is None:
            home = self.machine.home.name
            offset = flat_offset(start, tensor.shape) * tensor.dtype.size_bytes
            touches = self.storages.touch_home(ref.tensor, leaf, grid, is_write=is_write)
            return End(
                home, -1, instance_of(home, core, self.machine), offset, tensor.dtype, touches
            )
        scope, buffer = self.nest.scopes[ref.scope], self.storages.buffers[ref.scope]
        _, instance, local = self.storages.place(ref.scope, grid.values)
        inside = [
            low - affine_values(span.start, grid.values)
            for low, span in zip(start, scope.tile, strict=True)
        ]
        offset = local * buffer.slot_bytes
        offset = offset + flat_offset(inside, buffer.extents) * scope.dtype.size_bytes
        touches = self.storages.touch(ref.scope, leaf, grid, is_write=is_write)
        return End(scope.memory, ref.scope, instance, offset, scope.dtype, touches)

    def transfer(
        self,
        number: int,
        grid: Grid,
        position: Ints,
        core: Ints,
        opcode: Opcode,
        src: End,
        dst: End,
        num_bytes: Ints,
        keep: npt.NDArray[np.bool_] | None,
        outward: bool,
    ) -> Batch | None:
        """The transfers of all iterations that `keep` wants (None: all); None when none is left."""
        path = self.routes.path(src.level, dst.level, outward=outward)
        ports = self.routes.resource_numbers(path, core, src.instance, dst.instance)
        touches = (*src.touches, *dst.touches)
        return self.batch(
            number, grid, position, core, opcode, (src, dst), num_bytes, keep, path, ports, touches
        )

    def batch(
        self,
        number: int,
        grid: Grid,
        position: Ints,
        core: Ints,
        opcode: Opcode,
        ends: tuple[End, End],
        num_bytes: Ints,
        keep: npt.NDArray[np.bool_] | None,
        path: Path,
        ports: Sequence[Ints],
        touches: Sequence[Touch],
    ) -> Batch | None:
        """Transfers along a path that take these ports."""
        src, dst = ends
        flat = Flat.of(grid.shape, keep)
        if flat.count == 0:
            return None
        return Batch(
            flat.count, flat.full(position), flat.full(core), opcode,
            self.engine_number[path.engine], number, -1, flat(num_bytes), ZERO, ZERO,
            path.latency_cycles, tuple(flat(p) for p in ports), src.buffer, dst.buffer,
            flat(src.offset), flat(dst.offset),
            tuple(flat_touch(t, flat) for t in touches),
            blocks_of(grid, self.nest.leaves[number], flat),
        )  # fmt: skip
