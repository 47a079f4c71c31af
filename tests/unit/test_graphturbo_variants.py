"""The ablation's variants do what they say and no more; what a plan says of itself reads back."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from graphturbo_nets import (
    LAST,
    Net,
    check_meaning,
    clustered,
    lowered,
    nodes,
    scheduled,
    unit_context,
)

from worker.compiler.errors import Shortfall
from worker.compiler.heuristics import Heuristic
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.region import Cuts
from worker.compiler.ir.signature import canonicalize
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Loop, Place, Schedule
from worker.compiler.schedule.text import parse_schedule, print_schedule
from worker.compiler.schedule.verify import verify
from worker.compiler.strategies.graphturbo.describe import describe
from worker.compiler.strategies.graphturbo.descriptor import GraphTurboOptions, Variant
from worker.compiler.strategies.graphturbo.report_summary import GraphTurboSummary
from worker.compiler.strategies.graphturbo.sections import best_sections
from worker.compiler.strategies.graphturbo.strategy import GraphTurboStrategy
from worker.compiler.strategies.graphturbo.summary import BufferScope, read_summary
from worker.compiler.strategies.graphturbo.variants import FEATURES
from worker.compiler.strategies.sections import UnitNotes
from worker.compiler.tiling.layer.layers import form_layers
from worker.simulator.run import simulate_unit

ON = clustered(clusters=4, cores=2, gb_bytes=1 << 16, l1_bytes=1 << 14)


@cache
def chain() -> Graph:
    net = Net()
    x = net.given(1, 4, 16, 16)
    for _ in range(3):
        x = net.relu(net.conv(x, 8))
    return net.graph(x)


@cache
def residual() -> Graph:
    net = Net()
    x = net.given(1, 4, 8, 8)
    first = net.relu(net.conv(x, 4))
    last = net.relu(net.add(net.conv(first, 4), first))
    return net.graph(last, net.conv(last, 4))


@cache
def normed() -> Graph:
    """Vector operators behind a matrix product."""
    net = Net()
    x = net.matmul(net.given(4, 8), 8)
    return net.graph(net.relu(net.softmax(x, 1)))


def weights(channels: int) -> Graph:
    """1 x 1 convolutions of small images: most of what moves are weights."""
    net = Net(DType.F16)
    x = net.given(1, channels, 8, 8)
    for _ in range(4):
        x = net.relu(net.conv(x, channels, 1))
    return net.graph(x)


@cache
def batched() -> Graph:
    net = Net()
    x = net.given(8, 2, 8, 8)
    for k in range(2):
        x = net.relu(net.conv(x, 4, 3, 1 + k))
    return net.graph(x)


@cache
def solved(graph: str, variant: Variant) -> Schedule:
    nets = {"chain": chain, "residual": residual, "normed": normed, "batched": batched}
    return scheduled(nets[graph](), ON, variant)


def cycles(schedule: Schedule, on: Machine = ON) -> int:
    return simulate_unit(lowered(schedule, on), on).cycles


def buffered(schedule: Schedule) -> list[str]:
    """Tensors but weights with a place in the global buffer."""
    places = [n for n in nodes(schedule.root) if isinstance(n, Place) and n.memory == "GB"]
    return [p.tensor for p in places if p.tensor not in schedule.graph.constants]


ACROSS = [v for v in Variant if FEATURES[v].across_layers]


def test_every_variant_has_features() -> None:
    assert set(FEATURES) == set(Variant)
    assert len(set(FEATURES.values())) == len(Variant)


@pytest.mark.parametrize("variant", ACROSS)
@pytest.mark.parametrize("graph", ["residual", "normed"])
def test_every_variant_means_the_same(graph: str, variant: Variant) -> None:
    check_meaning(solved(graph, variant))


# -- layer-wise ------------------------------------------------------------------------------------


def test_layerwise_is_one_kernel_per_layer_with_nothing_in_the_buffer() -> None:
    way, options = GraphTurboStrategy(), GraphTurboOptions(Variant.LAYERWISE)
    grouping = way.group(residual(), ON, options)
    assert grouping.is_final
    layers = form_layers(grouping.graph, ON, chains=False)
    assert [group.ops for group in grouping.groups] == [layer.ops for layer in layers]
    assert len(layers) == 4
    for index in range(len(layers)):
        piece = Cuts.of(grouping.graph).piece(grouping.groups[index].ops)
        schedule = next(way.candidates(canonicalize(piece).graph, ON, options))
        assert not isinstance(schedule, Shortfall)
        verify(schedule, ON)
        assert not buffered(schedule)
        assert schedule.without == (Heuristic.AHEAD,)
        check_meaning(schedule)


def test_the_others_make_one_kernel_of_them() -> None:
    for variant in ACROSS:
        assert (
            len(GraphTurboStrategy().group(residual(), ON, GraphTurboOptions(variant)).groups) == 1
        )


# -- what is added step by step --------------------------------------------------------------------


def test_astitch_keeps_nothing_in_the_global_buffer() -> None:
    for graph in ("chain", "residual", "normed"):
        assert not buffered(solved(graph, Variant.ASTITCH))
    one = clustered(clusters=1, cores=2)
    assert not buffered(scheduled(residual(), one, Variant.ASTITCH))
    assert buffered(scheduled(residual(), one, Variant.V1)) == ["t0", "t3", "t5", "t6", "t7"]


def test_v1_chains_no_rows() -> None:
    assert not any(layer.is_chain for layer in unit_context(normed(), ON, Variant.V1).layers)
    for variant in (Variant.ASTITCH, Variant.V2, Variant.V3, Variant.FULL):
        layers = unit_context(normed(), ON, variant).layers
        chains = [len(layer.ops) for layer in layers if layer.is_chain]
        assert sum(chains) == 5
        assert max(chains) > 1


@pytest.mark.parametrize("variant", [Variant.ASTITCH, Variant.V1, Variant.V2])
def test_one_sample_is_not_cut_before_v3(variant: Variant) -> None:
    """A loop over clusters stands around layers; without instances cores are the outermost loop."""
    loops = [n for n in nodes(solved("chain", variant).root) if isinstance(n, Loop)]
    assert not any(loop.var.endswith("cl") for loop in loops)
    cut = [n for n in nodes(solved("chain", Variant.V3).root) if isinstance(n, Loop)]
    assert cut[0].var.endswith("cl")


def test_samples_are_shared_by_clusters_before_v3_and_taken_at_once() -> None:
    loops = [n for n in nodes(solved("batched", Variant.V2).root) if isinstance(n, Loop)]
    assert (loops[0].var, loops[0].trip) == ("s0cl", 4)
    assert not any(loop.var.startswith("s0i") for loop in loops)


def test_only_full_and_paper_fetch_ahead() -> None:
    for variant in ACROSS:
        schedule = solved("residual", variant)
        is_ahead = variant in (Variant.FULL, Variant.PAPER)
        assert schedule.without == (() if is_ahead else (Heuristic.AHEAD,))
        head = print_schedule(schedule).splitlines()[0]
        assert head.endswith(" without=ahead") != is_ahead


# -- what the steps gain ---------------------------------------------------------------------------


@pytest.mark.parametrize(("preset", "channels"), [("stcp920-inferred", 64), ("ascend910", 128)])
def test_full_is_faster_than_v3_where_weights_move(preset: str, channels: int) -> None:
    on = load_preset(preset)
    graph = weights(channels)
    ways = (Variant.FULL, Variant.V3)
    ahead, behind = (scheduled(graph, on, v, number=LAST) for v in ways)
    assert cycles(ahead, on) < cycles(behind, on)
    # Predictions may differ the other way by what staging in the cluster's buffer is favoured with.
    assert ahead.predicted_cycles < 1.02 * behind.predicted_cycles


def test_full_is_at_least_as_fast_as_v3_on_a_residual_block() -> None:
    assert cycles(solved("residual", Variant.FULL)) <= cycles(solved("residual", Variant.V3))


@pytest.mark.parametrize("graph", ["chain", "residual", "normed"])
def test_predictions_fall_from_step_to_step(graph: str) -> None:
    """Each step of V1 to V3 may do all that the one before may."""
    predicted = [solved(graph, v).predicted_cycles for v in (Variant.V1, Variant.V2, Variant.V3)]
    assert predicted == sorted(predicted, reverse=True)


# -- text and summary ------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", [Variant.V3, Variant.FULL])
def test_text_round_trips_with_notes_and_ahead(variant: Variant) -> None:
    schedule = solved("residual", variant)
    assert schedule.notes
    text = print_schedule(schedule)
    assert parse_schedule(text) == schedule
    more = replace(schedule, notes=(*schedule.notes, "a second line = with (signs)"))
    assert parse_schedule(print_schedule(more)) == more
    none = replace(schedule, notes=())
    assert parse_schedule(print_schedule(none)) == none
    assert print_schedule(none) != text


@pytest.mark.parametrize("variant", [v for v in ACROSS if v is not Variant.PAPER])
def test_the_note_is_the_summary_of_the_unit(variant: Variant) -> None:
    schedule = solved("residual", variant)
    [note] = schedule.notes
    summary = read_summary(note)
    ctx = unit_context(schedule.graph, ON, variant)
    sections = best_sections(ctx)
    assert sections is not None
    assert read_summary(describe(ctx, sections)) == summary
    assert "\n" not in note
    assert (summary.operators, summary.layers) == (6, len(ctx.layers))
    assert summary.predicted_cycles + ON.launch_latency_cycles == schedule.predicted_cycles
    assert summary.is_ahead is (variant is Variant.FULL)
    assert summary.groups == summary.orders == ()  # one sample is not cut into instances
    scopes = summary.tensors_by_scope
    assert sum(scopes.values()) == 6  # one result per operator
    given = schedule.graph.inputs
    assert scopes[BufferScope.GB] == len(set(buffered(schedule)) - set(given))


def test_a_report_adds_only_what_the_whole_model_knows() -> None:
    notes = solved("residual", Variant.FULL).notes
    nodes = ("Conv_1", "Relu_2", "Conv_9")
    made = GraphTurboSummary.of(
        [UnitNotes("graphturbo", 3, nodes, 12, notes, 5, 7)], GraphTurboOptions(Variant.FULL)
    )
    placed = replace(
        read_summary(notes[0]), unit=3, label="Conv_1 .. Conv_9", calls=12, simulated_cycles=7
    )
    assert made == GraphTurboSummary.about([placed], Variant.FULL)


def test_turns_are_told_as_iterations() -> None:
    """Eight samples on two clusters, fewer than four at a time."""
    small = clustered(clusters=2, cores=2, gb_bytes=1 << 12, l1_bytes=1 << 11)
    summary = read_summary(scheduled(batched(), small).notes[0])
    assert summary.samples_per_cluster * summary.iterations == 4
    assert summary.iterations > 1
