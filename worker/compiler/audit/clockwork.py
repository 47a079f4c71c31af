"""Runs the walk over a program, block by block: its state, and what its faults are called."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from worker.compiler.audit.storage import Stores
from worker.compiler.audit.tables import Cells
from worker.compiler.audit.walk import FAULTS, NODES, walk
from worker.compiler.audit.wanted import Rows
from worker.compiler.errors import VerifyError
from worker.compiler.ir.distinct import distinct
from worker.compiler.isa.loops import last_counters
from worker.compiler.isa.program import UnitProgram, excerpt, hop_cycles, late_by
from worker.compiler.jit import loop_for
from worker.compiler.machine.links import meshes
from worker.compiler.machine.machine import Link, Machine
from worker.compiler.schedule.grid import Ints
from worker.compiler.schedule.nodes import Init, Move, Schedule
from worker.compiler.schedule.walk import (
    Scope,
    Walk,
    compute_ends,
    move_ends,
)

_STEPS = 160
"""What one access takes, in steps of a usual loop (`jit.INTERPRETED_STEPS`)."""
_ROOM = 1024
"""Nodes at first."""
_BLOCK = 1 << 16
"""Instructions that are listed at once."""
_FEW = 1 << 31
"""Instructions whose numbers take four bytes."""


class Clockwork:
    """What memories hold, and who has finished what, after the blocks so far."""

    def __init__(
        self, unit: UnitProgram, schedule: Schedule, flat: Walk, machine: Machine, stores: Stores,
        cells: Cells, run: Ints | None = None,
    ) -> None:  # fmt: skip
        """`run` [n, 2]: stream and latency, with that of hops, of all that runs, where that is not
        all of `unit`."""
        self.unit = unit
        self.cells = cells
        self.meshes = meshes(machine)
        most = hop_cycles(unit.resources, self.meshes).max() * bool(len(unit.resources))
        self.radix = int(unit.instructions["latency"].max(initial=0)) + int(most) + 1
        if run is None and most:
            self.codes = _codes_run(unit, self.radix, self.meshes)
        elif run is None:
            self.codes = _codes(unit, self.radix)
        else:
            self.codes = distinct(self._code(run[:, 0], run[:, 1]))
        self.pointer, self.below = _below(self.codes, self.radix)
        self.near = stores.neighbours()
        self.again = _rewritten(schedule, flat, stores, machine)
        self.identity = np.zeros(stores.num_slots, dtype=np.bool_)
        for store in stores.all:
            is_identity = store.scope is not None and store.scope.init is Init.IDENTITY
            self.identity[store.first_slot : store.first_slot + store.num_slots] = is_identity
        number = np.int32 if unit.num_instructions < _FEW else np.int64
        lanes = len(self.codes)
        self.clock = np.full((len(unit.streams), lanes), -1, dtype=number)
        self.token_clock = np.full((unit.num_tokens, lanes), -1, dtype=number)
        self.is_used = np.zeros(stores.num_entries // 8 + 1, dtype=np.uint8)
        self.slot_first = np.full(stores.num_slots, -1, dtype=number)
        self.current = np.full(stores.num_slots, -1, dtype=np.int64)
        self.users = [np.full(stores.num_slots, -1, dtype=np.int32) for _ in range(2)]
        self.nodes = [np.full(_ROOM, -1, dtype=number) for _ in range(3)]
        self.reads = [np.full(_ROOM, -1, dtype=number) for _ in range(3)]
        self.writer: Ints = np.full(cells.num_cells, -1, dtype=number)
        self.writer_lane = np.full(cells.num_cells, -1, dtype=np.int32)
        self.missing = np.zeros(cells.num_cells, dtype=np.int64)
        self.reader = np.full(cells.num_cells, -1, dtype=number)
        self.state = np.array([0, 0, -1, 0, 0, -1, 0], dtype=np.int64)

    def run(self, block: UnitProgram, rows: Rows, first: int) -> None:
        """Walk the next instructions; `first`: number of the first one.

        Raises:
            VerifyError: the first that breaks a rule.
        """
        table = block.instructions
        stream = table["stream"].astype(np.int32)
        late = late_by(table, block.resources, self.meshes)
        lane = np.searchsorted(self.codes, self._code(stream, late)).astype(np.int32)
        loop = loop_for(walk, _STEPS * len(rows.table))
        cells, near = self.cells, self.near
        found = np.full(2, -1, dtype=np.int64)
        ranges = np.zeros((cells.stride.shape[1], 2), dtype=np.int64)
        while True:
            code = loop(
                first, stream, (self.codes // self.radix).astype(np.int32), lane,
                late == 0, self.pointer, self.below, block.wait_ptr, block.wait_token,
                block.signal_ptr, block.signal_token, rows.pointer, rows.table,
                cells.set_pointer, cells.set_low, cells.set_high, cells.set_size,
                cells.first_cell, cells.stride, near.kind, near.instance, near.pointer, near.near,
                near.first, near.step, self.again, self.identity, self.clock, self.token_clock,
                self.is_used, self.slot_first, self.current, *self.users, *self.nodes,
                self.writer, self.writer_lane, self.missing, self.reader, *self.reads,
                ranges, self.state, found,
            )  # fmt: skip
            if code >= 0:
                break
            if code == NODES:
                self.nodes = [_longer(part) for part in self.nodes]
            else:
                self.reads = [_longer(part) for part in self.reads]
        if code:
            raise self._fault(int(code), int(found[0]), int(found[1]))

    def stream_of(self, lane: Ints) -> Ints:
        """The streams of some lanes."""
        return self.codes[lane] // self.radix

    def _code(self, stream: Ints, latency: Ints) -> Ints:
        return stream.astype(np.int64) * self.radix + latency

    def _fault(self, code: int, at: int, other: int) -> VerifyError:
        rule, message = FAULTS[code]

        def named(number: int) -> str:
            node = int(excerpt(self.unit, number, number + 1).instructions["node"][0])
            return f"instruction {number} ({self.unit.nodes[node]})"

        beside = f" (it and {named(other)})" if other >= 0 else ""
        return VerifyError("lower", named(at), rule, f"{message}{beside}")


def _longer(part: Ints) -> Ints:
    return np.concatenate([part, np.full(7 * len(part), -1, dtype=part.dtype)])


def _codes(unit: UnitProgram, radix: int) -> Ints:
    """[lanes] Stream * radix + latency of every pair that occurs, ascending."""
    loops, rows = unit.loops, unit.instructions
    code = rows["stream"].astype(np.int64) * radix + rows["latency"]
    if not len(loops.table):
        return distinct(code)
    steps = loops.stride["stream"].astype(np.int64) * radix
    last = np.where(steps != 0, last_counters(loops), 0)
    kinds = np.unique(np.concatenate([code[:, None], steps, last], axis=1), axis=0)
    found = [np.zeros(0, dtype=np.int64)]
    for kind in kinds:
        codes = kind[:1]
        for step, most in zip(*np.split(kind[1:], 2), strict=True):
            codes = distinct(codes[:, None] + step * np.arange(most + 1))
        found.append(codes)
    return distinct(np.concatenate(found))


def _codes_run(unit: UnitProgram, radix: int, meshes: Mapping[str, Link]) -> Ints:
    """The same over a mesh, where latencies step with ways.  Cost: linear in what runs."""
    found: Ints = np.zeros(0, dtype=np.int64)
    for first in range(0, unit.num_instructions, _BLOCK):
        block = excerpt(unit, first, min(first + _BLOCK, unit.num_instructions))
        stream = block.instructions["stream"].astype(np.int64)
        late = late_by(block.instructions, unit.resources, meshes)
        found = distinct(np.concatenate([found, distinct(stream * radix + late)]))
    return found


def _below(codes: Ints, radix: int) -> tuple[Ints, Ints]:
    """CSR: per lane, the lanes of its stream that it finishes."""
    owner, least = codes // radix, codes % radix
    before = (owner[:, None] == owner) & (least <= least[:, None])
    pointer = np.concatenate([[0], np.cumsum(before.sum(axis=1))])
    return pointer.astype(np.int32), np.nonzero(before)[1].astype(np.int32)


def _rewritten(schedule: Schedule, flat: Walk, stores: Stores, machine: Machine) -> Ints:
    """[slots] Whether an entry's elements may be written after reads (`walk.walk`)."""
    reads: dict[Scope | None, list[int]] = {}
    writes: dict[Scope | None, list[int]] = {}
    graph = schedule.graph
    for leaf in flat.leaves:
        if isinstance(leaf.node, Move):
            ends = move_ends(leaf, leaf.node, machine.home.name)
            assert not isinstance(ends, str), ends  # schedules are verified
        else:
            ends = compute_ends(leaf, leaf.node, graph, machine)
        for scope in ends.reads:
            reads.setdefault(scope, []).append(leaf.number)
        writes.setdefault(ends.write, []).append(leaf.number)
    again = np.zeros(stores.num_slots, dtype=np.int8)
    for store in stores.all:
        slots = slice(store.first_slot, store.first_slot + store.num_slots)
        if not store.tensor:
            continue
        if store.scope is None:
            again[slots] = 2
            continue
        inside = len(store.scope.frames)
        for r in reads.get(store.scope, ()):
            for w in writes.get(store.scope, ()):
                a, b = flat.leaves[r].frames[inside:], flat.leaves[w].frames[inside:]
                if r <= w or any(f in b and f.trip > 1 for f in a):
                    again[slots] = 1
    return again
