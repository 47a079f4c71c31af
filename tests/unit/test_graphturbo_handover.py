"""Layers that hand tensors over in the cores' buffers: numbers, traffic, and what stays in GB."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import pytest
from graphturbo_nets import (
    Net,
    check_as_c,
    check_meaning,
    clustered,
    lowered,
    nodes,
    scheduled,
    unit_context,
)

from worker.compiler.errors import Shortfall, VerifyError
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Compute, Init, Loop, LoopKind, Place, Schedule
from worker.compiler.schedule.verify import verify
from worker.compiler.strategies.graphturbo.descriptor import GraphTurboOptions, Variant
from worker.compiler.strategies.graphturbo.emit import emit_unit
from worker.compiler.strategies.graphturbo.handover import hand_over, runs_on_offer
from worker.compiler.strategies.graphturbo.handover_bind import bindings, candidates, with_turns
from worker.compiler.strategies.graphturbo.handover_cut import (
    Binding,
    EnclosingInstance,
    LayerRun,
    RunCut,
    Share,
    cut_run,
)
from worker.compiler.strategies.graphturbo.handover_facts import handed_over
from worker.compiler.strategies.graphturbo.handover_plan import plan_run
from worker.compiler.strategies.graphturbo.section_plan import SectionPlan
from worker.compiler.strategies.graphturbo.site import Part, Site, Spread
from worker.compiler.strategies.graphturbo.strategy import GraphTurboStrategy
from worker.compiler.strategies.graphturbo.summary import read_summary
from worker.compiler.strategies.graphturbo.turns import equal_turns
from worker.compiler.strategies.graphturbo.unit_plan import Planner
from worker.simulator.results import UnitSimulation
from worker.simulator.run import simulate_unit

ON = clustered(clusters=1, cores=2, gb_bytes=1 << 16, l1_bytes=1 << 14)
WIDE = clustered(clusters=1, cores=2, gb_bytes=1 << 16, l1_bytes=1 << 16)


def products(rows: int = 8, dtype: DType = DType.F32) -> Graph:
    """Layers: mm + relu (t3), mm + relu (t6, the output); weights of 16 x 16."""
    net = Net(dtype)
    x = net.given(rows, 16)
    return net.graph(net.relu(net.matmul(net.relu(net.matmul(x, 16)), 16)))


def pointwise_convs(size: int = 8) -> Graph:
    net = Net()
    x = net.given(1, 4, size, size)
    return net.graph(net.relu(net.conv(net.relu(net.conv(x, 8, 1)), 4, 1)))


def bare_convs(dtype: DType = DType.F32) -> Graph:
    """No epilogue: sums grow in what is handed over."""
    net = Net(dtype)
    x = net.given(2, 4, 8, 8)
    return net.graph(net.conv(net.conv(x, 8, 1), 4, 3))


def residual(samples: int = 4) -> Graph:
    """Layers: conv + relu (t3), conv (t5), add + relu (t7), conv + relu (t10, the output)."""
    net = Net()
    x = net.given(samples, 4, 8, 8)
    first = net.relu(net.conv(x, 4))
    last = net.relu(net.add(net.conv(first, 4), first))
    return net.graph(net.relu(net.conv(last, 4)))


def windowed() -> Graph:
    """A 1 x 1 convolution in front of a 3 x 3 one."""
    net = Net()
    x = net.given(1, 4, 16, 8)
    return net.graph(net.relu(net.conv(net.relu(net.conv(x, 8, 1)), 4, 3)))


def attended(dim: int = 1) -> Graph:
    net = Net()
    x = net.given(8, 16)
    return net.graph(net.matmul(net.softmax(net.matmul(x, 16), dim), 16))


def planner(graph: Graph, on: Machine = ON, parts: tuple[Part, ...] = ()) -> Planner:
    ctx = unit_context(graph, on)
    whole = Part(tuple(range(len(ctx.layers))), None, 1)
    spread = Spread(1, on.num_cores // ctx.clusters)
    site = Site(on, ctx.buffer, spread, parts or (whole,), {})
    return Planner(graph, ctx.layers, ctx.engines, site)


def run_of(found: Planner, last: int, binding: Binding) -> LayerRun:
    ops = [found.uses.op(n) for layer in found.layers[:last] for n in layer.ops]
    cut = cut_run(found.graph, ops, found.around(0), binding)
    assert cut is not None
    return LayerRun(0, last, cut)


def planned(found: Planner, runs: Sequence[LayerRun] = ()) -> SectionPlan:
    plan = found.plan((False,) * len(found.layers), runs)
    assert plan is not None
    return plan


def handed(found: Planner, plan: SectionPlan) -> SectionPlan:
    return hand_over(found, plan, runs_on_offer(found, plan))


def as_schedule(plan: SectionPlan, on: Machine = ON) -> Schedule:
    schedule = Schedule(plan.graph, emit_unit([plan]), "graphturbo", plan.predicted_cycles)
    verify(schedule, on)
    return schedule


def gb_bytes(simulated: UnitSimulation) -> tuple[int, int]:
    """(read, written)."""
    return simulated.traffic[1].read_bytes, simulated.traffic[1].write_bytes


# -- numbers ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    graph: Callable[[], Graph]
    last: int
    binding: Binding
    handed: tuple[str, ...]


CASES = {
    "rows": Case(products, 2, (Share(0, 2, 1),), ("t3",)),
    "rows in turns": Case(products, 2, (Share(0, 2, 2),), ("t3",)),
    "pixels": Case(pointwise_convs, 2, (Share(2, 2, 1),), ("t3",)),
    "two dimensions": Case(lambda: residual(2), 3, (Share(0, 1, 2), Share(1, 2, 1)), ("t5",)),
    "bare sums": Case(bare_convs, 2, (Share(0, 2, 1),), ("t2",)),
    "bare sums, wide": Case(lambda: bare_convs(DType.F16), 2, (Share(0, 2, 1),), ("t2",)),
    "samples": Case(residual, 3, (Share(0, 2, 1),), ("t3", "t5")),
    "samples in turns": Case(residual, 3, (Share(0, 2, 2),), ("t3", "t5")),
    "halo": Case(windowed, 2, (Share(2, 2, 1),), ("t3",)),
    "halo in turns": Case(windowed, 2, (Share(2, 2, 2),), ("t3",)),
    "row chain": Case(attended, 3, (Share(0, 2, 2),), ("t2", "t6")),
}


@pytest.mark.parametrize("name", [n for n in CASES if n != "two dimensions"])
def test_numbers_of_what_is_handed_over(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    found = planner(case.graph())
    run = run_of(found, case.last, case.binding)
    plan = planned(found, [run])
    [made] = plan.runs
    assert tuple(h.tensor for h in made.handed) == case.handed
    assert not set(case.handed) & set(plan.buffered)
    schedule = as_schedule(plan)
    places = {(n.tensor, n.memory) for n in nodes(schedule.root) if isinstance(n, Place)}
    assert all((t, "L1") in places and (t, "GB") not in places for t in case.handed)
    check_meaning(schedule)
    check_as_c(schedule, ON, tmp_path)


def test_channels_are_summed_over_hence_not_shared_out() -> None:
    """Each core would need all channels of the layer before: it computes them all again."""
    case = CASES["two dimensions"]
    found = planner(case.graph())
    ops = [found.uses.op(n) for layer in found.layers[: case.last] for n in layer.ops]
    assert cut_run(found.graph, ops, found.around(0), case.binding) is None


def joined(step: int) -> Graph:
    """Two rectifiers in a row, twice; the second of each writes half of the 32 columns of t5:
    `step` 1 one half behind the other, `step` 2 every other column."""
    net = Net()
    for source in (net.given(8, 16), net.given(8, 16)):
        net.relu(net.relu(source))
    last, first = net.ops[3], net.ops[1]
    net.shapes["t5"] = (8, 32)
    for k, half in ((3, last), (1, first)):
        rows, columns = half.write.index
        at = columns * step + (0 if half is first else 16 if step == 1 else 1)
        net.ops[k] = replace(half, write=replace(half.write, tensor="t5", index=(rows, at)))
    return net.graph("t5")


@pytest.mark.parametrize("step", [1, 2])
def test_a_piece_of_a_concatenation_is_not_shared_out_along_it(step: int) -> None:
    """Half of the cores would have nothing to do and write over what others made."""
    graph = joined(step)
    ops = list(graph.ops)
    for piece in (ops[:2], ops[2:]):
        assert cut_run(graph, piece, EnclosingInstance(None, "", 1), (Share(0, 2, 1),)) is not None
        cut = cut_run(graph, piece, EnclosingInstance(None, "", 1), (Share(1, 2, 1),))
        assert (cut is None) is (step == 1)


@pytest.mark.parametrize("kernel", [1, 3])
def test_up_sampling_is_not_cut_at_odd_rows(kernel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a halo of one row: the part would reach one row of the source more than tiles know."""
    net = Net()
    graph = net.graph(net.conv(net.up_sample(net.relu(net.given(1, 4, 16, 16))), 4, kernel))
    ops = list(graph.ops)

    def cut() -> RunCut | None:
        return cut_run(graph, ops[1:], EnclosingInstance(None, "", 1), (Share(2, 2, 1),))

    assert (cut() is None) is (kernel == 3)
    monkeypatch.setattr(
        "worker.compiler.strategies.graphturbo.handover_cut.is_off_grid", lambda *_: False
    )
    assert cut() is not None


def test_a_halo_is_computed_again_and_counted() -> None:
    found = planner(windowed())
    run = run_of(found, 2, (Share(2, 2, 1),))
    assert run.cut.recompute == {"conv_t2", "relu_t3"}
    assert run.cut.domains["conv_t2"][2].extent == 8 + 2
    ops = [found.uses.op(n) for layer in found.layers for n in layer.ops]
    assert cut_run(found.graph, ops, found.around(0), (Share(2, 2, 8),)) is None  # too much of it


def test_a_sum_that_is_handed_over_is_wide_and_starts_at_zero() -> None:
    found = planner(bare_convs(DType.F16))
    [made] = planned(found, [run_of(found, 2, (Share(0, 2, 1),))]).runs
    [handed] = made.handed
    assert (handed.dtype, handed.init) == (DType.F32, Init.IDENTITY)
    assert handed.size_bytes == 8 * 8 * 8 * 4


def test_inside_of_samples_in_turns(tmp_path: Path) -> None:
    """Two clusters, each its samples in two turns; in a turn two cores share two samples."""
    on = clustered(clusters=2, cores=2, gb_bytes=1 << 16, l1_bytes=1 << 14)
    ctx = unit_context(residual(8), on)
    whole = Part(tuple(range(len(ctx.layers))), None, 1)
    site = Site(on, ctx.buffer, Spread(1, 2), (whole,), {})
    [even] = equal_turns(ctx.graph, ctx.layers, ctx.engines, site, 8, 2)
    found = Planner(
        ctx.graph,
        ctx.layers,
        ctx.engines,
        replace(site, spread=even.spread, parts=even.parts),
    )
    run = run_of(found, 3, (Share(0, 2, 1),))
    assert all(box[0].extent == 1 for box in run.cut.domains.values())
    schedule = as_schedule(planned(found, [run]), on)
    check_meaning(schedule)
    check_as_c(schedule, on, tmp_path)


# -- traffic ---------------------------------------------------------------------------------------


def test_what_is_handed_over_does_not_pass_the_shared_buffer() -> None:
    """Exact bytes: x and both weights go in; each core reads its rows of x and all weights."""
    found = planner(products(32))
    run = run_of(found, 2, (Share(0, 2, 1),))
    rows, weight = 32 * 16 * 4, 16 * 16 * 4
    handed = simulate_unit(lowered(as_schedule(planned(found, [run])), ON), ON)
    assert gb_bytes(handed) == (rows + 2 * 2 * weight, rows + 2 * weight)
    through = simulate_unit(lowered(as_schedule(planned(found)), ON), ON)
    read, written = gb_bytes(through)
    assert written >= 2 * rows  # x, and what the first layer makes
    assert read >= 2 * rows


def test_only_variants_from_the_second_on_hand_over() -> None:
    """V1 keeps results in GB; V2 differs from it by what stays in LB."""
    graph, on = pointwise_convs(16), WIDE
    tensor = 8 * 16 * 16 * 4  # t3
    held = {}
    for variant in (Variant.V1, Variant.V2):
        schedule = scheduled(graph, on, variant)
        check_meaning(schedule)
        places = [n for n in nodes(schedule.root) if isinstance(n, Place) and n.tensor == "t3"]
        held[variant] = {p.memory for p in places}
        held[variant, "gb"] = gb_bytes(simulate_unit(lowered(schedule, on), on))
    assert "GB" in held[Variant.V1]
    assert held[Variant.V2] == {"L1"}
    image, weights = 4 * 16 * 16 * 4, 2 * 4 * 8 * 4
    # In V1 the weights of one layer pass it as well.
    assert held[Variant.V1, "gb"] == (image + tensor + weights, image + tensor + weights // 2)
    assert held[Variant.V2, "gb"] == (image + 2 * weights, image + weights)


# -- what stays in GB ------------------------------------------------------------------------------


def test_a_slice_without_room_stays_in_the_shared_buffer(tmp_path: Path) -> None:
    """t3 has 2 KiB, half of it on each core: more than a core's buffer."""
    small = clustered(clusters=1, cores=2, gb_bytes=1 << 16, l1_bytes=1 << 10)
    found = planner(pointwise_convs(), small)
    run = run_of(found, 2, (Share(2, 2, 1),))
    assert plan_run(found, frozenset(), run) is None
    assert all(c.run.cut.trips > 1 for c in candidates(found, 0, 2))  # it fits in turns
    plan = handed(found, planned(found))
    check_as_c(as_schedule(plan, small), small, tmp_path)


def test_tiles_get_the_room_that_is_left() -> None:
    found = planner(pointwise_convs())
    run = run_of(found, 2, (Share(2, 2, 1),))
    plan = planned(found, [run])
    held = plan.runs[0].handed[0].size_bytes
    for usable in (1 << 14, held + 1000, held + 600):
        on = clustered(clusters=1, cores=2, gb_bytes=1 << 16, l1_bytes=usable)
        small = planner(pointwise_convs(), on)
        tight = small.plan((False, False), [run_of(small, 2, (Share(2, 2, 1),))])
        if tight is not None:
            as_schedule(tight, on)  # the checker adds up what lives together
    with pytest.raises(VerifyError, match="must hold"):
        as_schedule(plan, clustered(clusters=1, cores=2, gb_bytes=1 << 16, l1_bytes=held))


def test_constants_without_room_in_the_shared_buffer() -> None:
    for room, fits in ((2048 + 512, True), (2048 + 511, False)):  # two weights beside all of x
        crowded = clustered(clusters=1, cores=2, gb_bytes=room, l1_bytes=1 << 14)
        found = planner(products(), crowded)
        run = run_of(found, 2, (Share(0, 2, 1),))
        assert (found.plan((False, False), [run]) is not None) == fits


def test_layers_that_cut_differently_exchange_through_the_shared_buffer(tmp_path: Path) -> None:
    """Softmax down the columns needs all rows; the product behind it needs all columns."""
    found = planner(attended(0))
    assert handed_over(found, 0, 3)
    assert not list(candidates(found, 1, 3))
    plan = handed(found, planned(found))
    assert "t6" in plan.buffered  # between softmax and the second product
    check_as_c(as_schedule(plan), ON, tmp_path)


def test_a_result_of_the_graph_is_not_only_handed_over() -> None:
    net = Net()
    x = net.given(8, 16)
    first = net.relu(net.matmul(x, 16))
    found = planner(net.graph(first, net.matmul(first, 16)))
    assert handed_over(found, 0, 2) == ()


def test_a_tensor_with_a_reader_outside_of_the_run_is_not_handed_over() -> None:
    found = planner(residual())
    assert handed_over(found, 0, 2) == ()
    assert handed_over(found, 0, 3) == ("t3", "t5")
    assert handed_over(found, 0, 4) == ("t3", "t5", "t7")


# -- choosing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", [products, pointwise_convs, bare_convs, residual, windowed])
def test_runs_are_kept_where_they_are_predicted_faster(graph: Callable[[], Graph]) -> None:
    found = planner(graph())
    before = planned(found)
    plan = handed(found, before)
    assert plan.predicted_cycles <= before.predicted_cycles
    assert bool(plan.runs) == (plan.predicted_cycles < before.predicted_cycles)
    for one, other in zip(plan.runs, plan.runs[1:], strict=False):
        assert one.run.last <= other.run.first
    check_meaning(as_schedule(plan))


def test_a_longer_run_is_not_given_up_for_a_worse_part_of_it() -> None:
    """Estimates flatter short runs; once planned, the set that saves most stays."""
    net = Net()
    x = net.given(64, 16)
    for columns in (32, 32, 16):
        x = net.relu(net.matmul(x, columns))
    found = planner(net.graph(x), WIDE)
    before = planned(found)
    plan = handed(found, before)
    alone = [layer.predicted_cycles for layer in before.layers]
    saved = sum(sum(alone[r.run.first : r.run.last]) - r.predicted_cycles for r in plan.runs)
    held = frozenset(before.buffered)
    offers = [c.run for pair in ((0, 2), (1, 3), (0, 3)) for c in candidates(found, *pair)]
    assert len(offers) >= 3
    for run in offers:
        made = plan_run(found, held, run)
        assert made is not None
        assert saved >= sum(alone[run.first : run.last]) - made.predicted_cycles


def test_bindings_are_the_plain_ones_with_dimensions_barred() -> None:
    found = bindings((4, 64, 14, 14), 8)
    assert found[0] == (4, 2)  # figure 9 of the paper: samples, then the next dimension
    assert (1, 8) in found
    assert (4, 1, 2) in found
    assert all(6 <= prod(f) <= 8 for f in found)


def test_turns_take_samples_first() -> None:
    found = list(with_turns((2, 1, 2), (8, 3, 6)))
    assert found[0] == (Share(0, 2, 1), Share(2, 2, 1))
    assert found[1] == (Share(0, 2, 2), Share(2, 2, 1))
    assert found[2] == (Share(0, 2, 4), Share(2, 2, 1))
    assert found[3] == (Share(0, 2, 4), Share(2, 2, 3))
    assert len(found) == 4


def test_later_candidates_hand_over_less() -> None:
    found = list(
        GraphTurboStrategy().candidates(pointwise_convs(16), WIDE, GraphTurboOptions(Variant.V2))
    )
    handed = [num_handed(candidate) for candidate in found]
    assert len(found) == 3
    assert handed == sorted(handed, reverse=True)
    assert handed[0] > 0 == handed[-1]


def test_where_nothing_is_handed_over_there_is_one_candidate() -> None:
    for variant in (Variant.V1, Variant.ASTITCH):
        asked = GraphTurboOptions(variant)
        assert len(list(GraphTurboStrategy().candidates(attended(0), ON, asked))) == 1


def num_handed(found: Schedule | Shortfall) -> int:
    assert isinstance(found, Schedule)
    return sum(read_summary(note).num_handed for note in found.notes)


def test_every_core_of_a_run_has_its_own_layers() -> None:
    schedule = scheduled(pointwise_convs(16), WIDE, Variant.V2)
    [loop] = [
        n for n in nodes(schedule.root) if isinstance(n, Loop) and n.kind is LoopKind.CORES
    ]  # one split for both layers
    assert loop.trip == 2
    computed = [n.op for n in nodes(loop) if isinstance(n, Compute)]
    assert computed == ["conv_t2", "relu_t3", "conv_t5", "relu_t6"]


def test_an_epilogue_of_whole_groups_is_no_run() -> None:
    """Two cores share 20 channels in groups of 4: each convolves 12, its Relu is asked for 10."""
    net = Net()
    x = net.given(1, 4, 8, 8)
    y = net.relu(net.grouped(net.relu(net.conv(x, 20, 1)), 5))
    found = planner(net.graph(net.relu(net.grouped(y, 20))), WIDE)
    run = run_of(found, len(found.layers), (Share(1, 2, 1),))
    groups = run.cut.domains[found.layers[1].ops[0]][1]
    assert groups.extent == 3, "two and a half, in whole groups"
    assert plan_run(found, frozenset(), run) is None
    as_schedule(planned(found), WIDE)
