"""Numbers for every piece of storage that tokens protect.

One number per (buffer, instance, block, slot); one per tensor at home that the unit both writes and
uses; two per core for each staged operand of a compute (its transfer may run one step ahead).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from worker.compiler.isa.program import Buffer
from worker.compiler.lower.grid import Ints, core_ids, slots
from worker.compiler.lower.hazards import ordered_writes
from worker.compiler.lower.nest import Nest
from worker.compiler.lower.resolve import Refs
from worker.compiler.machine.machine import Machine


@dataclass(frozen=True, slots=True)
class Touch:
    """One access of every instruction of a batch to storage."""

    storage: Ints
    """Storage number per instruction."""
    is_write: bool
    is_ordered: bool = True
    """Writes only: False when no two writes of the storage overlap, so they need no order."""
    scope: int = -1
    """Scope touched, for writes whose addresses other scopes use at other times."""


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
        self._base: list[int] = []
        total = 0
        for buffer in buffers:
            self._base.append(total)
            instances = machine.level(buffer.level).instances
            total += instances * buffer.blocks * buffer.copies
        self._home = {name: total + i for i, name in enumerate(home_tensors)}
        total += len(home_tensors)
        self._staged = total
        total += num_staged * machine.num_cores * 2
        self.count = total
        self.is_ordered = tuple(ordered_writes(nest, refs, k) for k in range(len(buffers)))
        self.overlaps = tuple(_overlaps(buffers, k) for k in range(len(buffers)))

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

    def of_scope(self, scope: int, instance: Ints, local: Ints) -> Ints:
        """Storage number of a buffer's slot."""
        buffer = self.buffers[scope]
        return np.asarray(self._base[scope] + instance * (buffer.blocks * buffer.copies) + local)

    def of_home(self, tensor: str) -> int | None:
        """Storage number of a tensor at home, if it needs one."""
        return self._home.get(tensor)

    def of_staged(self, number: int, core: Ints, step: Ints) -> Ints:
        """Storage number of staged operand `number`; `step` counts the iterations in one core."""
        return np.asarray(self._staged + (number * self.machine.num_cores + core) * 2 + step % 2)

    def sharing(self, scope: int, storage: Ints) -> list[Ints]:
        """Storages of other scopes at the same addresses as `storage` of `scope`; -1 for none."""
        table = self.overlaps[scope]
        if table.shape[1] == 0:
            return []
        buffer = self.buffers[scope]
        instance, local = np.divmod(storage - self._base[scope], buffer.blocks * buffer.copies)
        columns: list[Ints] = []
        size = np.array([b.blocks * b.copies for b in self.buffers], dtype=np.int64)
        base = np.array(self._base, dtype=np.int64)
        for j in range(table.shape[1]):
            other, other_local = table[local, j, 0], table[local, j, 1]
            number = base[other] + instance * size[other] + other_local
            columns.append(np.where(other < 0, -1, number))
        return columns


def _overlaps(buffers: Sequence[Buffer], index: int) -> Ints:
    """Shapes: [blocks * copies, most overlaps, 2]: (scope, local slot) sharing bytes, else (-1, 0)."""
    mine = buffers[index]
    rows: list[list[tuple[int, int]]] = []
    for local in range(mine.blocks * mine.copies):
        low = mine.address + local * mine.slot_bytes
        high = low + mine.slot_bytes
        row: list[tuple[int, int]] = []
        for k, other in enumerate(buffers):
            if k == index or other.level != mine.level or not mine.slot_bytes:
                continue
            if other.address >= high or other.address + other.size_bytes <= low:
                continue
            for slot in range(other.blocks * other.copies):
                start = other.address + slot * other.slot_bytes
                if start < high and start + other.slot_bytes > low:
                    row.append((k, slot))
        rows.append(row)
    most = max((len(row) for row in rows), default=0)
    table = np.full((len(rows), most, 2), (-1, 0), dtype=np.int64)
    for i, row in enumerate(rows):
        for j, pair in enumerate(row):
            table[i, j] = pair
    return table
