"""Graphs of the operator algebra that several tests use."""

from __future__ import annotations

from worker.compiler.ir.affine import var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Origin, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Fn, Read


def conv(batch: int, cin: int, cout: int, size: int, kernel: int, stride: int, pad: int) -> Graph:
    out = (size + 2 * pad - kernel) // stride + 1
    n, co, y, x, ci, ky, kx = (var(v) for v in ("n", "co", "y", "x", "ci", "ky", "kx"))
    domain = (
        Axis("n", batch), Axis("co", cout), Axis("y", out), Axis("x", out),
        Axis("ci", cin, AxisKind.REDUCE), Axis("ky", kernel, AxisKind.REDUCE),
        Axis("kx", kernel, AxisKind.REDUCE),
    )  # fmt: skip
    image = Access("X", (n, ci, y * stride + ky - pad, x * stride + kx - pad), 0)
    weight = Access("W", (co, ci, ky, kx))
    op = TensorOp(
        "conv", domain, (image, weight), Access("Y", (n, co, y, x)),
        Apply(Fn.MUL, (Read(0), Read(1))), Reduce.ADD, Origin(("c",), "Conv"),
    )  # fmt: skip
    return Graph.build(
        (op,),
        (
            Tensor("X", (batch, cin, size, size), DType.F32),
            Tensor("W", (cout, cin, kernel, kernel), DType.F32),
            Tensor("Y", (batch, cout, out, out), DType.F32),
        ),
        ("X",), ("Y",), ("W",),
    )  # fmt: skip
