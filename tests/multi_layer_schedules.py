"""Hand-written schedule trees of units of several layers, at toy size.

Each function returns (schedule, machine, inputs), as `toy_schedules` does: a chain of matmuls whose
activations pass through the cluster's buffer, halo slices recomputed by instances of clusters,
layers that keep their tensor in the cores' own buffers, and a tensor left at home between layers.
The Place of an activation opens right before its producer and holds the rest of the unit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from toy_schedules import COL, ORIGIN, RED, ROW, Toy, inputs_of, matmul, span
from toy_schedules import machine as toy_machine

from worker.compiler.ir.affine import Affine, var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Const, Fn, Read
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


def machine(
    cores: int = 4, clusters: int = 2, gb_bytes: int = 1 << 13, l1_bytes: int = 1 << 12
) -> Machine:
    """Home -> one buffer per cluster -> one buffer per core."""
    base = toy_machine(cores, l1_bytes)
    home, gb, l1 = base.levels
    return replace(
        base, levels=(home, replace(gb, instances=clusters, capacity_bytes=gb_bytes), l1)
    )


def chain_graph(layers: int, rows: int, width: int) -> Graph:
    """x0 [rows, width] times w1 .. wn [width, width], one after the other; ends in xn."""
    ops = tuple(
        matmul(f"mm{i}", f"x{i - 1}", f"w{i}", f"x{i}", rows, width, width)
        for i in range(1, layers + 1)
    )
    tensors = tuple(Tensor(f"x{i}", (rows, width), DType.F32) for i in range(layers + 1))
    weights = tuple(Tensor(f"w{i}", (width, width), DType.F32) for i in range(1, layers + 1))
    return Graph.build(
        ops, (*tensors, *weights), ("x0",), (f"x{layers}",), tuple(w.name for w in weights)
    )


@dataclass(frozen=True, slots=True)
class ChainShape:
    """How a chain of matmuls is cut."""

    layers: int = 4
    cores: int = 2
    rows: int = 4
    """Of one slice."""
    width: int = 8
    chunk: int = 4
    """Terms of the sum per step; each step loads the weights for them."""
    copies: int = 2
    slices: int = 1
    """Slices of rows, one after the other through all layers."""
    weights_first: bool = True
    """Weights stand in front of the activations of their layer."""
    slow: int = 0
    """Every so many layers one is computed on the vector engine; 0: none."""
    staged: bool = False
    """The weights of a layer go to GB as a whole, and from there to the cores."""
    given_in_gb: bool = False
    """The input goes to GB as a whole as well, inside of a loop over clusters."""


def chain_layer(i: int, source: str, target: str, shape: ChainShape) -> Node:
    """Columns over the cores, the sum in chunks: weights stream from home, x from `source`."""
    share = shape.width // shape.cores
    column = var(f"c{i}") * share
    depth = var(f"k{i}") * shape.chunk
    rows = span(var("it") * shape.rows if shape.slices > 1 else 0, shape.rows)
    weight: Box = (span(depth, shape.chunk), span(column, share))
    left: Box = (rows, span(depth, shape.chunk))
    out: Box = (rows, span(column, share))
    origin = "GB" if shape.staged else "DDR"
    loads = (Move(f"w{i}", origin, "L1", weight), Move(f"x{i - 1}", source, "L1", left))
    engine = "vec" if shape.slow and i % shape.slow == 0 else "mme"
    step = Seq((
        *(loads if shape.weights_first else loads[::-1]),
        Compute(f"mm{i}", (*out, span(depth, shape.chunk)), engine),
    ))  # fmt: skip
    tiles = Loop(f"k{i}", shape.width // shape.chunk, LoopKind.TIME, Place(
        f"w{i}", "L1", weight, shape.copies, Place(f"x{i - 1}", "L1", left, shape.copies, step),
    ))  # fmt: skip
    whole = Place(f"x{i}", "L1", out, 1, Seq((tiles, Move(f"x{i}", "L1", target, out))),
                  None, Init.IDENTITY)  # fmt: skip
    layer = Loop(f"c{i}", shape.cores, LoopKind.CORES, whole, 1)
    if not shape.staged:
        return layer
    full: Box = (span(0, shape.width), span(0, shape.width))
    return Place(f"w{i}", "GB", full, 1, Seq((Move(f"w{i}", "DDR", "GB", full), layer)))


def chain(shape: ChainShape = ChainShape(), on: Machine | None = None) -> Toy:
    """A chain of matmuls; every product but the last stays in GB, alive for one layer more."""
    graph = chain_graph(shape.layers, shape.rows * shape.slices, shape.width)
    rows = span(var("it") * shape.rows if shape.slices > 1 else 0, shape.rows)
    whole: Box = (rows, span(0, shape.width))

    def from_layer(i: int) -> Node:
        source = "DDR" if i == 1 and not shape.given_in_gb else "GB"
        target = "DDR" if i == shape.layers else "GB"
        layer = chain_layer(i, source, target, shape)
        if i == shape.layers:
            return layer
        return Place(f"x{i}", "GB", whole, 1, Seq((layer, from_layer(i + 1))))

    root = from_layer(1)
    if shape.given_in_gb:
        root = Place("x0", "GB", whole, 1, Seq((Move("x0", "DDR", "GB", whole), root)))
        root = Loop("cl", 1, LoopKind.CORES, root, shape.cores)
    if shape.slices > 1:
        root = Loop("it", shape.slices, LoopKind.TIME, root)
    return Schedule(graph, root, "hand", 0), on or machine(shape.cores, 1), inputs_of(graph)


def blur_graph(layers: int, rows: int, cols: int) -> Graph:
    """x_i[r] = x_{i-1}[r-1] + x_{i-1}[r] + x_{i-1}[r+1] with zeros outside, `layers` times."""

    def blur(i: int) -> TensorOp:
        return TensorOp(
            f"blur{i}", (Axis("i", rows), Axis("j", cols), Axis("k", 3, AxisKind.REDUCE)),
            (Access(f"x{i - 1}", (ROW + RED - 1, COL), 0),), Access(f"x{i}", (ROW, COL)), Read(0),
            Reduce.ADD, ORIGIN,
        )  # fmt: skip

    return Graph.build(
        tuple(blur(i) for i in range(1, layers + 1)),
        tuple(Tensor(f"x{i}", (rows, cols), DType.F32) for i in range(layers + 1)),
        ("x0",), (f"x{layers}",),
    )  # fmt: skip


def halo_slices(missing: int = 0) -> Toy:
    """Three blurs over slices of rows: two clusters times two instances, halos recomputed.

    `missing` rows are left out of the halo of the first blur (then the tree is not legal).
    """
    rows, cols, height, layers, cores = 14, 4, 4, 3, 2
    graph = blur_graph(layers, rows, cols)
    start = (var("cl") * 2 + var("it")) * height

    def rows_of(i: int) -> tuple[Affine, int]:
        """First row and number of rows of x_i that one instance needs."""
        halo = layers - i
        shrink = missing if i == 1 else 0
        return start - halo, height + 2 * halo - shrink

    def layer(i: int) -> Node:
        first, count = rows_of(i)
        share = -(-count // cores)
        mine = (span(first + var(f"c{i}") * share, share), span(0, cols))
        # Shares are equal, as a Move is cut at the edges of the tensor, not at those of the slice.
        near: Box = (span(first + var(f"c{i}") * share - 1, share + 2), span(0, cols))
        body = Place(f"x{i - 1}", "L1", near, 1, Place(f"x{i}", "L1", mine, 1, Seq((
            Move(f"x{i - 1}", "DDR" if i == 1 else "GB", "L1", near, 0),
            Compute(f"blur{i}", (*mine, span(0, 3)), "vec", None, recompute=i < layers),
            Move(f"x{i}", "L1", "DDR" if i == layers else "GB", mine),
        )), None, Init.IDENTITY))  # fmt: skip
        return Loop(f"c{i}", cores, LoopKind.CORES, body, 1)

    def from_layer(i: int) -> Node:
        if i == layers:
            return layer(i)
        first, count = rows_of(i)
        tile: Box = (span(first, count), span(0, cols))
        return Place(f"x{i}", "GB", tile, 1, Seq((layer(i), from_layer(i + 1))))

    root = Loop("cl", 2, LoopKind.CORES, Loop("it", 2, LoopKind.TIME, from_layer(1)), 2)
    return Schedule(graph, root, "hand", 0), machine(), inputs_of(graph)


def _relu(name: str, source: str, target: str, rows: int, cols: int) -> TensorOp:
    return TensorOp(
        name, (Axis("i", rows), Axis("j", cols)), (Access(source, (ROW, COL)),),
        Access(target, (ROW, COL)), Apply(Fn.MAX, (Read(0), Const(0.0, DType.F32))), None, ORIGIN,
    )  # fmt: skip


def local_chain() -> Toy:
    """Rows over four cores; matmul, ReLU and matmul keep their rows in the core's own buffer."""
    rows, width, cores = 8, 6, 4
    graph = Graph.build(
        (matmul("mm1", "x0", "w1", "x1", rows, width, width),
         _relu("relu", "x1", "x2", rows, width),
         matmul("mm2", "x2", "w2", "x3", rows, width, width)),
        (*(Tensor(f"x{i}", (rows, width), DType.F32) for i in range(4)),
         *(Tensor(f"w{i}", (width, width), DType.F32) for i in (1, 2))),
        ("x0",), ("x3",), ("w1", "w2"),
    )  # fmt: skip
    mine: Box = (span(var("c") * 2, 2), span(0, width))
    weight: Box = (span(0, width), span(0, width))
    all_sums = span(0, width)
    last = Place("w2", "L1", weight, 1, Place("x3", "L1", mine, 1, Seq((
        Move("w2", "DDR", "L1", weight), Compute("mm2", (*mine, all_sums), "mme"),
        Move("x3", "L1", "DDR", mine),
    )), None, Init.IDENTITY))  # fmt: skip
    middle = Place("x2", "L1", mine, 1, Seq((Compute("relu", mine, "vec"), last)))
    first = Place("w1", "L1", weight, 1, Place("x0", "L1", mine, 1, Seq((
        Move("w1", "DDR", "L1", weight), Move("x0", "DDR", "L1", mine),
        Compute("mm1", (*mine, all_sums), "mme"),
    ))))  # fmt: skip
    body = Place("x1", "L1", mine, 1, Seq((first, middle)), None, Init.IDENTITY)
    root = Loop("c", cores, LoopKind.CORES, body, 1)
    return Schedule(graph, root, "hand", 0), machine(), inputs_of(graph)


def home_between() -> Toy:
    """Two layers in GB, one tensor left at home as scratch, two layers more."""
    shape = ChainShape()
    graph = chain_graph(shape.layers, shape.rows, shape.width)
    whole: Box = (span(0, shape.rows), span(0, shape.width))
    ends = {1: ("DDR", "GB"), 2: ("GB", "DDR"), 3: ("DDR", "GB"), 4: ("GB", "DDR")}
    layer = {i: chain_layer(i, *ends[i], shape) for i in ends}
    root = Seq((
        Place("x1", "GB", whole, 1, Seq((layer[1], layer[2]))),
        Place("x3", "GB", whole, 1, Seq((layer[3], layer[4]))),
    ))  # fmt: skip
    return Schedule(graph, root, "hand", 0), machine(shape.cores, 1), inputs_of(graph)


TREES: dict[str, Callable[[], Toy]] = {
    "chain": chain,
    "chain_weights_last": lambda: chain(ChainShape(weights_first=False)),
    "chain_in_slices": lambda: chain(ChainShape(slices=3, copies=3, slow=2)),
    "chain_staged": lambda: chain(ChainShape(staged=True, slices=2)),
    "halo_slices": halo_slices,
    "local_chain": local_chain,
    "home_between": home_between,
}
