"""Legality of units of several layers: capacity by last use, recomputed coverage, halo slices."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest
from counted_work import calls_of
from hypothesis import given
from hypothesis import strategies as st
from multi_layer_schedules import (
    TREES,
    ChainShape,
    blur_graph,
    chain,
    halo_slices,
    machine,
)
from toy_schedules import ORIGIN, span, two_stage_pipe

from worker.compiler.errors import VerifyError
from worker.compiler.ir.affine import Affine, var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Fn, Read
from worker.compiler.schedule.nodes import (
    Box,
    Compute,
    Init,
    Loop,
    LoopKind,
    Move,
    Node,
    Place,
    Schedule,
    Seq,
)
from worker.compiler.schedule.verify import verify
from worker.compiler.schedule.verify_capacity import check_capacity
from worker.compiler.schedule.verify_coverage import check_coverage
from worker.compiler.schedule.walk import walk


def refused(schedule: Schedule, on: object, rule: str, text: str) -> None:
    with pytest.raises(VerifyError, match=text) as error:
        verify(schedule, on)  # type: ignore[arg-type]  # a Machine
    assert error.value.rule == rule


@pytest.mark.parametrize("name", TREES)
def test_every_tree_is_legal(name: str) -> None:
    schedule, on, _ = TREES[name]()
    verify(schedule, on)


# --- capacity ---


def test_dead_places_do_not_add_up() -> None:
    # 4 x 8 floats per activation: 128 bytes; two are alive in a layer, nine are nested.
    schedule, on, _ = chain(ChainShape(layers=10), machine(2, 1, gb_bytes=256))
    verify(schedule, on)


def test_the_bound_is_exact() -> None:
    schedule, on, _ = chain(ChainShape(layers=10), machine(2, 1, gb_bytes=252))
    refused(schedule, on, "capacity", "GB must hold 256 bytes, 252 are usable")


def test_a_tensor_used_late_stays_alive() -> None:
    """x1 moved out once more at the end: it now lives across all layers between."""
    schedule, on, _ = chain(ChainShape(layers=6), machine(2, 1, gb_bytes=256))
    verify(schedule, on)
    first = schedule.root
    assert isinstance(first, Place) and isinstance(first.body, Seq)
    whole = first.tile
    late = replace(first, body=Seq((*first.body.parts, Move("x1", "GB", "DDR", whole))))
    refused(replace(schedule, root=late), on, "capacity", "GB must hold 384 bytes")


def test_a_use_in_a_loop_keeps_the_tensor_for_the_loop() -> None:
    """Two Places in one loop around; the first, outside it, is read at the start of each turn."""
    graph = blur_graph(1, 8, 4)
    rows = span(var("r") * 4, 4)
    near: Box = (span(var("r") * 4 - 1, 6), span(0, 4))
    mine: Box = (rows, span(0, 4))
    whole: Box = (span(0, 8), span(0, 4))
    body = Seq((
        Place("x0", "L1", near, 1, Seq((Move("x0", "GB", "L1", near, 0), Place(
            "x1", "L1", mine, 1, Seq((Compute("blur1", (*mine, span(0, 3)), "vec"),
                                      Move("x1", "L1", "GB", mine))),
            None, Init.IDENTITY)))),
        Move("x1", "GB", "DDR", mine),
    ))  # fmt: skip
    loop = Loop("r", 2, LoopKind.TIME, Place("x1", "GB", mine, 1, body))
    root = Place("x0", "GB", whole, 1, Seq((Move("x0", "DDR", "GB", whole), loop)))
    schedule = Schedule(graph, root, "hand", 0)
    verify(schedule, machine(1, 1, gb_bytes=128 + 64))
    refused(schedule, machine(1, 1, gb_bytes=128 + 60), "capacity", "GB must hold 192 bytes")


def test_stages_of_a_pipe_still_add_up() -> None:
    schedule, on, _ = two_stage_pipe()
    flat = walk(schedule)
    rings = 2 * 2 * 4 * 4
    home, gb, l1 = on.levels
    check_capacity(
        schedule, flat, replace(on, levels=(home, replace(gb, capacity_bytes=rings), l1))
    )
    small = replace(on, levels=(home, replace(gb, capacity_bytes=rings - 4), l1))
    with pytest.raises(VerifyError, match=f"GB must hold {rings} bytes"):
        check_capacity(schedule, flat, small)


# --- coverage ---


def add_graph(extents: tuple[int, ...], reduce_axes: int = 0) -> Graph:
    """out[parallel axes] = (sum over the last `reduce_axes` of) in + in."""
    kinds = [AxisKind.PARALLEL] * (len(extents) - reduce_axes) + [AxisKind.REDUCE] * reduce_axes
    axes = tuple(
        Axis(f"a{k}", e, kind) for k, (e, kind) in enumerate(zip(extents, kinds, strict=True))
    )
    index = tuple(var(a.name) for a in axes)
    kept = index[: len(extents) - reduce_axes]
    op = TensorOp(
        "op", axes, (Access("in", index),), Access("out", kept),
        Apply(Fn.ADD, (Read(0), Read(0))), Reduce.ADD if reduce_axes else None, ORIGIN,
    )  # fmt: skip
    tensors = (Tensor("in", extents, DType.F32), Tensor("out", extents[: len(kept)], DType.F32))
    return Graph.build((op,), tensors, ("in",), ("out",))


def coverage_of(graph: Graph, root: Node) -> str | None:
    schedule = Schedule(graph, root, "hand", 0)
    try:
        check_coverage(schedule, walk(schedule))
    except VerifyError as error:
        return str(error)
    return None


starts = st.tuples(st.integers(-2, 2), st.integers(-3, 3), st.integers(-3, 3))
boxes = st.tuples(starts, starts, st.integers(1, 6), st.integers(1, 6), st.booleans())


@given(st.lists(boxes, min_size=1, max_size=3), st.integers(1, 3), st.integers(1, 3))
def test_coverage_is_what_counting_says(
    found: list[tuple[tuple[int, int, int], tuple[int, int, int], int, int, bool]], u: int, v: int
) -> None:
    """Oracle: count every point of a 6 x 5 domain one by one."""
    extents = (6, 5)
    plain, again = np.zeros(extents, int), np.zeros(extents, int)
    leaves: list[Node] = []
    for k, ((c0, u0, v0), (c1, u1, v1), e0, e1, recompute) in enumerate(found):
        names = var(f"u{k}"), var(f"v{k}")
        box = (
            span(names[0] * u0 + names[1] * v0 + c0, e0),
            span(names[0] * u1 + names[1] * v1 + c1, e1),
        )
        compute = Compute("op", box, "vec", None, recompute)
        leaves.append(Loop(f"u{k}", u, LoopKind.TIME, Loop(f"v{k}", v, LoopKind.CORES, compute, 1)))
        for a, b in product(range(u), range(v)):
            first, second = a * u0 + b * v0 + c0, a * u1 + b * v1 + c1
            target = again if recompute else plain
            target[max(first, 0) : max(first + e0, 0), max(second, 0) : max(second + e1, 0)] += 1
    legal = ((plain == 1) & (again == 0)) | ((plain == 0) & (again > 0))
    refusal = coverage_of(add_graph(extents), Seq(tuple(leaves)))
    assert (refusal is None) == bool(legal.all()), refusal


@given(st.integers(1, 4), st.integers(-4, 0), st.integers(1, 5), st.integers(1, 6))
def test_overlapping_slices_cover_when_their_union_does(
    trip: int, first: int, stride: int, extent: int
) -> None:
    size = 9
    seen = {
        p for t in range(trip) for p in range(first + t * stride, first + t * stride + extent)
    } & set(range(size))
    box = (span(var("t") * stride + first, extent), span(0, 1 << 30))
    loop = Loop("t", trip, LoopKind.TIME, Compute("op", box, "vec", None, recompute=True))
    refusal = coverage_of(add_graph((size, 1 << 30)), loop)
    assert (refusal is None) == (len(seen) == size), refusal


def test_a_large_recomputed_convolution_is_proved_quickly() -> None:
    """1.2e9 points; rows in overlapping slices over clusters, instances and cores."""
    extents = (1, 128, 112, 112, 128, 3, 2)
    assert prod(extents) > 1_000_000_000
    graph = add_graph(extents, reduce_axes=3)

    def slices(height: int, first: int) -> Node:
        row = (var("cl") * 4 + var("it")) * 7 + first
        box = (
            span(0, 1), span(var("co") * 16, 16), span(row, height), span(0, 112),
            span(var("k") * 32, 32), span(0, 3), span(0, 2),
        )  # fmt: skip
        node: Node = Compute("op", box, "mme", None, recompute=True)
        for name, trip, kind in (
            ("k", 4, LoopKind.TIME), ("co", 8, LoopKind.CORES), ("it", 4, LoopKind.TIME),
            ("cl", 4, LoopKind.CORES),
        ):  # fmt: skip
            node = Loop(name, trip, kind, node, 1)
        return node

    refusals: list[str | None] = []
    calls = calls_of(lambda: refusals.append(coverage_of(graph, slices(9, -1))))
    calls += calls_of(lambda: refusals.append(coverage_of(graph, slices(6, 0))))
    assert refusals[0] is None
    assert refusals[1] is not None and "(0, 0, 6, 0, 0, 0, 0)" in refusals[1]
    assert calls < 50_000


def test_terms_of_a_sum_are_never_recomputed() -> None:
    graph = add_graph((4, 8), reduce_axes=1)
    box = (span(0, 4), span(var("k") * 3, 4))
    loop = Loop("k", 3, LoopKind.TIME, Compute("op", box, "vec", None, recompute=True))
    refusal = coverage_of(graph, loop)
    assert refusal is not None and "terms count twice" in refusal


def test_a_plain_compute_shares_no_point_with_a_recomputation() -> None:
    graph = add_graph((8, 4))
    whole = Compute("op", (span(0, 8), span(0, 4)), "vec", None, recompute=True)
    part = Compute("op", (span(0, 2), span(0, 4)), "vec")
    assert coverage_of(graph, Seq((whole, replace(part, recompute=True)))) is None
    assert "2 times" in (coverage_of(graph, Seq((whole, part))) or "")


# --- residency of halo slices ---


def test_a_halo_that_is_too_small_is_refused() -> None:
    schedule, on, _ = halo_slices(missing=2)
    refused(schedule, on, "resident", "leaves the tile|not written before its use")


def rewrite(node: Node, change: object) -> Node:
    done = change(node)  # type: ignore[operator]  # Node -> Node | None
    if done is not None:
        return done  # type: ignore[no-any-return]
    if isinstance(node, Seq):
        return Seq(tuple(rewrite(p, change) for p in node.parts))
    if isinstance(node, Loop | Place):
        return replace(node, body=rewrite(node.body, change))
    return node


def test_a_halo_nobody_computes_is_refused() -> None:
    """The slice is large enough, but the cores compute one row less of it each."""
    schedule, on, _ = halo_slices()

    def narrower(node: Node) -> Node | None:
        if isinstance(node, Move) and (node.tensor, node.src, node.dst) == ("x1", "L1", "GB"):
            row = node.box[0]
            return replace(node, box=(replace(row, extent=row.extent - 1), node.box[1]))
        return None

    broken = replace(schedule, root=rewrite(schedule.root, narrower))
    refused(broken, on, "resident", "x1 in .* is not written before its use")


def test_a_slice_of_the_other_instance_is_refused() -> None:
    """Reading one slice further: those rows are in the tensor, but not in this slice."""
    schedule, on, _ = halo_slices()

    def shifted(node: Node) -> Node | None:
        if isinstance(node, Place) and node.tensor == "x1" and node.memory == "GB":
            rows = node.tile[0]
            return replace(
                node, tile=(replace(rows, start=rows.start + 1), node.tile[1]),
                body=rewrite(node.body, shifted),
            )  # fmt: skip
        return None

    broken = replace(schedule, root=rewrite(schedule.root, shifted))
    refused(broken, on, "resident", "leaves the tile")


def test_a_row_is_not_summed_twice_into_one_buffer() -> None:
    """Overlapping recomputed boxes are fine in buffers of their own, not in one sum."""
    graph = blur_graph(1, 8, 4)
    start: Affine = var("r") * 4 - 1
    near: Box = (span(-1, 10), span(0, 4))
    whole: Box = (span(0, 8), span(0, 4))

    def root(height: int) -> Node:
        box = (span(start, height), span(0, 4), span(0, 3))
        loop = Loop("r", 3, LoopKind.TIME, Compute("blur1", box, "vec", None, recompute=True))
        return Place("x0", "L1", near, 1, Place("x1", "L1", whole, 1, Seq((
            Move("x0", "DDR", "L1", near, 0), loop, Move("x1", "L1", "DDR", whole),
        )), None, Init.IDENTITY))  # fmt: skip

    verify(Schedule(graph, root(4), "hand", 0), machine(1, 1))
    refused(Schedule(graph, root(6), "hand", 0), machine(1, 1), "init", "twice into one sum")
