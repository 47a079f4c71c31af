"""Floors: no plan is predicted below them, so what they rule out could not have won."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import pytest
from graphturbo_nets import Net, clustered, unit_context
from hypothesis import given
from hypothesis import strategies as st
from random_nets import fed
from row_chain_graphs import gathered, group_norm, pooled, softmax

from worker.compiler.ir.affine import Affine, var
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access
from worker.compiler.machine import load_preset
from worker.compiler.machine.dataflow import Stationary
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Span
from worker.compiler.strategies.graphturbo.floors import (
    engine_floor,
    least_cycles,
    moved_tensors,
    port_cycles,
)
from worker.compiler.strategies.graphturbo.sections import UnitContext, best_sections
from worker.compiler.strategies.graphturbo.site import Part, Site, Spread
from worker.compiler.strategies.graphturbo.teams import team_plans
from worker.compiler.strategies.graphturbo.turns import equal_turns, num_samples
from worker.compiler.strategies.graphturbo.unit_plan import Planner

TWO = clustered(clusters=2, cores=2, gb_bytes=24 << 10)
PRESET = load_preset("stcp920-inferred")


def slow_home(machine: Machine, read: float, write: float) -> Machine:
    home, *inner = machine.levels
    home = replace(home, read_bytes_per_cycle=read, write_bytes_per_cycle=write)
    return replace(machine, levels=(home, *inner))


def half_home(machine: Machine) -> Machine:
    home, *inner = machine.levels
    return replace(machine, levels=(replace(home, half_duplex=True), *inner))


def mixed(samples: int = 4) -> Graph:
    """Padded and strided convolutions, a residual sum, pooling, a classifier with its softmax."""
    net = Net()
    x = net.given(samples, 3, 12, 12)
    first = net.relu(net.conv(x, 8, 3, 2))
    second = net.relu(net.add(net.conv(first, 8), first))
    third = net.pool(net.relu(net.conv(second, 16, 1, 2)))
    return net.graph(third, net.relu(net.conv(second, 6, 1)))


def up_sampled() -> Graph:
    net = Net()
    x = net.given(2, 4, 6, 6)
    return net.graph(net.conv(net.up_sample(net.relu(net.conv(x, 8))), 4))


def attention() -> Graph:
    net = Net()
    return net.graph(net.matmul(net.softmax(net.matmul(net.given(16, 24), 32), 1), 8))


GRAPHS = {
    "mixed": mixed(), "one sample": mixed(1), "up": up_sampled(), "attention": attention(),
    "softmax": softmax(4, 16, 24), "pooled": pooled(8, 12), "gathered": gathered(24, 40, 16),
    "group norm": group_norm(2, 4, 3, 6),
}  # fmt: skip
MACHINES = {
    "clusters": TWO,
    "slow reads": slow_home(TWO, 0.5, 64.0),
    "slow writes": slow_home(TWO, 64.0, 0.5),
    "one slow port": half_home(slow_home(TWO, 1.0, 0.5)),
    "one cluster": clustered(clusters=1, cores=2),
    "fed": fed(clustered(), Stationary.WEIGHT, 8.0, 0),
    "preset": PRESET,
}


def planner_of(ctx: UnitContext, spread: Spread, parts: tuple[Part, ...] = ()) -> Planner:
    whole = Part(tuple(range(len(ctx.layers))), None, 1)
    site = Site(ctx.machine, ctx.buffer, spread, parts or (whole,), ctx.tiles)
    return Planner(ctx.graph, ctx.layers, ctx.engines, site)


def check_floors(planner: Planner) -> int:
    """Floors of all layers with every few of their tensors in GB; how many had tiles."""
    checked = 0
    for number in range(len(planner.layers)):
        used = sorted(planner.near(number, frozenset(planner.graph.tensors)))[:4]
        some = [frozenset(c) for k in range(len(used) + 1) for c in combinations(used, k)]
        ways = [(near, False) for near in some if planner.site.buffer is not None or not near]
        for near, whole_chip in [*ways, (frozenset[str](), True)]:
            tiles = planner.tiles(number, near, whole_chip)
            floor = least_cycles(planner, number, near, whole_chip)
            assert floor >= int(engine_floor(planner, number, whole_chip)) >= 0
            if tiles is not None:
                assert floor <= tiles.predicted_cycles, (planner.layers[number], near, whole_chip)
                checked += 1
    return checked


def _cells(graphs: Iterable[str], swept: str) -> list[Any]:
    """All graphs on one machine, one of them on all; the other pairs are a campaign."""
    return [
        pytest.param(
            *(graph, on),
            marks=() if on == "clusters" or graph == swept else pytest.mark.campaign,
        )
        for graph, on in product(graphs, MACHINES)
    ]


@pytest.mark.parametrize(("graph", "on"), _cells(GRAPHS, "one sample"))
def test_no_tiles_are_predicted_below_their_floor(graph: str, on: str) -> None:
    ctx = unit_context(GRAPHS[graph], MACHINES[on])
    cores = ctx.machine.num_cores // ctx.clusters
    assert check_floors(planner_of(ctx, Spread(1, cores))) >= len(ctx.layers)
    samples = num_samples(ctx.graph)
    if ctx.buffer is None or samples == 1:
        return
    base = planner_of(ctx, Spread(1, cores)).site
    for turns in (1, 2):
        if samples % (turns * ctx.clusters):
            continue
        args = ctx.graph, ctx.layers, ctx.engines, base, samples, turns
        for plan in equal_turns(*args):
            assert check_floors(planner_of(ctx, plan.spread, plan.parts)) >= len(ctx.layers)


@pytest.mark.parametrize(("graph", "on"), _cells(("mixed", "one sample", "up"), "one sample"))
def test_floors_that_gave_plans_up_hold_for_what_was_planned_later(graph: str, on: str) -> None:
    ctx = unit_context(GRAPHS[graph], MACHINES[on])
    assert best_sections(ctx) is not None
    found = {key: tiles for key, tiles in ctx.tiles.items() if tiles is not None}
    both = [key for key in ctx.floors if key in found]
    assert both
    assert all(ctx.floors[key] <= found[key].predicted_cycles for key in both)


@pytest.mark.parametrize(("graph", "on"), _cells(("mixed", "one sample"), "one sample"))
def test_the_best_plan_is_found_within_its_own_cycles(graph: str, on: str) -> None:
    ctx = unit_context(GRAPHS[graph], MACHINES[on])
    spread = Spread(1, ctx.machine.num_cores // ctx.clusters)
    plans = team_plans(planner_of(ctx, spread), ctx.clusters)
    best = min(plan.predicted_cycles for plan in plans)
    fresh = unit_context(GRAPHS[graph], MACHINES[on])
    again = team_plans(planner_of(fresh, spread), fresh.clusters, best)
    assert min(plan.predicted_cycles for plan in again) == best
    assert not team_plans(planner_of(fresh, spread), fresh.clusters, best - 1)


def test_weights_and_what_is_left_at_home_pass_its_port_for_every_team() -> None:
    """A pointwise convolution by hand: 16 x 4 x 4 values in, 8 x 16 weights, 8 x 4 x 4 out."""
    net = Net()
    x = net.given(1, 16, 4, 4)
    y = net.conv(x, 8, 1)
    graph = net.graph(y)
    [op] = (each for each in graph.ops)
    ctx = unit_context(graph, TWO)
    ops = [ctx.cuts.graph.op(op.name)]
    (weights,) = graph.constants
    fetched, stored = moved_tensors(ops, planner_of(ctx, Spread(1, 2)).uses.facts[0], False, {y})
    assert (fetched, stored) == ({x, weights}, {y})

    def cycles(
        fetched: Sequence[str], stored: Sequence[str], teams: int, *, half: bool = False
    ) -> float:
        home = replace(
            TWO.home, read_bytes_per_cycle=4.0, write_bytes_per_cycle=2.0, half_duplex=half
        )
        return port_cycles(ops, graph.tensors, None, teams, fetched, stored, home)

    assert cycles([weights], [], 1) == 8 * 16
    assert cycles([weights], [], 3) == 3 * 8 * 16
    assert cycles([x, weights], [], 1) == 16 * 16 + 8 * 16
    assert cycles([], [y], 1) == 2 * 8 * 16
    assert cycles([weights], [y], 1) == 2 * 8 * 16  # reads and writes at the same time
    assert cycles([weights], [y], 1, half=True) == 8 * 16 + 2 * 8 * 16  # or in turns
    assert cycles([], [], 1) == 0


def test_tables_and_results_of_the_layer_itself_are_not_fetched() -> None:
    graph = gathered(24, 40, 16)
    ctx = unit_context(graph, TWO)
    planner = planner_of(ctx, Spread(1, 2))
    for number, layer in enumerate(ctx.layers):
        ops = [planner.uses.op(name) for name in layer.ops]
        fetched, _ = moved_tensors(ops, planner.uses.facts[number], layer.is_chain, ())
        looked_up = {
            a.tensor for o in ops for a in o.reads if any(e.has_lookup for e in a.index)
        }  # fmt: skip
        assert not fetched & looked_up
        assert not fetched & {o.write.tensor for o in ops}


@st.composite
def accesses(draw: st.DrawFn) -> tuple[dict[str, int], tuple[Affine, ...], tuple[int, ...]]:
    """Axes, indices of one or two dimensions over them, and a shape that they may miss."""
    extents = {f"a{k}": draw(st.integers(1, 5)) for k in range(draw(st.integers(1, 3)))}
    index: list[Affine] = []
    shape: list[int] = []
    for _ in range(draw(st.integers(1, 2))):
        expr = Affine((), draw(st.integers(-3, 3)))
        for name in sorted(draw(st.sets(st.sampled_from(sorted(extents)), max_size=2))):
            expr = expr + var(name) * draw(st.sampled_from((-2, -1, 1, 2, 3)))
        index.append(expr)
        shape.append(draw(st.integers(1, 12)))
    return extents, tuple(index), tuple(shape)


@given(accesses(), st.data())
def test_a_part_of_a_domain_touches_at_least_as_much_as_the_floor_says(
    case: tuple[dict[str, int], tuple[Affine, ...], tuple[int, ...]], data: st.DataObject
) -> None:
    """Against counting: the part may stand anywhere in the domain."""
    extents, index, shape = case
    part = {name: data.draw(st.integers(1, extent)) for name, extent in extents.items()}
    first = {name: data.draw(st.integers(0, extents[name] - part[name])) for name in extents}
    net = Net()
    graph = net.graph(net.relu(net.given(*extents.values())))
    op = graph.op(graph.ops[0].name)
    axes = tuple(replace(a, name=n) for a, n in zip(op.domain, extents, strict=True))
    op = replace(op, domain=axes, reads=(Access("x", index, 0.0),))
    tensors = {"x": replace(next(iter(graph.tensors.values())), name="x", shape=shape)}
    domains = {op.name: tuple(Span(Affine((), first[n]), part[n]) for n in extents)}
    home = replace(TWO.home, read_bytes_per_cycle=4.0)
    cycles = port_cycles([op], tensors, domains, 1, {"x"}, (), home)
    touched: set[tuple[int, ...]] = set()
    for point in product(*(range(first[n], first[n] + part[n]) for n in extents)):
        at = dict(zip(extents, point, strict=True))
        place = tuple(
            e.const + sum(e.coeff(n) * at[n] for n in e.variables()) for e in index
        )  # fmt: skip
        if all(0 <= p < size for p, size in zip(place, shape, strict=True)):
            touched.add(place)
    assert cycles <= len(touched)
