"""Audit one lowered program against the schedule it was lowered from."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from worker.compiler.audit.clockwork import Clockwork
from worker.compiler.audit.expected import Batch, Expected
from worker.compiler.audit.match import Matcher
from worker.compiler.audit.parts import Part
from worker.compiler.audit.storage import Stores
from worker.compiler.audit.tables import Tables
from worker.compiler.audit.wanted import Wanted, wanted
from worker.compiler.errors import VerifyError
from worker.compiler.isa.program import UnitProgram, excerpt
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.walk import Leaf
from worker.compiler.schedule.walk import walk as flatten

BLOCK = 1 << 16
"""Instructions that are expanded at a time."""
PART = 1 << 15
"""Iterations of a leaf that are evaluated at a time."""
KEPT = 1 << 18
"""Iterations that are evaluated once: others twice, for the sets first."""


def audit(schedule: Schedule, unit: UnitProgram, machine: Machine, block: int = BLOCK) -> None:
    """Check that `unit` carries out `schedule`, once, and that its order protects every value.

    Rules: each iteration of each leaf is one instruction with its operands, and nothing else is;
    every element read was written before, in the same entry of its buffer, by instructions that
    have finished by then; sums are whole when they are read, and no point is added twice; no place
    is reused before what it held is done with; every output is written once, completely.
    What an instruction touches is exact for moves and for writes.  Reads of computes are hulls
    first; only where those fail are they listed without what their indices skip.
    `unit` is one that `isa.verify` accepts; `block` instructions of it are expanded at a time.

    Raises:
        VerifyError: the first broken rule, with the instruction.
    Cost: instructions that run, times streams per wait, plus the cells they touch (`tables`).
        Memory: a block; cells, distinct sets, and a bit per value of every buffer.
    """
    try:
        _audit(schedule, unit, machine, block, is_precise=False)
    except VerifyError:
        _audit(schedule, unit, machine, block, is_precise=True)


def _audit(
    schedule: Schedule, unit: UnitProgram, machine: Machine, block: int, *, is_precise: bool
) -> None:
    flat = flatten(schedule)
    stores = Stores(unit.buffers, machine)
    expected = Expected(schedule, flat, stores, machine, is_precise=is_precise)
    shapes = {name: tensor.shape for name, tensor in schedule.graph.tensors.items()}
    tables = Tables(stores, expected.patterns, shapes)
    kept: dict[str, list[tuple[Part, list[Batch]]]] = {}
    num_kept = 0
    for leaf in flat.leaves:
        for part in expected.parts(leaf, PART):
            batches = list(expected.batches(part))
            is_kept = num_kept + part.total <= KEPT
            for batch in batches:
                tables.collect(batch, is_kept=is_kept)
            if is_kept:
                kept.setdefault(leaf.path, []).append((part, batches))
        num_kept += part.total if leaf.path in kept else 0
    results = [
        (name, stores.all[store].first_slot, tables.demand(store, whole, touched))
        for name, store, whole, touched in expected.results()
    ]
    cells = tables.cells()

    def iterations(leaf: Leaf) -> Iterator[Wanted]:
        again = ((part, list(expected.batches(part))) for part in expected.parts(leaf, PART))
        for part, batches in kept.get(leaf.path, again):
            yield wanted(part, batches, tables, machine)

    matcher = Matcher(
        unit, machine, {leaf.path: iterations(leaf) for leaf in flat.leaves}, tables.rank
    )
    clockwork = Clockwork(unit, schedule, flat, machine, stores, cells)
    count = unit.num_instructions
    for first in range(0, max(count, 1), block):
        listed = excerpt(unit, first, min(first + block, count))
        rows = matcher.rows(listed, first)
        if first + block >= count:
            matcher.finish()
        clockwork.run(listed, rows, first)
    for name, slot, (tile, sets) in results:
        mine = cells.of(slot, tile, sets)
        if np.any(clockwork.writer[mine] < 0):
            raise VerifyError("lower", name, "complete", "some of its elements are never written")
        if np.any(clockwork.missing[mine] != 0):
            raise VerifyError("lower", name, "complete", "some of its sums are not complete")
