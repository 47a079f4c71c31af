"""Five hand-written schedule trees at toy size, one per shape that later strategies will emit.

Each function returns (schedule, machine, inputs): a row-fused two-op nest, a two-core split with
halo, a lane stack on an array, a two-stage pipe with a queue, and a double-buffered weight prefetch
across two operators.  Every stage behind scheduling is exercised on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.ir.affine import Affine, var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Origin, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Const, Fn, Read
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
from worker.compiler.schedule.nodes import (
    Box,
    Compute,
    Init,
    Loop,
    LoopKind,
    Move,
    Node,
    Pipe,
    Place,
    Queue,
    Schedule,
    Seq,
    Span,
    Stage,
)

Inputs: TypeAlias = "dict[str, npt.NDArray[Any]]"
Toy: TypeAlias = "tuple[Schedule, Machine, Inputs]"
Edit: TypeAlias = "Callable[[Node], Node | None]"

ORIGIN = Origin(("node",), "Toy")
MUL = Apply(Fn.MUL, (Read(0), Read(1)))
ROW, COL, RED = var("i"), var("j"), var("k")


def machine(num_cores: int = 2, l1_bytes: int = 4096) -> Machine:
    """Home -> one scratchpad for all cores -> one scratchpad per core.

    The vector engine does half the MACs of the matrix engine: a product whose padding up to the
    array costs less than that belongs to the latter.
    """

    def level(name: str, capacity: int, instances: int) -> MemoryLevel:
        return MemoryLevel(
            name, capacity, instances, 16.0, 16.0, 8, 1.0, 1.0, Managed.SCRATCHPAD, 4
        )

    rates = {DType.F32: 16.0, DType.F16: 32.0}
    halves = {**dict.fromkeys(DType, 8.0), DType.F16: 16.0, DType.BF16: 16.0}
    return Machine(
        "toy", 1e9, num_cores, 1,
        (level("DDR", 1 << 20, 1), level("GB", 1 << 14, 1), level("L1", l1_bytes, num_cores)),
        (
            Engine("mme", EngineKind.MATRIX, "L1", rates, (4, 4), 4),
            Engine("vec", EngineKind.VECTOR, "L1", halves, (), 2, special_ops_per_cycle=2.0),
            Engine("in", EngineKind.DMA_IN, "L1", {}),
            Engine("out", EngineKind.DMA_OUT, "L1", {}),
        ),
        (), Host("host", 1e9, 1e9, 1e9, 1e-6, 1e-5),
        (AcceleratorTarget("accelerator", Capabilities((), tuple(DType), 8)),),
        50,
    )  # fmt: skip


def span(start: Affine | int, extent: int) -> Span:
    return Span(Affine.of(start), extent)


def inputs_of(graph: Graph) -> Inputs:
    """Small integers: sums are exact in every order."""
    random = np.random.default_rng(7)
    return {
        name: random.integers(-4, 5, graph.tensors[name].shape).astype(
            graph.tensors[name].dtype.numpy
        )
        for name in (*graph.inputs, *graph.constants)
    }


def matmul(name: str, left: str, right: str, out: str, m: int, n: int, k: int) -> TensorOp:
    return TensorOp(
        name, (Axis("i", m), Axis("j", n), Axis("k", k, AxisKind.REDUCE)),
        (Access(left, (ROW, RED)), Access(right, (RED, COL))), Access(out, (ROW, COL)), MUL,
        Reduce.ADD, ORIGIN,
    )  # fmt: skip


def double_then_blur(rows: int, cols: int) -> Graph:
    """t1 = t0 + t0; t2[i] = t1[i-1] + t1[i] + t1[i+1] with zeros outside."""
    double = TensorOp(
        "double", (Axis("i", rows), Axis("j", cols)), (Access("t0", (ROW, COL)),),
        Access("t1", (ROW, COL)), Apply(Fn.ADD, (Read(0), Read(0))), None, ORIGIN,
    )  # fmt: skip
    blur = TensorOp(
        "blur", (Axis("i", rows), Axis("j", cols), Axis("k", 3, AxisKind.REDUCE)),
        (Access("t1", (ROW + RED - 1, COL), 0),), Access("t2", (ROW, COL)), Read(0), Reduce.ADD,
        ORIGIN,
    )  # fmt: skip
    tensors = tuple(Tensor(f"t{k}", (rows, cols), DType.F32) for k in range(3))
    return Graph.build((double, blur), tensors, ("t0",), ("t2",))


def row_fused() -> Toy:
    """Matmul and ReLU share a loop over row tiles; the product never leaves the scratchpad."""
    m, n, k, tile = 10, 6, 5, 4
    relu = TensorOp(
        "relu", (Axis("i", m), Axis("j", n)), (Access("t2", (ROW, COL)),), Access("t3", (ROW, COL)),
        Apply(Fn.MAX, (Read(0), Const(0.0, DType.F32))), None, ORIGIN,
    )  # fmt: skip
    graph = Graph.build(
        (matmul("mm", "t0", "t1", "t2", m, n, k), relu),
        (Tensor("t0", (m, k), DType.F32), Tensor("t1", (k, n), DType.F32),
         Tensor("t2", (m, n), DType.F32), Tensor("t3", (m, n), DType.F32)),
        ("t0",), ("t3",), ("t1",),
    )  # fmt: skip
    row = var("r") * tile
    left: Box = (span(row, tile), span(0, k))
    weights: Box = (span(0, k), span(0, n))
    out: Box = (span(row, tile), span(0, n))
    body = Place("t0", "L1", left, 2, Seq((
        Move("t0", "DDR", "L1", left),
        Place("t2", "L1", out, 1, Seq((
            Compute("mm", (*out, span(0, k)), "mme"),
            Place("t3", "L1", out, 2, Seq((
                Compute("relu", out, "vec"), Move("t3", "L1", "DDR", out),
            ))),
        )), None, Init.IDENTITY),
    )))  # fmt: skip
    root = Place("t1", "L1", weights, 1, Seq((
        Move("t1", "DDR", "L1", weights), Loop("r", 3, LoopKind.TIME, body),
    )))  # fmt: skip
    return Schedule(graph, root, "hand", 0), machine(), inputs_of(graph)


def split_with_halo() -> Toy:
    """Two cores own half the rows each; the blur recomputes its neighbour's row as halo."""
    rows, cols, half = 9, 4, 5
    graph = double_then_blur(rows, cols)
    wide: Box = (span(var("c") * half - 1, half + 2), span(0, cols))
    own: Box = (span(var("c") * half, half), span(0, cols))
    # Rows outside the tensor must read as zero: the halo of t1 is cleared by a fill from home.
    produce = Seq((
        Move("t0", "DDR", "L1", wide, 0),
        Compute("double", wide, "vec", None, recompute=True),
        Move("t1", "L1", "DDR", own),
    ))  # fmt: skip
    first = Loop("c", 2, LoopKind.CORES, Place("t0", "L1", wide, 1, Place(
        "t1", "L1", wide, 1, produce)), 1)  # fmt: skip
    near: Box = (span(var("d") * half - 1, half + 2), span(0, cols))
    mine: Box = (span(var("d") * half, half), span(0, cols))
    consume = Seq((
        Move("t1", "DDR", "L1", near, 0), Compute("blur", (*mine, span(0, 3)), "vec"),
        Move("t2", "L1", "DDR", mine),
    ))  # fmt: skip
    second = Loop("d", 2, LoopKind.CORES, Place("t1", "L1", near, 1, Place(
        "t2", "L1", mine, 1, consume, None, Init.IDENTITY)), 1)  # fmt: skip
    return Schedule(graph, Seq((first, second)), "hand", 0), machine(), inputs_of(graph)


def lane_stack() -> Toy:
    """A matmul whose columns are spread over the lanes of the matrix array."""
    m, n, k = 6, 8, 5
    graph = Graph.build(
        (matmul("mm", "t0", "t1", "t2", m, n, k),),
        (Tensor("t0", (m, k), DType.F16), Tensor("t1", (k, n), DType.F16),
         Tensor("t2", (m, n), DType.F16)),
        ("t0",), ("t2",), ("t1",),
    )  # fmt: skip
    left: Box = (span(var("a") * 3, 3), span(0, k))
    weights: Box = (span(0, k), span(0, n))
    out: Box = (span(var("a") * 3, 3), span(0, n))
    stack = Loop("lane", 4, LoopKind.LANES, Compute(
        "mm", (span(var("a") * 3, 3), span(var("lane") * 2, 2), span(0, k)), "mme"))  # fmt: skip
    body = Place("t0", "L1", left, 2, Place("t2", "L1", out, 2, Seq((
        Move("t0", "DDR", "L1", left), stack, Move("t2", "L1", "DDR", out),
    )), DType.F32, Init.IDENTITY))  # fmt: skip
    root = Place("t1", "L1", weights, 1, Seq((
        Move("t1", "DDR", "L1", weights), Loop("a", 2, LoopKind.TIME, body),
    )))  # fmt: skip
    return Schedule(graph, root, "hand", 0), machine(), inputs_of(graph)


def two_stage_pipe() -> Toy:
    """Core 0 doubles row tiles and queues them; core 1 adds a bias and stores."""
    rows, cols, tile = 7, 4, 2
    shape = (rows, cols)
    double = TensorOp(
        "double", (Axis("i", rows), Axis("j", cols)), (Access("t0", (ROW, COL)),),
        Access("t1", (ROW, COL)), Apply(Fn.ADD, (Read(0), Read(0))), None, ORIGIN,
    )  # fmt: skip
    add = TensorOp(
        "add", (Axis("i", rows), Axis("j", cols)), (Access("t1", (ROW, COL)), Access("t2", (COL,))),
        Access("t3", (ROW, COL)), Apply(Fn.ADD, (Read(0), Read(1))), None, ORIGIN,
    )  # fmt: skip
    graph = Graph.build(
        (double, add),
        (Tensor("t0", shape, DType.F32), Tensor("t1", shape, DType.F32),
         Tensor("t2", (cols,), DType.F32), Tensor("t3", shape, DType.F32)),
        ("t0",), ("t3",), ("t2",),
    )  # fmt: skip
    box: Box = (span(var("p") * tile, tile), span(0, cols))
    bias: Box = (span(0, cols),)
    first = Place("t0", "L1", box, 2, Place("t1", "L1", box, 1, Seq((
        Move("t0", "DDR", "L1", box), Compute("double", box, "vec"), Move("t1", "L1", "GB", box),
    ))))  # fmt: skip
    second = Place("t2", "L1", bias, 1, Place("t1", "L1", box, 1, Place("t3", "L1", box, 2, Seq((
        Move("t2", "DDR", "L1", bias), Move("t1", "GB", "L1", box), Compute("add", box, "vec"),
        Move("t3", "L1", "DDR", box),
    )))))  # fmt: skip
    root = Pipe("p", 4, (Stage(first, 0), Stage(second, 1)), (Queue("t1", "GB", box, 2, 0, (1,)),))
    return Schedule(graph, root, "hand", 0), machine(), inputs_of(graph)


def weight_prefetch() -> Toy:
    """Two chained matmuls; the weights of both stream through double buffers, chunk by chunk."""
    m, n, k, chunk = 6, 8, 8, 4
    graph = Graph.build(
        (matmul("mm0", "t0", "t1", "t2", m, n, k), matmul("mm1", "t2", "t3", "t4", m, n, n)),
        (Tensor("t0", (m, k), DType.F32), Tensor("t1", (k, n), DType.F32),
         Tensor("t2", (m, n), DType.F32), Tensor("t3", (n, n), DType.F32),
         Tensor("t4", (m, n), DType.F32)),
        ("t0",), ("t4",), ("t1", "t3"),
    )  # fmt: skip
    whole: Box = (span(0, m), span(0, k))
    out: Box = (span(0, m), span(0, n))

    def layer(op: str, weight: str, loop: str) -> Loop:
        tile: Box = (span(var(loop) * chunk, chunk), span(0, n))
        return Loop(loop, 2, LoopKind.TIME, Place(weight, "L1", tile, 2, Seq((
            Move(weight, "DDR", "L1", tile),
            Compute(op, (*out, span(var(loop) * chunk, chunk)), "mme"),
        ))))  # fmt: skip

    root = Place("t0", "L1", whole, 1, Seq((
        Move("t0", "DDR", "L1", whole),
        Place("t2", "L1", out, 1, Seq((
            layer("mm0", "t1", "a"),
            Place("t4", "L1", out, 1, Seq((
                layer("mm1", "t3", "b"), Move("t4", "L1", "DDR", out),
            )), None, Init.IDENTITY),
        )), None, Init.IDENTITY),
    )))  # fmt: skip
    return Schedule(graph, root, "hand", 0), machine(), inputs_of(graph)


TOYS: dict[str, Callable[[], Toy]] = {
    "row_fused": row_fused,
    "split_with_halo": split_with_halo,
    "lane_stack": lane_stack,
    "two_stage_pipe": two_stage_pipe,
    "weight_prefetch": weight_prefetch,
}


def rewrite(node: Node, edit: Edit) -> Node:
    """Apply `edit` bottom-up; None keeps a node."""
    match node:
        case Loop() | Place():
            node = replace(node, body=rewrite(node.body, edit))
        case Seq(parts):
            node = Seq(tuple(rewrite(p, edit) for p in parts))
        case Pipe():
            node = replace(
                node, stages=tuple(replace(s, body=rewrite(s.body, edit)) for s in node.stages)
            )
        case _:
            pass
    return edit(node) or node
