"""Runs of random networks that hand tensors over, planned whether that is faster or not."""

from __future__ import annotations

from graphturbo_nets import check_meaning, lowered, unit_context
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from random_nets import images, machines, rows

from worker.compiler.cost.floor import kernel_floor
from worker.compiler.ir.graph import Graph
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.verify import verify
from worker.compiler.strategies.graphturbo.emit import emit_unit
from worker.compiler.strategies.graphturbo.handover import MAX_RUN
from worker.compiler.strategies.graphturbo.handover_bind import candidates
from worker.compiler.strategies.graphturbo.handover_facts import handed_over
from worker.compiler.strategies.graphturbo.site import Part, Site, Spread
from worker.compiler.strategies.graphturbo.turns import even_turns, num_samples
from worker.compiler.strategies.graphturbo.unit_plan import Planner
from worker.simulator.run import simulate_unit


def planners(graph: Graph, on: Machine) -> list[Planner]:
    """All on one cluster, and samples in turns."""
    ctx = unit_context(graph, on)
    part = Part(tuple(range(len(ctx.layers))), None, 1)
    site = Site(on, ctx.buffer, Spread(1, on.num_cores // ctx.clusters), (part,), {})
    sites = [site]
    samples = num_samples(graph)
    if samples > 1:
        evens = even_turns(graph, ctx.layers, ctx.engines, site, samples)
        sites.extend(Site(on, ctx.buffer, p.spread, p.parts, {}) for p in evens)
    return [Planner(graph, ctx.layers, ctx.engines, s) for s in sites]


@given(st.one_of(images(), rows()), machines(), st.randoms(use_true_random=False))
@COSTLY
def test_every_planned_run_is_legal_and_computes_the_right_numbers(
    graph: Graph, on: Machine, random: object
) -> None:
    for found in planners(graph, on):
        number = len(found.layers)
        pairs = [
            (first, last)
            for first in range(number)
            for last in range(first + 2, min(first + MAX_RUN, number) + 1)
            if handed_over(found, first, last)
        ]
        offers = [c.run for pair in pairs for c in candidates(found, *pair)]
        random.shuffle(offers)  # type: ignore[attr-defined]
        for run in offers[:2]:
            plan = found.plan((False,) * number, [run])
            if plan is None:
                continue
            schedule = Schedule(graph, emit_unit([plan]), "graphturbo", plan.predicted_cycles)
            verify(schedule, on)
            check_meaning(schedule)
            simulated = simulate_unit(lowered(schedule, on), on, floor=kernel_floor(graph, on))
            assert (
                simulated.cycles >= max(simulated.roofline.cycles, simulated.lower_bound_cycles) > 0
            )
