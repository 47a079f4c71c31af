"""How operands come to the stages of a nest, and how results leave them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from worker.compiler.machine.machine import Machine
from worker.compiler.tiling.nest.facts import Facts, Operand
from worker.compiler.tiling.nest.measure import LATENCY, Measure
from worker.compiler.tiling.nest.plan import Stage, comes_early, memory_of, source_of
from worker.compiler.tiling.nest.route import Route


@dataclass(frozen=True, slots=True)
class Way:
    """How an operand comes to a stage, or leaves it."""

    operand: Operand
    """In the type that moves."""
    placed: Operand
    """As it stands at the stage."""
    route: Route
    is_early: bool = False


@dataclass(frozen=True, slots=True)
class Port:
    """What moves at a stage."""

    fills: tuple[Way, ...]
    carried: Way | None
    """Sums that loops of an outer stage go on with."""
    drain: Way | None
    """None: the result stays."""
    is_apart: bool
    """Whether units need not wait for each other: no transfer serves several."""


def ports_of(
    facts: Facts, stages: Sequence[Stage], machine: Machine, measure: Measure = LATENCY
) -> list[Port]:
    """Of every stage.  Cost: a route for each memory that something comes from or goes to."""
    return [_port(facts, stages, k, machine, measure) for k in range(len(stages))]


def _port(
    facts: Facts, stages: Sequence[Stage], k: int, machine: Machine, measure: Measure
) -> Port:
    stage, home = stages[k], machine.home.name
    memory = stage.level.name
    routes: dict[str, Route] = {}
    fills: list[Way] = []
    for operand in facts.fetched:
        source = source_of(facts, operand.tensor, stages, k, home)
        if source not in routes:
            routes[source] = Route.between(machine, source, memory, stage.team, measure)
        is_early = comes_early(facts, operand.tensor, stages, k, machine)
        fills.append(Way(operand, operand, routes[source], is_early))
    drain = carried = None
    if facts.stored is not None:
        name = facts.stored.tensor
        target = source_of(facts, name, stages, k, home)
        near = memory_of(facts, facts.stored, stage, is_last=k == len(stages) - 1)
        if target != near:
            route = Route.between(machine, near, target, stage.team, measure)
            stored = facts.stored
            if target == home:  # sums are rounded on their way
                stored = replace(stored, dtype=facts.tensors[name].dtype)
            drain = Way(stored, facts.stored, route)
            if k and facts.reduce_axes and not stage.team.overlaps:
                back = Route.between(machine, target, near, stage.team, measure)
                if stage.units > 1:  # tensors are protected as wholes, so cores wait for all
                    waiting = back.latency_cycles + machine.signal_cycles
                    back = replace(back, latency_cycles=waiting)
                carried = Way(stored, facts.stored, back)
    is_apart = all(way.route.shared_rate == inf for way in fills)
    return Port(tuple(fills), carried, drain, is_apart)
