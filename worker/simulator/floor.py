"""What every schedule of a program's kernels spends at least: the tight lower bound of a whole run.

**Over which programs.**  Those with the same calls: the same host parts and the same kernels in the
same order, each kernel scheduled in any way (`worker/compiler/cost/floor.py` says in which, and why
its summands hold).  **Why.**  Calls run one after the other with a barrier between them and keep
nothing on chip, so their bounds add up; launches, copies over the host link and host parts have no
schedule and count whole.  A program that fuses more kernels may take less: that one is held against
the roofline alone (`compose.model_bounds`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from worker.compiler.isa.program import HostCall, Program, UnitCall
from worker.compiler.machine.machine import Machine
from worker.simulator.control import ControlCost
from worker.simulator.invocation import host_launch
from worker.simulator.results import OUTSIDE, Bound, CallTiming, UnitSimulation, summed_causes

_LAUNCH, _HOST, _HOST_LINK = OUTSIDE


def call_floor(
    call: UnitCall | HostCall,
    timing: CallTiming,
    units: Sequence[UnitSimulation],
    machine: Machine,
    costs: Mapping[int, ControlCost],
) -> tuple[Bound, ...]:
    """What one call spends at least, in summands: the costliest first, none of them 0.

    `timing`: how the call ran, for what has no schedule; `costs`: of control-flow nodes, by the
    `host` index of their calls.
    """
    overhead = timing.overhead_cycles
    if isinstance(call, UnitCall):
        kernel = units[call.unit].floor
        return _summed([(_LAUNCH, overhead), *((b.name, b.cycles) for b in kernel)])
    copies = overhead - host_launch(overhead, machine)
    inside = costs.get(call.host)
    if inside is not None:
        return _summed([(_HOST, overhead - copies), (_HOST_LINK, copies), *inside.floor])
    length = timing.end_cycle - timing.start_cycle
    return _summed([(_HOST, length - copies), (_HOST_LINK, copies)])


def model_floor(
    program: Program,
    timings: Sequence[CallTiming],
    units: Sequence[UnitSimulation],
    machine: Machine,
    costs: Mapping[int, ControlCost],
) -> tuple[Bound, ...]:
    """The same of all calls together; `timings` are parallel to them."""
    return _summed([
        (bound.name, bound.cycles)
        for call, timing in zip(program.calls, timings, strict=True)
        for bound in call_floor(call, timing, units, machine, costs)
    ])  # fmt: skip


def _summed(parts: Sequence[tuple[str, int]]) -> tuple[Bound, ...]:
    return tuple(Bound(c.cause, c.cycles) for c in summed_causes(parts))
