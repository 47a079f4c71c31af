"""Numbers for every piece of storage that tokens protect.

One number per (buffer, instance, block, slot), split into pieces where the cores of an instance
touch disjoint parts of the slot (lower/hazards.py); one per tensor at home that the unit both
writes and uses; two per core for each staged operand of a compute (its transfer may run one step
ahead).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker.compiler.isa.program import Buffer
from worker.compiler.lower.grid import Ints, slots
from worker.compiler.lower.issue import users_of
from worker.compiler.lower.resolve import Refs
from worker.compiler.lower.rows.hazards import (
    core_pieces,
    inner_frames,
    ordered_writes,
    reads_identity,
)
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.grid import core_ids
from worker.compiler.schedule.nodes import LoopKind
from worker.compiler.schedule.walk import Leaf, Walk


@dataclass(frozen=True, slots=True)
class Touch:
    """One access of every instruction of a batch to storage."""

    storage: Ints
    """Storage number per instruction."""
    is_write: bool
    waits_ready: bool
    """Whether earlier writes must have finished."""
    waits_free: bool
    """Whether earlier readers must have finished."""
    starts_value: bool = False
    """Whether what it writes, or reads first, may take the addresses of other scopes' values."""


@dataclass(frozen=True, slots=True)
class StorageExtents:
    """Where every storage lies.  Shapes: [storages]."""

    memory: npt.NDArray[np.int32]
    """Number of the instance of a memory; -1: none of its bytes is used by another scope."""
    scope: npt.NDArray[np.int32]
    low: Ints
    high: Ints
    """Addresses low : high in that instance."""


class Storages:
    """The numbering."""

    def __init__(
        self,
        nest: Walk,
        refs: Sequence[Refs],
        buffers: Sequence[Buffer],
        machine: Machine,
        home_tensors: Sequence[str],
        num_staged: int,
    ) -> None:
        self.nest = nest
        self.buffers = buffers
        self.machine = machine
        touched = users_of(refs)
        users = [touched.get(k, []) for k in range(len(buffers))]
        self.pieces = tuple(core_pieces(nest, refs, k, users[k]) for k in range(len(buffers)))
        """Per scope: core offsets that own one piece each; empty when slots are not split."""
        self.needs_order = tuple(
            ordered_writes(nest, refs, k, users[k]) for k in range(len(buffers))
        )
        self.is_read_first = tuple(
            reads_identity(nest, refs, k, users[k]) for k in range(len(buffers))
        )
        self._base: list[int] = []
        total = 0
        for buffer in buffers:
            self._base.append(total)
            instances = machine.level(buffer.level).instances
            total += instances * self._cells(len(self._base) - 1)
        self._num_placed = total
        self._home = {name: total + i for i, name in enumerate(home_tensors)}
        total += len(home_tensors)
        self._staged = total
        total += num_staged * machine.num_cores * 2
        self.count = total
        self.extents = self._all_extents()

    def place(self, scope: int, values: Mapping[str, Ints]) -> tuple[Ints, Ints, Ints]:
        """(core of the owner, instance, block * copies + slot) of `scope` at all iterations."""
        owner, buffer = self.nest.scopes[scope], self.buffers[scope]
        core = core_ids(owner.core_base, owner.frames, values)
        count = self.machine.level(buffer.level).instances
        instance = core * count // self.machine.num_cores
        local = slots(owner, values)
        if buffer.blocks > 1:
            width = self.machine.num_cores // count
            block = (core % width - buffer.first_core) // buffer.block_stride
            local = local + block * buffer.copies
        return core, instance, local

    def touch(
        self, scope: int, leaf: Leaf, values: Mapping[str, Ints], *, is_write: bool
    ) -> tuple[Touch, ...]:
        """Accesses of `leaf` to the current slot of `scope`: its core's piece, or every piece."""
        _, instance, local = self.place(scope, values)
        owners = self.pieces[scope]
        first = self._base[scope] + instance * self._cells(scope) + local * max(len(owners), 1)
        numbers = [first]
        if len(owners):
            inner = inner_frames(leaf, self.nest.scopes[scope])
            if any(f.kind is LoopKind.CORES for f in inner):
                numbers = [first + np.searchsorted(owners, core_ids(0, inner, values))]
            else:
                numbers = [first + k for k in range(len(owners))]
        starts_value = is_write or self.is_read_first[scope]
        return tuple(
            Touch(
                np.asarray(n), is_write, not is_write or self.needs_order[scope], starts_value,
                starts_value,
            )
            for n in numbers
        )  # fmt: skip

    def of_home(self, tensor: str) -> int | None:
        """Storage number of a tensor at home, if it needs one."""
        return self._home.get(tensor)

    def of_staged(self, number: int, core: Ints, step: Ints) -> Ints:
        """Storage number of staged operand `number`; `step` counts the iterations in one core."""
        return np.asarray(self._staged + (number * self.machine.num_cores + core) * 2 + step % 2)

    def _cells(self, scope: int) -> int:
        """Storages of one instance of a buffer."""
        buffer = self.buffers[scope]
        return buffer.blocks * buffer.copies * max(len(self.pieces[scope]), 1)

    def _all_extents(self) -> StorageExtents:
        extents = StorageExtents(
            np.full(self.count, -1, dtype=np.int32),
            np.full(self.count, -1, dtype=np.int32),
            np.zeros(self.count, dtype=np.int64),
            np.zeros(self.count, dtype=np.int64),
        )
        first_of: dict[str, int] = {}
        total = 0
        for level in dict.fromkeys(b.level for b in self.buffers):
            first_of[level] = total
            total += self.machine.level(level).instances
        for k, buffer in enumerate(self.buffers):
            cells = self._cells(k)
            if not cells or not self.is_shared(buffer):
                continue
            instances = self.machine.level(buffer.level).instances
            number = np.arange(instances * cells)
            slot = number % cells // max(len(self.pieces[k]), 1)
            own = slice(self._base[k], self._base[k] + len(number))
            extents.memory[own] = first_of[buffer.level] + number // cells
            extents.scope[own] = k
            extents.low[own] = buffer.address + slot * buffer.slot_bytes
            extents.high[own] = extents.low[own] + buffer.slot_bytes
        return extents

    def overlap_counts(self) -> Ints:
        """[scopes] How many storages of others are at the addresses of one slot of each, at most.

        Cost: scopes times storages, and slots times storages of their memory.
        """
        overlap_counts: Ints = np.zeros(len(self.buffers), dtype=np.int64)
        memory, extents = self.extents.memory, self.extents
        for k in range(len(self.buffers)):
            first = self._base[k]
            if first == self.count or memory[first] < 0:
                continue
            others = np.flatnonzero((memory == memory[first]) & (extents.scope != k))
            own = slice(first, first + self._cells(k), max(len(self.pieces[k]), 1))
            meets = (extents.low[own, None] < extents.high[others]) & (
                extents.high[own, None] > extents.low[others]
            )
            overlap_counts[k] = meets.sum(axis=1).max(initial=0)
        return overlap_counts

    def is_shared(self, buffer: Buffer) -> bool:
        """Whether another buffer of its level has some of its addresses."""
        low, high = buffer.address, buffer.address + buffer.size_bytes
        return low < high and any(
            other is not buffer and other.level == buffer.level
            and other.address < high and other.address + other.size_bytes > low
            for other in self.buffers
        )  # fmt: skip
