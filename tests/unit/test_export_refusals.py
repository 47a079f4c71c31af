"""Every reason for which a kernel is left out of an export, provoked, and said by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from export_cases import (
    conv_nest,
    derived,
    matmul_nest,
    nest_of,
    one_core,
    refusal_of,
    two_cores,
)
from kernel_toys import conv_graph, elementwise_graph, graph_of, matmul_graph, tiled
from toy_schedules import lane_stack, row_fused, split_with_halo, two_stage_pipe, weight_prefetch

from worker.compiler.errors import CompilerError
from worker.compiler.export.export import WRITERS, Kernel, export_kernels
from worker.compiler.export.nest import LoopNest, Reason, Refusal
from worker.compiler.export.peer import Peer
from worker.compiler.ir.affine import var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Access, Origin, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Fn, Read
from worker.compiler.schedule.nodes import Compute, Move, Place, Schedule, Seq, Span


@pytest.mark.parametrize(
    ("toy", "reason", "said"),
    [
        (row_fused, Reason.FUSED, "2 operators share loops and buffers: mm, relu"),
        (weight_prefetch, Reason.FUSED, "mm0, mm1"),
        (two_stage_pipe, Reason.PIPE, "a pipe runs double, add"),
        (lane_stack, Reason.TILING, "loop lane"),
    ],
)
def test_trees_that_are_no_nest(toy: Callable[[], object], reason: Reason, said: str) -> None:
    schedule, mach, _ = toy()  # type: ignore[misc]  # a Toy
    refusal = refusal_of(schedule, mach)
    assert refusal.reason is reason
    assert said in refusal.message


def test_parts_of_a_kernel_are_told_apart() -> None:
    """Two halves one after the other: the first computes a halo, the second is a nest."""
    schedule, mach, _ = split_with_halo()
    first, second = derived(schedule, mach)
    assert isinstance(first, Refusal)
    assert (first.name, first.reason) == ("k", Reason.TILING)
    assert "double computes points of other tiles again" in first.message
    assert second.name == "k.1"


def test_moves_alone_are_no_operator() -> None:
    graph = matmul_graph(4, 4, 4)
    box = (Span(var("i") * 0, 4), Span(var("i") * 0, 4))
    root = Seq((Place("a", "L1", box, 1, Move("a", "DDR", "L1", box)), tiled(graph, {}).root))
    first, second = derived(Schedule(graph, root, "hand", 0), one_core())
    assert isinstance(first, Refusal)
    assert first.reason is Reason.NO_OPERATOR
    assert isinstance(second, LoopNest)
    assert second.name == "k.1"


def test_operand_without_a_buffer() -> None:
    graph = matmul_graph(4, 4, 4)
    box = tuple(Span(var("i") * 0, 4) for _ in range(3))
    refusal = refusal_of(Schedule(graph, Compute("mm", box, "mme"), "hand", 0), one_core())
    assert refusal.reason is Reason.BUFFERS
    assert "a, b, c has no buffer in L1" in refusal.message


def test_tensor_read_backwards() -> None:
    op = TensorOp(
        "flip", (Axis("i", 4),), (Access("x", (var("i") * -1 + 3,)),), Access("z", (var("i"),)),
        Read(0), None, Origin(("n",), "Flip"),
    )  # fmt: skip
    graph = graph_of(op, (Tensor("x", (4,), DType.F32), Tensor("z", (4,), DType.F32)))
    refusal = refusal_of(Schedule(graph, tiled(graph, {}).root, "hand", 0), one_core())
    assert refusal.reason is Reason.INDEX
    assert "backwards" in refusal.message


def refused(peer: Peer, nest: LoopNest) -> Refusal:
    export = WRITERS[peer]((nest,), two_cores())
    assert not export.files
    assert not export.exported
    (found,) = export.refused
    assert found.name == nest.name
    return found


def ragged() -> LoopNest:
    return nest_of(tiled(matmul_graph(9, 4, 4), {"i": 4}), one_core())


def split_rows() -> LoopNest:
    """Rows over two cores, each with the whole right factor."""
    return nest_of(tiled(matmul_graph(8, 4, 4), {"i": 4}, 2), two_cores())


def pointwise() -> LoopNest:
    body = Apply(Fn.MUL, (Read(0), Read(1)))
    graph = elementwise_graph(body, (DType.F32,) * 2, DType.F32, (8,))
    return nest_of(tiled(graph, {"i0": 4}), one_core())


def odd_depth() -> LoopNest:
    """27 products a sum on 4 rows."""
    return nest_of(tiled(conv_graph(3, 4, 6, 3), {}), one_core())


def refetched() -> LoopNest:
    """The right factor is brought in again for every tile of rows."""
    return nest_of(tiled(matmul_graph(8, 4, 4), {"i": 4}), one_core())


def slow_format() -> LoopNest:
    nest = matmul_nest()
    return replace(nest, rate=nest.rate / 4)


def dilated() -> LoopNest:
    nest = conv_nest()
    left, right, out = nest.operands
    index = tuple(tuple((d, 2 if d > 3 else c) for d, c in terms) for terms in left.index)
    return replace(nest, operands=(replace(left, index=index), right, out))


def three_levels() -> LoopNest:
    """The left factor passes another scratchpad on its way."""
    nest = matmul_nest()
    (held,) = nest.holds_of(0)
    outer = replace(held, memory="GB")
    return replace(nest, holds=(outer, *nest.holds))


def twice() -> LoopNest:
    """The left factor passes the same scratchpad again."""
    nest = matmul_nest()
    return replace(nest, holds=(*nest.holds, nest.holds_of(0)[0]))


def batched() -> LoopNest:
    """Four products side by side, one at a time: every tensor moves with every step."""
    b, i, j, k = (var(name) for name in "bijk")
    op = TensorOp(
        "bmm", (Axis("b", 4), Axis("i", 4), Axis("j", 4), Axis("k", 4, AxisKind.REDUCE)),
        (Access("x", (b, i, k)), Access("y", (b, k, j))), Access("z", (b, i, j)),
        Apply(Fn.MUL, (Read(0), Read(1))), Reduce.ADD, Origin(("n",), "MatMul"),
    )  # fmt: skip
    graph = graph_of(op, tuple(Tensor(name, (4, 4, 4), DType.F32) for name in "xyz"))
    return nest_of(tiled(graph, {"b": 1}), one_core())


def time_around_cores() -> LoopNest:
    """Two products at a time on two cores, then the other two."""
    nest = batched()
    (loop,) = nest.loops
    loops = (replace(loop, trip=2), replace(loop, trip=2, is_spatial=True))
    return replace(nest, loops=loops, holds=tuple(replace(h, depth=2) for h in nest.holds))


def around_cores() -> LoopNest:
    """All cores share the buffer of a factor."""
    nest = time_around_cores()
    shared = replace(nest.holds[0], depth=1, extents=(2, 4, 4))
    return replace(nest, holds=(shared, *nest.holds[1:]))


def mixed_widths() -> LoopNest:
    nest = matmul_nest()
    left = replace(nest.operands[0], dtype=DType.F16)
    return replace(nest, operands=(left, *nest.operands[1:]))


def uneven() -> LoopNest:
    """All the columns of the left factor, where the right factor has four rows at a time."""
    nest = matmul_nest()
    (held,) = nest.holds_of(0)
    wide = replace(held, depth=1, extents=(4, 8))
    return replace(nest, holds=tuple(wide if h is held else h for h in nest.holds))


def same_loop_twice() -> LoopNest:
    """Rows in two loops, both outside of the only scratchpad."""
    nest = matmul_nest()
    rows = nest.loops[0]
    dims = (replace(nest.dims[0], extent=16), *nest.dims[1:])
    holds = tuple(replace(h, depth=h.depth + 1) for h in nest.holds)
    return replace(nest, dims=dims, loops=(rows, *nest.loops), holds=holds)


def cubic() -> LoopNest:
    """An array of rows, columns and sums."""
    nest = matmul_nest()
    engine = replace(nest.engine, array=(2, 2, 4))
    return replace(nest, engine=engine, rate=16.0)


def grouped() -> LoopNest:
    return nest_of(tiled(conv_graph(8, 8, 8, 3, 1, 1, groups=2), {}), one_core())


@pytest.mark.parametrize(
    ("peer", "nest", "reason", "said"),
    [
        (Peer.ZIGZAG, ragged, Reason.RAGGED, "tiles overhang i"),
        (Peer.ZIGZAG, split_rows, Reason.CORES, "a copy of b of their own"),
        (Peer.ZIGZAG, pointwise, Reason.OPERATOR, "no product of two tensors"),
        (Peer.ZIGZAG, odd_depth, Reason.ARRAY, "3x3x3 over 4 units of mme"),
        (Peer.ZIGZAG, refetched, Reason.BUFFERS, "b is brought to L1 again"),
        (Peer.ZIGZAG, slow_format, Reason.ARRAY, "does 4 operations a cycle"),
        (Peer.ACCELFORGE, ragged, Reason.RAGGED, "tiles overhang i"),
        (Peer.ACCELFORGE, odd_depth, Reason.ARRAY, "3x3x3 over 4 units of mme"),
        (Peer.ACCELFORGE, twice, Reason.MEMORIES, "a has two buffers in L1"),
        (Peer.ACCELFORGE, around_cores, Reason.CORES, "outside of a loop over cores"),
        (Peer.TIMELOOP, ragged, Reason.RAGGED, "tiles overhang i"),
        (Peer.TIMELOOP, slow_format, Reason.ARRAY, "does 4 operations a cycle"),
        (Peer.TIMELOOP, refetched, Reason.BUFFERS, "b is brought to L1 again"),
        (Peer.TIMELOOP, twice, Reason.MEMORIES, "two buffers in L1"),
        (Peer.TIMELOOP, mixed_widths, Reason.MEMORIES, "16 and 32 bits"),
        (Peer.TIMELOOP, uneven, Reason.BUFFERS, "holds more of a than its other tiles"),
        (Peer.TIMELOOP, same_loop_twice, Reason.TILING, "loop twice over one dimension"),
        (Peer.TIMELOOP, time_around_cores, Reason.CORES, "lies outside of a loop over cores"),
        (Peer.TIMELOOP, cubic, Reason.ARRAY, "three sides"),
        (Peer.ZIGZAG, twice, Reason.MEMORIES, "a has two buffers in L1"),
        (Peer.ZIGZAG, time_around_cores, Reason.CORES, "or a loop in time"),
        (Peer.NN_DATAFLOW, slow_format, Reason.ARRAY, "does 4 operations a cycle"),
        (Peer.NN_DATAFLOW, cubic, Reason.ARRAY, "no array of rows and columns"),
        (Peer.NN_DATAFLOW, split_rows, Reason.CORES, "as it likes"),
        (Peer.NN_DATAFLOW, dilated, Reason.OPERATOR, "dilation"),
        (Peer.NN_DATAFLOW, grouped, Reason.OPERATOR, "groups"),
        (Peer.NN_DATAFLOW, three_levels, Reason.MEMORIES, "several memories"),
        (Peer.NN_DATAFLOW, matmul_nest, Reason.MEMORIES, "no register level"),
        (Peer.SCALESIM, cubic, Reason.ARRAY, "no array of rows and columns"),
        (Peer.SCALESIM, slow_format, Reason.ARRAY, "does 4 operations a cycle"),
        (Peer.SCALESIM, split_rows, Reason.CORES, "2 cores share the layer"),
        (Peer.SCALESIM, pointwise, Reason.OPERATOR, "no product of two tensors"),
        (Peer.SCALESIM, dilated, Reason.OPERATOR, "dilation"),
        (Peer.SCALESIM, three_levels, Reason.MEMORIES, "GB and L1"),
        (Peer.SCALESIM, grouped, Reason.OPERATOR, "groups"),
    ],
)
def test_nests_that_a_peer_cannot_express(
    peer: Peer, nest: Callable[[], LoopNest], reason: Reason, said: str
) -> None:
    found = refused(peer, nest())
    assert found.reason is reason, found
    assert said in found.message


def test_the_others_are_exported_all_the_same() -> None:
    export = WRITERS[Peer.ZIGZAG]((ragged(), matmul_nest()), one_core())
    assert len(export.exported) == 1
    assert len(export.refused) == 1
    assert [name for name, _ in export.files] == [
        "k/hardware.yaml", "k/mapping.yaml", "k/workload.yaml"
    ]  # fmt: skip


def test_nothing_to_export_is_an_error_with_a_finding_a_kernel() -> None:
    schedule, mach, _ = row_fused()
    kernel = Kernel("k", ("conv1", "relu1"), schedule, "accelerator")
    with pytest.raises(CompilerError) as caught:
        export_kernels((kernel, replace(kernel, name="l")), mach, Peer.ZIGZAG)
    error = caught.value
    assert (error.code, error.stage, error.limit, error.actual) == ("TW-EXPORT-001", "export", 1, 0)
    assert [f.node for f in error.findings] == ["conv1", "conv1"]
    assert error.findings[1].message.startswith("l: fused: ")
