"""Entries and slots: which value stands where in the machine's memories, and what shares its bytes.

A *slot* is one copy of a buffer, in one private block, in one instance of its level.  An *entry* is
one value of a Place or a Queue: one iteration of the loops around it.  Entries take their slots in
turn.  A tensor at home is one slot with one entry; what a compute's engine cannot address passes
through two staging slots per core, which the machine provides beside its buffers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from worker.compiler.ir.dtype import DType
from worker.compiler.isa.program import Buffer
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.grid import Ints, core_ids, instance_of
from worker.compiler.schedule.nodes import LoopKind
from worker.compiler.schedule.walk import Scope


@dataclass(frozen=True, slots=True)
class Store:
    """All slots and entries of one scope, one tensor at home, or one staged operand."""

    tensor: str
    """Empty: staging, of which only the whole counts."""
    scope: Scope | None
    buffer: int
    """Index into the program's buffers, -1 where there is none."""
    first_slot: int
    num_slots: int
    first_entry: int
    num_entries: int


def entry_of(scope: Scope, coords: Mapping[str, Ints]) -> Ints:
    """Number of the entry, among its scope's, that is open in each iteration."""
    number: Ints = np.zeros((), dtype=np.int64)
    for frame in scope.frames:
        number = number * frame.trip + coords[frame.var]
    return number


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a scope is open, per iteration."""

    instance: Ints
    local: Ints
    """Block * copies + copy."""


def spot_of(scope: Scope, buffer: Buffer, coords: Mapping[str, Ints], machine: Machine) -> Spot:
    """Instance and slot of the entry that is open in each iteration."""
    owner = core_ids(scope.core_base, scope.frames, coords)
    local: Ints = np.zeros((), dtype=np.int64)
    if scope.copies > 1:
        counted = scope.frames[-1:] if scope.queue is not None else scope.frames
        for frame in counted:
            if frame.kind is not LoopKind.CORES:
                local = local * frame.trip + coords[frame.var]
        local = local % scope.copies
    if buffer.blocks > 1:
        width = machine.num_cores // machine.level(scope.memory).instances
        local = local + (owner % width - buffer.first_core) // buffer.block_stride * buffer.copies
    return Spot(instance_of(scope.memory, owner, machine), local)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Slots of other buffers at a slot's addresses, told by kinds of slot: all instances of a level
    are alike.  Kind k of instance i is the slot first[k] + i * step[k]."""

    kind: Ints
    """[slots] -1: it has no addresses."""
    instance: Ints
    """[slots]"""
    pointer: Ints
    """[kinds + 1] CSR of `near`: kinds."""
    near: Ints
    first: Ints
    step: Ints


class Stores:
    """Numbers slots and entries as they are asked for."""

    def __init__(self, buffers: Sequence[Buffer], machine: Machine) -> None:
        self.machine = machine
        self.buffers = buffers
        self.number_of = {buffer.path: k for k, buffer in enumerate(buffers)}
        self.all: list[Store] = []
        self.num_slots = 0
        self.num_entries = 0
        self._scopes: dict[str, int] = {}
        self._homes: dict[str, int] = {}
        self._staged: dict[tuple[str, int], int] = {}

    def of_scope(self, scope: Scope) -> int:
        """The store of a Place or Queue; KeyError when the program has no buffer for it."""
        if scope.path not in self._scopes:
            number = self.number_of[scope.path]
            instances = self.machine.level(scope.memory).instances
            self._scopes[scope.path] = self._add(
                scope.tensor, scope, number, instances * self._per_instance(number),
                prod(f.trip for f in scope.frames),
            )  # fmt: skip
        return self._scopes[scope.path]

    def slot_of(self, scope: Scope, coords: Mapping[str, Ints]) -> Ints:
        """Slot of the entry that is open in each iteration."""
        store = self.all[self.of_scope(scope)]
        spot = spot_of(scope, self.buffers[store.buffer], coords, self.machine)
        return store.first_slot + spot.instance * self._per_instance(store.buffer) + spot.local

    def of_home(self, tensor: str) -> int:
        """The store of a tensor at home."""
        if tensor not in self._homes:
            self._homes[tensor] = self._add(tensor, None, -1, 1, 1)
        return self._homes[tensor]

    def of_staging(self, path: str, operand: int, num_entries: int) -> int:
        """The store of one staged operand of the compute at `path`; an entry per iteration."""
        if (path, operand) not in self._staged:
            self._staged[path, operand] = self._add(
                "", None, -1, self.machine.num_cores * 2, num_entries
            )
        return self._staged[path, operand]

    def _add(
        self, tensor: str, scope: Scope | None, buffer: int, num_slots: int, num_entries: int
    ) -> int:
        self.all.append(
            Store(
                tensor, scope, buffer, self.num_slots, num_slots, self.num_entries, num_entries
            )
        )  # fmt: skip
        self.num_slots += num_slots
        self.num_entries += num_entries
        return len(self.all) - 1

    def neighbours(self) -> Neighbours:
        """Cost: quadratic in the slots of one instance of a level, with numpy's constant."""
        kinds = [
            (k, cell)
            for k, store in enumerate(self.all)
            if store.scope is not None
            for cell in range(self._per_instance(store.buffer))
        ]
        owner = np.array([k for k, _ in kinds], dtype=np.int64)
        cell = np.array([c for _, c in kinds], dtype=np.int64)
        numbers = [self.all[k].buffer for k in owner.tolist()]
        buffers = [self.buffers[n] for n in numbers]
        level = np.array([self.machine.level_index(b.level) for b in buffers], dtype=np.int64)
        low = np.array([b.address for b in buffers], dtype=np.int64)
        low = low + cell * np.array([b.slot_bytes for b in buffers], dtype=np.int64)
        high = low + np.array(
            [prod(b.extents) * DType(b.dtype).size_bytes for b in buffers], dtype=np.int64
        )
        kind, instance = np.full((2, self.num_slots), -1, dtype=np.int64)
        for number, (k, _) in enumerate(kinds):
            per = self._per_instance(self.all[k].buffer)
            own = np.arange(self.all[k].num_slots // per)
            slots = self.all[k].first_slot + own * per + cell[number]
            kind[slots], instance[slots] = number, own
        pairs = [np.zeros((2, 0), dtype=np.int64)]
        for each in np.unique(level).tolist():
            mine = np.flatnonzero(level == each)
            meets = (low[mine][:, None] < high[mine]) & (low[mine] < high[mine][:, None])
            meets &= owner[mine][:, None] != owner[mine]
            a, b = np.nonzero(meets)
            pairs.append(np.stack([mine[a], mine[b]]))
        own_kind, near = np.concatenate(pairs, axis=1)
        order = np.argsort(own_kind, kind="stable")
        counts = np.bincount(own_kind, minlength=len(kinds))
        first = np.array([self.all[k].first_slot for k in owner.tolist()], dtype=np.int64) + cell
        step = np.array([self._per_instance(n) for n in numbers], dtype=np.int64)
        pointer = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return Neighbours(kind, instance, pointer, near[order], first, step)

    def _per_instance(self, number: int) -> int:
        """Slots of a buffer in one instance of its level."""
        return self.buffers[number].blocks * self.buffers[number].copies
