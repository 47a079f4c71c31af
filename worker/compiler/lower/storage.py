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

from worker.compiler.isa.program import Buffer
from worker.compiler.lower.grid import Ints, core_ids, slots
from worker.compiler.lower.hazards import (
    core_pieces,
    inner_frames,
    ordered_writes,
    reads_identity,
)
from worker.compiler.lower.issue import users_of
from worker.compiler.lower.nest import FrameKind, Leaf, Nest
from worker.compiler.lower.resolve import Refs
from worker.compiler.machine.machine import Machine


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
    scope: int = -1
    """Scope whose addresses other scopes may use at other times; -1 when that needs no care."""


class Storages:
    """The numbering."""

    def __init__(
        self,
        nest: Nest,
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
        self._cell_counts = np.array([self._cells(k) for k in range(len(buffers))], dtype=np.int64)
        self._bases = np.array(self._base, dtype=np.int64)
        self._spans: dict[str, tuple[Ints, Ints, Ints]] = {}
        for level in dict.fromkeys(b.level for b in buffers):
            members = [k for k, b in enumerate(buffers) if b.level == level]
            low = np.array([buffers[k].address for k in members], dtype=np.int64)
            size = np.array([buffers[k].size_bytes for k in members], dtype=np.int64)
            self._spans[level] = np.array(members, dtype=np.int64), low, low + size
        self.overlaps = tuple(self._overlaps(k) for k in range(len(buffers)))
        self._first_row = np.cumsum([0, *(len(table) for table in self.overlaps)])
        self.rows = self._rows()
        """Storages of other scopes at the addresses of each block and slot of a scope: (first
        position per row and the end, storage in instance 0, distance from instance to instance).
        """

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
            if any(f.kind is FrameKind.CORES for f in inner):
                numbers = [first + np.searchsorted(owners, core_ids(0, inner, values))]
            else:
                numbers = [first + k for k in range(len(owners))]
        starts_value = is_write or self.is_read_first[scope]
        return tuple(
            Touch(
                np.asarray(n), is_write, not is_write or self.needs_order[scope], starts_value,
                scope if starts_value else -1,
            )
            for n in numbers
        )  # fmt: skip

    def of_home(self, tensor: str) -> int | None:
        """Storage number of a tensor at home, if it needs one."""
        return self._home.get(tensor)

    def of_staged(self, number: int, core: Ints, step: Ints) -> Ints:
        """Storage number of staged operand `number`; `step` counts the iterations in one core."""
        return np.asarray(self._staged + (number * self.machine.num_cores + core) * 2 + step % 2)

    def instance(self, scope: int, storage: Ints) -> Ints:
        """Instance of its memory that each storage of `scope` is in."""
        return (storage - self._base[scope]) // self._cells(scope)

    def row(self, scope: int, storage: Ints) -> Ints:
        """Row of `rows` for each storage of `scope`."""
        cell = (storage - self._base[scope]) % self._cells(scope)
        return np.asarray(self._first_row[scope] + cell // max(len(self.pieces[scope]), 1))

    def _cells(self, scope: int) -> int:
        """Storages of one instance of a buffer."""
        buffer = self.buffers[scope]
        return buffer.blocks * buffer.copies * max(len(self.pieces[scope]), 1)

    def _rows(self) -> tuple[Ints, Ints, Ints]:
        none = np.zeros(0, dtype=np.int64)
        number, offset, step = [np.zeros(1, dtype=np.int64)], [none], [none]
        for table in self.overlaps:
            other, cell = table[:, :, 0], table[:, :, 1]
            is_there = other >= 0
            number.append(is_there.sum(axis=1))
            offset.append((self._bases[other] + cell)[is_there])
            step.append(self._cell_counts[other[is_there]])
        return np.cumsum(np.concatenate(number)), np.concatenate(offset), np.concatenate(step)

    def _overlaps(self, index: int) -> Ints:
        """Shapes: [blocks * copies, most, 2]: (scope, cell) that shares bytes, else (-1, 0)."""
        mine = self.buffers[index]
        rows: list[list[tuple[int, int]]] = []
        for local in range(mine.blocks * mine.copies):
            low = mine.address + local * mine.slot_bytes
            high = low + mine.slot_bytes
            row: list[tuple[int, int]] = []
            members, first, end = self._spans[mine.level]
            for k in members[(first < high) & (end > low)].tolist():
                other = self.buffers[k]
                if k == index or not mine.slot_bytes:
                    continue
                pieces = max(len(self.pieces[k]), 1)
                for slot in range(other.blocks * other.copies):
                    start = other.address + slot * other.slot_bytes
                    if start < high and start + other.slot_bytes > low:
                        row.extend((k, slot * pieces + piece) for piece in range(pieces))
            rows.append(row)
        most = max((len(row) for row in rows), default=0)
        table = np.full((len(rows), most, 2), (-1, 0), dtype=np.int64)
        for i, row in enumerate(rows):
            for j, pair in enumerate(row):
                table[i, j] = pair
        return table
