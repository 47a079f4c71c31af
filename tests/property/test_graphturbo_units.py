"""Random small networks as GraphTurbo units on small clusters: legal, and the right numbers."""

from __future__ import annotations

from graphturbo_nets import check_meaning, lowered, scheduled
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from random_nets import images, machines, rows

from worker.compiler.cost.floor import kernel_floor
from worker.compiler.ir.graph import Graph
from worker.compiler.machine.machine import Machine
from worker.compiler.strategies.graphturbo.descriptor import Variant
from worker.compiler.strategies.graphturbo.variants import FEATURES
from worker.simulator.run import simulate_unit

ACROSS = [v for v in Variant if FEATURES[v].across_layers]
variants = st.sampled_from([Variant.FULL, *ACROSS])


def check(graph: Graph, on: Machine, variant: Variant) -> None:
    schedule = scheduled(graph, on, variant)
    check_meaning(schedule)
    simulated = simulate_unit(lowered(schedule, on), on, floor=kernel_floor(graph, on))
    assert simulated.cycles >= max(simulated.roofline.cycles, simulated.lower_bound_cycles) > 0


@given(images(), machines(), variants)
@COSTLY
def test_units_over_images(graph: Graph, on: Machine, variant: Variant) -> None:
    check(graph, on, variant)


@given(rows(), machines(), variants)
@COSTLY
def test_units_over_rows(graph: Graph, on: Machine, variant: Variant) -> None:
    check(graph, on, variant)
