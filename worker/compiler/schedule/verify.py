"""Is a schedule legal?  Every rule here is exact over all iterations; nothing is sampled.

Rules, in the order in which they are checked (the `rule` of the VerifyError):
  names      unknown operator, tensor, memory or engine; a loop variable used twice or not in scope
  shape      box rank, extents, trip counts, copies, queue depths below 1
  cores      core ids beyond the machine; CORES loops without a stride
  lanes      more lanes than the engine's array has positions
  queues     a queue whose consumer does not come after its producer
  coverage   a point of a domain computed never, or twice without `recompute`; a term of a sum twice
  init       an accumulation into storage that nothing initialised, or across cores
  partial    partial sums kept in a type narrower than the accumulator, or drained or read too
             early
  resident   an instruction touches what its buffer does not hold or what nothing moved there
  fill       a padded read from a buffer that was filled otherwise
  reach      a core touches memory that another one owns, or an engine registers of others
  capacity   buffers alive together (from entry to last use) exceed a memory
Conservative: a read served by what an *earlier iteration* of a shared loop left in a buffer is
refused, and a strided write counts as covering its hull for a Compute that reads it (coverage
proves its points), but not for a Move: that carries the holes too, over what others computed.
Source: 2-architecture.md "The schedule".  Cost: linear in leaves x iterations of the loops that a
box depends on; a few milliseconds for one operator.
"""

from __future__ import annotations

from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.verify_capacity import check_capacity, touched
from worker.compiler.schedule.verify_coverage import check_coverage
from worker.compiler.schedule.verify_reach import check_reach
from worker.compiler.schedule.verify_residency import check_residency
from worker.compiler.schedule.verify_structure import check_structure
from worker.compiler.schedule.walk import walk


def verify(schedule: Schedule, machine: Machine) -> None:
    """Check every rule.

    Raises:
        VerifyError: stage "schedule", the path of the offending node, and the rule's name.
    """
    check_structure(schedule, machine)
    flat = walk(schedule)
    check_coverage(schedule, flat)
    check_residency(schedule, flat, machine)
    check_reach(flat, machine, lambda leaf: touched(schedule, leaf, machine))
    check_capacity(schedule, flat, machine)
