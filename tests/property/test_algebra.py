"""The operator algebra against brute force and an exact integer-set library."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from algebra_graphs import conv
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY

from worker.compiler.errors import VerifyError
from worker.compiler.ir.affine import Affine, var
from worker.compiler.ir.axis import Axis
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import evaluate, evaluate_points
from worker.compiler.ir.footprint import write_is_injective
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Origin, Reduce, Tensor, TensorOp
from worker.compiler.ir.parse import parse_graph
from worker.compiler.ir.region import is_convex, is_view, predecessors
from worker.compiler.ir.scalar import Apply, Const, Fn, Read
from worker.compiler.ir.signature import canonicalize, rename_affine, signature
from worker.compiler.ir.text import print_graph

NAMES = ("x", "y", "z")


@st.composite
def affines(draw: st.DrawFn, depth: int = 2) -> Affine:
    total = Affine((), draw(st.integers(-7, 7)))
    for _ in range(draw(st.integers(0, 3))):
        coeff = draw(st.integers(-5, 5))
        if depth and draw(st.booleans()):
            inner = draw(affines(depth=depth - 1))
            divisor = draw(st.integers(1, 6))
            part = inner.floordiv(divisor) if draw(st.booleans()) else inner.mod(divisor)
        else:
            part = var(draw(st.sampled_from(NAMES)))
        total = total + part * coeff
    return total


def raw(expr: Affine, point: dict[str, int]) -> int:
    return expr.evaluate(point)


@given(affines(), affines(), st.integers(1, 8), st.tuples(*[st.integers(-9, 9)] * 3))
def test_affine_operations_are_pointwise(
    a: Affine, b: Affine, divisor: int, values: tuple[int, int, int]
) -> None:
    point = dict(zip(NAMES, values, strict=True))
    left, right = raw(a, point), raw(b, point)
    assert raw(a + b, point) == left + right
    assert raw(a - b, point) == left - right
    assert raw(a * -3, point) == -3 * left
    assert raw(a.floordiv(divisor), point) == left // divisor
    assert raw(a.mod(divisor), point) == left % divisor
    assert raw(a.floordiv(divisor) * divisor + a.mod(divisor), point) == left
    assert raw(a.substitute({"x": b}), point) == raw(a, {**point, "x": right})


@given(affines(), st.tuples(*[st.tuples(st.integers(-4, 4), st.integers(0, 4))] * 3))
def test_bounds_and_within_agree_with_enumeration(
    expr: Affine, ranges: tuple[tuple[int, int], ...]
) -> None:
    box = {n: (low, low + more) for n, (low, more) in zip(NAMES, ranges, strict=True)}
    points = [
        dict(zip(NAMES, values, strict=True))
        for values in itertools.product(*(range(lo, hi + 1) for lo, hi in box.values()))
    ]
    values = [raw(expr, p) for p in points]
    low, high, exact = expr.bounds(box)
    assert low <= min(values)
    assert high >= max(values)
    if exact:
        assert (low, high) == (min(values), max(values))
    simpler = expr.within(box)
    assert [raw(simpler, p) for p in points] == values


@given(affines(depth=1), st.integers(1, 6), st.integers(1, 6))
def test_bounds_against_islpy(expr: Affine, width: int, height: int) -> None:
    isl = pytest.importorskip("islpy", reason="islpy is the exact oracle of this test")

    def to_isl(e: Affine) -> str:
        parts = [str(e.const)]
        for atom, coeff in e.terms:
            inner = getattr(atom, "arg", None)
            if inner is None:
                parts.append(f"({coeff}*{atom.name})")  # type: ignore[union-attr]
            elif type(atom).__name__ == "FloorDiv":
                parts.append(f"({coeff}*floor(({to_isl(inner)})/{atom.divisor}))")  # type: ignore[union-attr]
            else:
                parts.append(f"({coeff}*(({to_isl(inner)}) mod {atom.divisor}))")  # type: ignore[union-attr]
        return " + ".join(parts)

    box = {"x": (0, width - 1), "y": (0, height - 1), "z": (2, 2)}
    image = isl.Map(
        f"{{ [x,y,z] -> [{to_isl(expr)}] : 0<=x<{width} and 0<=y<{height} and z=2 }}"
    ).range()
    low, high, exact = expr.bounds(box)
    true_low = int(str(image.dim_min_val(0)))
    true_high = int(str(image.dim_max_val(0)))
    assert low <= true_low <= true_high <= high
    if exact:
        assert (low, high) == (true_low, true_high)


CONVS = st.builds(
    conv, st.integers(1, 2), st.integers(1, 3), st.integers(1, 3), st.integers(3, 6),
    st.integers(1, 3), st.integers(1, 2), st.integers(0, 1),
)  # fmt: skip


@COSTLY
@given(CONVS, st.integers(0, 2**31))
def test_evaluate_is_the_convolution(graph: Graph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    op = graph.op("conv")
    x = rng.integers(-4, 5, graph.tensors["X"].shape).astype(np.float32)
    w = rng.integers(-4, 5, graph.tensors["W"].shape).astype(np.float32)
    got = evaluate(graph, {"X": x, "W": w})["Y"]
    index = op.reads[0].index[2]
    stride, pad = index.coeff("y"), -index.const
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    kernel, out = w.shape[2], got.shape[2]
    want = np.zeros_like(got)
    for i, j in itertools.product(range(out), range(out)):
        patch = padded[:, :, i * stride : i * stride + kernel, j * stride : j * stride + kernel]
        want[:, :, i, j] = np.einsum("nckl,ockl->no", patch, w)
    np.testing.assert_array_equal(got, want)
    points = np.array([[0, 0, 0, 0], [x.shape[0] - 1, w.shape[0] - 1, out - 1, out - 1]])
    where, values = evaluate_points(op, graph.tensors, {"X": x, "W": w}, points)
    np.testing.assert_array_equal(values, want[where])


def test_a_convolution_writes_every_element_once() -> None:
    assert write_is_injective(conv(2, 3, 4, 6, 3, 1, 1).op("conv"))


@given(CONVS)
def test_print_and_parse_are_inverse(graph: Graph) -> None:
    again = parse_graph(print_graph(graph))
    assert print_graph(again) == print_graph(graph)
    assert again.ops == graph.ops
    assert dict(again.tensors) == dict(graph.tensors)


def test_hostile_names_survive_printing() -> None:
    name = 'a"; DROP\n*/ [x] = é\\'
    op = TensorOp(
        name, (Axis("i", 2),), (Access(name + "in", (var("i"),)),), Access(name, (var("i"),)),
        Apply(Fn.MAX, (Read(0), Const(float("-inf"), DType.F32))), None, Origin((name,), "Relu"),
    )  # fmt: skip
    graph = Graph.build(
        (op,),
        (Tensor(name + "in", (2,), DType.F32), Tensor(name, (2,), DType.F32)),
        (name + "in",), (name,),
    )  # fmt: skip
    assert parse_graph(print_graph(graph)).ops == graph.ops


def renamed(graph: Graph, suffix: str) -> Graph:
    def axes(op: TensorOp) -> dict[str, str]:
        return {a.name: a.name + suffix for a in op.domain}

    ops = tuple(
        TensorOp(
            op.name + suffix,
            tuple(Axis(a.name + suffix, a.extent, a.kind) for a in op.domain),
            tuple(
                Access(
                    r.tensor + suffix, tuple(rename_affine(e, axes(op)) for e in r.index), r.fill
                )
                for r in op.reads
            ),
            Access(op.write.tensor + suffix,
                   tuple(rename_affine(e, axes(op)) for e in op.write.index), op.write.fill),
            op.body, op.reduce, Origin(("other" + suffix,), op.origin.op_type),
        )
        for op in graph.ops
        if isinstance(op, TensorOp)
    )  # fmt: skip
    tensors = tuple(Tensor(t.name + suffix, t.shape, t.dtype) for t in graph.tensors.values())
    return Graph.build(
        ops, tensors, tuple(n + suffix for n in graph.inputs),
        tuple(n + suffix for n in graph.outputs), tuple(n + suffix for n in graph.constants),
    )  # fmt: skip


@COSTLY
@given(CONVS, st.sampled_from(["_q", "0", "_with_long_suffix"]))
def test_signature_ignores_names(graph: Graph, suffix: str) -> None:
    assert signature(renamed(graph, suffix)) == signature(graph)
    canonical = canonicalize(graph)
    assert {old for _, old in canonical.tensor_of} == set(graph.tensors)


def test_signature_sees_everything_else() -> None:
    base = (1, 2, 2, 5, 3, 1, 1)
    seen = {signature(conv(*base))}
    for position, other in enumerate((2, 3, 3, 6, 2, 2, 0)):
        changed = list(base)
        changed[position] = other
        seen.add(signature(conv(*changed)))
    assert len(seen) == 8
    graph = conv(*base)
    op = graph.op("conv")
    body = TensorOp(
        op.name,
        op.domain,
        op.reads,
        op.write,
        Apply(Fn.ADD, (Read(0), Read(1))),
        op.reduce,
        op.origin,
    )
    kind = TensorOp(op.name, op.domain, op.reads, op.write, op.body, Reduce.MAX, op.origin)
    for other_op in (body, kind):
        other = Graph.build(
            (other_op,), tuple(graph.tensors.values()), graph.inputs, graph.outputs, graph.constants
        )
        seen.add(signature(other))
    assert len(seen) == 10


@given(st.permutations([2, 3, 4]), st.sampled_from([(24,), (4, 6), (2, 12), (3, 2, 4), (6, 2, 2)]))
def test_reshapes_are_views_and_transposes_are_not(
    source: list[int], target: tuple[int, ...]
) -> None:
    axes = tuple(Axis(f"i{k}", extent) for k, extent in enumerate(target))
    flat = Affine()
    for axis in axes:
        flat = flat * axis.extent + var(axis.name)
    index: list[Affine] = []
    stride = 1
    for extent in reversed(source):
        index.insert(0, flat.floordiv(stride).mod(extent))
        stride *= extent
    tensors = {"X": Tensor("X", tuple(source), DType.F32), "Y": Tensor("Y", target, DType.F32)}
    write = Access("Y", tuple(var(a.name) for a in axes))
    op = TensorOp(
        "r", axes, (Access("X", tuple(index)),), write, Read(0), None, Origin(("r",), "Reshape")
    )
    x = np.arange(24, dtype=np.float32).reshape(source)
    graph = Graph.build((op,), tuple(tensors.values()), ("X",), ("Y",))
    np.testing.assert_array_equal(evaluate(graph, {"X": x})["Y"], x.reshape(target))
    assert is_view(op, tensors)
    flipped = TensorOp(
        "t",
        axes,
        (Access("X", tuple(reversed(index))),),
        write,
        Read(0),
        None,
        Origin(("t",), "Transpose"),
    )
    if len(set(source)) == 3:
        square = {"X": Tensor("X", tuple(reversed(source)), DType.F32), "Y": tensors["Y"]}
        assert not is_view(flipped, square)


def test_convexity_by_bitsets() -> None:
    def unary(name: str, source: str) -> TensorOp:
        return TensorOp(
            name,
            (Axis("i", 1),),
            (Access(source, (var("i"),)),),
            Access(name + "_out", (var("i"),)),
            Read(0),
            None,
            Origin((), "Identity"),
        )

    ops = (unary("a", "in"), unary("b", "a_out"), unary("c", "b_out"))
    direct = predecessors(ops)
    assert is_convex(direct, 0b011)
    assert is_convex(direct, 0b110)
    assert not is_convex(direct, 0b101)  # a -> b -> c leaves and comes back


@pytest.mark.parametrize(
    ("rule", "index", "fill"),
    [("inside", var("i") + 1, None), ("axes", var("nope"), None), ("rank", None, None)],
)
def test_graph_refuses_broken_accesses(rule: str, index: Affine | None, fill: None) -> None:
    read = Access("X", () if index is None else (index,), fill)
    op = TensorOp(
        "op", (Axis("i", 3),), (read,), Access("Y", (var("i"),)), Read(0), None, Origin((), "Relu")
    )
    with pytest.raises(VerifyError) as refusal:
        Graph.build(
            (op,), (Tensor("X", (3,), DType.F32), Tensor("Y", (3,), DType.F32)), ("X",), ("Y",)
        )
    assert refusal.value.rule == rule
