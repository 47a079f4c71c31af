"""Core binding, scopes and data movement: GraphTurbo's vectors and worked examples."""

from __future__ import annotations

from dataclasses import replace

import pytest
from algebra_graphs import conv

from worker.compiler.ir.affine import Affine, const, var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Access, Origin, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Fn, Read
from worker.compiler.strategies.graphturbo.binding import (
    Bindable,
    Bindings,
    Edge,
    bind,
    dims_between,
    infer,
    plain,
)
from worker.compiler.strategies.graphturbo.movement import (
    CopyReason,
    Held,
    Movement,
    MovementKind,
    MovementTotal,
    common_binding,
    insert_movements,
    is_zero_copy,
    totals,
    why_copied,
)
from worker.compiler.strategies.graphturbo.values import BufferScope, Instance, InstanceGraph

LB, GB = BufferScope.LB, BufferScope.GB
ALL = (0, 1, 2, 3)


def instances(counts: tuple[int, ...], pairs: list[tuple[int, int]], size: int) -> InstanceGraph:
    """Groups of `counts` instances, breadth first; every output has `size` bytes."""
    nodes = tuple(Instance(g, k) for g, count in enumerate(counts) for k in range(count))
    producers = tuple(tuple(j for j, i in pairs if i == node) for node in range(len(nodes)))
    return InstanceGraph(nodes, producers, (size,) * len(nodes), (1,) * len(nodes))


FIGURE_8_PAIRS = [
    *[(k, 8 + k // 2) for k in range(8)],
    *[(8 + k, 12 + k // 2) for k in range(4)],
    (12, 14),
    (13, 14),
]


def figure_8(shapes: tuple[tuple[int, ...], ...]) -> tuple[list[Bindable], list[Edge]]:
    """Stages a (8 instances), b (4), c (2), d (1) with outputs of these shapes."""
    counts = (8, 4, 2, 1)
    outputs = [Bindable(shapes[g]) for g, count in enumerate(counts) for _ in range(count)]
    return outputs, [Edge(j, i, ALL) for j, i in FIGURE_8_PAIRS]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4, 28, 28, 512), (4, 2)),
        ((2, 28, 28, 512), (2, 4)),
        ((8, 56, 56, 256), (8,)),
        ((1, 56, 56, 256), (1, 8)),
        ((1, 14, 14, 1024), (1, 2, 2, 2)),
        ((1, 7, 7, 2048), (1, 1, 1, 8)),
        ((12, 128, 768), (4, 2)),
        ((3, 128, 768), (1, 8)),
        ((1, 1000), (1, 8)),
        ((7, 7), ()),
        ((), ()),
    ],
)
def test_plain_binding_of_the_paper(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert plain(shape) == expected


@pytest.mark.parametrize(
    ("shape", "num_cores", "expected"),
    [
        ((9, 4), 9, (9,)),
        ((8, 9), 9, (8,)),
        ((6, 8), 9, (3, 2)),  # 6 is neither a power of two nor a divisor of 9
        ((108,), 108, (108,)),
        ((12, 128, 768), 108, (12, 8)),
        ((36, 27, 5), 108, (36, 3)),
        ((4,), 1, ()),
    ],
)
def test_plain_binding_for_other_core_counts(
    shape: tuple[int, ...], num_cores: int, expected: tuple[int, ...]
) -> None:
    assert plain(shape, num_cores) == expected


def test_plain_binding_leaves_annotated_dimensions_alone() -> None:
    assert plain((8, 56, 56, 256), 8, frozenset({0})) == (1, 8)
    assert plain((8, 56), 8, frozenset({0, 1})) == ()
    with pytest.raises(ValueError, match="at least one core"):
        plain((4,), 0)


def test_inference_follows_the_matched_dimensions() -> None:
    edge = Edge(0, 1, (0, 2, None))
    assert infer((2, 1, 4), edge, (2, 8, 5)) == (2, 4)
    assert infer((1, 8), edge, (2, 8, 5)) is None  # empty: the bound dimension has no match
    assert infer((2, 1, 4), edge, (2, 6, 5)) is None  # 4 does not divide 6
    assert infer((2, 1, 4), edge, (2, 8, 5), frozenset({1})) is None
    assert infer((2,), edge, (2, 8, 5), frozenset({1})) == (2,)


def test_an_edge_matches_each_consumer_dimension_once() -> None:
    with pytest.raises(ValueError, match="two dimensions"):
        Edge(0, 1, (0, 0))


def chain(shapes: list[tuple[int, ...]], forbidden_last: frozenset[int]) -> list[Bindable]:
    return [*[Bindable(s) for s in shapes[:-1]], Bindable(shapes[-1], forbidden_last)]


def test_inference_of_the_paper_stops_after_one_hop() -> None:
    """Six cores: only then can an inferred binding use more cores than the plain one."""
    parts = chain([(4, 3)] * 3, frozenset())
    parts[2] = Bindable((2, 3))
    edges = [Edge(0, 1, (0, 1)), Edge(1, 2, (0, 1))]
    assert (plain((4, 3), 6), plain((2, 3), 6)) == ((4,), (2, 3))
    printed = bind(parts, edges, range(3), 6, propagate_inferred=False, keep_on_tie=False)
    assert printed.bind == ((4,), (2, 3), (2, 3))
    assert printed.inferred == (False, True, False)
    further = bind(parts, edges, range(3), 6, keep_on_tie=False)
    assert further.bind == ((2, 3), (2, 3), (2, 3))
    assert further.inferred == (True, True, False)


def test_a_tie_keeps_the_inferred_binding_unless_as_printed() -> None:
    """The last output may not be cut along the first dimension; the chain follows it."""
    parts = chain([(4, 8)] * 3, frozenset({0}))
    edges = [Edge(0, 1, (0, 1)), Edge(1, 2, (0, 1))]
    printed = bind(parts, edges, range(3), 8, propagate_inferred=False, keep_on_tie=False)
    assert printed.bind == ((4, 2), (4, 2), (1, 8))
    one_hop = bind(parts, edges, range(3), 8, propagate_inferred=False)
    assert one_hop.bind == ((4, 2), (1, 8), (1, 8))
    assert bind(parts, edges, range(3), 8).bind == ((1, 8), (1, 8), (1, 8))


def test_more_cores_beat_an_inferred_binding() -> None:
    edges = [Edge(0, 1, (0,))]
    assert bind([Bindable((8,)), Bindable((2,))], edges, (0, 1), 8).bind == ((8,), (2,))


def test_disagreeing_consumers_put_the_output_into_the_global_buffer() -> None:
    parts = [Bindable((4, 8)), Bindable((4, 8)), Bindable((4, 8), frozenset({0}))]
    edges = [Edge(0, 1, (0, 1)), Edge(0, 2, (0, 1))]
    found = bind(parts, edges, range(3), 8)
    assert found == Bindings(((4, 2), (4, 2), (1, 8)), (GB, LB, LB), (False, False, False))
    home = bind(parts, edges, range(3), 8, shared=BufferScope.HOME)
    assert home.scope == (BufferScope.HOME, LB, LB)
    graph = instances((1, 1, 1), [(0, 1), (0, 2)], 32)
    moves = insert_movements(graph, range(3), parts, edges, found, (None,) * 3)
    assert [(m.kind, m.src, m.dst, m.moved_bytes, m.binding) for m in moves] == [
        (MovementKind.COPY, GB, LB, 32, (4, 2)),
        (MovementKind.COPY, GB, LB, 32, (1, 8)),
    ]


@pytest.mark.parametrize("order", [(1, 0), (0, 0), (0,)])
def test_binding_refuses_orders_that_are_none(order: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="order"):
        bind([Bindable((4,)), Bindable((4,))], [Edge(0, 1, (0,))], order, 8)


def test_binding_refuses_edges_of_another_rank() -> None:
    with pytest.raises(ValueError, match="output has shape"):
        bind([Bindable((4, 4)), Bindable((4,))], [Edge(0, 1, (0,))], (0, 1), 8)


def test_redistribution_meets_at_the_smaller_factors() -> None:
    assert common_binding((2, 4), (4, 2)) == (2, 2)
    assert common_binding((8,), (1, 8)) == ()
    assert common_binding((6,), (4,)) == (2,)  # thirds do not nest in quarters, halves do


def test_figure_8_has_seven_concats() -> None:
    graph = instances((8, 4, 2, 1), FIGURE_8_PAIRS, 64)
    outputs, edges = figure_8(((8, 8, 8, 4), (8, 4, 4, 16), (8, 2, 2, 64), (8, 1, 1, 256)))
    order = (7, 6, 11, 5, 4, 10, 13, 3, 2, 9, 1, 0, 8, 12, 14)
    bound = bind(outputs, edges, order, 8)
    moves = insert_movements(graph, order, outputs, edges, bound, (1, 1, 1, None))
    assert [m.kind for m in moves] == [MovementKind.CONCAT] * 7
    # in depth-first order, each in front of its consumer
    assert [m.consumers for m in moves] == [(11,), (10,), (13,), (9,), (8,), (12,), (14,)]
    assert moves[0].producers == (6, 7)


def test_figure_9_redistributes_between_stages() -> None:
    """Halves of a batch, each spread [2,4], for a consumer of four samples, spread [4,2]."""
    graph = instances((2, 1), [(0, 2), (1, 2)], 64)
    small, large = Bindable((2, 28, 28, 512)), Bindable((4, 28, 28, 512))
    edges = [Edge(0, 2, ALL), Edge(1, 2, ALL)]
    bound = bind([small, small, large], edges, range(3), 8)
    assert bound.bind == ((2, 4), (2, 4), (4, 2))
    moves = insert_movements(graph, range(3), [small, small, large], edges, bound, (0, None))
    assert [(m.kind, m.producers, m.binding, m.moved_bytes) for m in moves] == [
        (MovementKind.REDISTRIBUTE, (0,), (2, 2), 64),
        (MovementKind.REDISTRIBUTE, (1,), (2, 2), 64),
        (MovementKind.CONCAT, (0, 1), (2, 2), 0),  # written in place by the redistribution
    ]


def test_a_piece_in_the_global_buffer_needs_exactly_one_copy() -> None:
    graph = instances((2, 1), [(0, 2), (1, 2)], 64)
    parts = [Bindable((2, 8)), Bindable((2, 8)), Bindable((4, 8), frozenset({0}))]
    edges = [Edge(0, 2, (0, 1)), Edge(1, 2, (0, 1))]
    bound = Bindings(((1, 4), (1, 8), (1, 8)), (GB, LB, LB), (False, True, False))
    moves = insert_movements(graph, range(3), parts, edges, bound, (0, None))
    assert [(m.kind, m.src, m.dst, m.binding, m.moved_bytes) for m in moves] == [
        (MovementKind.COPY, GB, LB, (1, 8), 64),
        (MovementKind.CONCAT, LB, LB, (1, 8), 0),
    ]
    shared = insert_movements(graph, range(3), parts, edges, bound, (0, None), operands=GB)
    assert [(m.kind, m.producers, m.src, m.dst) for m in shared] == [
        (MovementKind.COPY, (1,), LB, GB),
        (MovementKind.CONCAT, (0, 1), GB, GB),
    ]


def test_figure_9_copies_out_of_the_global_buffer() -> None:
    """A piece of two samples cannot be cut for [4,2]: the copy cuts it [2,2]."""
    graph = instances((2, 1), [(0, 2), (1, 2)], 64)
    parts = [Bindable((2, 28, 28, 512))] * 2 + [Bindable((4, 28, 28, 512))]
    bound = Bindings(((2, 2), (2, 4), (4, 2)), (GB, LB, LB), (False,) * 3)
    edges = [Edge(0, 2, ALL), Edge(1, 2, ALL)]
    moves = insert_movements(graph, range(3), parts, edges, bound, (0, None))
    assert [(m.kind, m.src, m.dst, m.binding) for m in moves] == [
        (MovementKind.COPY, GB, LB, (2, 2)),
        (MovementKind.REDISTRIBUTE, LB, LB, (2, 2)),
        (MovementKind.CONCAT, LB, LB, (2, 2)),
    ]


def test_a_slice_that_several_cores_read_is_redistributed() -> None:
    """Both cut the rows in two, but the four cores of a row of the product share one slice."""
    graph = instances((1, 1), [(0, 1)], 64)
    parts = [Bindable((2, 16)), Bindable((2, 8))]
    bound = Bindings(((2,), (2, 4)), (LB, LB), (True, False))
    (move,) = insert_movements(graph, range(2), parts, [Edge(0, 1, (0, None))], bound, (None,) * 2)
    assert (move.kind, move.binding) == (MovementKind.REDISTRIBUTE, (2,))


def test_operands_with_different_matchings_are_joined_apart() -> None:
    """Queries and keys: the same rows, once by slice and once all of them."""
    graph = instances((2, 1), [(0, 2), (1, 2)], 64)
    parts = [Bindable((2, 8)), Bindable((2, 8)), Bindable((4, 8))]
    edges = [Edge(j, 2, dims) for dims in ((0, 1), (None, 1)) for j in (0, 1)]
    bound = Bindings(((1, 8),) * 3, (LB,) * 3, (True, True, False))
    moves = insert_movements(graph, range(3), parts, edges, bound, (0, None))
    assert [m.kind for m in moves] == [MovementKind.CONCAT] * 2
    assert [m.moved_bytes for m in moves] == [0, 0]


@pytest.mark.parametrize(
    ("shape", "cut", "scope", "binding", "reason"),
    [
        ((4, 8, 16), 0, LB, (1, 8), None),
        ((1, 8, 16), 1, LB, (1, 1, 8), None),
        ((4, 8, 16), 1, LB, (4,), None),  # one row per core: contiguous on each
        ((4, 8, 16), 1, LB, (2, 1, 4), CopyReason.STRIDED),
        ((4, 8, 16), 0, LB, (4, 2), CopyReason.CUT_BOUND),
        ((4, 8, 16), 0, GB, (4, 2), None),  # shared memory does not know of cores
        ((4, 8, 16), 1, GB, (4,), CopyReason.STRIDED),
    ],
)
def test_when_a_concat_is_free(
    shape: tuple[int, ...],
    cut: int,
    scope: BufferScope,
    binding: tuple[int, ...],
    reason: CopyReason | None,
) -> None:
    held = Held(scope, binding)
    assert why_copied(shape, cut, held, [held, held]) is reason
    assert is_zero_copy(shape, cut, held, [held, held]) is (reason is None)


def test_pieces_in_another_place_are_copied() -> None:
    whole = Held(LB, (1, 8))
    assert why_copied((4, 8), 0, whole, [whole, Held(GB, (1, 8))]) is CopyReason.SCOPE
    assert why_copied((4, 8), 0, whole, [whole, Held(LB, (1, 4))]) is CopyReason.BINDING


def up_sampling(low: int, high: int, bound: Bindings) -> tuple[Movement, ...]:
    """One output of 4 x 8 elements and 64 bytes; the first consumer reads rows low to high."""
    graph = instances((1, 2), [(0, 1), (0, 2)], 64)
    parts = [Bindable((4, 8))] * 3
    edges = [
        Edge(0, 1, (0, 1), ((low, high), (0, 7))),
        Edge(0, 2, (0, 1), ((2, 3), (0, 7))),
    ]
    return insert_movements(graph, (0, 2, 1), parts, edges, bound, (None, 0))


def test_up_sampling_splits_an_output_among_its_consumers() -> None:
    rows = Bindings(((1, 8),) * 3, (LB,) * 3, (False,) * 3)
    (split,) = up_sampling(0, 1, rows)
    assert (split.kind, split.producers, split.consumers) == (MovementKind.SPLIT, (0,), (2, 1))
    assert (split.payload_bytes, split.moved_bytes, split.reason) == (64, 0, None)
    cut = replace(rows, bind=((4, 2),) * 3)
    (split,) = up_sampling(0, 1, cut)
    assert (split.moved_bytes, split.reason) == (64, CopyReason.CUT_BOUND)
    # a consumer that reads all of it: the other part is a halo
    assert up_sampling(0, 3, rows) == ()
    # a copy out of the global buffer takes only its part along
    kinds = [(m.kind, m.moved_bytes) for m in up_sampling(0, 0, replace(rows, scope=(GB, LB, LB)))]
    assert kinds == [
        (MovementKind.SPLIT, 0),
        (MovementKind.COPY, 32),
        (MovementKind.COPY, 16),
    ]


def test_readers_of_another_group_decide_nothing_about_a_split() -> None:
    graph = instances((1, 2, 1), [(0, 1), (0, 2), (0, 3)], 64)
    rows = Bindings(((1, 8),) * 4, (LB,) * 4, (False,) * 4)
    halves = [Edge(0, k, (0, 1), ((2 * k - 2, 2 * k - 1), (0, 7))) for k in (1, 2)]
    edges = [*halves, Edge(0, 3, (0, 1))]
    parts = [Bindable((4, 8))] * 4
    (split,) = insert_movements(graph, range(4), parts, edges, rows, (None, 0, None))
    assert (split.kind, split.consumers) == (MovementKind.SPLIT, (1, 2))


def test_what_a_split_copies_lands_where_the_concat_wants_it() -> None:
    """Two outputs of six rows for three consumers of four: the second reads two rows of each."""
    pairs = [(0, 2), (0, 3), (1, 3), (1, 4)]
    graph = instances((2, 3), pairs, 60)
    parts = [Bindable((6, 10))] * 2 + [Bindable((4, 10))] * 3
    rows = ((0, 3), (4, 5), (0, 1), (2, 5))
    edges = [Edge(j, i, (0, 1), (r, (0, 9))) for (j, i), r in zip(pairs, rows, strict=True)]
    bound = Bindings(((2,),) * 5, (LB,) * 5, (False,) * 5)
    moves = insert_movements(graph, range(5), parts, edges, bound, (0, 0))
    assert [(m.kind, m.consumers, m.payload_bytes, m.moved_bytes) for m in moves] == [
        (MovementKind.SPLIT, (2, 3), 60, 60),
        (MovementKind.SPLIT, (3, 4), 60, 60),
        (MovementKind.CONCAT, (3,), 40, 0),
    ]


def test_totals_count_and_add_up() -> None:
    """Samples merge stage by stage: [1,8,..] and [2,4,..] differ, [4,2] and [8] as well."""
    graph = instances((8, 4, 2, 1), FIGURE_8_PAIRS, 64)
    outputs, edges = figure_8(((1, 8, 8, 4), (2, 4, 4, 16), (4, 2, 2, 64), (8, 1, 1, 256)))
    bound = bind(outputs, edges, range(15), 8)
    assert bound.bind[:1] + bound.bind[8:9] + bound.bind[12:] == (
        (1, 8), (2, 4), (4, 2), (4, 2), (8,)
    )  # fmt: skip
    sums = totals(insert_movements(graph, range(15), outputs, edges, bound, (0, 0, 0, None)))
    assert sums == (
        MovementTotal(MovementKind.REDISTRIBUTE, LB, LB, 14, 0, 14 * 64, 14 * 64),
        MovementTotal(MovementKind.CONCAT, LB, LB, 7, 7, 14 * 64, 0),
    )


def test_agreeing_consumers_leave_the_output_local() -> None:
    edges = [Edge(0, 1, (0, 1)), Edge(0, 2, (0, 1))]
    found = bind([Bindable((4, 8))] * 3, edges, range(3), 8)
    assert found == Bindings(((4, 2),) * 3, (LB,) * 3, (True, False, False))


@pytest.mark.parametrize(
    ("edges", "cut_dims", "message"),
    [
        ([Edge(0, 2, (0,))], (0, None), "are not the dependences"),
        ([Edge(0, 2, (0,)), Edge(1, 2, (0,)), Edge(1, 2, (0,))], (0, None), "repeats"),
        ([Edge(0, 2, (0,)), Edge(1, 2, (0,))], (None, None), "no cut dimension"),
    ],
)
def test_movement_refuses(
    edges: list[Edge], cut_dims: tuple[int | None, ...], message: str
) -> None:
    graph = instances((2, 1), [(0, 2), (1, 2)], 8)
    parts = [Bindable((4,))] * 3
    bound = Bindings(((4,),) * 3, (LB,) * 3, (False,) * 3)
    with pytest.raises(ValueError, match=message):
        insert_movements(graph, range(3), parts, edges, bound, cut_dims)


def op(
    out: str,
    index: tuple[Affine, ...],
    reads: dict[str, tuple[Affine, ...]],
    **extents: int,
) -> TensorOp:
    """An operator that adds what it reads; an axis that starts with r_ is reduced."""
    domain = tuple(
        Axis(name, extent, AxisKind.REDUCE if name.startswith("r_") else AxisKind.PARALLEL)
        for name, extent in extents.items()
    )
    reduce = Reduce.ADD if any(axis.kind is AxisKind.REDUCE for axis in domain) else None
    body = Read(0) if len(reads) == 1 else Apply(Fn.ADD, (Read(0), Read(1)))
    accesses = tuple(Access(tensor, at, 0) for tensor, at in reads.items())
    return TensorOp(out, domain, accesses, Access(out, index), body, reduce, Origin((out,), "X"))


def shapes(**dims: tuple[int, ...]) -> dict[str, Tensor]:
    return {name: Tensor(name, shape, DType.F32) for name, shape in dims.items()}


Y, X, Z = var("i"), var("j"), var("k")


@pytest.mark.parametrize(("kernel", "stride", "pad"), [(1, 1, 0), (3, 1, 1), (3, 2, 1), (3, 1, 0)])
def test_rows_and_columns_match_through_a_convolution(kernel: int, stride: int, pad: int) -> None:
    graph = conv(2, 3, 5, 14, kernel, stride, pad)
    tensors = dict(graph.tensors)
    ops = tuple(o for o in graph.ops if isinstance(o, TensorOp))
    assert dims_between(ops, "X", "Y", tensors) == (0, None, 2, 3)
    assert dims_between(ops, "W", "Y", tensors) == (1, None, None, None)


def test_a_matmul_matches_rows_and_columns_only() -> None:
    product = op("Y", (Y, X), {"A": (Y, var("r_k")), "B": (var("r_k"), X)}, i=8, j=4, r_k=16)
    tensors = shapes(A=(8, 16), B=(16, 4), Y=(8, 4))
    assert dims_between([product], "A", "Y", tensors) == (0, None)
    assert dims_between([product], "B", "Y", tensors) == (None, 1)


def test_all_paths_must_agree() -> None:
    """scores[i, j] = q[i] + k[j] with q and k from x: the rows of x match through q only."""
    ops = [
        op("q", (Y, X), {"x": (Y, X)}, i=8, j=4),
        op("k", (Y, X), {"x": (Y, X)}, i=8, j=4),
        op("y", (Y, X), {"q": (Y, var("r_k")), "k": (X, var("r_k"))}, i=8, j=8, r_k=4),
    ]
    tensors = shapes(x=(8, 4), q=(8, 4), k=(8, 4), y=(8, 8))
    assert dims_between(ops, "x", "q", tensors) == (0, 1)
    assert dims_between(ops, "x", "y", tensors) == (None, None)
    assert dims_between(ops, "q", "y", tensors) == (0, None)
    assert dims_between(ops, "y", "y", tensors) == (0, 1)
    with pytest.raises(ValueError, match="does not lead"):
        dims_between(ops, "z", "y", tensors)


def test_a_row_maximum_keeps_the_rows() -> None:
    ops = [
        op("m", (Y,), {"x": (Y, var("r_j"))}, i=8, r_j=6),
        op("y", (Y, X), {"x": (Y, X), "m": (Y,)}, i=8, j=6),
    ]
    tensors = shapes(x=(8, 6), m=(8,), y=(8, 6))
    assert dims_between(ops, "x", "y", tensors) == (0, None)


def test_heads_of_a_reshape_match_both_ways() -> None:
    """[rows, heads * 4] to [heads, rows, 4] and back: the outer digit matches."""
    cut = op("h", (X, Y, Z), {"x": (Y, X * 4 + Z)}, i=8, j=6, k=4)
    join = op("y", (Y, X), {"h": (X.floordiv(4), Y, X.mod(4))}, i=8, j=24)
    tensors = shapes(x=(8, 24), h=(6, 8, 4), y=(8, 24))
    assert dims_between([cut], "x", "h", tensors) == (1, 0)
    assert dims_between([join], "h", "y", tensors) == (1, 0, None)
    assert dims_between([cut, join], "x", "y", tensors) == (0, 1)


@pytest.mark.parametrize(
    ("read", "extent", "expected"),
    [
        (Y, 32, 0),
        (Y + 1, 32, 0),  # a shift like a halo's
        (Y + 32, 64, None),  # the second half of a tensor lies on other cores
        (Y, 64, None),
        (const(31) - Y, 32, None),  # runs backwards
        (Y.mod(16), 16, None),
        (Y.floordiv(2), 16, 0),  # nearest-neighbour up-sampling
        (Y * 2, 64, 0),
    ],
)
def test_what_matches_is_cut_alike(read: Affine, extent: int, expected: int | None) -> None:
    only = op("y", (Y,), {"x": (read,)}, i=32)
    assert dims_between([only], "x", "y", shapes(x=(extent,), y=(32,))) == (expected,)


def test_a_piece_of_a_concatenation_does_not_match_along_it() -> None:
    half = op("y", (Y, X + 4), {"x": (Y, X)}, i=8, j=4)
    assert dims_between([half], "x", "y", shapes(x=(8, 4), y=(8, 8))) == (0, None)


def test_no_window_is_wide_enough_to_run_backwards() -> None:
    only = op("y", (Y,), {"x": (const(7) - Y + var("r_k"),)}, i=8, r_k=10)
    assert dims_between([only], "x", "y", shapes(x=(8,), y=(8,))) == (None,)


def test_a_scanned_axis_does_not_match() -> None:
    given = op("y", (Y, X), {"x": (Y, X)}, i=8, j=4)
    scan = replace(given, domain=(Axis("i", 8), Axis("j", 4, AxisKind.SCAN)))
    assert dims_between([scan], "x", "y", shapes(x=(8, 4), y=(8, 4))) == (0, None)


def test_dimensions_of_one_element_match_nothing() -> None:
    join = op("y", (Y * 4 + X,), {"x": (Y, X)}, i=1, j=4)
    assert dims_between([join], "x", "y", shapes(x=(1, 4), y=(4,))) == (None, 0)


def test_a_diagonal_matches_nothing() -> None:
    ops = [op("t", (Y, X), {"x": (Y, X)}, i=8, j=8), op("y", (Y,), {"t": (Y, Y)}, i=8)]
    tensors = shapes(x=(8, 8), t=(8, 8), y=(8,))
    assert dims_between(ops, "x", "y", tensors) == (None, None)
