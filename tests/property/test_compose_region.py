"""Composing a region keeps every value, on random graphs of moves, arithmetic and sums.

Oracle: `ir.evaluate` of the graph as drawn.  Bits are compared: composing keeps the domain of every
sum, so the oracle adds in one order before and after, and halves round between the same steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from worker.compiler.cost.compute import contraction
from worker.compiler.ir.affine import Affine, var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.compose_moves import num_divisions, split_axes
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Origin, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Const, Fn, Read, Scalar
from worker.compiler.machine import load_preset
from worker.compiler.rewrite.compose_region import MAX_TENSORS, compose_region
from worker.compiler.tiling.nest.facts import facts_of

MACHINE = load_preset("stcp920-inferred")
SHAPES = ((4, 6), (2, 3, 4), (24,), (6, 4), (3, 8), (2, 2, 6))


@dataclass(slots=True)
class Sketch:
    """A graph under construction."""

    dtype: DType
    ops: list[TensorOp] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def tensor(self, name: str, shape: tuple[int, ...]) -> str:
        self.tensors[name] = Tensor(name, shape, self.dtype)
        return name

    def op(
        self,
        out: str,
        shape: tuple[int, ...],
        reads: list[Access],
        body: Scalar = Read(0),
        *,
        sums: tuple[int, ...] = (),
        how: Reduce | None = None,
        offset: int = 0,
    ) -> None:
        """Axes i0.. over `shape`, then r0.. over `sums`; writes [i0 + offset, i1, ..]."""
        axes = tuple(Axis(f"i{k}", e) for k, e in enumerate(shape))
        axes += tuple(Axis(f"r{k}", e, AxisKind.REDUCE) for k, e in enumerate(sums))
        write = [var(f"i{k}") for k in range(len(shape))]
        if offset:
            write[0] = write[0] + offset
        name = f"op{len(self.ops)}"
        self.ops.append(
            TensorOp(
                name, axes, tuple(reads), Access(out, tuple(write)), body, how,
                Origin((f"node{len(self.ops)}",), "Toy"),
            )
        )  # fmt: skip


def plain(rank: int) -> list[Affine]:
    return [var(f"i{k}") for k in range(rank)]


def unravelled(
    flat: Affine, shape: tuple[int, ...], box: dict[str, tuple[int, int]]
) -> list[Affine]:
    index = []
    for k in range(len(shape)):
        inner = prod(shape[k + 1 :])
        expr = flat.floordiv(inner)
        index.append((expr if k == 0 else expr.mod(shape[k])).within(box))
    return index


@st.composite
def sketches(draw: st.DrawFn) -> Graph:
    """Up to ten steps, each from earlier tensors; random tensors leave the graph."""
    sketch = Sketch(draw(st.sampled_from((DType.F32, DType.F16))))
    for k, shape in enumerate(((4, 6), (2, 3, 4), (4, 6))):
        sketch.tensor(f"in{k}", shape)
    steps = (_reshape, _transpose, _slice, _expand, _unary, _unary, _binary, _concat, _sum, _matmul)
    for k in range(draw(st.integers(2, 10))):
        names = list(sketch.tensors)
        # mostly the newest tensor, so that chains grow
        source = names[-1] if draw(st.booleans()) else draw(st.sampled_from(names))
        draw(st.sampled_from(steps))(draw, sketch, source, f"t{k}")
    made = [n for n in sketch.tensors if not n.startswith("in")]
    read = {a.tensor for op in sketch.ops for a in op.reads}
    outputs = [n for n in made if n not in read or draw(st.integers(0, 9)) == 0]
    return Graph.build(
        tuple(sketch.ops), tuple(sketch.tensors.values()), ("in0", "in1", "in2"), tuple(outputs)
    )


def _reshape(draw: st.DrawFn, sketch: Sketch, source: str, out: str) -> None:
    old = sketch.tensors[source].shape
    choices = [s for s in SHAPES if prod(s) == prod(old)] or [(prod(old),)]
    shape = draw(st.sampled_from(choices))
    box = {f"i{k}": (0, e - 1) for k, e in enumerate(shape)}
    flat = Affine()
    for k, extent in enumerate(shape):
        flat = flat * extent + var(f"i{k}")
    index = tuple(unravelled(flat, old, box))
    sketch.op(sketch.tensor(out, shape), shape, [Access(source, index)])


def _transpose(draw: st.DrawFn, sketch: Sketch, source: str, out: str) -> None:
    old = sketch.tensors[source].shape
    order = draw(st.permutations(range(len(old))))
    index: list[Affine] = [Affine()] * len(old)
    for k, dim in enumerate(order):
        index[dim] = var(f"i{k}")
    shape = tuple(old[dim] for dim in order)
    sketch.op(sketch.tensor(out, shape), shape, [Access(source, tuple(index))])


def _slice(draw: st.DrawFn, sketch: Sketch, source: str, out: str) -> None:
    old = sketch.tensors[source].shape
    cut = draw(st.integers(0, (old[0] - 1) // 2))
    index = plain(len(old))
    index[0] = index[0] + cut
    shape = (old[0] - cut, *old[1:])
    sketch.op(sketch.tensor(out, shape), shape, [Access(source, tuple(index))])


def _expand(draw: st.DrawFn, sketch: Sketch, source: str, out: str) -> None:
    old = sketch.tensors[source].shape
    if prod(old) > 48 or len(old) > 3:
        return _transpose(draw, sketch, source, out)
    index = tuple(var(f"i{k + 1}") for k in range(len(old)))
    shape = (2, *old)
    return sketch.op(sketch.tensor(out, shape), shape, [Access(source, index)])


def _unary(draw: st.DrawFn, sketch: Sketch, source: str, out: str) -> None:
    old = sketch.tensors[source].shape
    body = draw(
        st.sampled_from(
            (
                Apply(Fn.NEG, (Read(0),)),
                Apply(Fn.MAX, (Read(0), Const(0.0, DType.F32))),
                Apply(Fn.ADD, (Read(0), Const(0.3, DType.F32))),
                Apply(Fn.SIGMOID, (Read(0),)),
                Apply(Fn.MUL, (Read(0), Read(0))),
            )
        )
    )
    sketch.op(sketch.tensor(out, old), old, [Access(source, tuple(plain(len(old))))], body)


def _same_shape(draw: st.DrawFn, sketch: Sketch, source: str) -> str:
    shape = sketch.tensors[source].shape
    return draw(st.sampled_from([n for n, t in sketch.tensors.items() if t.shape == shape]))


def _binary(draw: st.DrawFn, sketch: Sketch, source: str, out: str) -> None:
    shape = sketch.tensors[source].shape
    index = tuple(plain(len(shape)))
    reads = [Access(source, index), Access(_same_shape(draw, sketch, source), index)]
    which = draw(st.sampled_from((Fn.ADD, Fn.MUL, Fn.MAX)))
    slots = (Read(0), Read(0 if reads[0] == reads[1] else 1))
    sketch.op(sketch.tensor(out, shape), shape, reads[: 1 + (slots[1].slot)], Apply(which, slots))


def _concat(draw: st.DrawFn, sketch: Sketch, source: str, out: str) -> None:
    other = _same_shape(draw, sketch, source)
    shape = sketch.tensors[source].shape
    if prod(shape) > 48:
        return _unary(draw, sketch, source, out)
    index = tuple(plain(len(shape)))
    sketch.tensor(out, (2 * shape[0], *shape[1:]))
    sketch.op(out, shape, [Access(source, index)])
    return sketch.op(out, shape, [Access(other, index)], offset=shape[0])


def _sum(draw: st.DrawFn, sketch: Sketch, source: str, out: str) -> None:
    old = sketch.tensors[source].shape
    if len(old) < 2:
        return _unary(draw, sketch, source, out)
    index = (*plain(len(old) - 1), var("r0"))
    how = draw(st.sampled_from((Reduce.ADD, Reduce.MAX)))
    shape = old[:-1]
    sketch.op(sketch.tensor(out, shape), shape, [Access(source, index)], sums=(old[-1],), how=how)
    return None


def _matmul(draw: st.DrawFn, sketch: Sketch, source: str, out: str) -> None:
    """x x^T over the last axis of a matrix; of others, a unary step."""
    old = sketch.tensors[source].shape
    if len(old) != 2:
        return _unary(draw, sketch, source, out)
    other = _same_shape(draw, sketch, source)
    reads = [Access(source, (var("i0"), var("r0"))), Access(other, (var("i1"), var("r0")))]
    shape = (old[0], old[0])
    sketch.op(
        sketch.tensor(out, shape), shape, reads, Apply(Fn.MUL, (Read(0), Read(1))),
        sums=(old[1],), how=Reduce.ADD,
    )  # fmt: skip
    return None


@given(graph=sketches(), seed=st.integers(0, 3))
def test_every_output_keeps_its_bits(graph: Graph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = {
        n: rng.integers(-3, 4, graph.tensors[n].shape).astype(graph.tensors[n].dtype.numpy)
        for n in graph.inputs
    }
    result = compose_region(graph, MACHINE)
    before, after = evaluate(graph, values), evaluate(result, values)
    for name in graph.outputs:
        np.testing.assert_array_equal(before[name], after[name])


@given(graph=sketches())
def test_the_result_is_final_and_no_harder(graph: Graph) -> None:
    result = compose_region(graph, MACHINE)
    assert (result.inputs, result.outputs) == (graph.inputs, graph.outputs)
    assert all(graph.tensors[name] == tensor for name, tensor in result.tensors.items())
    assert compose_region(graph, MACHINE) == result
    assert compose_region(result, MACHINE) == result
    nodes = [n for op in graph.ops for n in op.origin.nodes]
    assert {n for op in result.ops for n in op.origin.nodes} <= set(nodes)
    for op in result.ops:
        old = graph.op(op.name)
        assert num_divisions(op) <= num_divisions(old)
        assert (contraction(op) is None) == (contraction(old) is None)
        assert list(op.origin.nodes) == sorted(op.origin.nodes, key=nodes.index)
        if facts_of(old, graph.tensors).out is not None:
            assert facts_of(op, graph.tensors).out is not None
        if op.body != old.body:
            assert len(op.input_names()) <= MAX_TENSORS


@given(graph=sketches())
def test_splitting_axes_keeps_values(graph: Graph) -> None:
    rng = np.random.default_rng(1)
    values = {
        n: rng.integers(-3, 4, graph.tensors[n].shape).astype(graph.tensors[n].dtype.numpy)
        for n in graph.inputs
    }
    ops = tuple(split_axes(op) if isinstance(op, TensorOp) else op for op in graph.ops)
    split = Graph.build(ops, tuple(graph.tensors.values()), graph.inputs, graph.outputs)
    before, after = evaluate(graph, values), evaluate(split, values)
    for name in graph.outputs:
        np.testing.assert_array_equal(before[name], after[name])
