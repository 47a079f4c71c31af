"""Row chains verify, mean their graph, lower, run as C and simulate; no rows, no chain."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, prod
from pathlib import Path

import numpy as np
import pytest
from fused_graphs import escaping
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from kernel_runs import check_kernel
from row_chain_graphs import (
    Inputs,
    build,
    fn,
    gathered,
    group_norm,
    inputs_of,
    layer_norm,
    op,
    ops_of,
    planned,
    pooled,
    scheduled,
    smoothed,
    softmax,
    transposed,
    windows,
)
from toy_schedules import machine as toy_machine
from toy_schedules import matmul

from worker.compiler.errors import Shortfall
from worker.compiler.ir.affine import Affine, var
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Reduce, Tensor
from worker.compiler.ir.scalar import Fn, Read
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.interpret import interpret
from worker.compiler.schedule.nodes import (
    Compute,
    Init,
    Loop,
    LoopKind,
    Move,
    Place,
    Schedule,
    Seq,
    Span,
)
from worker.compiler.schedule.verify import verify
from worker.compiler.schedule.walk import walk
from worker.compiler.tiling.chain.cut import Rows, cut_rows
from worker.compiler.tiling.chain.emit import emit_chain
from worker.compiler.tiling.chain.facts import chain_of
from worker.compiler.tiling.chain.plan import (
    ChainPlan,
    Split,
    follows_slices,
    is_allowed,
)
from worker.compiler.tiling.chain.plan_chain import plan_chain, row_chains
from worker.simulator.run import simulate_unit

GRAPHS: dict[str, Callable[[], Graph]] = {
    "softmax": lambda: softmax(3, 10, 8),
    "softmax_f16": lambda: softmax(2, 7, 8, DType.F16),
    "layer_norm": lambda: layer_norm(13, 8),
    "pool": lambda: pooled(3, 9),
    "halo": lambda: smoothed(14, 6),
    "transpose": lambda: transposed(9, 4, 4),
    "group_norm": lambda: group_norm(2, 4, 3, 5),
    "windows": lambda: windows(3, 7, 4),
    "gather": lambda: gathered(11, 6, 4),
}
PRESETS = ("stcp920-inferred", "ascend910", "a100", "goya")


def checked(schedule: Schedule, machine: Machine, inputs: Inputs | None = None) -> None:
    """The schedule is legal and means its graph."""
    verify(schedule, machine)
    given_ = inputs or inputs_of(schedule.graph)
    got = interpret(schedule, given_, home=machine.home.name)
    want = evaluate(schedule.graph, given_)
    for output in schedule.graph.outputs:
        np.testing.assert_allclose(got[output], want[output], rtol=1e-6, atol=1e-6)


def plan_of(found: ChainPlan | Shortfall) -> ChainPlan:
    assert isinstance(found, ChainPlan), found
    return found


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("preset", [*PRESETS, "toy"])
def test_a_chain_means_its_graph(preset: str, name: str) -> None:
    machine = toy_machine(4) if preset == "toy" else load_preset(preset)
    graph = GRAPHS[name]()
    assert row_chains(graph, ops_of(graph), machine) == (ops_of(graph),)
    plan = plan_of(planned(graph, machine))
    assert prod(split.ways for split in plan.splits) <= machine.num_cores
    checked(scheduled(graph, plan), machine)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_chain_runs_as_c_and_simulates(name: str, tmp_path: Path) -> None:
    machine, graph = toy_machine(4), GRAPHS[name]()
    schedule = scheduled(graph, plan_of(planned(graph, machine, budget_bytes=640)))
    checked(schedule, machine)
    near = 1e-3 if graph.tensors[graph.outputs[0]].dtype is DType.F16 else 2e-6
    check_kernel(schedule, machine, inputs_of(graph), tmp_path, near=near, inside=True, orders=12)


def test_intermediates_never_leave_the_local_buffer() -> None:
    machine, graph = load_preset("stcp920-inferred"), layer_norm(197, 64)
    flat = walk(scheduled(graph, plan_of(planned(graph, machine))))
    moved = [leaf.node.tensor for leaf in flat.leaves if isinstance(leaf.node, Move)]
    assert sorted(moved) == ["bias", "r", "scale", "skip", "x", "y"]
    held = {scope.tensor: scope for scope in flat.scopes}
    assert {held[name].memory for name in "ruvny"} == {"L1"}
    outside = [f for f in held["scale"].frames if f.kind is LoopKind.TIME]
    assert not outside, "a broadcast operand is fetched once per core"


def test_accumulators_of_short_floats_are_wide() -> None:
    machine, graph = toy_machine(), layer_norm(6, 8, DType.F16)
    scopes = {s.tensor: s for s in walk(scheduled(graph, plan_of(planned(graph, machine)))).scopes}
    assert (scopes["u"].dtype, scopes["u"].init) == (DType.F32, Init.IDENTITY)
    assert (scopes["n"].dtype, scopes["n"].init) == (DType.F16, Init.UNDEFINED)


def test_a_smaller_budget_means_smaller_tiles_down_to_a_shortfall() -> None:
    machine, graph = toy_machine(1), softmax(1, 64, 16)
    large, small = (plan_of(planned(graph, machine, budget_bytes=b)) for b in (4000, 400))
    assert small.footprint_bytes <= 400 < large.footprint_bytes <= 4000
    for plan in (large, small):
        checked(scheduled(graph, plan), machine)
    least = plan_of(planned(graph, machine, budget_bytes=140))
    assert set(least.copies.values()) == {1}
    refused = planned(graph, machine, budget_bytes=139)
    assert isinstance(refused, Shortfall)
    # One row of x and e, one element of y, and two sums.
    assert (refused.demand, refused.bound, refused.unit) == (2 * 64 + 3 * 4, 139, "bytes")
    assert refused.terms[0][1] == 64


def test_ragged_rows_over_cores_clip_at_the_end() -> None:
    machine, graph = load_preset("goya"), layer_norm(197, 64, DType.F16)
    location = dict.fromkeys((*graph.inputs, *graph.outputs), "SRAM")
    plan = plan_of(planned(graph, machine, location_of=location))
    (row,), (split,) = plan.cut.rows, plan.splits
    assert split.ways * split.trips * row.tile > 197 > (split.ways - 1) * split.trips * row.tile
    verify(scheduled(graph, plan, "SRAM"), machine)


def test_slices_inside_an_instance_loop() -> None:
    """Four instances of five rows each, on one cluster of two cores."""
    machine, graph = toy_machine(2), softmax(2, 20, 8)
    spans = {"h": Span(Affine(), 2), "q": Span(var("f") * 5, 5), "k": Span(Affine(), 8)}
    slices = {o.name: tuple(spans[a.name] for a in o.domain) for o in ops_of(graph)}
    plan = plan_of(planned(graph, machine, domains=slices))
    assert all(5 % row.tile == 0 for row in plan.cut.rows if row.axis == "q")
    root = Loop("f", 4, LoopKind.TIME, emit_chain(plan, "a"))
    checked(Schedule(graph, root, "graphturbo", 0), machine)


def test_a_slice_is_cut_into_equal_parts() -> None:
    """A window is a slice of seven rows: tiles of two would run into the next window."""
    machine, graph = toy_machine(4), windows(3, 7, 4)
    rows, cols = Span(var("f") * 7, 7), Span(Affine(), 4)
    slices = {
        "last": (Span(var("f") * 7 - 20, 7), cols),
        "most": (rows, cols),
        "cut": (Span(var("f"), 1), Span(Affine(), 7), cols),
    }
    ragged = cut_rows(chain_of(graph, ops_of(graph), slices), (Rows("s", 2, 4),))
    assert ragged is not None
    assert ragged.must_divide == {0}
    plan = plan_of(planned(graph, machine, domains=slices, budget_bytes=200))
    assert all(7 % row.tile == 0 for row in plan.cut.rows if row.axis == "s")
    root = Loop("f", 3, LoopKind.TIME, emit_chain(plan, "a"))
    checked(Schedule(graph, root, "graphturbo", 0), machine)


def test_tiles_of_a_stored_result_have_no_holes() -> None:
    """y[2 a + b] = t[a, b]: a tile of one b and all a would be stored over the other b."""
    graph = build(
        (
            op("double", [("b", 6), ("a", 4)], [("x", ("b", "a"))], ("t", ("b", "a")),
               fn(Fn.ADD, Read(0), Read(0))),
            op("weave", [("b", 6), ("a", 4)], [("t", ("b", "a"))],
               ("y", (var("a") * 6 + var("b"),)), Read(0)),
        ),
        {"x": (6, 4), "t": (6, 4), "y": (24,)},
        ("y",),
    )  # fmt: skip
    chain = chain_of(graph, ops_of(graph), None)
    assert cut_rows(chain, (Rows("b", 2, 3),)) is None
    assert cut_rows(chain, (Rows("a", 2, 2),)) is not None
    plan = plan_of(planned(graph, toy_machine(4)))
    assert {row.axis for row in plan.cut.rows} != {"b"}
    checked(scheduled(graph, plan), toy_machine(4))


def test_a_piece_of_a_result_stops_at_its_end() -> None:
    """Five rows of y from one chain, four from another: tiles of two would store a sixth."""
    add = fn(Fn.ADD, Read(0), Read(0))
    graph = build(
        (
            op("low", [("i", 5), ("j", 3)], [("x", ("i", "j"))], ("y", ("i", "j")), add),
            op("high", [("i", 4), ("j", 3)], [("z", ("i", "j"))], ("y", (var("i") + 5, "j")), add),
        ),
        {"x": (5, 3), "z": (4, 3), "y": (9, 3)},
        ("y",),
    )  # fmt: skip
    machine = toy_machine(2)
    nodes = []
    for single in ops_of(graph):
        found = plan_chain(graph, (single,), None, {}, machine, num_cores=2, budget_bytes=52)
        plan = plan_of(found)
        assert plan.cut.rows
        nodes.append(emit_chain(plan, single.name))
    low = cut_rows(chain_of(graph, ops_of(graph)[:1], None), (Rows("i", 2, 3),))
    high = cut_rows(chain_of(graph, ops_of(graph)[1:], None), (Rows("i", 3, 2),))
    assert low is not None
    assert high is not None
    assert low.must_divide == {0}
    assert high.must_divide == frozenset(), "what overhangs the end of y is not stored"
    checked(Schedule(graph, Seq(tuple(nodes)), "graphturbo", 0), machine)


def test_pieces_of_a_result_join_along_one_dimension() -> None:
    """y is written in an upper half and in two lower quarters: those two are one chain."""
    double = fn(Fn.ADD, Read(0), Read(0))
    below, right = var("i") + 3, var("j") + 2
    narrow, wide = (("h", 2), ("i", 3), ("j", 2)), (("h", 2), ("i", 3), ("j", 4))
    at = ("h", "i", "j")
    graph = build(
        (
            op("left", narrow, [("x", at)], ("y", ("h", below, "j")), double),
            op("right", narrow, [("x", ("h", "i", right))], ("y", ("h", below, right)), double),
            op("upper", wide, [("x", at)], ("y", at), double),
        ),
        {"x": (2, 3, 4), "y": (2, 6, 4)},
        ("y",),
    )
    machine = toy_machine(3)
    runs = row_chains(graph, ops_of(graph), machine)
    assert [tuple(o.name for o in run) for run in runs] == [("left", "right"), ("upper",)]
    nodes = []
    for run in runs:
        found = plan_chain(graph, run, None, {}, machine, num_cores=3, budget_bytes=999)
        nodes.append(emit_chain(plan_of(found), run[0].name))
    checked(Schedule(graph, Seq(tuple(nodes)), "graphturbo", 0), machine)


def test_a_result_that_is_read_in_steps_is_computed_whole() -> None:
    graph = build(
        (
            op("double", [("i", 12)], [("x", ("i",))], ("t", ("i",)), fn(Fn.ADD, Read(0), Read(0))),
            op("every", [("i", 6)], [("t", (var("i") * 2,))], ("y", ("i",)), Read(0)),
        ),
        {"x": (12,), "t": (12,), "y": (6,)},
        ("t", "y"),
    )  # fmt: skip
    cut = cut_rows(chain_of(graph, ops_of(graph), None), (Rows("i", 2, 3),))
    assert cut is not None
    assert [part.box[0].extent for part in cut.ops] == [4, 2]
    assert not any(part.has_halo for part in cut.ops)
    plan = plan_of(planned(graph, toy_machine(3), budget_bytes=64))
    assert plan.cut.rows
    checked(scheduled(graph, plan), toy_machine(3))


def test_little_is_recomputed_and_never_what_leaves() -> None:
    machine, graph = toy_machine(32), smoothed(24, 1)
    plan = plan_of(planned(graph, machine))
    (row,) = plan.cut.rows
    own = 26 + 24 * 3
    chain = chain_of(graph, ops_of(graph), None)
    for tile, count, allowed in ((1, 24, False), (12, 2, True)):
        cut = cut_rows(chain, (Rows("i", tile, count),))
        assert cut is not None
        assert is_allowed(chain, cut, (Split(count, 1),)) == allowed
    assert 0 < row.count * (row.tile + 2) - 26 <= 0.25 * own
    both = escaping(graph, "t")
    assert plan_of(planned(both, machine)).cut.rows == ()
    assert len(row_chains(both, ops_of(both), machine)) == 2


def test_a_chain_is_convex() -> None:
    """relu -> matmul -> sum with the relu: the matmul stands between the two."""
    at = (var("i"), var("j"))
    relu = op("relu", [("i", 8), ("j", 8)], [("t0", at)], ("t2", at), fn(Fn.MAX, Read(0), 0.0))
    total = op("sum", [("i", 8), ("j", 8)], [("t2", at), ("t3", at)], ("t4", at),
               fn(Fn.ADD, Read(0), Read(1)))  # fmt: skip
    graph = Graph.build(
        (relu, matmul("mm", "t2", "t1", "t3", 8, 8, 8), total),
        tuple(Tensor(f"t{k}", (8, 8), DType.F32) for k in range(5)), ("t0",), ("t4",), ("t1",),
    )  # fmt: skip
    assert row_chains(graph, (relu, total), toy_machine()) == ((relu,), (total,))


def test_a_table_is_read_at_home_only() -> None:
    graph = gathered(11, 6, 4)
    assert isinstance(planned(graph, toy_machine(), location_of={"x": "GB"}), ChainPlan)
    assert isinstance(planned(graph, toy_machine(), location_of={"table": "GB"}), Shortfall)


def test_neighbouring_instances_with_a_halo_recompute() -> None:
    """Instances of six rows of y need eight rows of t each."""
    machine, graph = toy_machine(2), smoothed(12, 4)
    cols = Span(Affine(), 4)
    slices = {
        "double": (Span(var("f") * 6, 8), cols),
        "blur": (Span(var("f") * 6, 6), cols, Span(Affine(), 3)),
    }
    plan = plan_of(planned(graph, machine, domains=slices))
    root = Loop("f", 2, LoopKind.TIME, emit_chain(plan, "a"))
    checked(Schedule(graph, root, "graphturbo", 0), machine)


def test_clusters_of_cores_share_a_buffer() -> None:
    """Two clusters; each holds its heads of x in the shared buffer."""
    machine, graph = load_preset("stcp920-inferred"), softmax(4, 24, 8)
    head = Span(var("d"), 1)
    spans = {"h": head, "q": Span(Affine(), 24), "k": Span(Affine(), 8)}
    slices = {o.name: tuple(spans[a.name] for a in o.domain) for o in ops_of(graph)}
    plan = plan_of(
        planned(graph, machine, num_cores=8, domains=slices, num_groups=4,
                location_of={"x": "LLB"})
    )  # fmt: skip
    assert prod(split.ways for split in plan.splits) > 1
    box = (head, spans["q"], spans["k"])
    body = Place("x", "LLB", box, 1, Seq((Move("x", "DDR", "LLB", box), emit_chain(plan, "a"))))
    root = Loop("d", 4, LoopKind.CORES, body, machine.num_cores // machine.num_clusters)
    checked(Schedule(graph, root, "graphturbo", 0), machine)


def test_residents_have_neither_place_nor_move() -> None:
    machine, graph = toy_machine(2), layer_norm(8, 8)
    rows = {"i": Span(var("c") * 4, 4), "j": Span(Affine(), 8)}
    slices = {o.name: tuple(rows[a.name] for a in o.domain) for o in ops_of(graph)}
    plan = plan_of(
        planned(graph, machine, num_cores=1, domains=slices, location_of={"x": "L1", "y": "L1"})
    )
    box = (rows["i"], rows["j"])
    node = Seq((Move("x", "DDR", "L1", box), emit_chain(plan, "a"), Move("y", "L1", "DDR", box)))
    root = Loop("c", 2, LoopKind.CORES, Place("x", "L1", box, 1, Place("y", "L1", box, 1, node)), 1)
    flat = walk(Schedule(graph, emit_chain(plan, "a"), "graphturbo", 0))
    assert {"x", "y"}.isdisjoint(s.tensor for s in flat.scopes)
    assert {"x", "y"}.isdisjoint(x.node.tensor for x in flat.leaves if isinstance(x.node, Move))
    checked(Schedule(graph, root, "graphturbo", 0), machine)


def test_a_halo_is_recomputed_and_nothing_else() -> None:
    machine, graph = toy_machine(2), smoothed(96, 1)
    schedule = scheduled(graph, plan_of(planned(graph, machine)))
    nodes = [leaf.node for leaf in walk(schedule).leaves]
    again = {node.op: node.recompute for node in nodes if isinstance(node, Compute)}
    assert again == {"double": True, "blur": False}
    checked(schedule, machine)


def test_a_reduction_over_everything_ends_a_chain() -> None:
    """sum over i and j, then x / sum: every row needs the whole of x first."""
    axes = [("i", 32), ("j", 32)]
    graph = build(
        (
            op("relu", axes, [("x", ("i", "j"))], ("r", ("i", "j")), fn(Fn.MAX, Read(0), 0.0)),
            op("sum", [("i", 32, "r"), ("j", 32, "r")], [("r", ("i", "j"))], ("s", ()), Read(0),
               Reduce.ADD),
            op("div", axes, [("r", ("i", "j")), ("s", ())], ("y", ("i", "j")),
               fn(Fn.DIV, Read(0), Read(1))),
        ),
        {"x": (32, 32), "r": (32, 32), "s": (), "y": (32, 32)},
        ("y",),
    )  # fmt: skip
    runs = row_chains(graph, ops_of(graph), toy_machine(2))
    assert [tuple(o.name for o in run) for run in runs] == [("relu",), ("sum",), ("div",)]


def test_contractions_stand_between_chains() -> None:
    relu = op("relu", [("i", 8), ("j", 8)], [("t2", ("i", "j"))], ("t3", ("i", "j")),
              fn(Fn.MAX, Read(0), 0.0))  # fmt: skip
    graph = Graph.build(
        (matmul("mm", "t0", "t1", "t2", 8, 8, 8), relu),
        tuple(Tensor(f"t{k}", (8, 8), DType.F32) for k in range(4)), ("t0",), ("t3",), ("t1",),
    )  # fmt: skip
    assert row_chains(graph, ops_of(graph), toy_machine()) == tuple((o,) for o in ops_of(graph))


def test_no_common_rows_is_a_shortfall() -> None:
    """A padded read of a result: nothing writes the padding of a Place that is computed."""
    graph = build(
        (
            op("double", [("i", 8)], [("x", ("i",))], ("t", ("i",)), fn(Fn.ADD, Read(0), Read(0))),
            op("shift", [("i", 8)], [("t", (var("i") - 1,), 0.0)], ("y", ("i",)), Read(0)),
        ),
        {"x": (8,), "t": (8,), "y": (8,)},
        ("y",),
    )  # fmt: skip
    found = plan_chain(graph, ops_of(graph), None, {}, toy_machine(), num_cores=2,
                       budget_bytes=4096)  # fmt: skip
    assert isinstance(found, Shortfall)
    assert found.resource == "group"


@COSTLY
@given(
    rows=st.integers(1, 23), heads=st.integers(1, 5), cols=st.integers(1, 9),
    cores=st.integers(1, 6), budget=st.sampled_from((256, 700, 4096)),
)  # fmt: skip
def test_any_shape_is_covered(rows: int, heads: int, cols: int, cores: int, budget: int) -> None:
    machine = toy_machine(cores)
    for graph in (softmax(heads, rows, cols), transposed(rows, heads, cols)):
        plan = plan_of(planned(graph, machine, budget_bytes=budget))
        assert plan.footprint_bytes <= budget
        checked(scheduled(graph, plan), machine)


def test_softmax_from_the_shared_buffer_is_bound_by_its_vector_work() -> None:
    """[12, 128, 128] f32 on one cluster: at most 1.5 x max(vector work, bytes / port)."""
    machine, graph = load_preset("stcp920-inferred"), softmax(12, 128, 128)
    plan = plan_of(planned(graph, machine, num_cores=8, location_of={"x": "LLB", "y": "LLB"}))
    schedule = scheduled(graph, plan, "LLB")
    verify(schedule, machine)
    total = simulate_unit(lower_unit(schedule, machine, "s"), machine).cycles
    size = graph.tensors["x"].size_bytes
    home, buffer = machine.home, machine.level("LLB")
    slowest = min(home.read_bytes_per_cycle, buffer.write_bytes_per_cycle)
    filled = 2 * (max(home.latency_cycles, buffer.latency_cycles) + ceil(size / slowest))
    # Per element 3 plain operations at 32 and 2 special ones at 8 a cycle, and two for max and exp.
    points = 12 * 128 * 128 // 8
    work = points * 3 / 32 + points * 2 / 8
    bound = max(work, 2 * size / 512)
    assert bound <= total - filled <= 1.5 * bound
    assert total - filled == pytest.approx(plan.predicted_cycles, rel=0.15)


def test_a_slice_off_the_grid_of_its_tiles_is_not_read_from_a_slice() -> None:
    """Patches of 2 x 2 are folded back: row a lies in rows 8 (a // 2) of the patches.  Eleven rows
    from 8 g - 2 on do not start at a multiple of eleven, so the chain takes all of the patches,
    though another one may hold a slice of them only; eight rows from 8 g on move with the slice."""
    a, b, g = var("a"), var("b"), var("g0")
    index = (a.mod(2) * 2 + b.mod(2), a.floordiv(2) * 8 + b.floordiv(2), "c")
    fold = op("fold", [("c", 4), ("a", 32), ("b", 16)], [("t", index)], ("y", ("c", "a", "b")),
              Read(0))  # fmt: skip
    graph = build((fold,), {"t": (4, 128, 4), "y": (4, 32, 16)}, ("y",))
    whole = {"t": (Span(Affine(), 4), Span(Affine(), 128), Span(Affine(), 4))}
    for rows, held, moves in (
        (Span(g * 8 - 2, 11), Span(g * 32 - 8, 48), False),
        (Span(g * 8, 8), Span(g * 32, 32), True),
    ):
        box = (Span(Affine(), 4), rows, Span(Affine(), 16))
        cut = cut_rows(chain_of(graph, ops_of(graph), {"fold": box}), (Rows("c", 1, 4),))
        assert cut is not None
        (fetched,) = cut.fetched
        assert (fetched.box[1] == held) == moves
        assert follows_slices(cut, whole)
        assert follows_slices(cut, {"t": (whole["t"][0], held, whole["t"][2])}) == moves
