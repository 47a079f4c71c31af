"""naive on random small operators and machines: verify passes, interpret equals evaluate."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st
from naive_schedules import naive_schedule

from worker.compiler.ir.affine import Affine, Lookup, var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Origin, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Cast, Const, Fn, Read
from worker.compiler.machine.machine import (
    AcceleratorTarget,
    Capabilities,
    Engine,
    EngineKind,
    Host,
    Machine,
    Managed,
    MemoryLevel,
)
from worker.compiler.schedule.interpret import interpret
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.text import parse_schedule, print_schedule
from worker.compiler.schedule.verify import verify

ORIGIN = Origin((), "unit")
SIZES = st.integers(1, 9)


def single(op: TensorOp, tensors: tuple[Tensor, ...], constants: tuple[str, ...] = ()) -> Graph:
    """One operator as a graph."""
    inputs = tuple(n for n in op.input_names() if n not in constants)
    return Graph.build((op,), tensors, inputs, (op.write.tensor,), constants)


def par(name: str, extent: int) -> Axis:
    return Axis(name, extent)


def red(name: str, extent: int) -> Axis:
    return Axis(name, extent, AxisKind.REDUCE)


MUL = Apply(Fn.MUL, (Read(0), Read(1)))


@st.composite
def matmuls(draw: st.DrawFn) -> Graph:
    m, n, k = (draw(st.integers(1, 20)) for _ in range(3))
    dtype = draw(st.sampled_from([DType.F32, DType.F16, DType.BF16, DType.I8]))
    result = DType.I32 if dtype is DType.I8 else dtype
    op = TensorOp(
        "op", (par("m", m), par("n", n), red("k", k)),
        (Access("a", (var("m"), var("k"))), Access("b", (var("k"), var("n")))),
        Access("c", (var("m"), var("n"))), MUL, Reduce.ADD, ORIGIN,
    )  # fmt: skip
    return single(
        op, (Tensor("a", (m, k), dtype), Tensor("b", (k, n), dtype), Tensor("c", (m, n), result)),
        ("b",),
    )  # fmt: skip


@st.composite
def convolutions(draw: st.DrawFn) -> Graph:
    groups, co, ci = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    kernel, stride, pad, dilation = (
        draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(0, 2)),
        draw(st.integers(1, 2)),
    )  # fmt: skip
    height = draw(st.integers(kernel * dilation, 12))
    out = (height + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
    at = var("o") * stride + var("k") * dilation - pad
    at_w = var("p") * stride + var("l") * dilation - pad
    op = TensorOp(
        "op",
        (par("g", groups), par("co", co), par("o", out), par("p", out), red("ci", ci),
         red("k", kernel), red("l", kernel)),
        (Access("x", (var("g") * ci + var("ci"), at, at_w), 0 if pad else None),
         Access("w", (var("g") * co + var("co"), var("ci"), var("k"), var("l")))),
        Access("y", (var("g") * co + var("co"), var("o"), var("p"))), MUL, Reduce.ADD, ORIGIN,
    )  # fmt: skip
    return single(
        op,
        (Tensor("x", (groups * ci, height, height), DType.F32),
         Tensor("w", (groups * co, ci, kernel, kernel), DType.F32),
         Tensor("y", (groups * co, out, out), DType.F32)),
        ("w",),
    )  # fmt: skip


@st.composite
def elementwise(draw: st.DrawFn) -> Graph:
    shape = tuple(draw(st.lists(SIZES, min_size=0, max_size=4)))
    names = [f"i{k}" for k in range(len(shape))]
    index = tuple(var(n) for n in names)
    bias = index[1:2]
    op = TensorOp(
        "op", tuple(par(n, e) for n, e in zip(names, shape, strict=True)),
        (Access("a", index), Access("b", bias)), Access("c", index),
        Apply(Fn.ADD, (Read(0), Read(1))), None, ORIGIN,
    )  # fmt: skip
    return single(
        op, (Tensor("a", shape, DType.F32), Tensor("b", shape[1:2], DType.F32),
             Tensor("c", shape, DType.F32)),
    )  # fmt: skip


@st.composite
def reductions(draw: st.DrawFn) -> Graph:
    rows, cols = draw(st.integers(1, 12)), draw(st.integers(1, 30))
    reduce = draw(st.sampled_from(list(Reduce)))
    op = TensorOp(
        "op", (par("i", rows), red("j", cols)), (Access("a", (var("i"), var("j"))),),
        Access("c", (var("i"),)), Read(0), reduce, ORIGIN,
    )  # fmt: skip
    return single(op, (Tensor("a", (rows, cols), DType.I32), Tensor("c", (rows,), DType.I32)))


@st.composite
def layouts(draw: st.DrawFn) -> Graph:
    """Transpose, reshape by // and %, padding, reversal, strided slice, concat, strided write."""
    a, b, c = (draw(st.integers(1, 8)) for _ in range(3))
    i, j, k = var("i"), var("j"), var("k")
    flat = i * (b * c) + j * c + k
    kind = draw(st.integers(0, 6))
    source: tuple[int, ...] = (a, b, c)
    target: tuple[int, ...] = (a, b, c)
    read: tuple[Affine, ...] = (i, j, k)
    write: tuple[Affine, ...] = (i, j, k)
    fill: float | None = None
    match kind:
        case 0:
            source, read = (c, a, b), (k, i, j)
        case 1:
            source, read = (b, c, a), (flat.floordiv(c * a), flat.floordiv(a).mod(c), flat.mod(a))
        case 2:
            source, read, fill = (a, b + 2, c), (i + 1, j - 2, k), 3.0
        case 3:
            read = (i * -1 + (a - 1), j, k * -1 + (c - 1))
        case 4:
            source, read = (a, 2 * b + 1, c), (i, j * 2 + 1, k)
        case 5:
            target, write = (a + 3, b, c + 2), (i + 1, j, k + 2)
        case _:
            target, write = (a, 2 * b, c), (i, j * 2, k)
    op = TensorOp(
        "op", (par("i", a), par("j", b), par("k", c)), (Access("x", read, fill),),
        Access("y", write), Read(0), None, ORIGIN,
    )  # fmt: skip
    return single(op, (Tensor("x", source, DType.F32), Tensor("y", target, DType.F32)))


@st.composite
def several_reads(draw: st.DrawFn) -> Graph:
    """Two slots of one tensor: neighbours (one Place) or a transpose (both from home)."""
    n = draw(st.integers(2, 10))
    i, j = var("i"), var("j")
    other = (j, i) if draw(st.booleans()) else (i + 1, j)
    fill = 0 if other == (i + 1, j) else None
    op = TensorOp(
        "op", (par("i", n), par("j", n)), (Access("x", (i, j)), Access("x", other, fill)),
        Access("y", (i, j)), Apply(Fn.SUB, (Read(0), Read(1))), None, ORIGIN,
    )  # fmt: skip
    return single(op, (Tensor("x", (n, n), DType.F32), Tensor("y", (n, n), DType.F32)))


@st.composite
def gathers(draw: st.DrawFn) -> Graph:
    rows, width, picks = (draw(st.integers(1, 9)) for _ in range(3))
    at = Affine(((Lookup(0), 1),), 0)
    op = TensorOp(
        "op", (par("i", picks), par("j", width)),
        (Access("at", (var("i"),)), Access("x", (at, var("j")))), Access("y", (var("i"), var("j"))),
        Apply(Fn.ADD, (Read(1), Cast(DType.F32, Const(1, DType.I32)))), None, ORIGIN,
    )  # fmt: skip
    return single(
        op, (Tensor("at", (picks,), DType.I64), Tensor("x", (rows, width), DType.F32),
             Tensor("y", (picks, width), DType.F32)),
    )  # fmt: skip


GRAPHS = st.one_of(
    matmuls(), convolutions(), elementwise(), reductions(), layouts(), several_reads(), gathers()
)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Up to 8 cores in clusters, one or two scratchpads, private or shared."""
    clusters, per_cluster = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2]))
    cores = clusters * per_cluster
    align = draw(st.sampled_from([1, 4, 16]))

    def level(name: str, capacity: int, instances: int) -> MemoryLevel:
        return MemoryLevel(
            name, capacity, instances, 16.0, 16.0, 5, 1.0, 1.0, Managed.SCRATCHPAD, align
        )

    inner = draw(st.sampled_from([cores, clusters]))
    pads = [level("L1", draw(st.integers(600, 6000)), inner)]
    if draw(st.booleans()):
        pads.insert(0, level("LLB", draw(st.integers(1200, 12000)), clusters))
    rates = dict.fromkeys(DType, 8.0)
    engines = (
        Engine("mme", EngineKind.MATRIX, "L1", rates, draw(st.sampled_from([(), (4, 4)]))),
        Engine("vec", EngineKind.VECTOR, "L1", rates, special_ops_per_cycle=2.0),
        Engine("in", EngineKind.DMA_IN, "L1", {}), Engine("out", EngineKind.DMA_OUT, "L1", {}),
    )  # fmt: skip
    return Machine(
        "random", 1e9, cores, clusters, (level("DDR", 1 << 30, 1), *pads), engines, (),
        Host("host", 1e9, 1e9, 1e9, 1e-6, 1e-5),
        (AcceleratorTarget("accelerator", Capabilities((), tuple(DType), 8)),),
        10,
    )  # fmt: skip


def scheduled(graph: Graph, machine: Machine) -> Schedule:
    return naive_schedule(graph, machine)


def small_inputs(graph: Graph, seed: int) -> dict[str, npt.NDArray[Any]]:
    """Small integers in storage types, so that sums are exact in any order."""
    random = np.random.default_rng(seed)
    found = {}
    for name in (*graph.inputs, *graph.constants):
        tensor = graph.tensors[name]
        values = random.integers(-3, 4, tensor.shape)
        if tensor.dtype is DType.I64:
            values = random.integers(0, 1, tensor.shape)
        if tensor.dtype is DType.BF16:
            values = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        found[name] = values.astype(tensor.dtype.numpy)
    return found


@given(GRAPHS, machines(), st.integers(0, 1000))
def test_naive_is_legal_and_means_the_graph(graph: Graph, machine: Machine, seed: int) -> None:
    schedule = scheduled(graph, machine)
    verify(schedule, machine)
    inputs = small_inputs(schedule.graph, seed)
    got = interpret(schedule, inputs, home="DDR")
    want = evaluate(schedule.graph, inputs)
    for name in schedule.graph.outputs:
        np.testing.assert_array_equal(got[name], want[name])


@given(GRAPHS, machines())
def test_text_round_trips(graph: Graph, machine: Machine) -> None:
    schedule = scheduled(graph, machine)
    text = print_schedule(schedule)
    assert parse_schedule(text) == schedule
    assert print_schedule(parse_schedule(text)) == text
