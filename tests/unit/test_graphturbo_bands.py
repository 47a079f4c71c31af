"""Bands of rows: of one sample over clusters and in turns, through normalisations, past pools."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
from graphturbo_nets import (
    LAST,
    Net,
    arrays_of,
    check_as_c,
    check_meaning,
    clustered,
    nodes,
    scheduled,
    unit_context,
)
from row_chain_graphs import fn

from worker.compiler.errors import Shortfall
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Reduce
from worker.compiler.ir.reductions import is_second_stage
from worker.compiler.ir.scalar import Fn, Read
from worker.compiler.machine.machine import Machine
from worker.compiler.rewrite.two_stages import in_two_stages
from worker.compiler.schedule.nodes import Compute, Loop, LoopKind, Move, Schedule
from worker.compiler.schedule.verify import verify
from worker.compiler.strategies.graphturbo.emit import emit_unit
from worker.compiler.strategies.graphturbo.section_plan import SectionPlan
from worker.compiler.strategies.graphturbo.sections import (
    UnitContext,
    best_sections,
    meeting_points,
    spread_plans,
)
from worker.compiler.strategies.graphturbo.site import instance_var
from worker.compiler.tiling.chain.plan import ChainPlan
from worker.compiler.tiling.chain.plan_chain import plan_chain, row_chains
from worker.compiler.tiling.slices.propagate import propagate

FOUR = clustered(clusters=4, cores=2, gb_bytes=1 << 16, l1_bytes=1 << 13)


def slow_home(gb_bytes: int) -> Machine:
    """Four clusters whose way home is narrow."""
    base = clustered(clusters=4, cores=2, gb_bytes=gb_bytes, l1_bytes=1 << 13)
    home, *others = base.levels
    home = replace(home, read_bytes_per_cycle=4.0, write_bytes_per_cycle=4.0)
    return replace(base, levels=(home, *others))


def centred(net: Net, source: str) -> str:
    """x less the sum over its channels, per position: the shape of a normalisation."""
    _, _, height, width = net.shapes[source]
    total = net.over(source, 1, Read(0), Reduce.ADD)
    axes = [("n", 1), ("c", net.shapes[source][1]), ("y", height), ("x", width)]
    reads = [(source, ("n", "c", "y", "x")), (total, ("n", "y", "x"))]
    return net.op("sub", axes, reads, fn(Fn.SUB, Read(0), Read(1)))


def whole_pool(net: Net, source: str) -> str:
    """Sum over all rows and columns."""
    _, channels, height, width = net.shapes[source]
    axes = [("n", 1), ("c", channels), ("y", height, "r"), ("x", width, "r")]
    return net.op("sum", axes, [(source, ("n", "c", "y", "x"))], Read(0), Reduce.ADD)


def scaled(net: Net, source: str, factor: str) -> str:
    """x times a number per channel."""
    _, channels, height, width = net.shapes[source]
    axes = [("n", 1), ("c", channels), ("y", height), ("x", width)]
    reads = [(source, ("n", "c", "y", "x")), (factor, ("n", "c"))]
    return net.op("mul", axes, reads, fn(Fn.MUL, Read(0), Read(1)))


def normalised_conv(size: int = 16, channels: int = 8) -> Graph:
    """conv, normalisation over channels, 3 x 3 conv: its halo reaches through the normalisation."""
    net = Net()
    x = net.conv(net.given(1, 4, size, size), channels, 1)
    x = centred(net, x)
    return net.graph(net.conv(x, channels))


def attended(size: int = 16, channels: int = 8) -> Graph:
    """A block with channel attention: conv, conv, pool of all rows, its product, conv."""
    net = Net()
    x = net.relu(net.conv(net.given(1, 4, size, size), channels))
    x = net.relu(net.conv(x, channels))
    x = scaled(net, x, whole_pool(net, x))
    return net.graph(net.conv(x, channels, 1))


def in_one_section(ctx: UnitContext) -> SectionPlan:
    """The best plan of all layers together."""
    found = best_sections(ctx, (0, len(ctx.layers)))
    assert found is not None
    [plan] = found
    return plan


def rows_of(graph: Graph) -> Graph:
    return in_two_stages(graph, 4, 1 << 10)


# -- a halo through a row chain --------------------------------------------------------------------


def test_a_normalisation_in_front_of_a_convolution_is_computed_again_at_the_borders(
    tmp_path: Path,
) -> None:
    graph = normalised_conv()
    ctx = unit_context(graph, FOUR)
    [chain] = [layer for layer in ctx.layers if layer.is_chain]
    plan = in_one_section(ctx)
    assert plan.spread.clusters == 4
    again = {n for layer in plan.layers if layer.recompute for n in layer.layer.ops}
    assert again.issuperset(chain.ops), "slices of 4 rows, and one more on both sides"
    assert set(chain.ops).isdisjoint(plan.spilled)
    schedule = scheduled(graph, FOUR, number=LAST)
    repeated = {n.op for n in nodes(schedule.root) if isinstance(n, Compute) and n.recompute}
    assert repeated.issuperset(chain.ops)
    check_meaning(schedule)
    check_as_c(schedule, FOUR, tmp_path)


@pytest.mark.parametrize("where", ["GB", "DDR"])
def test_only_what_an_instance_keeps_for_itself_is_made_twice(where: str) -> None:
    """At home, neighbours would write the same rows."""
    graph = normalised_conv()
    ops = list(graph.ops)
    slices = propagate(graph, ops, graph.outputs, 2, 4, instance_var(0))
    assert slices is not None
    chain = ops[1:3]
    found = plan_chain(
        graph, chain, {op.name: slices.domains[op.name] for op in chain},
        {chain[0].reads[0].tensor: "GB", chain[-1].write.tensor: where}, FOUR,
        num_cores=2, budget_bytes=FOUR.level("L1").usable_bytes, num_groups=4,
    )  # fmt: skip
    assert isinstance(found, ChainPlan if where == "GB" else Shortfall)


# -- bands in turns --------------------------------------------------------------------------------


@pytest.mark.no_cover
def test_bands_that_exceed_the_buffer_take_turns(tmp_path: Path) -> None:
    net = Net()
    x = net.given(1, 4, 64, 16)
    for _ in range(3):
        x = net.relu(net.conv(x, 16))
    graph = net.graph(x)
    tight = slow_home(24 << 10)
    ctx = unit_context(graph, tight)
    plan = in_one_section(ctx)
    assert not plan.spilled
    [part] = plan.parts
    # Oracle: rows of a band, with what later layers look beyond it, of two tensors alive at once.
    room = int((24 << 10) * 0.75)
    needed = [(2 * (64 // (4 * turns)) + 6) * 16 * 16 * 4 for turns in (1, 2, 3, 4)]
    assert part.trips == next(k for k, size in enumerate(needed, 1) if size <= room) > 1
    schedule = Schedule(graph, emit_unit((plan,)), "graphturbo", 0)
    verify(schedule, tight)
    loops = [n for n in nodes(schedule.root) if isinstance(n, Loop)]
    assert [(loop.kind, loop.trip) for loop in loops[:2]] == [
        (LoopKind.CORES, 4), (LoopKind.TIME, part.trips),
    ]  # fmt: skip
    check_meaning(schedule)
    check_as_c(schedule, tight, tmp_path)


def test_bands_that_fit_the_buffer_take_none() -> None:
    ctx = unit_context(normalised_conv(), slow_home(1 << 20))
    plans = spread_plans(ctx, ctx.graph, ctx.layers, 2, inf)
    assert plans and all(part.trips == 1 for plan in plans for part in plan.parts)


# -- pools of all rows -----------------------------------------------------------------------------


def test_a_pool_of_all_rows_is_taken_per_row_first() -> None:
    graph = attended()
    found = rows_of(graph)
    new = [op for op in found.ops if op.name not in {o.name for o in graph.ops}]
    [first] = new
    assert found.tensors[first.write.tensor].shape == (16, 1, 8), "a number per row and channel"
    assert [op.name for op in found.ops if is_second_stage(op, found)] == [
        first.name.removesuffix("/rows")
    ]
    given = arrays_of(graph)
    want, got = evaluate(graph, given), evaluate(found, given)
    np.testing.assert_allclose(got[graph.outputs[0]], want[graph.outputs[0]], rtol=1e-6)
    assert in_two_stages(found, 4, 1 << 10) is found, "once is enough"


@pytest.mark.parametrize("kind", ["one cluster", "small", "normalisation", "alone"])
def test_other_reductions_stay_as_they_are(kind: str) -> None:
    if kind == "one cluster":
        graph = attended()
        assert in_two_stages(graph, 1, 1 << 10) is graph
    elif kind == "small":
        graph = attended()
        assert in_two_stages(graph, 4, 16 * 16 * 8 * 4) is graph
    elif kind == "normalisation":
        graph = normalised_conv()
        assert rows_of(graph) is graph, "over channels; its rows are left"
    else:
        net = Net()
        graph = net.graph(whole_pool(net, net.given(1, 8, 16, 16)))
        assert rows_of(graph) is graph, "channels repeat nothing"


def test_layers_on_both_sides_of_a_pool_are_cut_into_bands(tmp_path: Path) -> None:
    graph = rows_of(attended())
    ctx = unit_context(graph, FOUR)
    first_ops = [ctx.cuts.op(layer.ops[0]) for layer in ctx.layers]
    [second] = [k for k, op in enumerate(first_ops) if is_second_stage(op, graph)]
    assert second in meeting_points(ctx)
    for first, last in ((0, second), (second, len(ctx.layers))):
        piece = ctx.piece(first, last)
        assert spread_plans(ctx, piece, ctx.layers[first:last], 2, inf), (first, last)
    # As one operator, the pool is with all in front of it: no band of those.
    plain = unit_context(attended(), FOUR)
    pool = next(k for k, layer in enumerate(plain.layers) if "sum" in "".join(layer.ops))
    assert not spread_plans(plain, plain.piece(0, pool + 1), plain.layers[: pool + 1], 2, inf)
    schedule = scheduled(graph, FOUR, number=LAST)
    check_meaning(schedule)
    check_as_c(schedule, FOUR, tmp_path)


def test_a_second_stage_opens_a_chain_of_its_own() -> None:
    graph = rows_of(attended())
    ops = list(graph.ops)
    at = next(k for k, op in enumerate(ops) if is_second_stage(op, graph))
    runs = row_chains(graph, ops[at - 1 : at + 1], FOUR)
    assert [len(run) for run in runs] == [1, 1]
    # Two maxima of windows are no such pair.
    net = Net()
    x = net.given(1, 8, 16, 16)
    windows = net.graph(net.pool(net.pool(x)))
    assert not any(is_second_stage(op, windows) for op in windows.ops)


# -- constants of row chains -----------------------------------------------------------------------


def test_small_constants_of_row_chains_wait_in_the_buffer(tmp_path: Path) -> None:
    """Tile by tile from home, they would queue behind the weights of the layers that follow."""
    net = Net()
    x = net.conv(net.given(1, 4, 16, 16), 8, 1)
    x = centred(net, x)
    factor = net.weight(1, 8)
    x = scaled(net, x, factor)
    graph = net.graph(net.conv(x, 8))
    ctx = unit_context(graph, FOUR)
    plan = in_one_section(ctx)
    kernels = [t for t in graph.constants if t != factor]
    assert factor in plan.staged
    assert plan.staged.isdisjoint(kernels), "weights stream through the buffer"
    schedule = Schedule(graph, emit_unit((plan,)), "graphturbo", 0)
    verify(schedule, FOUR)
    moves = [n for n in nodes(schedule.root) if isinstance(n, Move) and n.tensor == factor]
    assert [n.src for n in moves].count("DDR") == 1
    assert {n.dst for n in moves if n.src == "GB"} == {"L1"}
    check_meaning(schedule)
    check_as_c(schedule, FOUR, tmp_path)
