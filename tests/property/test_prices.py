"""Prices of tilings: the loop gives what plain code gives, to the last digit."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from machine_rates import with_every_format
from nest_layers import ADDITIVE, PRESETS, Layer, graphs
from plain_prices import PlainPricer
from test_nest_tilings import MACHINE, Toy, toys

from worker.compiler import jit
from worker.compiler.ir.affine import var
from worker.compiler.ir.axis import Axis
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Origin, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Fn, Read
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.compiler.options import Objective
from worker.compiler.tiling.nest.enumeration import Enumeration
from worker.compiler.tiling.nest.facts import Facts
from worker.compiler.tiling.nest.levels import Sizes, StageFrame, levels_of
from worker.compiler.tiling.nest.measure import Measure
from worker.compiler.tiling.nest.plan import LevelPlan, Plan, Stage
from worker.compiler.tiling.nest.price import Pricer
from worker.compiler.tiling.nest.search import MOST_LEAVES, loop_orders, ordered_plans, score

DRAWN = 6


def sharing(machine: Machine) -> Machine:
    """With engines that share the ports of their memories with transfers."""
    memories = {engine.memory for engine in machine.engines if engine.macs_per_cycle}
    return replace(
        machine,
        levels=tuple(replace(m, serves_engines=m.name in memories) for m in machine.levels),
    )


def drawn(facts: Facts, stages: tuple[Stage, ...], rng: random.Random) -> list[list[LevelPlan]]:
    """Some tilings that fit, split as they were drawn or as their tiles say."""
    frame = StageFrame(facts, stages)
    tilings = Enumeration(facts, stages, dict.fromkeys(facts.extents, 4))
    found = []
    for numbers in islice(tilings.drawn(rng), DRAWN):
        for sizes in tilings.tiled(numbers):
            ways = sizes.ways if rng.random() < 0.7 else None
            levels = levels_of(frame, Sizes(sizes.tiles, sizes.double, ways))
            if levels is not None:
                found.append(levels)
    return found


def plain_plans(
    pricer: PlainPricer, written: Sequence[list[LevelPlan]], plans: Sequence[Plan], most: int
) -> list[Plan]:
    """What plain code says of each in the best order, the first of equals."""
    found = []
    for levels, plan in zip(written, plans, strict=True):
        price, best = pricer.price(levels), None
        for order in loop_orders(pricer.facts):
            ordered = tuple(
                level._replace(
                    order=(
                        *(a for a in order if a in level.order[: level.num_out_loops]),
                        *level.order[level.num_out_loops :],
                    )
                )
                for level in levels
            )
            one = replace(plan, levels=ordered)
            cycles, leaves, charge = price.of([level.order for level in ordered])
            one = replace(one, predicted_cycles=cycles, num_leaves=leaves, charge=charge)
            if best is None or score(one, most) < score(best, most):
                best = one
        assert best is not None
        found.append(best)
    return found


@contextmanager
def loops(*, are_compiled: bool) -> Iterator[None]:
    """The loop as numba compiles it, or as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "worker.compiler.tiling.nest.price.loop_for",
            lambda loop, _: jit.compiled(loop) if are_compiled else loop,
        )
        yield


@pytest.mark.parametrize("are_compiled", [False, True])
@given(
    graphs, st.sampled_from(PRESETS), st.integers(0, 2), st.sampled_from(ADDITIVE), st.booleans(),
    st.booleans(), st.booleans(), st.booleans(), st.booleans(),
    st.sampled_from([100, MOST_LEAVES]), st.integers(),
)  # fmt: skip
def test_single_operators(
    are_compiled: bool, graph: Graph, preset: str, chain: int, objective: Objective, alone: bool,
    inside: bool, joins: bool, overlaps: bool, shares: bool, most: int, seed: int,
) -> None:  # fmt: skip
    machine, rng = with_every_format(load_preset(preset)), random.Random(seed)
    machine = sharing(machine) if shares else machine
    layer = Layer(
        graph, machine, chain, alone=alone, objective=objective, inside=inside, joins=joins
    )
    early = frozenset(o.tensor for o in layer.facts.fetched if rng.random() < 0.3)
    facts = replace(layer.facts, early=early)
    stages = tuple(replace(s, team=replace(s.team, overlaps=overlaps)) for s in layer.needed)
    written = drawn(facts, stages, rng)
    assume(written)
    of = facts, layer.engine, stages, machine, layer.measure
    with loops(are_compiled=are_compiled):
        found = ordered_plans(Pricer(*of), written, loop_orders(facts), most)
    assert found == plain_plans(PlainPricer(*of), written, found, most)


@pytest.mark.parametrize("are_compiled", [False, True])
@given(toys(), st.booleans(), st.booleans(), st.sampled_from(ADDITIVE), st.integers())
def test_with_an_epilogue_where_operands_live_elsewhere_and_teams_share(
    are_compiled: bool, toy: Toy, overlaps: bool, shares: bool, objective: Objective, seed: int
) -> None:
    stages = tuple(replace(s, team=replace(s.team, overlaps=overlaps)) for s in toy.stages)
    written = drawn(toy.facts, stages, random.Random(seed))
    assume(written)
    machine = sharing(MACHINE) if shares else MACHINE
    of = toy.facts, toy.engine, stages, machine, Measure.of(objective, machine)
    with loops(are_compiled=are_compiled):
        found = ordered_plans(Pricer(*of), written, loop_orders(toy.facts), MOST_LEAVES)
    assert found == plain_plans(PlainPricer(*of), written, found, MOST_LEAVES)


@given(graphs, st.sampled_from(PRESETS), st.integers(0, 2), st.integers())
def test_what_does_not_fit_has_no_price(graph: Graph, preset: str, chain: int, seed: int) -> None:
    """As writing it out says."""
    machine, rng = with_every_format(load_preset(preset)), random.Random(seed)
    layer = Layer(graph, machine, chain)
    facts, stages = layer.facts, layer.needed
    room = tuple(replace(s, capacity_bytes=max(1, s.capacity_bytes // 64)) for s in stages)
    written = drawn(facts, stages, rng)
    assume(written)
    pricer = Pricer(facts, layer.engine, room, machine)
    prices = pricer.best(pricer.tilings(written), loop_orders(facts), MOST_LEAVES)
    tilings = pricer.tilings(written)
    for levels, rank, double in zip(written, prices.rank, tilings.double, strict=True):
        sizes = Sizes(
            tuple(level.tile for level in levels), bool(double),
            tuple(level.splits for level in levels),
        )  # fmt: skip
        assert np.isfinite(rank) == (levels_of(StageFrame(facts, room), sizes) is not None)


@given(st.sampled_from([2, 3, 6]), st.sampled_from(PRESETS), st.integers())
def test_indices_that_are_no_sums_of_axes_are_looked_up(
    period: int, preset: str, seed: int
) -> None:
    """Row i of the result is what stands in row i // period, and column j % period."""
    machine, tensors = with_every_format(load_preset(preset)), ("a", "b")
    rows, columns = 4 * period, 2 * period
    shapes = ((4, period), (rows, columns))
    op = TensorOp(
        "again", (Axis("i", rows), Axis("j", columns)),
        (Access("a", (var("i").floordiv(period), var("j").mod(period))),),
        Access("b", (var("i"), var("j"))), Apply(Fn.NEG, (Read(0),)), None, Origin((), "unit"),
    )  # fmt: skip
    given_ = tuple(Tensor(n, s, DType.F16) for n, s in zip(tensors, shapes, strict=True))
    layer = Layer(Graph.build((op,), given_, ("a",), ("b",)), machine)
    written = drawn(layer.facts, layer.needed, random.Random(seed))
    assume(written)
    of = layer.facts, layer.engine, layer.needed, machine, layer.measure
    found = ordered_plans(Pricer(*of), written, layer.orders, MOST_LEAVES)
    assert found == plain_plans(PlainPricer(*of), written, found, MOST_LEAVES)
