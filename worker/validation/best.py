"""The best mapping of one operator under the simulator's clock: brute force, by simulation."""

from __future__ import annotations

from dataclasses import dataclass

from worker.compiler.cost.compute import pick_engine
from worker.compiler.ir.graph import Graph
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.verify import verify
from worker.simulator.results import UnitSimulation
from worker.simulator.run import simulate_unit
from worker.validation.space import Mapping, Space

_UNSIGNED = "0" * 64
"""Programs made here are never cached, so no signature is worked out."""


@dataclass(frozen=True, slots=True)
class Best:
    """What the brute force found."""

    mapping: Mapping
    simulation: UnitSimulation
    cycles: int
    """With the launch."""
    tried: int
    """Mappings that were simulated."""
    space: int
    """Mappings in all."""
    floor: float
    """Cycles, with the launch, that no mapping of the space beats; `cycles` where it is proved to
    be the best."""


def simulated(space: Space, mapping: Mapping, machine: Machine) -> UnitSimulation:
    """One mapping as a schedule: verified, lowered, simulated.

    Raises:
        VerifyError: the schedule is not legal, which is a bug of the space.
    """
    schedule = space.schedule(mapping)
    verify(schedule, machine)
    return simulate_unit(lower_unit(schedule, machine, _UNSIGNED), machine)


def best_mapping(graph: Graph, machine: Machine, most: int) -> Best | None:
    """The fastest of the `most` best estimates; None where not even single steps fit.

    Stops early where no other mapping's bound is lower than what was found.
    Cost: an estimate of every mapping, and up to `most` simulations.
    """
    engine = pick_engine(graph.ops[0], machine, graph.tensors)
    assert engine is not None, "every machine computes"
    space = Space(graph, machine, engine)
    leading, others, number = space.leading(most)
    best: tuple[int, Mapping, UnitSimulation] | None = None
    tried = 0
    for place, mapping in enumerate(leading):
        left = min([others, *(m.bound for m in leading[place:])])
        if best is not None and best[0] <= left:
            break
        if best is not None and mapping.bound >= best[0]:
            continue
        tried += 1
        run = simulated(space, mapping, machine)
        if best is None or run.cycles < best[0]:
            best = run.cycles, mapping, run
    if best is None:
        return None
    cycles, mapping, run = best
    launch = machine.launch_latency_cycles
    floor = min(float(cycles), others)
    return Best(mapping, run, cycles + launch, tried, number, floor + launch)
