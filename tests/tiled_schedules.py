"""Hand-written units of two layers that hand a tensor over in the cluster's buffer, tile by tile.

The first layer runs on the matrix engine and the second on the vector engine, both in row tiles, so
nothing but the tensor between them keeps them apart; the second has weights, which come early.
Each function returns (schedule, machine).
"""

from __future__ import annotations

from dataclasses import replace

from multi_layer_schedules import machine
from toy_schedules import COL, MUL, ORIGIN, RED, ROW, matmul, span

from worker.compiler.ir.affine import var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Reduce, Tensor, TensorOp
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import (
    Box,
    Compute,
    Init,
    Loop,
    LoopKind,
    Move,
    Node,
    Place,
    Schedule,
    Seq,
)

Made = tuple[Schedule, Machine]
WIDTH = 8


def _graph(rows: int, read_rows: int, read_columns: int, halo: int) -> Graph:
    """x1 = x0 w1; x2[r] = sum of x1[r + k - halo] w2[k], of the first columns alone."""
    blur = TensorOp(
        "blur",
        (Axis("i", read_rows), Axis("j", read_columns), Axis("k", 2 * halo + 1, AxisKind.REDUCE)),
        (Access("x1", (ROW + RED - halo, COL), 0), Access("w2", (RED, COL))),
        Access("x2", (ROW, COL)), MUL, Reduce.ADD, ORIGIN,
    )  # fmt: skip
    return Graph.build(
        (matmul("mm", "x0", "w1", "x1", rows, WIDTH, WIDTH), blur),
        (
            *(Tensor(f"x{i}", (rows, WIDTH), DType.F32) for i in range(2)),
            Tensor("x2", (read_rows, read_columns), DType.F32),
            Tensor("w1", (WIDTH, WIDTH), DType.F32),
            Tensor("w2", (2 * halo + 1, read_columns), DType.F32),
        ),
        ("x0",), ("x2",), ("w1", "w2"),
    )  # fmt: skip


def two_layers(
    tiles: int = 8, height: int = 4, read_height: int = 4, *, halo: int = 0, parts: int = 1,
    slices: int = 1, read_rows: int = 0, read_columns: int = WIDTH, cores: int = 1,
    memory: str = "GB", vector: float = 1.0,
) -> Made:  # fmt: skip
    """Rows of x1 in tiles of `height`, read in tiles of `read_height` with a halo.

    `parts`: in how many sums x1 is made, each of which takes the one before from the buffer and
    stores it again.  `slices`: one after the other, through the same slot.  `read_rows` (0: all)
    and `read_columns`: of x1 that are read at all.  `cores`: the columns of the first layer are
    divided among them.
    `memory`: that x1 is kept in, "DDR": at home.  `vector`: operations per cycle of that engine.
    """
    rows, share, depth = tiles * height, WIDTH // cores, WIDTH // parts
    base = var("it") * rows
    weight: Box = (span(var("p") * depth, depth), span(var("c") * share, share))
    left: Box = (span(base + var("u") * height, height), span(var("p") * depth, depth))
    out: Box = (span(base + var("u") * height, height), span(var("c") * share, share))
    compute = Compute("mm", (*out, span(var("p") * depth, depth)), "mme")
    steps: tuple[Node, ...] = (Move("x0", "DDR", "L1", left), Move("w1", "DDR", "L1", weight))
    if parts > 1:
        steps = (*steps, Move("x1", memory, "L1", out))
    tile: Node = Place("x0", "L1", left, 2, Place("w1", "L1", weight, 2, Place(
        "x1", "L1", out, 2, Seq((*steps, compute, Move("x1", "L1", memory, out))), None,
        Init.UNDEFINED if parts > 1 else Init.IDENTITY,
    )))  # fmt: skip
    first = Loop("p", parts, LoopKind.TIME, Loop("u", tiles, LoopKind.TIME, Loop(
        "c", cores, LoopKind.CORES, tile, 1)))  # fmt: skip
    mine: Box = (span(base + var("v") * read_height, read_height), span(0, read_columns))
    near: Box = (
        span(base + var("v") * read_height - halo, read_height + 2 * halo), span(0, read_columns),
    )  # fmt: skip
    factors: Box = (span(0, 2 * halo + 1), span(0, read_columns))
    second: Node = Loop("v", rows // read_height, LoopKind.TIME, Place("x1", "L1", near, 2, Place(
        "x2", "L1", mine, 2, Seq((
            Move("x1", memory, "L1", near, 0 if halo else None),
            Compute("blur", (*mine, span(0, 2 * halo + 1)), "vec"),
            Move("x2", "L1", "DDR", mine),
        )), None, Init.IDENTITY,
    )))  # fmt: skip
    second = Place("w2", "L1", factors, 1, Seq((Move("w2", "DDR", "L1", factors), second)))
    body: Node = Seq((first, second))
    if memory != "DDR":
        init = Init.IDENTITY if parts > 1 else Init.UNDEFINED
        whole: Box = (span(base, rows), span(0, WIDTH))
        body = Place("x1", memory, whole, 1, body, None, init)
    root = Loop("it", slices, LoopKind.TIME, body)
    graph = _graph(slices * rows, read_rows or slices * rows, read_columns, halo)
    return Schedule(graph, root, "hand", 0), _machine(cores, vector)


def _machine(cores: int, vector: float) -> Machine:
    """One whose transfers are fast beside its engines."""
    made = machine(cores, 1, 1 << 14, 1 << 13)
    levels = (replace(x, read_bytes_per_cycle=64.0, write_bytes_per_cycle=64.0)
              for x in made.levels)  # fmt: skip
    slow = {"mme": {DType.F32: 2.0}, "vec": {DType.F32: vector}}
    engines = (replace(e, macs_per_cycle=slow.get(e.name, e.macs_per_cycle)) for e in made.engines)
    return replace(made, levels=tuple(levels), engines=tuple(engines))
