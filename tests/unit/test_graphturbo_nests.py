"""Samples in turns: factors of groups, and the tree's loops as the order of their instances."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import groupby, pairwise, product
from math import prod
from pathlib import Path

import pytest
from graphturbo_nets import (
    Net,
    check_as_c,
    check_meaning,
    clustered,
    down_sampled,
    lowered,
    scheduled,
    unit_context,
)
from hypothesis import given
from hypothesis import strategies as st

from worker.compiler.schedule.nodes import Compute, Loop, LoopKind, Node, Place, Schedule, Seq
from worker.compiler.schedule.verify import verify
from worker.compiler.strategies.graphturbo.emit import emit_unit
from worker.compiler.strategies.graphturbo.instances import instance_graph
from worker.compiler.strategies.graphturbo.ordering import bfs_order, dfs_order, is_nest
from worker.compiler.strategies.graphturbo.section_plan import SectionPlan
from worker.compiler.strategies.graphturbo.sections import UnitContext, best_sections
from worker.compiler.strategies.graphturbo.site import Part, Site, Spread
from worker.compiler.strategies.graphturbo.summary import read_summary
from worker.compiler.strategies.graphturbo.turns import (
    equal_turns,
    even_turns,
    grouped_turns,
    nested_factors,
    num_samples,
)
from worker.simulator.run import simulate_unit

ON = clustered(clusters=2, cores=2, gb_bytes=11 << 10, l1_bytes=1 << 11)
SAMPLES = 16
WEIGHTS = (4 * 2 * 9 * 4, 8 * 4 * 9 * 4, 16 * 8 * 9 * 4, 32 * 16 * 9 * 4)
"""Bytes per convolution."""


@cache
def ctx() -> UnitContext:
    return unit_context(down_sampled(SAMPLES), ON)


def site(of: UnitContext) -> Site:
    part = Part(tuple(range(len(of.layers))), None, 1)
    cores = of.machine.num_cores // of.clusters
    return Site(of.machine, of.buffer, Spread(1, cores), (part,), of.tiles)


@cache
def nest() -> SectionPlan:
    of = ctx()
    [plan] = grouped_turns(of.graph, of.layers, of.engines, site(of), SAMPLES, of.grouped)
    return plan


def evens(of: UnitContext, *, at_once: bool = False) -> list[SectionPlan]:
    samples = num_samples(of.graph)
    return even_turns(of.graph, of.layers, of.engines, site(of), samples, at_once=at_once)


def as_schedule(plan: SectionPlan) -> Schedule:
    found = Schedule(plan.graph, emit_unit([plan]), "graphturbo", plan.predicted_cycles)
    verify(found, ON)
    return found


# -- factors and parts -----------------------------------------------------------------------------


def test_early_groups_have_the_larger_factors() -> None:
    groups = ctx().grouped.groups
    factors = [g.factor for g in groups]
    assert [g.layers for g in groups] == [(0, 1), (2,), (3,)]
    assert factors == [4, 2, 1]
    # Algorithm 1: an instance is the least number of pieces of which one fits the cores' buffers.
    capacity = ON.num_cores * ON.levels[2].usable_bytes
    for group, summary in zip(groups, ctx().grouped.summaries, strict=True):
        assert group.factor is not None
        assert summary.peak_bytes <= capacity
        if group.factor > 1:
            assert summary.peak_bytes * 2 > capacity


def test_the_nest_of_groups_is_chosen() -> None:
    found = best_sections(ctx())
    assert found is not None
    [plan] = found
    assert [part.trips for part in plan.parts] == [2, 2, 1]
    assert [part.layers for part in plan.parts] == [(0, 1), (2,), (3,)]
    assert plan.spread == Spread(2, 2)
    assert plan.predicted_cycles < min(p.predicted_cycles for p in evens(ctx()))


def test_the_report_says_what_runs() -> None:
    """Groups where the unit runs as groups; no order, as none was searched."""
    [note] = scheduled(down_sampled(SAMPLES), ON).notes
    summary = read_summary(note)
    assert [group.factor for group in summary.groups] == [4, 2, 1]
    assert summary.orders == ()
    [note] = scheduled(down_sampled(1), ON).notes
    assert read_summary(note).groups == ()


def test_instances_of_a_part_are_as_many_as_its_factor() -> None:
    plan, groups = nest(), ctx().grouped.groups
    for number, group in enumerate(groups):
        runs = prod(part.trips for part in plan.parts[number:])
        assert runs == group.factor
        slices = plan.parts[number].slices
        assert slices is not None and not slices.recompute
        for name in {op for k in group.layers for op in plan.layers[k].layer.ops}:
            assert slices.domains[name][0].extent * runs * plan.spread.clusters == SAMPLES


@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.integers(1, 24))
def test_raised_factors_divide_and_are_the_least_that_do(factors: list[int], own: int) -> None:
    """Oracle: all lists of factors up to the samples; the innermost groups choose first."""
    legal = [
        chosen
        for chosen in product(range(1, own + 1), repeat=len(factors))
        if all(d >= min(factor, own) for d, factor in zip(chosen, factors, strict=True))
        and all(outer % inner == 0 for outer, inner in pairwise((own, *chosen)))
    ]
    assert tuple(nested_factors(factors, own)) == min(legal, key=lambda chosen: chosen[::-1])


# -- the order -------------------------------------------------------------------------------------


def runs_of(
    node: Node, values: dict[str, int], part_of: dict[str, int]
) -> Iterator[tuple[int, int]]:
    """(part, number of its instance) of every computation of the first cluster, in order."""
    trips = [part.trips for part in nest().parts]
    match node:
        case Loop(var=name, trip=trip, kind=kind) if kind is LoopKind.TIME and "i" in name[:3]:
            for value in range(trip):
                yield from runs_of(node.body, values | {name: value}, part_of)
        case Loop() | Place():
            yield from runs_of(node.body, values, part_of)
        case Seq(parts):
            for part in parts:
                yield from runs_of(part, values, part_of)
        case Compute():
            number = 0
            for outer in reversed(range(part_of[node.op], len(trips))):
                number = number * trips[outer] + values.get(f"s0i{outer}", 0)
            yield part_of[node.op], number
        case _:
            pass


def test_the_loops_of_the_tree_are_the_depth_first_order() -> None:
    plan, grouped = nest(), ctx().grouped
    part_of = {
        name: number
        for number, part in enumerate(plan.parts)
        for k in part.layers
        for name in plan.layers[k].layer.ops
    }
    ran = [run for run, _ in groupby(runs_of(as_schedule(plan).root, {}, part_of))]
    factors = [g.factor for g in grouped.groups if g.factor is not None]
    instances = instance_graph(factors, [1, 1, 1], [(0, 1), (1, 2)])
    # Algorithm 3 takes what became ready last, so it numbers equal pieces the other way round.
    groups = [i.group for i in instances.instances]
    assert [group for group, _ in ran] == [groups[k] for k in dfs_order(instances)]
    assert [group for group, _ in ran] != [groups[k] for k in bfs_order(instances)]
    assert is_nest(instances, dfs_order(instances), factors)
    assert not is_nest(instances, bfs_order(instances), factors)
    assert ran == [(0, 0), (0, 1), (1, 0), (0, 2), (0, 3), (1, 1), (2, 0)]


def test_a_tensor_between_parts_lives_around_the_inner_instances() -> None:
    plan = nest()
    [passed] = [t for t in plan.buffered if plan.place[t] == 2 and t not in plan.kept]
    assert plan.box[passed][0].extent == SAMPLES // 2  # all samples of a cluster, two instances
    for tensor in plan.buffered:
        slices = plan.parts[plan.place[tensor]].slices
        assert slices is not None
        # The samples are shared out; the other dimensions are held whole.
        assert plan.box[tensor][0] == slices.boxes[tensor][0]
        rest = plan.graph.tensors[tensor].shape[1:]
        assert tuple(s.extent for s in plan.box[tensor][1:]) == rest


# -- meaning and traffic ---------------------------------------------------------------------------


def test_numbers_of_the_nest(tmp_path: Path) -> None:
    schedule = scheduled(down_sampled(SAMPLES), ON)
    assert [n.trip for n in _turns(schedule.root)] == [2, 2]
    check_meaning(schedule)
    simulated = check_as_c(schedule, ON, tmp_path)
    assert simulated.active_cores == 4


def _turns(node: Node) -> list[Loop]:
    match node:
        case Loop(var=name):
            return ([node] if name.startswith("s0i") else []) + _turns(node.body)
        case Place():
            return _turns(node.body)
        case Seq(parts):
            return [turn for part in parts for turn in _turns(part)]
        case _:
            return []


def test_numbers_of_three_nested_groups() -> None:
    check_meaning(as_schedule(nest()))


def test_weights_of_late_groups_are_loaded_less_often_than_with_equal_turns() -> None:
    of = ctx()
    [even] = equal_turns(of.graph, of.layers, of.engines, site(of), SAMPLES, 4)
    read = {
        kind: simulate_unit(lowered(as_schedule(plan), ON), ON).traffic[0].read_bytes
        for kind, plan in (("nest", nest()), ("even", even))
    }
    image = SAMPLES * 2 * 8 * 8 * 4
    assert read["even"] == image + 2 * 4 * sum(WEIGHTS)
    # Two clusters, and both cores of each at most.
    late = 2 * WEIGHTS[2] + WEIGHTS[3]
    assert read["nest"] <= image + 2 * (4 * sum(WEIGHTS[:2]) + 2 * late)
    assert read["nest"] < 0.6 * read["even"]


# -- no turns --------------------------------------------------------------------------------------


def test_samples_that_mix_are_not_taken_in_turns() -> None:
    net = Net()
    x = net.given(4, 8)
    graph = net.graph(net.softmax(net.matmul(x, 8), dim=0))
    assert num_samples(graph) == 1
    for plan in best_sections(unit_context(graph, ON)) or ():
        assert [part.trips for part in plan.parts] == [1]
    schedule = scheduled(graph, ON)
    assert not _turns(schedule.root)
    check_meaning(schedule)


def test_samples_that_do_not_mix_are() -> None:
    net = Net()
    x = net.given(4, 8)
    assert num_samples(net.graph(net.softmax(net.matmul(x, 8), dim=1))) == 4


@pytest.mark.parametrize(("samples", "clusters"), [(1, 1), (3, 1), (4, 2), (5, 1)])
def test_clusters_get_equal_shares_or_one_gets_all(samples: int, clusters: int) -> None:
    net = Net()
    x = net.given(samples, 2, 4, 4)
    of = unit_context(net.graph(net.relu(net.conv(x, 2))), ON)
    assert num_samples(of.graph) == samples
    if samples > 1:
        assert {plan.spread.clusters for plan in evens(of)} == {clusters}


def test_all_samples_of_a_cluster_at_once_even_when_they_do_not_fit() -> None:
    """What variants without instances do: tensors are spilled instead."""
    [plan] = evens(ctx(), at_once=True)
    assert [part.trips for part in plan.parts] == [1]
    assert plan.spilled


def test_the_fewest_turns_that_fit_come_first() -> None:
    """Then one number less, which spills; what is slower than another is left out."""
    of = ctx()
    first, *others = evens(of)
    assert not first.spilled
    [fewer] = equal_turns(of.graph, of.layers, of.engines, site(of), SAMPLES, 1)
    assert first.parts[0].trips == 2 and fewer.spilled
    assert all(plan.predicted_cycles <= first.predicted_cycles for plan in others)
    limit = first.predicted_cycles - 1
    assert not equal_turns(of.graph, of.layers, of.engines, site(of), SAMPLES, 2, limit)
