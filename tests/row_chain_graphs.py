"""Hand-built chains of row-wise operators, and how to run them as one schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.errors import Shortfall
from worker.compiler.ir.affine import Affine, Lookup, var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Origin, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Const, Fn, Read, Scalar
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Box, Move, Place, Schedule, Seq, Span
from worker.compiler.tiling.chain.emit import emit_chain
from worker.compiler.tiling.chain.plan import ChainPlan
from worker.compiler.tiling.chain.plan_chain import plan_chain

ORIGIN = Origin((), "unit")
Inputs: TypeAlias = "dict[str, npt.NDArray[Any]]"
Index: TypeAlias = "str | Affine | int"
Axes: TypeAlias = "Sequence[tuple[str, int] | tuple[str, int, str]]"


def fn(name: Fn, *args: Scalar | float) -> Scalar:
    """A function of reads and f32 constants."""
    return Apply(name, tuple(Const(a, DType.F32) if isinstance(a, float) else a for a in args))


def op(
    name: str,
    axes: Axes,
    reads: Sequence[tuple[str, Sequence[Index]] | tuple[str, Sequence[Index], float]],
    write: tuple[str, Sequence[Index]],
    body: Scalar,
    reduce: Reduce | None = None,
) -> TensorOp:
    """An operator; axes (name, extent) or (name, extent, "r"), reads (tensor, index[, fill])."""
    domain = tuple(
        Axis(a[0], a[1], AxisKind.REDUCE if len(a) > 2 else AxisKind.PARALLEL) for a in axes
    )
    slots = tuple(
        Access(r[0], tuple(Affine.of(i) for i in r[1]), r[2] if len(r) > 2 else None) for r in reads
    )
    target = Access(write[0], tuple(Affine.of(i) for i in write[1]))
    return TensorOp(name, domain, slots, target, body, reduce, ORIGIN)


def build(
    ops: Sequence[TensorOp],
    shapes: Mapping[str, tuple[int, ...]],
    outputs: tuple[str, ...],
    dtype: DType = DType.F32,
) -> Graph:
    """A graph of tensors of one type; what nothing writes is an input."""
    made = {o.write.tensor for o in ops}
    tensors = tuple(Tensor(n, s, dtype) for n, s in shapes.items())
    return Graph.build(tuple(ops), tensors, tuple(n for n in shapes if n not in made), outputs)


def softmax(heads: int, rows: int, cols: int, dtype: DType = DType.F32) -> Graph:
    """y = exp(x - max x) / sum, along the last dimension."""
    whole = [("h", heads), ("q", rows), ("k", cols)]
    over: Axes = [("h", heads), ("q", rows), ("k", cols, "r")]
    at, row = ("h", "q", "k"), ("h", "q")
    return build(
        (
            op("max", over, [("x", at)], ("m", row), Read(0), Reduce.MAX),
            op("exp", whole, [("x", at), ("m", row)], ("e", at),
               fn(Fn.EXP, fn(Fn.SUB, Read(0), Read(1)))),
            op("sum", over, [("e", at)], ("s", row), Read(0), Reduce.ADD),
            op("div", whole, [("e", at), ("s", row)], ("y", at), fn(Fn.DIV, Read(0), Read(1))),
        ),
        {"x": (heads, rows, cols), "m": (heads, rows), "e": (heads, rows, cols),
         "s": (heads, rows), "y": (heads, rows, cols)},
        ("y",), dtype,
    )  # fmt: skip


def layer_norm(rows: int, cols: int, dtype: DType = DType.F32) -> Graph:
    """r = x + skip; y = (r - mean) / sqrt(var) * scale + bias; r leaves as well."""
    whole = [("i", rows), ("j", cols)]
    over: Axes = [("i", rows), ("j", cols, "r")]
    at, row = ("i", "j"), ("i",)
    part = 1.0 / cols
    gap = fn(Fn.SUB, Read(0), Read(1))
    return build(
        (
            op("add", whole, [("x", at), ("skip", at)], ("r", at), fn(Fn.ADD, Read(0), Read(1))),
            op("mean", over, [("r", at)], ("u", row), fn(Fn.MUL, Read(0), part), Reduce.ADD),
            op("var", over, [("r", at), ("u", row)], ("v", row),
               fn(Fn.MUL, fn(Fn.MUL, gap, gap), part), Reduce.ADD),
            op("norm", whole, [("r", at), ("u", row), ("v", row)], ("n", at),
               fn(Fn.MUL, gap, fn(Fn.RSQRT, fn(Fn.ADD, Read(2), 0.5)))),
            op("affine", whole, [("n", at), ("scale", ("j",)), ("bias", ("j",))], ("y", at),
               fn(Fn.ADD, fn(Fn.MUL, Read(0), Read(1)), Read(2))),
        ),
        {"x": (rows, cols), "skip": (rows, cols), "scale": (cols,), "bias": (cols,),
         "r": (rows, cols), "u": (rows,), "v": (rows,), "n": (rows, cols), "y": (rows, cols)},
        ("r", "y"), dtype,
    )  # fmt: skip


def pooled(channels: int, size: int, dtype: DType = DType.F32) -> Graph:
    """y = max(0, 3 x 3 maximum of stride 2 with padding 1)."""
    out = (size + 2 - 3) // 2 + 1
    window = (var("c"), var("h") * 2 + var("kh") - 1, var("w") * 2 + var("kw") - 1)
    at = ("c", "h", "w")
    axes = [("c", channels), ("h", out), ("w", out)]
    return build(
        (
            op("pool", [*axes, ("kh", 3, "r"), ("kw", 3, "r")], [("x", window, float("-inf"))],
               ("p", at), Read(0), Reduce.MAX),
            op("relu", axes, [("p", at)], ("y", at), fn(Fn.MAX, Read(0), 0.0)),
        ),
        {"x": (channels, size, size), "p": (channels, out, out), "y": (channels, out, out)},
        ("y",), dtype,
    )  # fmt: skip


def smoothed(rows: int, cols: int) -> Graph:
    """t = x + x; y[i] = t[i] + t[i + 1] + t[i + 2]: rows of t are needed by several tiles."""
    return build(
        (
            op("double", [("i", rows + 2), ("j", cols)], [("x", ("i", "j"))], ("t", ("i", "j")),
               fn(Fn.ADD, Read(0), Read(0))),
            op("blur", [("i", rows), ("j", cols), ("k", 3, "r")],
               [("t", (var("i") + var("k"), "j"))], ("y", ("i", "j")), Read(0), Reduce.ADD),
        ),
        {"x": (rows + 2, cols), "t": (rows + 2, cols), "y": (rows, cols)},
        ("y",),
    )  # fmt: skip


def transposed(rows: int, heads: int, width: int) -> Graph:
    """[s, h * d] -> [h, s, d], doubled before and halved after."""
    size = heads * width
    merged = var("h") * width + var("d")
    axes = [("h", heads), ("s", rows), ("d", width)]
    return build(
        (
            op("double", [("s", rows), ("f", size)], [("x", ("s", "f"))], ("a", ("s", "f")),
               fn(Fn.ADD, Read(0), Read(0))),
            op("turn", axes, [("a", ("s", merged))], ("b", ("h", "s", "d")), Read(0)),
            op("halve", axes, [("b", ("h", "s", "d"))], ("y", ("h", "s", "d")),
               fn(Fn.MUL, Read(0), 0.5)),
        ),
        {"x": (rows, size), "a": (rows, size), "b": (heads, rows, width),
         "y": (heads, rows, width)},
        ("y",),
    )  # fmt: skip


def group_norm(batch: int, groups: int, width: int, size: int) -> Graph:
    """y = x - mean over each group of channels; statistics by channel // width."""
    channels = groups * width
    inside = (var("n"), var("g") * width + var("c"), var("p"))
    at = ("n", "c", "p")
    return build(
        (
            op("mean", [("n", batch), ("g", groups), ("c", width, "r"), ("p", size, "r")],
               [("x", inside)], ("u", ("n", "g")), fn(Fn.MUL, Read(0), 1.0 / (width * size)),
               Reduce.ADD),
            op("centre", [("n", batch), ("c", channels), ("p", size)],
               [("x", at), ("u", ("n", var("c").floordiv(width))), ("scale", ("c",))],
               ("y", at), fn(Fn.MUL, fn(Fn.SUB, Read(0), Read(1)), Read(2))),
        ),
        {"x": (batch, channels, size), "scale": (channels,), "u": (batch, groups),
         "y": (batch, channels, size)},
        ("y",),
    )  # fmt: skip


def windows(count: int, size: int, cols: int) -> Graph:
    """Rows rolled up by one (two pieces of a concatenation), then cut into windows."""
    rows = count * size
    at = ("i", "j")
    return build(
        (
            op("last", [("i", 1), ("j", cols)], [("x", at)], ("t", (var("i") + (rows - 1), "j")),
               Read(0)),
            op("most", [("i", rows - 1), ("j", cols)], [("x", (var("i") + 1, "j"))], ("t", at),
               Read(0)),
            op("cut", [("w", count), ("s", size), ("j", cols)],
               [("t", (var("w") * size + var("s"), "j"))], ("y", ("w", "s", "j")),
               fn(Fn.ADD, Read(0), Read(0))),
        ),
        {"x": (rows, cols), "t": (rows, cols), "y": (count, size, cols)},
        ("y",),
    )  # fmt: skip


def gathered(rows: int, vocabulary: int, cols: int) -> Graph:
    """y = 2 * table[ids] + x, with ids of type i32."""
    at = ("i", "j")
    axes = [("i", rows), ("j", cols)]
    ops = (
        op("look", axes, [("ids", ("i",)), ("table", (Affine(((Lookup(0), 1),)), "j"))],
           ("t", at), fn(Fn.ADD, Read(1), Read(1))),
        op("add", axes, [("t", at), ("x", at)], ("y", at), fn(Fn.ADD, Read(0), Read(1))),
    )  # fmt: skip
    tensors = (
        Tensor("ids", (rows,), DType.I32), Tensor("table", (vocabulary, cols), DType.F32),
        Tensor("x", (rows, cols), DType.F32), Tensor("t", (rows, cols), DType.F32),
        Tensor("y", (rows, cols), DType.F32),
    )  # fmt: skip
    return Graph.build(ops, tensors, ("ids", "x"), ("y",), ("table",))


def ops_of(graph: Graph) -> tuple[TensorOp, ...]:
    return graph.ops


def inputs_of(graph: Graph) -> Inputs:
    """Small integers, indices below 4."""
    random = np.random.default_rng(7)
    low = {name: 0 if name == "ids" else -4 for name in graph.tensors}
    return {
        name: random.integers(low[name], 4, graph.tensors[name].shape).astype(
            graph.tensors[name].dtype.numpy
        )
        for name in (*graph.inputs, *graph.constants)
    }


def planned(
    graph: Graph,
    machine: Machine,
    *,
    num_cores: int | None = None,
    budget_bytes: int | None = None,
    location_of: Mapping[str, str] | None = None,
    domains: Mapping[str, Box] | None = None,
    num_groups: int = 1,
) -> ChainPlan | Shortfall:
    """The whole graph as one chain, by default on all cores with the whole local buffer."""
    level = machine.level(next(e.memory for e in machine.engines if e.macs_per_cycle))
    return plan_chain(
        graph, ops_of(graph), domains, location_of or {}, machine,
        num_cores=num_cores or machine.num_cores,
        budget_bytes=budget_bytes or level.usable_bytes, num_groups=num_groups,
    )  # fmt: skip


def scheduled(graph: Graph, plan: ChainPlan, shared: str = "") -> Schedule:
    """A plan as the whole schedule, its outside tensors in `shared` memory if that is given."""
    node = emit_chain(plan, "z")
    if shared:
        whole = {n: whole_box(graph, n) for n in (*graph.inputs, *graph.outputs)}
        parts = [*(Move(n, plan.home, shared, whole[n]) for n in graph.inputs), node]
        parts += [Move(n, shared, plan.home, whole[n]) for n in graph.outputs]
        node = Seq(tuple(parts))
        for name, box in whole.items():
            node = Place(name, shared, box, 1, node)
    return Schedule(graph, node, "graphturbo", plan.predicted_cycles)


def whole_box(graph: Graph, tensor: str) -> Box:
    return tuple(Span(Affine(), size) for size in graph.tensors[tensor].shape)
