"""What a memory holds over a whole run: kernels' own curves at their places in time."""

from __future__ import annotations

from collections.abc import Sequence

from worker.compiler.isa.program import Program, UnitCall
from worker.simulator.results import ModelSimulation, UnitSimulation


def occupancy_steps(
    program: Program,
    sims: Sequence[UnitSimulation],
    whole: ModelSimulation,
    level: str,
    limit: int = 1500,
) -> list[tuple[int, int]]:
    """Occupancy of one level over the whole run: unit curves at their calls' offsets.

    At most `limit` steps: evenly merged windows keep their maximum.
    """
    steps: list[tuple[int, int]] = []
    for timing in whole.calls:
        call = program.calls[timing.call]
        if not isinstance(call, UnitCall):
            continue
        for curve in sims[call.unit].occupancy:
            if curve.level == level:
                offset = timing.start_cycle + timing.overhead_cycles
                steps += [
                    (offset + c, used)
                    for c, used in zip(curve.cycles, curve.used_bytes, strict=True)
                ]
        steps.append((timing.end_cycle, 0))
    if len(steps) <= limit:
        return steps
    size = -(-len(steps) // limit)
    windows = [steps[k : k + size] for k in range(0, len(steps), size)]
    return [(w[0][0], max(used for _, used in w)) for w in windows]
