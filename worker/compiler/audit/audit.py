"""Audit one lowered program against the schedule it was lowered from."""

from __future__ import annotations

import numpy as np

from worker.compiler.audit.expected import Expected
from worker.compiler.audit.match import Matcher
from worker.compiler.audit.storage import Stores
from worker.compiler.audit.tables import Cells, Rows, Tables
from worker.compiler.audit.walk import FAULTS, walk
from worker.compiler.errors import VerifyError
from worker.compiler.isa.program import UnitProgram, expanded
from worker.compiler.jit import loop_for
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.grid import Ints
from worker.compiler.schedule.nodes import Init, Move, Schedule
from worker.compiler.schedule.walk import Ends, Scope, Walk, compute_scope, move_ends, reach_memory
from worker.compiler.schedule.walk import walk as flatten

_STEPS = 160
"""What one access takes, in steps of a usual loop (`jit.INTERPRETED_STEPS`)."""


def audit(schedule: Schedule, unit: UnitProgram, machine: Machine) -> None:
    """Check that `unit` carries out `schedule`, once, and that its order protects every value.

    Rules: each iteration of each leaf is one instruction with its operands, and nothing else is;
    every element read was written before, in the same entry of its buffer, by instructions that
    have finished by then; sums are whole when they are read, and no point is added twice; no place
    is reused before what it held is done with; every output is written once, completely.
    What an instruction touches is exact for moves and for writes.  Reads of computes are hulls
    first; only where those fail are they listed without what their indices skip.

    Raises:
        VerifyError: the first broken rule, with the instruction.
    Cost: instructions, times streams per wait, plus the cells they touch (`tables`).
    """
    unit = expanded(unit)
    try:
        _audit(schedule, unit, machine, is_precise=False)
    except VerifyError:
        _audit(schedule, unit, machine, is_precise=True)


def _audit(schedule: Schedule, unit: UnitProgram, machine: Machine, *, is_precise: bool) -> None:
    flat = flatten(schedule)
    stores = Stores(unit.buffers, machine)
    expected = Expected(schedule, flat, stores, machine, is_precise=is_precise)
    matcher = Matcher(unit, machine)
    shapes = {name: tensor.shape for name, tensor in schedule.graph.tensors.items()}
    tables = Tables(stores, expected.patterns, shapes)
    for leaf in flat.leaves:
        batches = list(expected.batches(leaf))
        for batch, where in zip(batches, matcher.instructions(leaf.path, batches), strict=True):
            tables.add(batch, where)
    results = [
        (name, stores.all[store].first_entry, tables.demand(store, touched))
        for name, store, touched in expected.results()
    ]
    cells = tables.cells()
    again = _rewritten(schedule, flat, stores, machine)
    rows = tables.rows(unit.num_instructions)
    writer, missing = _walked(unit, rows, cells, stores, again)
    for name, entry, sets in results:
        mine = cells.of(entry, sets)
        if np.any(writer[mine] < 0):
            raise VerifyError("lower", name, "complete", "some of its elements are never written")
        if np.any(missing[mine] != 0):
            raise VerifyError("lower", name, "complete", "some of its sums are not complete")


def _walked(
    unit: UnitProgram, rows: Rows, cells: Cells, stores: Stores, again: Ints
) -> tuple[Ints, Ints]:
    """Walk the program; returns the last writer of every cell and what its sum lacks."""
    table = unit.instructions
    stream = table["stream"].astype(np.int32)
    lane, pointer, below = _lanes(stream, table["latency"])
    num_lanes = len(pointer) - 1
    identity = np.zeros(stores.num_slots, dtype=np.bool_)
    for store in stores.all:
        is_identity = store.scope is not None and store.scope.init is Init.IDENTITY
        identity[store.first_slot : store.first_slot + store.num_slots] = is_identity
    near = stores.neighbours()
    loop = loop_for(walk, _STEPS * len(rows.entry))
    room = 1024
    while True:
        entry_first = np.full(stores.num_entries, -1, dtype=np.int32)
        slots = [np.full(stores.num_slots, -1, dtype=np.int32) for _ in range(3)]
        nodes = [np.full(len(rows.entry) + 1, -1, dtype=np.int32) for _ in range(3)]
        writer = np.full(cells.num_cells, -1, dtype=np.int32)
        missing = np.zeros(cells.num_cells, dtype=np.int64)
        reader = np.full(cells.num_cells, -1, dtype=np.int32)
        reads = [np.full(room, -1, dtype=np.int32) for _ in range(3)]
        found = np.full(2, -1, dtype=np.int64)
        code = loop(
            stream, lane, table["latency"] == 0, pointer, below, unit.wait_ptr, unit.wait_token,
            unit.signal_ptr, unit.signal_token, rows.pointer, rows.entry, rows.flags,
            rows.amount, rows.need, rows.sets,
            cells.set_pointer, cells.set_low, cells.set_high, cells.origin, cells.size,
            cells.slot, cells.first_cell, cells.stride, near.kind,
            near.instance, near.pointer, near.near, near.first, near.step, again, identity,
            np.full((len(unit.streams), num_lanes), -1, dtype=np.int32),
            np.full((unit.num_tokens, num_lanes), -1, dtype=np.int32), entry_first, *slots, *nodes,
            writer, missing, reader, *reads, np.zeros((rows.sets.shape[1], 2), dtype=np.int64),
            found,
        )  # fmt: skip
        if code >= 0:
            break
        room *= 8
    if code:
        raise _fault(unit, int(code), int(found[0]), int(found[1]))
    return writer, missing


def _fault(unit: UnitProgram, code: int, at: int, other: int) -> VerifyError:
    rule, message = FAULTS[code]
    rows = unit.instructions

    def named(number: int) -> str:
        return f"instruction {number} ({unit.nodes[int(rows['node'][number])]})"

    beside = f" (it and {named(other)})" if other >= 0 else ""
    return VerifyError("lower", named(at), rule, f"{message}{beside}")


def _lanes(stream: Ints, latency: Ints) -> tuple[Ints, Ints, Ints]:
    """(lane of every instruction; per lane, CSR, the lanes of its stream that it finishes)."""
    radix = int(latency.max(initial=0)) + 1
    codes, lane = np.unique(stream.astype(np.int64) * radix + latency, return_inverse=True)
    owner, least = codes // radix, codes % radix
    before = (owner[:, None] == owner) & (least <= least[:, None])
    pointer = np.concatenate([[0], np.cumsum(before.sum(axis=1))])
    return (
        lane.reshape(-1).astype(np.int32),
        pointer.astype(np.int32),
        np.nonzero(before)[1].astype(np.int32),
    )


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
            op = graph.op(leaf.node.op)
            reach = reach_memory(leaf.node.engine, machine)
            ends = Ends(
                tuple(compute_scope(leaf, a.tensor, reach) for a in op.reads),
                compute_scope(leaf, op.write.tensor, reach),
            )
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
