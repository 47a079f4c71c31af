"""Sections of a unit: what is spread over clusters, what stays on one, and where they meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from graphturbo_nets import (
    Net,
    check_as_c,
    check_meaning,
    clustered,
    nodes,
    scheduled,
    unit_context,
)

from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Compute, Loop, LoopKind
from worker.compiler.strategies.graphturbo.descriptor import Variant
from worker.compiler.strategies.graphturbo.emit import emit_unit
from worker.compiler.strategies.graphturbo.section_plan import SectionPlan
from worker.compiler.strategies.graphturbo.sections import (
    LAYERS_PER_POINT,
    MIN_POINTS,
    SECTION_CYCLES,
    UnitContext,
    best_sections,
    cuttings,
    meeting_points,
    same_borders,
)
from worker.compiler.strategies.graphturbo.site import Part, Site, Spread
from worker.compiler.strategies.graphturbo.teams import team_plans
from worker.compiler.strategies.graphturbo.unit_plan import Planner
from worker.compiler.tiling.layer.layers import form_layers

FOUR = clustered(clusters=4, cores=2, gb_bytes=1 << 16)


def conv_chain(size: int, channels: int, depth: int) -> Graph:
    net = Net()
    x = net.given(1, 4, size, size)
    for _ in range(depth):
        x = net.relu(net.conv(x, channels))
    return net.graph(x)


def weight_chain(channels: int, size: int, depth: int) -> Graph:
    """1 x 1 convolutions: `channels` squared weights, and `size` squared positions."""
    net = Net()
    x = net.given(1, channels, size, size)
    for _ in range(depth):
        x = net.relu(net.conv(x, channels, 1))
    return net.graph(x)


def wide_then_deep() -> Graph:
    """Large images and few weights at first, small images and many weights at last."""
    net = Net()
    x = net.given(1, 2, 24, 24)
    for _ in range(3):
        x = net.relu(net.conv(x, 4))
    x = net.relu(net.conv(x, 64, 3, 4))
    for _ in range(2):
        x = net.relu(net.conv(x, 64, 1))
    return net.graph(x)


def slow_home(rate: float) -> Machine:
    base = clustered(clusters=4, cores=2, gb_bytes=1 << 16, l1_bytes=1 << 13)
    home, *others = base.levels
    home = replace(home, read_bytes_per_cycle=rate, write_bytes_per_cycle=rate)
    return replace(base, levels=(home, *others))


@cache
def deep_context() -> UnitContext:
    """One for all tests: what was planned once is remembered in it.  All through the buffers."""
    ctx = unit_context(wide_then_deep(), slow_home(8.0))
    ctx.features = replace(ctx.features, handover=0)
    return ctx


def sections_of(ctx: UnitContext) -> tuple[SectionPlan, ...]:
    found = best_sections(ctx)
    assert found is not None
    return found


def without_spread(ctx: UnitContext) -> list[SectionPlan]:
    """All layers on one cluster, on the chip, or some on each: one instance of everything."""
    part = Part(tuple(range(len(ctx.layers))), None, 1)
    cores = ctx.machine.num_cores // ctx.clusters
    site = Site(ctx.machine, ctx.buffer, Spread(1, cores), (part,), ctx.tiles)
    planner = Planner(ctx.graph, ctx.layers, ctx.engines, site)
    return list(team_plans(planner, ctx.clusters))


# -- one sample over clusters ----------------------------------------------------------------------


def test_a_small_conv_chain_is_spread_with_a_halo() -> None:
    ctx = unit_context(conv_chain(16, 8, 3), FOUR)
    [plan] = sections_of(ctx)
    assert plan.spread == Spread(4, 2)
    assert not any(plan.whole_chip)
    # Rows that a later convolution looks beyond its slice for are computed by two clusters.
    assert [layer.recompute for layer in plan.layers] == [True, True, False]
    assert plan.predicted_cycles < min(p.predicted_cycles for p in without_spread(ctx))
    first, second, _ = (layer.layer.ops[0] for layer in plan.layers)
    slices = plan.parts[0].slices
    assert slices is not None
    # 16 rows in slices of 4, one row more on both sides for each convolution behind.
    assert [slices.domains[name][2].extent for name in (first, second)] == [8, 6]
    assert slices.extra_points[second] == (5 + 6 + 6 + 5 - 16) * 8 * 16 * 8 * 9


def test_the_spread_tree_has_clusters_outside_and_cores_inside() -> None:
    schedule = scheduled(conv_chain(16, 8, 3), FOUR)
    loops = [n for n in nodes(schedule.root) if isinstance(n, Loop) and n.kind is LoopKind.CORES]
    assert (loops[0].trip, loops[0].core_stride) == (4, 2)
    assert {(loop.trip, loop.core_stride) for loop in loops[1:]} == {(2, 1)}
    assert any(n.recompute for n in nodes(schedule.root) if isinstance(n, Compute))


@pytest.mark.parametrize("kind", ["spread", "several sections"])
def test_numbers_of_the_tree_its_kernel_and_its_simulation(kind: str, tmp_path: Path) -> None:
    on = FOUR if kind == "spread" else slow_home(8.0)
    schedule = scheduled(conv_chain(16, 8, 3) if kind == "spread" else wide_then_deep(), on)
    check_meaning(schedule)
    simulated = check_as_c(schedule, on, tmp_path)
    assert simulated.active_cores == 8
    assert simulated.lower_bound_cycles > 0  # `check_as_c` holds the run against it


def test_the_chip_of_the_paper_spreads_one_sample_over_its_clusters(tmp_path: Path) -> None:
    on = load_preset("stcp920-inferred")
    net = Net(DType.F16)
    x = net.given(1, 16, 32, 32)
    for _ in range(2):
        x = net.relu(net.conv(x, 8))
    ctx = unit_context(net.graph(x), on)
    assert [plan.spread for plan in sections_of(ctx)] == [Spread(4, 8)]
    simulated = check_as_c(scheduled(ctx.graph, on), on, tmp_path)
    assert simulated.active_cores == 32


def test_a_longer_halo_than_work_is_not_spread() -> None:
    """Eight convolutions of 8 rows in slices of 2: most of the points would be computed again."""
    ctx = unit_context(conv_chain(8, 4, 8), FOUR)
    for plan in sections_of(ctx):
        slices = plan.parts[0].slices
        if slices is not None:
            own = sum(op.num_points for op in plan.graph.ops)
            assert sum(slices.extra_points.values()) <= 0.35 * own
    assert all(plan.spread.clusters == 1 or len(plan.layers) < 8 for plan in sections_of(ctx))


# -- weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("channels", "size"), [(48, 2), (64, 2)])
def test_a_weight_heavy_chain_is_not_spread(channels: int, size: int) -> None:
    ctx = unit_context(weight_chain(channels, size, 3), FOUR)
    [plan] = sections_of(ctx)
    assert plan.spread.clusters == 1
    assert not any(plan.whole_chip)


def test_weights_of_a_chain_on_one_cluster_do_not_come_for_every_cluster(tmp_path: Path) -> None:
    """Every cluster that works reads all weights from home; here one does, at most two cores."""
    graph = weight_chain(32, 4, 3)
    simulated = check_as_c(scheduled(graph, FOUR), FOUR, tmp_path)
    given, weights = (
        sum(graph.tensors[name].size_bytes for name in names)
        for names in (graph.inputs, graph.constants)
    )
    assert given + weights <= simulated.traffic[0].read_bytes <= given + 2 * weights


# -- where sections meet ---------------------------------------------------------------------------


def test_wide_layers_are_spread_and_deep_ones_are_not() -> None:
    first, second = sections_of(deep_context())
    assert first.spread.clusters == 4
    assert (second.spread.clusters, any(second.whole_chip)) == (1, False)
    assert (len(first.layers), len(second.layers)) == (3, 3)


def total(sections: Sequence[SectionPlan]) -> float:
    return sum(plan.predicted_cycles for plan in sections) + SECTION_CYCLES * len(sections)


def test_no_other_choice_of_sections_is_predicted_faster() -> None:
    """Oracle: every subset of the points as ends of sections, planned apart."""
    ctx = deep_context()
    first, *inner, last = meeting_points(ctx)
    every = [
        best_sections(ctx, (first, *ends, last))
        for count in range(len(inner) + 1)
        for ends in combinations(inner, count)
    ]
    totals = [total(sections) for sections in every if sections is not None]
    assert len(totals) == 16
    best = total(sections_of(ctx))
    assert best == pytest.approx(min(totals))
    assert best < totals[0], "all layers in one"


def test_sections_meet_at_narrow_places() -> None:
    """Where the fewest channels of 4 x 4 are alive, from one layer to the next."""
    net = Net()
    x = net.given(1, 4, 4, 4)  # before the layers: 4 channels are alive
    x = net.conv(x, 16, 1)  # 16
    x = net.relu(net.conv(x, 8, 1))  # 8: narrower than on both sides
    skip = net.conv(x, 16, 1)  # 16
    x = net.conv(skip, 16, 1)  # 32, as the sum reads both
    x = net.add(x, skip)  # 16
    x = net.conv(x, 2, 1)  # 2: narrower than on both sides
    ctx = unit_context(net.graph(net.conv(x, 4, 1)), FOUR)  # 4
    alive = [4, 16, 8, 16, 32, 16, 2, 4]
    assert len(ctx.layers) == len(alive) - 1
    first, *inner, last = meeting_points(ctx)
    assert (first, last) == (0, len(ctx.layers))
    assert {2, 6} <= set(inner)
    assert all(alive[k] <= min(alive[k - 1], alive[k + 1]) for k in inner)


def test_results_are_alive_to_the_end_so_the_last_layer_may_stand_alone() -> None:
    net = Net()
    x = net.conv(net.given(1, 16, 4, 4), 16, 1)
    x = net.conv(x, 2, 1)  # narrow, as the result behind it is wider and stays
    ctx = unit_context(net.graph(net.conv(x, 4, 1)), FOUR)
    assert meeting_points(ctx) == [0, 2, 3]


def test_a_long_unit_has_few_points_all_along_it() -> None:
    points = meeting_points(unit_context(conv_chain(8, 4, 30), FOUR))
    assert len(points) <= MIN_POINTS
    assert points == sorted(set(points))
    assert max(b - a for a, b in pairwise(points)) <= 8


def test_a_unit_of_several_blocks_has_more_points() -> None:
    number = LAYERS_PER_POINT * (MIN_POINTS + 4)
    points = meeting_points(unit_context(conv_chain(8, 4, number), FOUR))
    assert len(points) == MIN_POINTS + 4
    assert max(b - a for a, b in pairwise(points)) <= 2 * LAYERS_PER_POINT


# -- machines and variants without sections --------------------------------------------------------


def test_units_of_many_samples_keep_to_the_least_places() -> None:
    """Their sections are planned for several numbers of turns each."""
    net = Net()
    x = net.given(4, 4, 6, 6)
    for _ in range(LAYERS_PER_POINT * (MIN_POINTS + 4)):
        x = net.relu(net.conv(x, 4))
    assert len(meeting_points(unit_context(net.graph(x), FOUR))) == MIN_POINTS


def test_sections_meet_at_given_borders() -> None:
    ctx = unit_context(wide_then_deep(), FOUR)
    number = len(ctx.layers)
    free = best_sections(ctx)
    assert free is not None
    found = best_sections(ctx, (0, 2, number))
    assert found is not None
    assert [len(section.layers) for section in found] == [2, number - 2]
    assert same_borders(found, ctx.layers) == (0, 2, number)
    assert best_sections(ctx, same_borders(free, ctx.layers)) == free


def test_borders_among_other_layers_of_the_same_operators() -> None:
    """A section's border falls between operators, or inside a layer that has both sides."""
    graph = wide_then_deep()
    ctx = unit_context(graph, FOUR)
    first = ctx.layers[0].ops
    apart = form_layers(graph, FOUR, alone=(first[0],))
    assert len(first) == 2
    assert len(apart) == len(ctx.layers) + 1
    found = best_sections(ctx, (0, 1, len(ctx.layers)))
    assert found is not None
    assert same_borders(found, apart) == (0, 2, len(apart))
    loose = UnitContext(graph, apart, ctx.engines, FOUR, ctx.features)
    inside = best_sections(loose, (0, 1, len(apart)))
    assert inside is not None
    assert same_borders(inside, ctx.layers) is None


def test_one_cluster_means_one_section() -> None:
    ctx = unit_context(wide_then_deep(), clustered(clusters=1, cores=4, gb_bytes=1 << 16))
    [plan] = sections_of(ctx)
    assert plan.spread.clusters == 1


def test_a_gpu_has_no_global_buffer() -> None:
    """The second level of an A100 is a cache: layers exchange through home on the whole chip."""
    [plan] = sections_of(unit_context(conv_chain(16, 8, 2), load_preset("a100")))
    assert (plan.buffered, plan.buffer) == ((), "")
    assert all(plan.whole_chip)


def test_without_instances_nothing_is_spread() -> None:
    [plan] = sections_of(unit_context(conv_chain(16, 8, 3), FOUR, Variant.V2))
    assert plan.spread.clusters == 1
    assert all(part.slices is None for part in plan.parts)


def test_variables_of_sections_differ() -> None:
    sections = sections_of(deep_context())
    names = [n.var for n in nodes(emit_unit(sections)) if isinstance(n, Loop)]
    assert len(names) == len(set(names))
    assert {name[:2] for name in names} == {"s0", "s1"}


def test_sections_meet_where_tensors_change_in_size() -> None:
    """Of too many places those are kept where one size of tensors ends and another begins, and as
    many of the others as there is room for, all along the unit."""
    net = Net()
    x = net.given(1, 4, 16, 16)
    for stride in (1, 2, 2):
        x = net.relu(net.conv(x, 4, 3, stride))
        for _ in range(7):
            x = net.relu(net.conv(x, 4))
    ctx = unit_context(net.graph(x), FOUR)
    assert len(ctx.layers) == 24
    found = meeting_points(ctx)
    assert len(found) == MIN_POINTS
    # Layers 8 and 16 halve the image: the place before them is wider than the one behind.
    assert {7, 9, 15, 17} <= set(found)
    assert max(b - a for a, b in pairwise(found)) <= 7


# -- dimensions -----------------------------------------------------------------------------------


def test_rows_and_columns_of_an_image_count_once_and_channels_where_nothing_is_repeated() -> None:
    one = unit_context(conv_chain(16, 4, 1), FOUR)
    piece = one.piece(0, 1)
    found = cuttings(one, piece)
    # One convolution repeats nothing: its rows only read a halo of the input.
    assert not any(slices.recompute for slices in found)
    boxes = [slices.boxes[piece.outputs[0]] for slices in found]
    moving = [[k for k, s in enumerate(box) if s.start.variables()] for box in boxes]
    assert moving == [[1], [2]]
    two = unit_context(conv_chain(16, 4, 2), FOUR)
    piece = two.piece(0, 2)
    [rows] = cuttings(two, piece)
    # Channels would compute all of the first convolution on every cluster; columns are like rows.
    assert [k for k, s in enumerate(rows.boxes[piece.outputs[0]]) if s.start.variables()] == [2]
    # Rows computed twice: one on either side of the three borders.
    assert sum(rows.extra_points.values()) == 2 * 3 * (16 * 4 * (4 * 9 + 1))


def test_heads_are_cut_where_rows_need_all_of_the_other_operand() -> None:
    """Scores of softmax(x) @ w per head: rows and heads are independent, each is planned."""
    net = Net()
    x = net.given(4, 8, 16)
    graph = net.graph(net.softmax(x, 2))
    ctx = unit_context(graph, FOUR)
    found = cuttings(ctx, ctx.piece(0, len(ctx.layers)))
    dims = [
        next(k for k, s in enumerate(f.boxes[graph.outputs[0]]) if s.start.variables())
        for f in found
    ]
    assert dims == [0, 1] and not any(f.recompute for f in found)
