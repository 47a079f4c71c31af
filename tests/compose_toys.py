"""Small graphs for the tests of composing: a builder, scalar bodies, and the check of values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from worker.compiler.ir.affine import Affine, var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import (
    Access,
    Origin,
    Reduce,
    Tensor,
    TensorOp,
)
from worker.compiler.ir.scalar import Apply, Const, Fn, Read, Scalar, children
from worker.compiler.machine import load_preset
from worker.compiler.rewrite.compose_region import (
    compose_region,
)

MACHINE = load_preset("stcp920-inferred")
F32, F16 = DType.F32, DType.F16
I1, I2, I3, I4 = var("i"), var("j"), var("k"), var("l")
Index = Sequence[Affine | int]


def fn(which: Fn, *args: Scalar) -> Scalar:
    return Apply(which, args)


def const(value: float) -> Scalar:
    return Const(value, F32)


ADD, MUL = fn(Fn.ADD, Read(0), Read(1)), fn(Fn.MUL, Read(0), Read(1))
PLUS = fn(Fn.ADD, Read(0), const(0.3))
RELU = fn(Fn.MAX, Read(0), const(0.0))
EXP = fn(Fn.EXP, Read(0))


class Toy:
    """A graph under construction; an operator has the name of the tensor it writes first."""

    def __init__(self, dtype: DType = F32) -> None:
        self.dtype = dtype
        self.tensors: dict[str, Tensor] = {}
        self.inputs: list[str] = []
        self.constants: list[str] = []
        self.ops: list[TensorOp] = []

    def given(self, name: str, *shape: int, is_constant: bool = False) -> None:
        self.tensors[name] = Tensor(name, shape, self.dtype)
        (self.constants if is_constant else self.inputs).append(name)

    def op(
        self,
        name: str,
        domain: dict[str, int],
        reads: list[tuple[str, Index] | Access],
        body: Scalar = Read(0),
        *,
        to: tuple[str, tuple[int, ...], Index] | None = None,
        reduce: Reduce | None = None,
        over: str = "",
    ) -> None:
        """Axes in `over` are reduced; `to` is (tensor, shape, index), by default `name`, plain."""
        axes = tuple(
            Axis(a, e, AxisKind.REDUCE if a in over else AxisKind.PARALLEL)
            for a, e in domain.items()
        )
        accesses = tuple(
            r if isinstance(r, Access) else Access(r[0], tuple(Affine.of(e) for e in r[1]))
            for r in reads
        )
        kept = [a for a in axes if a.kind is AxisKind.PARALLEL]
        target, shape, index = to or (
            name, tuple(a.extent for a in kept), [var(a.name) for a in kept]
        )  # fmt: skip
        self.tensors.setdefault(target, Tensor(target, shape, self.dtype))
        write = Access(target, tuple(Affine.of(e) for e in index))
        self.ops.append(
            TensorOp(name, axes, accesses, write, body, reduce, Origin((f"n_{name}",), "Toy"))
        )

    def matmul(self, name: str, left: str, right: str, m: int, n: int, k: int) -> None:
        reads: list[tuple[str, Index] | Access] = [(left, (I1, I3)), (right, (I3, I2))]
        self.op(name, {"i": m, "j": n, "k": k}, reads, MUL, reduce=Reduce.ADD, over="k")

    def graph(self, *outputs: str) -> Graph:
        return Graph.build(
            tuple(self.ops),
            tuple(self.tensors.values()),
            tuple(self.inputs),
            outputs,
            tuple(self.constants),
        )


def composed(graph: Graph) -> Graph:
    """The composed graph, checked to mean the same and to be final."""
    result = compose_region(graph, MACHINE)
    assert result.inputs == graph.inputs
    assert result.outputs == graph.outputs
    assert result.constants == graph.constants
    assert all(graph.tensors.get(n, t) == t for n, t in result.tensors.items())
    assert compose_region(graph, MACHINE).ops == result.ops
    assert compose_region(result, MACHINE).ops == result.ops
    rng = np.random.default_rng(5)
    values = {
        n: np.asarray(rng.standard_normal(graph.tensors[n].shape)).astype(
            graph.tensors[n].dtype.numpy
        )
        for n in (*graph.inputs, *graph.constants)
    }
    before, after = evaluate(graph, values), evaluate(result, values)
    for name in graph.outputs:
        np.testing.assert_array_equal(before[name], after[name])
    return result


def names(graph: Graph) -> list[str]:
    return [op.name for op in graph.ops]


def nodes(body: Scalar, kind: type) -> int:
    return isinstance(body, kind) + sum(nodes(c, kind) for c in children(body))


def index_of(op: TensorOp, slot: int) -> tuple[str, ...]:
    return tuple(str(e) for e in op.reads[slot].index)
