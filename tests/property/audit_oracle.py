"""Whether a program is a sound lowering of a schedule, by brute force and by the audit."""

from __future__ import annotations

from collections import Counter

from lower_oracle import Walk, finish_before, listed, order_of_events

from worker.compiler.audit.audit import BLOCK, audit
from worker.compiler.errors import VerifyError
from worker.compiler.isa.program import UnitProgram
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule


def is_sound(schedule: Schedule, machine: Machine, program: UnitProgram) -> bool:
    """By brute force: the walk's instructions, and what meets in a byte is ordered as there."""
    walk = Walk(schedule, machine, program)
    wanted = Counter(
        (e.path, e.core, e.opcode, e.num_bytes, e.src_address, e.dst_address) for e in walk.events
    )
    if Counter(listed(program)) != wanted:
        return False
    order = order_of_events(program, walk)
    try:
        before = finish_before(program)
    except KeyError:
        return False  # waits for what nothing has signalled
    for late in range(len(order)):
        b = walk.events[order[late]]
        for first in range(late):
            a = walk.events[order[first]]
            meets = a.writes & b.reads or a.writes & b.writes or a.reads & b.writes
            if meets and (order[first] > order[late] or not before[late] >> first & 1):
                return False
    return True


def passes(schedule: Schedule, machine: Machine, program: UnitProgram) -> bool:
    return fault_in(schedule, machine, program) is None


def fault_in(
    schedule: Schedule, machine: Machine, program: UnitProgram, block: int = BLOCK
) -> str | None:
    """What the audit says."""
    try:
        audit(schedule, program, machine, block)
    except VerifyError as error:
        return str(error)
    return None
