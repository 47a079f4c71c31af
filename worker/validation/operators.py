"""Single operators as graphs, weights being inputs like everything else."""

from __future__ import annotations

from math import prod
from typing import assert_never

from worker.compiler.ir.affine import Affine, const, var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Origin, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Fn, Read
from worker.validation.figures import Conv, Copy, Gemm, Operator

_PRODUCT = Apply(Fn.MUL, (Read(0), Read(1)))


def graph_of(work: Operator) -> Graph:
    """The operator as a graph of one.

    Shapes: gemm A [m, k], B [k, n], C [m, n]; convolution x [n, g, c, h, w], w [g, m, c, r, s],
    y [n, g, m, p, q]; copy x [i], y [i].
    """
    match work:
        case Gemm():
            return _gemm(work)
        case Conv():
            return _conv(work)
        case Copy():
            return _copy(work)
        case _:
            assert_never(work)


def operations(work: Operator) -> int:
    """Operations, two for each multiply-accumulate; of a copy none."""
    match work:
        case Gemm(m=m, n=n, k=k):
            return 2 * m * n * k
        case Conv():
            maps = work.batch * work.groups * work.out_channels * out_size(work) ** 2
            return 2 * maps * work.in_channels * work.kernel**2
        case Copy():
            return 0
        case _:
            assert_never(work)


def out_size(work: Conv) -> int:
    """Rows, and columns, of a convolution's result."""
    return (work.size + 2 * work.pad - work.kernel) // work.stride + 1


def _graph(op: TensorOp, tensors: tuple[Tensor, ...]) -> Graph:
    *inputs, result = tensors
    return Graph.build((op,), tensors, tuple(t.name for t in inputs), (result.name,))


def _op(
    kind: str, axes: dict[str, int], reduced: dict[str, int], reads: tuple[Access, ...],
    write: Access, *, is_product: bool,
) -> TensorOp:  # fmt: skip
    domain = (
        *(Axis(name, extent) for name, extent in axes.items()),
        *(Axis(name, extent, AxisKind.REDUCE) for name, extent in reduced.items()),
    )
    body = _PRODUCT if is_product else Read(0)
    reduce = Reduce.ADD if is_product else None
    return TensorOp("op", domain, reads, write, body, reduce, Origin((kind,), kind))


def _gemm(work: Gemm) -> Graph:
    m, n, k = var("m"), var("n"), var("k")
    op = _op(
        "MatMul", {"m": work.m, "n": work.n}, {"k": work.k},
        (Access("a", (m, k)), Access("b", (k, n))), Access("c", (m, n)), is_product=True,
    )  # fmt: skip
    shapes = {"a": (work.m, work.k), "b": (work.k, work.n), "c": (work.m, work.n)}
    return _graph(op, tuple(Tensor(name, shape, work.dtype) for name, shape in shapes.items()))


def _conv(work: Conv) -> Graph:
    n, g, m, c, s = (var(name) for name in "ngmcs")
    out = out_size(work)

    def along(place: str, tap: str) -> Affine:
        return var(place) * work.stride + var(tap) + const(-work.pad)

    x = Access("x", (n, g, c, along("p", "r"), along("q", "s")), 0 if work.pad else None)
    weights = Access("w", (g, m, c, var("r"), s))
    op = _op(
        "Conv",
        {"n": work.batch, "g": work.groups, "m": work.out_channels, "p": out, "q": out},
        {"c": work.in_channels, "r": work.kernel, "s": work.kernel},
        (x, weights), Access("y", (n, g, m, var("p"), var("q"))), is_product=True,
    )  # fmt: skip
    groups, ins, outs = work.groups, work.in_channels, work.out_channels
    shapes = {
        "x": (work.batch, groups, ins, work.size, work.size),
        "w": (groups, outs, ins, work.kernel, work.kernel),
        "y": (work.batch, groups, outs, out, out),
    }
    return _graph(op, tuple(Tensor(name, shape, work.dtype) for name, shape in shapes.items()))


def _copy(work: Copy) -> Graph:
    i = (var("i"),)
    op = _op(
        "Identity", {"i": work.elements}, {}, (Access("x", i),), Access("y", i), is_product=False
    )
    shape = (work.elements,)
    return _graph(op, (Tensor("x", shape, work.dtype), Tensor("y", shape, work.dtype)))


def moved_bytes(graph: Graph) -> int:
    """Bytes of all operands and results, each once."""
    return sum(prod(t.shape) * t.dtype.size_bytes for t in graph.tensors.values())
