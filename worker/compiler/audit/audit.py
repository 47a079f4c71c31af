"""Audit one lowered program against the schedule it was lowered from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np

from worker.compiler.audit.clockwork import Clockwork
from worker.compiler.audit.expected import Batch, Expected
from worker.compiler.audit.few_cores import FewCores, few_cores
from worker.compiler.audit.match import Matcher
from worker.compiler.audit.parts import Part
from worker.compiler.audit.storage import Stores
from worker.compiler.audit.tables import Cells, Tables
from worker.compiler.audit.wanted import Wanted, wanted
from worker.compiler.errors import VerifyError
from worker.compiler.isa.program import UnitProgram, excerpt
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.walk import Leaf, Walk
from worker.compiler.schedule.walk import walk as flatten

BLOCK = 1 << 16
"""Instructions that are expanded at a time."""
PART = 1 << 15
"""Iterations of a leaf that are evaluated at a time."""
KEPT = 1 << 18
"""Iterations that are evaluated once: others twice, for the sets first."""

NEVER_WRITTEN = "some of its elements are never written"
NOT_COMPLETE = "some of its sums are not complete"


def audit(schedule: Schedule, unit: UnitProgram, machine: Machine, block: int = BLOCK) -> None:
    """Check that `unit` carries out `schedule`, once, and that its order protects every value.

    Rules: each iteration of each leaf is one instruction with its operands, and nothing else is;
    every element read was written before, in the same entry of its buffer, by instructions that
    have finished by then; sums are whole when they are read, and no point is added twice; no place
    is reused before what it held is done with; every output is written once, completely.
    What an instruction touches is exact for moves and for writes.  Reads of computes are hulls
    first; only where those fail are they listed without what their indices skip.
    `unit` is one that `isa.verify` accepts; `block` instructions of it are expanded at a time.
    Where a few cores stand for all (`few_cores`), these come first, and all where they fail.

    Raises:
        VerifyError: the first broken rule, with the instruction.
    Cost: instructions that run, of a few cores if these are enough, times streams per wait, plus
        the cells they touch (`tables`).
        Memory: a block; cells, distinct sets, and a bit per value of every buffer.
    """
    flat = flatten(schedule)
    few = few_cores(schedule, flat, unit, machine)
    tries = [(few, False)] if few is not None else []
    for few, is_precise in (*tries, (None, False)):
        with suppress(VerifyError):
            _audit(schedule, flat, unit, machine, block, few, is_precise=is_precise)
            return
    _audit(schedule, flat, unit, machine, block, None, is_precise=True)


def _audit(
    schedule: Schedule, flat: Walk, unit: UnitProgram, machine: Machine, block: int,
    few: FewCores | None, *, is_precise: bool,
) -> None:  # fmt: skip
    stores = Stores(unit.buffers, machine)
    chosen = None if few is None else {few.var: few.values}
    expected = Expected(schedule, flat, stores, machine, is_precise=is_precise, chosen=chosen)
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
    lanes = None if few is None else few.lanes
    clockwork = Clockwork(unit, schedule, flat, machine, stores, cells, lanes)
    count = unit.num_instructions if few is None else few.runs.count
    for first in range(0, max(count, 1), block):
        end = min(first + block, count)
        listed = excerpt(unit, first, end) if few is None else few.runs.some(first, end)[1]
        rows = matcher.rows(listed, first)
        if first + block >= count:
            matcher.finish()
        clockwork.run(listed, rows, first)
    if few is None:
        for name, slot, (tile, sets) in results:
            mine = cells.of(slot, tile, sets)
            _check(np.all(clockwork.writer[mine] >= 0), name, NEVER_WRITTEN)
            _check(np.all(clockwork.missing[mine] == 0), name, NOT_COMPLETE)
        return
    for name in dict.fromkeys(name for name, _, _ in results):
        own = [(slot, *demand) for of, slot, demand in results if of == name]
        _check_counted(name, own, few, cells, clockwork)


def _check_counted(
    name: str, demands: Sequence[tuple[int, Sequence[int], Sequence[int]]], few: FewCores,
    cells: Cells, clockwork: Clockwork,
) -> None:  # fmt: skip
    """That an output is complete, by the number of its elements that are written.

    No core writes what another one does: so all that its operators write (`demands`) is there where
    it is as many.  Of what the other cores write it is known that it is asked for where everything
    is, or where that is a box, which holds what is between what it holds.
    """
    slot, tile, sets = demands[0]
    every = cells.of(slot, tile, tile)
    is_written = clockwork.writer[every] >= 0
    mine, elements = every[is_written], cells.elements(name, tile)
    _check(np.all(clockwork.missing[mine] == 0), name, NOT_COMPLETE)
    asked = sum(int(cells.elements(name, each).sum()) for _, _, each in demands)
    if asked != elements.sum():
        is_box = len(demands) == 1 and cells.is_box(sets)
        _check(is_box and np.isin(mine, cells.of(slot, tile, sets)).all(), name, NEVER_WRITTEN)
    stands_for = few.stands_for(clockwork.stream_of(clockwork.writer_lane[mine]))
    _check(int((elements[is_written] * stands_for).sum()) == asked, name, NEVER_WRITTEN)


def _check(holds: np.bool_ | bool, name: str, message: str) -> None:
    if not holds:
        raise VerifyError("lower", name, "complete", message)
