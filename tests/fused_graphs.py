"""Composites as graphs: an operator and the pointwise operators behind it, and how to run them."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from naive_schedules import naive_answer

from worker.compiler.errors import Shortfall
from worker.compiler.ir.affine import Affine, var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Origin, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Cast, Const, Fn, Read, Scalar
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.strategies.naive.strategy import NaiveStrategy

ORIGIN = Origin((), "unit")
MUL = Apply(Fn.MUL, (Read(0), Read(1)))
Step: TypeAlias = "tuple[Scalar, tuple[str, ...], DType]"
"""(body, operands, result type): slot 0 is the running result unless an operand is `@k`, the result
of operator k.  `channel` is a vector along dimension 0, `same` a whole tensor, `one` a scalar."""


def conv(channels: int, filters: int, size: int, kernel: int, stride: int = 1) -> TensorOp:
    """A padded convolution r0[f, h, w] of x and w."""
    pad = kernel // 2
    out = (size + 2 * pad - kernel) // stride + 1
    at = var("h") * stride + var("kh") - pad, var("v") * stride + var("kw") - pad
    return TensorOp(
        "op0",
        (Axis("f", filters), Axis("h", out), Axis("v", out),
         Axis("c", channels, AxisKind.REDUCE), Axis("kh", kernel, AxisKind.REDUCE),
         Axis("kw", kernel, AxisKind.REDUCE)),
        (Access("x", (var("c"), *at), 0),
         Access("w", (var("f"), var("c"), var("kh"), var("kw")))),
        Access("r0", (var("f"), var("h"), var("v"))), MUL, Reduce.ADD, ORIGIN,
    )  # fmt: skip


def grouped(groups: int, filters: int, size: int) -> TensorOp:
    """One input channel per group: r0[g * F + f, h] = sum x[g, h + k] w[g * F + f, k]."""
    row = var("g") * filters + var("f")
    return TensorOp(
        "op0",
        (Axis("g", groups), Axis("f", filters), Axis("h", size - 2), Axis("k", 3, AxisKind.REDUCE)),
        (Access("x", (var("g"), var("h") + var("k"))), Access("w", (row, var("k")))),
        Access("r0", (row, var("h"))), MUL, Reduce.ADD, ORIGIN,
    )  # fmt: skip


def matmul(m: int, n: int, k: int) -> TensorOp:
    """r0[m, n] of x and w."""
    return TensorOp(
        "op0", (Axis("m", m), Axis("n", n), Axis("k", k, AxisKind.REDUCE)),
        (Access("x", (var("m"), var("k"))), Access("w", (var("k"), var("n")))),
        Access("r0", (var("m"), var("n"))), MUL, Reduce.ADD, ORIGIN,
    )  # fmt: skip


def reduction(rows: int, cols: int, reduce: Reduce) -> TensorOp:
    """r0[i] over the columns of x."""
    return TensorOp(
        "op0", (Axis("i", rows), Axis("j", cols, AxisKind.REDUCE)),
        (Access("x", (var("i"), var("j"))),), Access("r0", (var("i"),)), Read(0), reduce, ORIGIN,
    )  # fmt: skip


def extents(op: TensorOp) -> dict[str, int]:
    return {a.name: a.extent - 1 for a in op.domain}


def shape_of(op: TensorOp, access: Access) -> tuple[int, ...]:
    """The smallest tensor that holds every index of an access without padding."""
    return tuple(
        1 + max(e.bounds({v: (0, extents(op)[v]) for v in e.variables()})[1], 0)
        for e in access.index
    )


def composite(anchor: TensorOp, given: DType, result: DType, steps: tuple[Step, ...]) -> Graph:
    """`anchor` over inputs of type `given`, then `steps`; names r0, r1, .. and op0, op1, .."""
    shape = shape_of(anchor, anchor.write)
    dims = tuple(f"d{k}" for k in range(len(shape)))
    index = tuple(var(d) for d in dims)
    tensors = {"r0": Tensor("r0", shape, result)}
    for access in anchor.reads:
        size = shape_of(anchor, access)
        if access.fill is not None:  # the padding is on both sides
            size = (size[0], *(s - anchor.axis("kh").extent // 2 for s in size[1:]))
        tensors[access.tensor] = Tensor(access.tensor, size, given)
    ops = [anchor]
    for k, (body, operands, dtype) in enumerate(steps, 1):
        running = operands and operands[0].startswith("@")
        reads = [] if running else [Access(f"r{k - 1}", index)]
        for number, operand in enumerate(operands):
            if operand.startswith("@"):
                reads.append(Access(f"r{operand[1:]}", index))
                continue
            kind, _, of = operand.partition(":")
            name, at = f"{kind}{k}_{number}", _index(kind, index)
            tensors[name] = Tensor(name, _shape(kind, shape), DType(of) if of else result)
            reads.append(Access(name, at))
        tensors[f"r{k}"] = Tensor(f"r{k}", shape, dtype)
        axes = tuple(Axis(d, s) for d, s in zip(dims, shape, strict=True))
        write = Access(f"r{k}", index)
        ops.append(TensorOp(f"op{k}", axes, tuple(reads), write, body, None, ORIGIN))
    made = {op.write.tensor for op in ops}
    return Graph.build(
        tuple(ops), tuple(tensors.values()), tuple(n for n in tensors if n not in made),
        (ops[-1].write.tensor,),
    )  # fmt: skip


def _index(kind: str, index: tuple[Affine, ...]) -> tuple[Affine, ...]:
    return {"channel": index[:1], "same": index, "one": ()}[kind]


def _shape(kind: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    return {"channel": shape[:1], "same": shape, "one": ()}[kind]


def names(graph: Graph) -> tuple[str, ...]:
    return tuple(op.name for op in graph.ops)


def grouped_names(graph: Graph, machine: Machine, *together: str) -> tuple[tuple[str, ...], ...]:
    """Groups for one tuple of operators."""
    grouping = NaiveStrategy().group(graph, machine, together=(together or names(graph),))
    return tuple(group.ops for group in grouping.groups)


def planned(graph: Graph, machine: Machine) -> Schedule | Shortfall:
    """The schedule of a whole graph as one group."""
    return naive_answer(graph, machine)


def relu(dtype: DType) -> Scalar:
    return Apply(Fn.MAX, (Read(0), Const(0.0 if dtype.is_float else 0, dtype)))


ADD: Scalar = Apply(Fn.ADD, (Read(0), Read(1)))


def requantise(scale: float, low: int, high: int) -> Scalar:
    """clip(round(i32 * scale)) as i8: what a fused QuantizeLinear does."""
    scaled = Apply(Fn.MUL, (Cast(DType.F32, Read(0)), Const(scale, DType.F32)))
    rounded = Apply(Fn.ROUND, (scaled,))
    clipped = Apply(
        Fn.MIN,
        (Apply(Fn.MAX, (rounded, Const(float(low), DType.F32))), Const(float(high), DType.F32)),
    )
    return Cast(DType.I8, clipped)


def escaping(graph: Graph, tensor: str) -> Graph:
    """The same graph with one more output."""
    return replace(graph, outputs=(*graph.outputs, tensor))
