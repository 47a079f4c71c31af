"""Vectorised arithmetic of lowering against the scalar definitions."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from worker.compiler.ir.affine import Affine, const, var
from worker.compiler.ir.evaluate import affine_values
from worker.compiler.lower.grid import Grid, clip
from worker.compiler.lower.rows.hazards import Boxes, are_disjoint, boxes_apart
from worker.compiler.schedule.grid import expr_range
from worker.compiler.schedule.nodes import LoopKind, Span
from worker.compiler.schedule.walk import Frame

TRIPS = {"x": 5, "y": 3, "z": 4}
leaves = st.one_of(st.integers(-6, 6).map(const), st.sampled_from(sorted(TRIPS)).map(var))
exprs = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
        st.tuples(inner, st.integers(-4, 4)).map(lambda p: p[0] * p[1]),
        st.tuples(inner, st.integers(1, 5)).map(lambda p: p[0].floordiv(p[1])),
        st.tuples(inner, st.integers(1, 5)).map(lambda p: p[0].mod(p[1])),
    ),
    max_leaves=6,
)
KINDS = {"x": LoopKind.CORES, "y": LoopKind.TIME, "z": LoopKind.LANES}
GRID = Grid.of([Frame(v, t, KINDS[v], 1, v, is_folded=v == "z") for v, t in TRIPS.items()])


@given(exprs)
def test_evaluate(expr: Affine) -> None:
    assert [f.var for f in GRID.frames] == ["y", "x", "z"], "time, then cores, then lanes"
    values = np.broadcast_to(affine_values(expr, GRID.values), GRID.shape)
    for y, x, z in product(range(3), range(5), range(4)):
        assert values[y, x, z] == expr.evaluate({"x": x, "y": y, "z": z})


@given(exprs, st.lists(st.integers(0, 4), min_size=3, max_size=3))
def test_bounds(expr: Affine, lengths: list[int]) -> None:
    ranges = {
        v: (GRID.values[v], GRID.values[v] + n) for v, n in zip(sorted(TRIPS), lengths, strict=True)
    }
    least, most = (np.broadcast_to(b, GRID.shape) for b in expr_range(expr, ranges))
    for y, x, z in product(range(3), range(5), range(4)):
        at = {"x": x, "y": y, "z": z}
        box = {v: (at[v], at[v] + n) for v, n in zip(sorted(TRIPS), lengths, strict=True)}
        expected = expr.bounds(box)
        assert (least[y, x, z], most[y, x, z]) == expected[:2]


@given(exprs, st.integers(1, 6), st.integers(1, 8))
def test_clip(expr: Affine, extent: int, size: int) -> None:
    cut = clip((Span(expr, extent),), (size,), GRID.values)
    start = np.broadcast_to(cut.start[0], GRID.shape)
    count = np.broadcast_to(cut.extent[0], GRID.shape)
    for y, x, z in product(range(3), range(5), range(4)):
        first = expr.evaluate({"x": x, "y": y, "z": z})
        inside = [i for i in range(first, first + extent) if 0 <= i < size]
        assert count[y, x, z] == len(inside)
        if inside:
            assert start[y, x, z] == inside[0]


boxes = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 3), st.integers(1, 3)),
    min_size=0, max_size=5,
)  # fmt: skip


@given(st.lists(boxes, min_size=1, max_size=3))
def test_disjoint_is_never_wrong(sets: list[list[tuple[int, int, int, int]]]) -> None:
    painted = np.zeros((8, 8), dtype=int)
    arrays = []
    for drawn in sets:
        rows = np.array(drawn, dtype=np.int64).reshape(-1, 4)
        arrays.append(Boxes(rows[:, :2], rows[:, :2] + rows[:, 2:]))
        for a, b, h, w in drawn:
            painted[a : a + h, b : b + w] += 1
    if are_disjoint(arrays):
        assert painted.max(initial=0) <= 1


def test_a_tiling_is_disjoint() -> None:
    starts = np.array([(i, j) for i in range(0, 10, 3) for j in range(0, 8, 4)], dtype=np.int64)
    ends = np.minimum(starts + np.array([3, 4]), [10, 8])
    assert are_disjoint([Boxes(starts, ends)])
    assert not are_disjoint([Boxes(starts, ends), Boxes(starts[:1], ends[:1])])


loops = st.lists(
    st.tuples(st.integers(1, 4), st.lists(st.integers(-6, 6), min_size=2, max_size=2)),
    min_size=0, max_size=3,
)  # fmt: skip


@given(
    loops, st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(-8, 12), st.integers(0, 12)),
)  # fmt: skip
def test_boxes_that_strides_keep_apart_are_apart(
    drawn: list[tuple[int, list[int]]], extents: tuple[int, int], origin: tuple[int, int]
) -> None:
    """Against every box painted, cut to the tensor; the hull holds them all."""
    shape = (20, 20)
    frames = [Frame(f"v{k}", trip, LoopKind.TIME, 1, f"p{k}") for k, (trip, _) in enumerate(drawn)]
    box = tuple(
        Span(
            sum((var(f"v{k}") * c[d] for k, (_, c) in enumerate(drawn)), const(origin[d])),
            extents[d],
        )
        for d in range(2)
    )
    apart = boxes_apart(box, frames, shape)
    if apart is None:
        return
    painted = np.zeros(shape, dtype=int)
    for point in product(*(range(trip) for trip, _ in drawn)):
        low = [
            origin[d] + sum(c[d] * v for (_, c), v in zip(drawn, point, strict=True))
            for d in range(2)
        ]
        cut = tuple(slice(max(low[d], 0), max(low[d] + extents[d], 0)) for d in range(2))
        painted[cut] += 1
    assert painted.max() <= 1
    inside = np.zeros(shape, dtype=bool)
    inside[tuple(slice(a, b) for a, b in zip(apart.start, apart.end, strict=True))] = True
    assert not (painted.astype(bool) & ~inside).any()


def test_loops_of_growing_strides_keep_boxes_apart() -> None:
    frames = [Frame("c", 3, LoopKind.CORES, 1, "c"), Frame("t", 4, LoopKind.TIME, 1, "t")]
    box = (Span(const(2) + var("c") * 8 + var("t") * 2, 2), Span(const(0), 5))
    apart = boxes_apart(box, frames, (24, 5))
    assert apart is not None
    assert (apart.start.tolist(), apart.end.tolist()) == ([2, 0], [24, 5])
    assert boxes_apart((Span(var("c") * 7 + var("t") * 2, 2), box[1]), frames, (24, 5)) is None
    assert boxes_apart((Span(var("c") * 8, 2), box[1]), frames, (24, 5)) is None
    assert are_disjoint([apart, Boxes(np.array([[0, 0]]), np.array([[2, 5]]))])
    assert not are_disjoint([apart, Boxes(np.array([[0, 0]]), np.array([[3, 5]]))])
