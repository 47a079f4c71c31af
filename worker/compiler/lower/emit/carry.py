"""Emitting transfers: addresses, ports and tokens of both ends at all iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import affine_values
from worker.compiler.isa.program import Opcode
from worker.compiler.lower.emit.fold import ZERO, Flat, blocks_of, flat_touch, iterations_of
from worker.compiler.lower.grid import Grid, Ints, flat_offset
from worker.compiler.lower.resolve import Ref
from worker.compiler.lower.rows.batch import Batch
from worker.compiler.lower.rows.bursts import Bursts, Passed
from worker.compiler.lower.rows.cached import Cached, Found
from worker.compiler.lower.rows.storage import Storages, Touch
from worker.compiler.lower.transfers import Routes
from worker.compiler.machine.dma import is_limited, issuing
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

    def __init__(
        self, nest: Walk, machine: Machine, storages: Storages, cached: Cached | None
    ) -> None:
        self.nest = nest
        self.machine = machine
        self.storages = storages
        self.cached = cached
        """What a cache holds; None where home does not stand behind one."""
        self.routes = Routes(machine)
        self.bursts = Bursts(machine, nest.schedule.graph.tensors)
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
        slot: int,
        grid: Grid,
        position: Ints,
        core: Ints,
        opcode: Opcode,
        src: End,
        dst: End,
        num_bytes: Ints,
        passed: Passed,
        keep: npt.NDArray[np.bool_] | None,
        outward: bool,
        operand: int = -1,
    ) -> Batch | None:
        """The transfers of all iterations that `keep` wants (None: all); None when none is left.

        `slot`: of the operand of the leaf that it carries; `operand`: the same, of a compute.
        """
        path = self.routes.path(src.level, dst.level, outward=outward)
        ports = self.routes.resource_numbers(path, core, src.instance, dst.instance)
        latency: Ints = np.array(path.latency_cycles, dtype=np.int64)
        if self.cached is not None and path.cache is not None:
            found = self.cached.find(number, slot, grid, core, num_bytes)
            if found is not None:
                is_in = src.level == self.machine.home.name
                ports = self._through_cache(ports, found, is_in=is_in)
                if found.is_held.any():
                    latency = np.where(found.is_held, path.cached_latency_cycles, latency)
        touches = (*src.touches, *dst.touches)
        return self.batch(
            number, grid, position, core, opcode, (src, dst), num_bytes, passed, keep, path.engine,
            latency, ports, touches, operand,
        )  # fmt: skip

    def batch(
        self,
        number: int,
        grid: Grid,
        position: Ints,
        core: Ints,
        opcode: Opcode,
        ends: tuple[End, End],
        num_bytes: Ints,
        passed: Passed,
        keep: npt.NDArray[np.bool_] | None,
        engine: str,
        latency: Ints,
        ports: Sequence[Ints],
        touches: Sequence[Touch],
        operand: int = -1,
    ) -> Batch | None:
        """Transfers of an engine that take these ports."""
        src, dst = ends
        flat = Flat.of(grid.shape, keep)
        if flat.count == 0:
            return None
        size, latency, busy = flat(num_bytes), flat(latency), ZERO
        drawn, returned = (flat(each) for each in passed)
        flat_ports = tuple(flat(p) for p in ports)
        by = self.machine.engine(engine)
        if is_limited(by):
            way = latency + self.routes.hop_cycles(flat_ports)
            busy, late = issuing(
                by, size, way, self.routes.port_cycles((size, drawn, returned), flat_ports)
            )
            latency = latency + late
        return Batch(
            flat.count, flat.full(position), flat.full(core), opcode,
            self.engine_number[engine], number, -1, size, ZERO, busy, drawn, returned,
            ZERO, ZERO, latency, flat_ports, src.buffer, dst.buffer,
            flat(src.offset), flat(dst.offset), flat(iterations_of(self.nest.leaves[number], grid)),
            tuple(flat_touch(t, flat) for t in touches), operand,
            blocks_of(grid, self.nest.leaves[number], flat),
        )  # fmt: skip

    def _through_cache(self, ports: Sequence[Ints], found: Found, *, is_in: bool) -> list[Ints]:
        """Resources of transfers that leave out home's port, or share it; its place is the first
        of those that come in, the last of those that go out."""
        if not is_in:
            return [*ports[:-1], np.where(found.is_held, -1, ports[-1])]
        ports = [self.routes.shared(ports[0], found.sharers), *ports[1:]]
        if not found.is_held.any():
            return ports
        behind = [*ports[1:], np.array(-1, dtype=np.int64)]
        return [np.where(found.is_held, b, a) for a, b in zip(ports, behind, strict=True)]
