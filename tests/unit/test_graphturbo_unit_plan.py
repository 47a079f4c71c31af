"""Where a unit's tensors live: in the global buffer, at home, or both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

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
from row_chain_graphs import Axes, build, fn, op

from worker.compiler.ir.affine import Affine, Lookup, var
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Reduce
from worker.compiler.ir.scalar import Fn, Read
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.compiler.memory.spill import SpillRule
from worker.compiler.memory.spill_choices import SpillChoice
from worker.compiler.schedule.nodes import Box, Compute, Init, Move, Place, Schedule, Span
from worker.compiler.schedule.verify import verify
from worker.compiler.strategies.graphturbo import unit_plan
from worker.compiler.strategies.graphturbo.emit import emit_unit
from worker.compiler.strategies.graphturbo.section_plan import SectionPlan
from worker.compiler.strategies.graphturbo.site import Part, Site, Spread, TileKey, instance_var
from worker.compiler.strategies.graphturbo.unit_plan import Planner
from worker.compiler.tiling.chain.plan import ChainPlan
from worker.compiler.tiling.layer.plan_layer import Tiles, bytes_in
from worker.compiler.tiling.nest.plan import Plan
from worker.compiler.tiling.slices.propagate import propagate

ONE = clustered(clusters=1, cores=2)
TWO = clustered(clusters=2, cores=2)


def residual() -> Graph:
    """Layers: conv + relu (t3), conv (t5), add + relu (t7, an output), conv (t9, an output).

    See `USERS` for who uses them.
    """
    net = Net()
    x = net.given(1, 4, 8, 8)
    first = net.relu(net.conv(x, 4))
    last = net.relu(net.add(net.conv(first, 4), first))
    return net.graph(last, net.conv(last, 4))


USERS: Mapping[str, tuple[int | None, tuple[int, ...]]] = {
    "t0": (None, (0,)), "t3": (0, (1, 2)), "t5": (1, (2,)), "t7": (2, (3,)),
}  # fmt: skip
"""Layers of `residual` that write and read what passes between layers."""


def planner(graph: Graph, on: Machine) -> Planner:
    """All layers in one part, computed once."""
    ctx = unit_context(graph, on)
    part = Part(tuple(range(len(ctx.layers))), None, 1)
    spread = Spread(1, on.num_cores // ctx.clusters)
    return Planner(graph, ctx.layers, ctx.engines, Site(on, ctx.buffer, spread, (part,), {}))


def planned(graph: Graph, on: Machine, whole_chip: Sequence[bool] = ()) -> SectionPlan:
    found = planner(graph, on)
    plan = found.plan(whole_chip or (False,) * len(found.layers))
    assert plan is not None
    return plan


def as_schedule(plan: SectionPlan, on: Machine) -> Schedule:
    schedule = Schedule(plan.graph, emit_unit([plan]), "graphturbo", plan.predicted_cycles)
    verify(schedule, on)
    return schedule


def copied(schedule: Schedule, source: str, target: str) -> list[str]:
    """Tensors but weights (these may pass the buffer), once per copy."""
    found = (n for n in nodes(schedule.root) if isinstance(n, Move))
    names = sorted(m.tensor for m in found if (m.src, m.dst) == (source, target))
    return [t for t in names if t not in schedule.graph.constants]


# -- in the buffer ---------------------------------------------------------------------------------


def test_tensors_between_layers_stay_in_the_buffer_when_they_fit() -> None:
    plan = planned(residual(), ONE)
    assert plan.buffered == ("t0", "t3", "t5", "t7")
    assert (sorted(plan.staged), sorted(plan.kept), plan.spilled) == (["t0"], ["t7"], ())
    schedule = as_schedule(plan, ONE)
    assert copied(schedule, "DDR", "GB") == ["t0"]
    assert copied(schedule, "GB", "DDR") == ["t7"]
    # What only its own layer uses has no place outside of the cores; the last output goes home.
    places = [n for n in nodes(schedule.root) if isinstance(n, Place) and n.memory == "GB"]
    held = sorted(p.tensor for p in places if p.tensor not in schedule.graph.constants)
    assert held == ["t0", "t3", "t5", "t7"]
    check_meaning(schedule)


@pytest.mark.parametrize("whole_chip", list(product((False, True), repeat=4)))
def test_a_nest_keeps_what_others_leave_of_the_buffer(whole_chip: tuple[bool, ...]) -> None:
    """Oracle: sizes of the tensors in the buffer whose users lie around a layer."""
    plan = planned(residual(), TWO, whole_chip)
    usable = TWO.level("GB").usable_bytes
    for number, layer in enumerate(plan.layers):
        live = 0
        for tensor in plan.buffered:
            writer, readers = USERS[tensor]
            if (writer or 0) <= number <= max(readers):
                live += 4 * 8 * 8 * 4
        own = bytes_in(layer.tiles, "GB") if isinstance(layer.tiles, Plan) else 0
        assert own + live <= usable


def test_a_layer_that_nothing_is_held_under_has_the_whole_buffer() -> None:
    """Else it keeps to the quarters that are free: other layers of its structure are told alike."""
    found = planner(residual(), TWO)
    assert found.free_quarters(0, frozenset()) == 4
    every = [found.free_quarters(k, frozenset(found.graph.tensors)) for k in range(4)]
    assert every == [3, 3, 3, 3]


@pytest.mark.parametrize("whole_chip", list(product((False, True), repeat=4)))
def test_staged_and_kept_are_what_the_other_side_needs(whole_chip: tuple[bool, ...]) -> None:
    """A layer on the whole chip reads and writes at home, where results go; one on a cluster does
    in the buffer."""
    plan = planned(residual(), TWO, whole_chip)
    near = {t for t, (_, readers) in USERS.items() if not all(whole_chip[k] for k in readers)}
    far = {t for t, (_, readers) in USERS.items() if any(whole_chip[k] for k in readers)}
    made = {t for t, (k, _) in USERS.items() if k is not None and not whole_chip[k]}
    staged, kept = near - made, near & made & (far | {"t7"})
    assert (set(plan.buffered), plan.staged, plan.kept) == (near, staged, kept)
    schedule = as_schedule(plan, TWO)
    assert copied(schedule, "DDR", "GB") == sorted(staged)
    assert copied(schedule, "GB", "DDR") == sorted(kept)
    check_meaning(schedule)


def two_writers() -> tuple[Graph, str]:
    """Layers: relu, conv, relu, conv; both relus write a half of what the last conv reads, the
    tensor that is returned too."""
    net = Net()
    x = net.given(1, 4, 8, 8)
    both = net.empty(1, 8, 8, 8)
    net.into(both, x, 0)
    net.into(both, net.conv(x, 4), 4)
    return net.graph(net.conv(both, 4)), both


@pytest.mark.parametrize("whole_chip", list(product((False, True), repeat=4)))
def test_writers_of_one_tensor_agree_where_it_is(whole_chip: tuple[bool, ...]) -> None:
    """Half of a concatenation made by the whole chip, half by a cluster: both go home."""
    graph, both = two_writers()
    assert len(planner(graph, TWO).layers) == 4
    plan = planned(graph, TWO, whole_chip)
    agree = whole_chip[0] == whole_chip[2]
    assert (both in plan.buffered) == (agree and not whole_chip[3])
    schedule = as_schedule(plan, TWO)
    verify(schedule, TWO)
    check_meaning(schedule)


def test_a_mixed_unit_runs_as_c(tmp_path: Path) -> None:
    plan = planned(residual(), TWO, (False, True, False, True))
    check_as_c(as_schedule(plan, TWO), TWO, tmp_path)


# -- what does not fit -----------------------------------------------------------------------------


def test_the_better_of_two_ways_to_spill_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 KiB each: t3 lives from layer 0 to layer 2, no other tensor as long: the paper's choice.
    The output t7 goes home in any case, so it costs nothing there: the choice by cost."""
    small = clustered(clusters=1, cores=2, gb_bytes=3000)
    assert planner(residual(), small).site.room == 2250
    plan = planned(residual(), small)
    assert (plan.spilled, plan.buffered) == (("t7",), ("t0", "t3", "t5"))
    assert plan.spill_rule is SpillRule.BY_COST
    every = unit_plan.spill_choices

    def only_the_papers(*given: Any) -> tuple[SpillChoice, ...]:
        return tuple(way for way in every(*given) if way[0] is SpillRule.LONGEST_LIVENESS)

    monkeypatch.setattr(unit_plan, "spill_choices", only_the_papers)
    papers = planned(residual(), small)
    assert (papers.spilled, papers.spill_rule) == (("t3",), SpillRule.LONGEST_LIVENESS)
    assert plan.predicted_cycles < papers.predicted_cycles
    for each in (plan, papers):
        check_as_c(as_schedule(each, small), small, tmp_path)


@pytest.mark.parametrize("gb_bytes", [500, 1500, 2800, 4096, 4200, 1 << 14])
def test_what_stays_fits_the_room_and_no_more_is_spilled(gb_bytes: int) -> None:
    on = clustered(clusters=1, cores=2, gb_bytes=gb_bytes)
    graph, found = residual(), planner(residual(), on)
    plan = planned(graph, on)
    lives = {"t0": (0, 0), "t3": (0, 2), "t5": (1, 2), "t7": (2, 3)}

    def most(tensors: Sequence[str]) -> int:
        return max(
            sum(1024 for t in tensors if lives[t][0] <= layer <= lives[t][1]) for layer in range(4)
        )

    assert sorted((*plan.buffered, *plan.spilled)) == sorted(lives)
    room = found.site.room
    assert most(plan.buffered) <= room
    if plan.spilled:
        assert most(tuple(lives)) > room
    check_meaning(as_schedule(plan, on))


def test_no_global_buffer_no_tensors_there() -> None:
    plan = planned(residual(), load_preset("a100"), (True,) * 4)
    assert (plan.buffered, plan.buffer, plan.spilled) == ((), "", ())


# -- what can only be reached at home --------------------------------------------------------------


def looked_up() -> Graph:
    """y = 2 * table[ids] of a table that is computed first."""
    at = ("i", "j")
    rows, cols = 6, 8
    gathered_row = Affine(((Lookup(0), 1),))
    graph = build(
        (
            op("make", [("i", rows), ("j", cols)], [("x", at)], ("table", at),
               fn(Fn.ADD, Read(0), Read(0))),
            op("take", [("i", rows), ("j", cols)],
               [("ids", ("i",)), ("table", (gathered_row, "j"))], ("r", at), Read(1)),
            op("sum", [("i", rows), ("j", cols, "r")], [("r", at)], ("y", ("i",)), Read(0),
               Reduce.ADD),
        ),
        {"x": (rows, cols), "ids": (rows,), "table": (rows, cols), "r": (rows, cols),
         "y": (rows,)},
        ("y",),
    )  # fmt: skip
    ids = replace(graph.tensors["ids"], dtype=DType.I32)
    tensors = tuple(ids if t.name == "ids" else t for t in graph.tensors.values())
    return Graph.build(graph.ops, tensors, graph.inputs, graph.outputs)


def test_a_table_that_is_looked_up_stays_home() -> None:
    plan = planned(looked_up(), ONE)
    assert "table" not in plan.buffered


def interleaved() -> Graph:
    """t[2 i] = 2 x[i], t[2 i + 1] = x[i] * x[i]; y = t + t."""
    at = ("i", "j")
    rows, cols = 6, 8
    half = [("i", rows), ("j", cols)]
    return build(
        (
            op("even", half, [("x", at)], ("t", (var("i") * 2, "j")), fn(Fn.ADD, Read(0), Read(0))),
            op("odd", half, [("x", at)], ("t", (var("i") * 2 + 1, "j")),
               fn(Fn.MUL, Read(0), Read(0))),
            op("mean", [("i", 2 * rows), ("j", cols, "r")], [("t", at)], ("y", ("i",)), Read(0),
               Reduce.ADD),
        ),
        {"x": (rows, cols), "t": (2 * rows, cols), "y": (2 * rows,)}, ("y",),
    )  # fmt: skip


def test_a_tensor_written_with_gaps_is_made_at_home() -> None:
    plan = planned(interleaved(), ONE)
    schedule = as_schedule(plan, ONE)
    assert copied(schedule, "L1", "GB").count("t") == 0
    assert "t" not in plan.buffered or "t" in plan.staged
    check_meaning(schedule)


# -- engines that work on the buffer itself --------------------------------------------------------


def in_buffer(on: Machine, dtype: DType = DType.F32) -> Machine:
    """The matrix engine of each core reads and writes the buffer that the cores share."""
    engines = tuple(replace(e, memory="GB") if e.name == "mme" else e for e in on.engines)
    assert all(dtype in e.macs_per_cycle for e in engines if e.name == "mme")
    return replace(on, engines=engines)


def three_products(dtype: DType) -> Graph:
    net = Net(dtype)
    x = net.given(6, 8)
    for columns in (8, 8, 5):
        x = net.matmul(x, columns)
    return net.graph(x)


def test_sums_grow_in_place_in_the_buffer(tmp_path: Path) -> None:
    on = in_buffer(ONE)
    plan = planned(three_products(DType.F32), on)
    assert plan.buffered == ("t0", "t2", "t4")
    assert plan.summed == {"t2", "t4"}
    schedule = as_schedule(plan, on)
    inits = {n.tensor: n.init for n in nodes(schedule.root) if isinstance(n, Place)}
    assert inits["t2"] is inits["t4"] is Init.IDENTITY
    assert inits["t0"] is Init.UNDEFINED
    check_as_c(schedule, on, tmp_path)


def test_sums_of_a_wider_type_do_not() -> None:
    """F16 products are added in F32: a place of F16 cannot hold the sum."""
    on = in_buffer(ONE, DType.F16)
    plan = planned(three_products(DType.F16), on)
    assert not plan.summed
    assert not plan.spilled
    assert all(t in plan.staged for t in plan.buffered)
    check_meaning(as_schedule(plan, on))


def test_engines_of_the_cores_sum_in_their_own_buffers() -> None:
    plan = planned(three_products(DType.F32), ONE)
    assert plan.buffered == ("t0", "t2", "t4")
    assert plan.summed == set()


def test_a_rim_is_not_read_from_a_tensor_in_the_buffer(tmp_path: Path) -> None:
    """A 3 x 3 convolution reads zeros around its image: no tensor in the buffer has them."""
    on = in_buffer(ONE)
    plan = planned(residual(), on)
    assert "t0" not in plan.buffered
    assert "t3" in plan.kept  # the adding layer reads it in the buffer, the convolution at home
    check_as_c(as_schedule(plan, on), on, tmp_path)


@pytest.mark.parametrize("size", [6, 8])
def test_a_slice_wider_than_its_image_is_not_planned(size: int) -> None:
    """Three convolutions, two clusters: the first one's slice is half the image and four rows."""
    net = Net()
    x = net.given(1, 1, size, size)
    for _ in range(3):
        x = net.conv(x, 1)
    on = clustered(clusters=2, cores=2, gb_bytes=1 << 11, l1_bytes=1 << 10)
    schedule = scheduled(net.graph(x), on)
    check_meaning(schedule)
    if size == 6:
        assert not any(n.recompute for n in nodes(schedule.root) if isinstance(n, Compute))


# -- what a chain takes of a slice -----------------------------------------------------------------


def test_a_chain_does_not_read_whole_what_is_held_in_slices() -> None:
    """Patches of 2 x 2 are folded back into rows, of which an instance needs eleven from 8 g - 2
    on; the chain takes all patches then.  Tiles that were found where all of them are held are
    none where a slice is."""
    net, on, a, b = Net(), load_preset("stcp920"), var("a"), var("b")
    source, weight = net.given(4, 64, 16), net.weight(16, 16)
    axes: Axes = [("p", 4), ("i", 64), ("c", 16), ("k", 16, "r")]
    reads = [(source, ("p", "i", "k")), (weight, ("k", "c"))]
    patches = net.op("mm", axes, reads, fn(Fn.MUL, Read(0), Read(1)), Reduce.ADD)
    at = (a.mod(2) * 2 + b.mod(2), a.floordiv(2) * 4 + b.floordiv(2), "c")
    fold: Axes = [("n", 1), ("c", 16), ("a", 32), ("b", 8)]
    rows = net.op("fold", fold, [(patches, at)], Read(0))
    graph = net.graph(net.conv(net.conv(rows, 16), 16, stride=2))
    ctx = unit_context(graph, on)
    assert [layer.is_chain for layer in ctx.layers] == [False, True, False, False]
    slices = propagate(graph, list(graph.ops), graph.outputs,
                       2, 4, instance_var(0))  # fmt: skip
    assert slices is not None
    assert slices.boxes[rows][2] == Span(var("g0") * 8 - 2, 11)
    tiles: dict[TileKey, Tiles | None] = {}

    def plan_of(boxes: Mapping[str, Box]) -> Planner:
        part = Part(tuple(range(4)), replace(slices, boxes=boxes), 1)
        site = Site(on, ctx.buffer, Spread(4, 8), (part,), tiles)
        return Planner(graph, ctx.layers, ctx.engines, site)

    held = frozenset({source, patches, rows})
    whole = plan_of({name: box for name, box in slices.boxes.items() if name != patches})
    found = whole.tiles(1, held, False)
    assert isinstance(found, ChainPlan)
    [fetched] = found.cut.fetched
    assert (fetched.tensor, fetched.box[1]) == (patches, Span(Affine(), 64))
    sliced = plan_of(slices.boxes)
    assert sliced.tiles(1, held, False) is None
    assert list(tiles.values()) == [found], "both were one question"
    assert sliced.tiles(1, held - {patches}, False) is not None
    assert sliced.plan((False,) * 4) is None
    check_meaning(scheduled(graph, on))
