"""Toy machines and hand-written schedule trees shared by the tests of lowering."""

from __future__ import annotations

from dataclasses import replace

from worker.compiler.ir.affine import Affine, Lookup, var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Origin, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Fn, Read
from worker.compiler.machine.machine import (
    AcceleratorTarget,
    Capabilities,
    Engine,
    EngineKind,
    Host,
    Link,
    LinkKind,
    Machine,
    Managed,
    MemoryLevel,
)
from worker.compiler.schedule.nodes import (
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

HOST = Host("host", 1e9, 1e9, 1e9, 1e-6, 1e-5)
ORIGIN = Origin(("n",), "MatMul")


def level(
    name: str, capacity: int, instances: int, rate: float, managed: Managed, align: int = 4
) -> MemoryLevel:
    return MemoryLevel(name, capacity, instances, rate, rate, 10, 1.0, 1.0, managed, align)


def engine(name: str, kind: EngineKind, memory: str) -> Engine:
    rates = dict.fromkeys(DType, 16.0) if kind in (EngineKind.MATRIX, EngineKind.VECTOR) else {}
    array = (4, 4) if kind is EngineKind.MATRIX else ()
    special = 4.0 if kind is EngineKind.VECTOR else 0.0
    return Engine(name, kind, memory, rates, array, special_ops_per_cycle=special)


def flat_machine(num_cores: int = 2, capacity: int = 1 << 16, dmas: int = 2) -> Machine:
    """Home -> cache -> one scratchpad per core; `dmas` = 1 leaves a single DMA engine."""
    engines = [
        engine("mme", EngineKind.MATRIX, "L1"),
        engine("vec", EngineKind.VECTOR, "L1"),
        engine("din", EngineKind.DMA_IN, "L1"),
    ]
    if dmas == 2:
        engines.append(engine("dout", EngineKind.DMA_OUT, "L1"))
    return Machine(
        "flat", 1e9, num_cores, 1,
        (level("DDR", 1 << 30, 1, 16.0, Managed.SCRATCHPAD),
         level("L2", 1 << 20, 1, 32.0, Managed.CACHE),
         level("L1", capacity, num_cores, 64.0, Managed.SCRATCHPAD)),
        tuple(engines), (), HOST,
        (AcceleratorTarget("accelerator", Capabilities((), tuple(DType), 8)),),
        100,
    )  # fmt: skip


def multicast_machine(num_cores: int = 4) -> Machine:
    """The flat one with a noc that brings loads to all cores; without clusters, and with a cache
    that holds nothing (one line)."""
    noc = Link("noc", "L1", "L1", LinkKind.NOC, 8.0, 5, 0.25, multicast=True)
    home, cache, own = flat_machine(num_cores).levels
    levels = home, replace(cache, capacity_bytes=cache.align_bytes), own
    return replace(flat_machine(num_cores), links=(noc,), levels=levels)


def cluster_machine(clusters: int = 2, per_cluster: int = 2, capacity: int = 1 << 16) -> Machine:
    """Home -> scratchpad per cluster -> scratchpad per core, with an explicit link."""
    cores = clusters * per_cluster
    return Machine(
        "clusters", 1e9, cores, clusters,
        (level("DDR", 1 << 30, 1, 16.0, Managed.SCRATCHPAD),
         level("LLB", capacity, clusters, 32.0, Managed.SCRATCHPAD),
         level("L1", capacity, cores, 64.0, Managed.SCRATCHPAD)),
        (engine("mme", EngineKind.MATRIX, "L1"), engine("vec", EngineKind.VECTOR, "L1"),
         engine("cin", EngineKind.DMA_IN, "LLB"),
         engine("cout", EngineKind.DMA_OUT, "LLB"), engine("din", EngineKind.DMA_IN, "L1"),
         engine("dout", EngineKind.DMA_OUT, "L1")),
        (Link("bus", "LLB", "L1", LinkKind.BUS, 8.0, 3, 0.1, shared_by=per_cluster),),
        HOST, (AcceleratorTarget("accelerator", Capabilities((), tuple(DType), 8)),), 100,
    )  # fmt: skip


def span(start: Affine | int | str, extent: int) -> Span:
    return Span(Affine.of(start), extent)


def whole(*extents: int) -> tuple[Span, ...]:
    return tuple(span(0, e) for e in extents)


def time(name: str, trip: int, body: Node) -> Loop:
    return Loop(name, trip, LoopKind.TIME, body)


def cores(name: str, trip: int, body: Node, stride: int = 1) -> Loop:
    return Loop(name, trip, LoopKind.CORES, body, stride)


def matmul_graph(m: int, n: int, k: int, dtype: DType = DType.F16) -> Graph:
    op = TensorOp(
        "op0",
        (Axis("a0", m), Axis("a1", n), Axis("a2", k, AxisKind.REDUCE)),
        (Access("t0", (var("a0"), var("a2"))), Access("t1", (var("a2"), var("a1")))),
        Access("t2", (var("a0"), var("a1"))),
        Apply(Fn.MUL, (Read(0), Read(1))),
        Reduce.ADD,
        ORIGIN,
    )
    shapes = {"t0": (m, k), "t1": (k, n), "t2": (m, n)}
    tensors = tuple(Tensor(name, shape, dtype) for name, shape in shapes.items())
    return Graph.build((op,), tensors, ("t0",), ("t2",), ("t1",))


def naive_matmul(
    m: int, n: int, k: int, tiles: tuple[int, int, int], num_cores: int, copies: int = 2
) -> Schedule:
    """One scratchpad: cores over rows, time over tiles, reduction chunks double-buffered."""
    tm, tn, tk = tiles
    chunk = -(-m // (num_cores * tm)) * tm  # whole tiles, so that cores do not overlap
    row = var("c") * chunk + var("i") * tm
    col, red = var("j") * tn, var("r") * tk
    a, b = (span(row, tm), span(red, tk)), (span(red, tk), span(col, tn))
    out = (span(row, tm), span(col, tn))
    inner = Place("t0", "L1", a, copies, Place("t1", "L1", b, copies, Seq((
        Move("t0", "DDR", "L1", a, 0), Move("t1", "DDR", "L1", b, 0),
        Compute("op0", (span(row, tm), span(col, tn), span(red, tk)), "mme"),
    ))))  # fmt: skip
    tile = Place("t2", "L1", out, 1, Seq((
        time("r", -(-k // tk), inner), Move("t2", "L1", "DDR", out),
    )), DType.F32, Init.IDENTITY)  # fmt: skip
    body = time("i", -(-chunk // tm), time("j", -(-n // tn), tile))
    return Schedule(matmul_graph(m, n, k), cores("c", num_cores, body), "hand", 0)


def cluster_matmul(clusters: int = 2, per_cluster: int = 2, tiles: int = 1) -> Schedule:
    """Two scratchpads: 4 rows a cluster in `tiles` tiles, 4 columns a core, k = 8 in two chunks per
    level; partial sums wait in the outer scratchpad."""
    high, wide = 4 // tiles, 4 * per_cluster
    row, col = var("g") * 4 + var("u") * high, var("c") * 4 + var("v") * 2
    red1, red2 = var("r") * 4, var("r") * 4 + var("s") * 2
    out1, out2 = (span(row, high), span(0, wide)), (span(row, high), span(col, 2))
    a1, a2 = (span(row, high), span(red1, 4)), (span(row, high), span(red2, 2))
    b1, b2 = (span(red1, 4), span(0, wide)), (span(red2, 2), span(col, 2))
    core = Place("t0", "L1", a2, 2, Place("t1", "L1", b2, 2, Seq((
        Move("t0", "LLB", "L1", a2, 0), Move("t1", "LLB", "L1", b2, 0),
        Compute("op0", (span(row, high), span(col, 2), span(red2, 2)), "mme"),
    ))))  # fmt: skip
    tile2 = Place("t2", "L1", out2, 1, Seq((
        Move("t2", "LLB", "L1", out2), time("s", 2, core), Move("t2", "L1", "LLB", out2),
    )), DType.F32)  # fmt: skip
    fill = Place("t0", "LLB", a1, 2, Place("t1", "LLB", b1, 2, Seq((
        Move("t0", "DDR", "LLB", a1, 0), Move("t1", "DDR", "LLB", b1, 0),
        cores("c", per_cluster, time("v", 2, tile2)),
    ))))  # fmt: skip
    tile1 = Place("t2", "LLB", out1, 1, Seq((
        time("r", 2, fill), Move("t2", "LLB", "DDR", out1),
    )), DType.F32, Init.IDENTITY)  # fmt: skip
    root = cores("g", clusters, time("u", tiles, tile1), per_cluster)
    return Schedule(matmul_graph(4 * clusters, wide, 8), root, "hand", 0)


def chain_graph(rows: int, cols: int, halo: int = 0) -> Graph:
    """t1 = t0 + t0; t2[i] = sum of t1[i-halo .. i+halo]."""
    first = TensorOp(
        "op0", (Axis("a0", rows), Axis("a1", cols)), (Access("t0", (var("a0"), var("a1"))),),
        Access("t1", (var("a0"), var("a1"))), Apply(Fn.ADD, (Read(0), Read(0))), None, ORIGIN,
    )  # fmt: skip
    second = TensorOp(
        "op1",
        (Axis("a0", rows), Axis("a1", cols), Axis("a2", 2 * halo + 1, AxisKind.REDUCE)),
        (Access("t1", (var("a0") + var("a2") - halo, var("a1")), 0),),
        Access("t2", (var("a0"), var("a1"))), Read(0), Reduce.ADD, ORIGIN,
    )  # fmt: skip
    shape = (rows, cols)
    return Graph.build(
        (first, second), tuple(Tensor(f"t{i}", shape, DType.F32) for i in range(3)),
        ("t0",), ("t2",),
    )  # fmt: skip


def scalar() -> Schedule:
    """One number doubled: tensors without a dimension."""
    op = TensorOp(
        "op0", (), (Access("t0", ()),), Access("t1", ()), Apply(Fn.ADD, (Read(0), Read(0))), None,
        ORIGIN,
    )  # fmt: skip
    graph = Graph.build((op,), tuple(Tensor(f"t{i}", (), DType.F32) for i in range(2)),
                        ("t0",), ("t1",))  # fmt: skip
    body = Place("t0", "L1", (), 1, Seq((
        Move("t0", "DDR", "L1", ()),
        Place("t1", "L1", (), 1, Seq((Compute("op0", (), "vec"), Move("t1", "L1", "DDR", ())))),
    )))  # fmt: skip
    return Schedule(graph, body, "hand", 0)


def fused_rows(rows: int, cols: int, tile: int, copies: int = 2) -> Schedule:
    """Row tiles through two operators; the intermediate never leaves the scratchpad."""
    box = (span(var("i") * tile, tile), span(0, cols))
    domain = (*box, span(0, 1))
    body = Place("t0", "L1", box, copies, Seq((
        Move("t0", "DDR", "L1", box),
        Place("t1", "L1", box, 1, Seq((
            Compute("op0", box, "vec"),
            Place("t2", "L1", box, copies, Seq((
                Compute("op1", domain, "vec"), Move("t2", "L1", "DDR", box),
            )), None, Init.IDENTITY),
        ))),
    )))  # fmt: skip
    return Schedule(chain_graph(rows, cols), time("i", -(-rows // tile), body), "hand", 0)


def split_halo(rows: int, cols: int) -> Schedule:
    """Two cores, intermediate at home, the second operator reads one row of its neighbour."""
    half = -(-rows // 2)
    own = (span(var("c") * half, half), span(0, cols))
    wide = (span(var("d") * half - 1, half + 2), span(0, cols))
    second = (span(var("d") * half, half), span(0, cols))
    root = Seq((
        cores("c", 2, Place("t0", "L1", own, 1, Place("t1", "L1", own, 1, Seq((
            Move("t0", "DDR", "L1", own), Compute("op0", own, "vec"), Move("t1", "L1", "DDR", own),
        ))))),
        cores("d", 2, Place("t1", "L1", wide, 1, Place("t2", "L1", second, 1, Seq((
            Move("t1", "DDR", "L1", wide, 0), Compute("op1", (*second, span(0, 3)), "vec"),
            Move("t2", "L1", "DDR", second),
        )), None, Init.IDENTITY))),
    ))  # fmt: skip
    return Schedule(chain_graph(rows, cols, 1), root, "hand", 0)


def piped(rows: int, cols: int, tile: int, depth: int, memory: str, stride: int = 1) -> Schedule:
    """Stage 0 (core 0) doubles rows and pushes them; stage 1 (core `stride`) sums and stores."""
    box = (span(var("p") * tile, tile), span(0, cols))
    first = Place("t0", "L1", box, 2, Place("t1", "L1", box, 1, Seq((
        Move("t0", "DDR", "L1", box), Compute("op0", box, "vec"), Move("t1", "L1", memory, box),
    ))))  # fmt: skip
    second = Place("t1", "L1", box, 1, Place("t2", "L1", box, 1, Seq((
        Move("t1", memory, "L1", box), Compute("op1", (*box, span(0, 1)), "vec"),
        Move("t2", "L1", "DDR", box),
    )), None, Init.IDENTITY))  # fmt: skip
    root = Pipe(
        "p", -(-rows // tile), (Stage(first, 0), Stage(second, stride)),
        (Queue("t1", memory, box, depth, 0, (1,)),),
    )  # fmt: skip
    return Schedule(chain_graph(rows, cols), root, "hand", 0)


def skip_graph(rows: int, cols: int) -> Graph:
    """t1 = t0 + t0; t2 = t1 * t1; t3 = t1 + t2: t1 has two readers."""

    def op(name: str, reads: tuple[str, ...], write: str, fn: Fn) -> TensorOp:
        index = (var("a0"), var("a1"))
        args = (Read(0), Read(len(reads) - 1))
        return TensorOp(
            name, (Axis("a0", rows), Axis("a1", cols)), tuple(Access(t, index) for t in reads),
            Access(write, index), Apply(fn, args), None, ORIGIN,
        )  # fmt: skip

    ops = (
        op("op0", ("t0",), "t1", Fn.ADD), op("op1", ("t1",), "t2", Fn.MUL),
        op("op2", ("t1", "t2"), "t3", Fn.ADD),
    )  # fmt: skip
    tensors = tuple(Tensor(f"t{i}", (rows, cols), DType.F32) for i in range(4))
    return Graph.build(ops, tensors, ("t0",), ("t3",))


def skipping(
    rows: int, cols: int, tile: int, depths: tuple[int, int], memory: str, stride: int = 1
) -> Schedule:
    """Three stages, `stride` cores apart: what the first one makes is read by the second and, past
    it, by the third.  `depths`: of that queue, and of the one between the others."""
    box = (span(var("p") * tile, tile), span(0, cols))
    first = Place("t0", "L1", box, 2, Place("t1", "L1", box, 1, Seq((
        Move("t0", "DDR", "L1", box), Compute("op0", box, "vec"), Move("t1", "L1", memory, box),
    ))))  # fmt: skip
    second = Place("t1", "L1", box, 1, Place("t2", "L1", box, 1, Seq((
        Move("t1", memory, "L1", box), Compute("op1", box, "vec"), Move("t2", "L1", memory, box),
    ))))  # fmt: skip
    third = Place("t1", "L1", box, 1, Place("t2", "L1", box, 1, Place("t3", "L1", box, 1, Seq((
        Move("t1", memory, "L1", box), Move("t2", memory, "L1", box),
        Compute("op2", box, "vec"), Move("t3", "L1", "DDR", box),
    )))))  # fmt: skip
    root = Pipe(
        "p", -(-rows // tile), (Stage(first, 0), Stage(second, stride), Stage(third, 2 * stride)),
        (Queue("t1", memory, box, depths[0], 0, (1, 2)),
         Queue("t2", memory, box, depths[1], 1, (2,))),
    )  # fmt: skip
    return Schedule(skip_graph(rows, cols), root, "hand", 0)


def in_place(rows: int, cols: int, tile: int) -> Schedule:
    """A compute straight from home to home, and one that reads its result there: staged."""
    box = (span(var("i") * tile, tile), span(0, cols))
    body = Seq((
        Compute("op0", box, "vec"),
        Place("t2", "L1", box, 1, Seq((
            Compute("op1", (*box, span(0, 1)), "vec"), Move("t2", "L1", "DDR", box),
        )), None, Init.IDENTITY),
    ))  # fmt: skip
    return Schedule(chain_graph(rows, cols), time("i", -(-rows // tile), body), "hand", 0)


def private_rows(rows: int, cols: int, tile: int, num_cores: int, copies: int) -> Schedule:
    """Every core has its own tile in a memory that its cluster shares."""
    chunk = -(-rows // (num_cores * tile)) * tile
    box = (span(var("c") * chunk + var("i") * tile, tile), span(0, cols))
    compute = Place("t1", "L1", box, 1, Seq((
        Compute("op0", box, "vec"),
        Place("t2", "L1", box, 1, Seq((
            Compute("op1", (*box, span(0, 1)), "vec"), Move("t2", "L1", "DDR", box),
        )), None, Init.IDENTITY),
    )))  # fmt: skip
    body = Place("t0", "LLB", box, copies, Seq((
        Move("t0", "DDR", "LLB", box),
        Place("t0", "L1", box, 1, Seq((Move("t0", "LLB", "L1", box), compute))),
    )))  # fmt: skip
    root = cores("c", num_cores, time("i", -(-chunk // tile), body))
    return Schedule(chain_graph(rows, cols), root, "hand", 0)


def gather(rows: int, cols: int, table: int, tile: int) -> Schedule:
    """t2[i, j] = t0[t1[i], j]: the table is read in place from home."""
    op = TensorOp(
        "op0", (Axis("a0", rows), Axis("a1", cols)),
        (Access("t1", (var("a0"),)), Access("t0", (Affine(((Lookup(0), 1),)), var("a1")))),
        Access("t2", (var("a0"), var("a1"))), Read(1), None, ORIGIN,
    )  # fmt: skip
    tensors = (
        Tensor("t0", (table, cols), DType.F32), Tensor("t1", (rows,), DType.I64),
        Tensor("t2", (rows, cols), DType.F32),
    )  # fmt: skip
    graph = Graph.build((op,), tensors, ("t1",), ("t2",), ("t0",))
    box = (span(var("i") * tile, tile), span(0, cols))
    body = Place("t1", "L1", box[:1], 2, Seq((
        Move("t1", "DDR", "L1", box[:1]),
        Place("t2", "L1", box, 1, Seq((
            Compute("op0", box, "vec"), Move("t2", "L1", "DDR", box),
        ))),
    )))  # fmt: skip
    return Schedule(graph, time("i", -(-rows // tile), body), "hand", 0)


def laned(rows: int, cols: int, lanes: int) -> Schedule:
    """op0 of the chain with rows over `lanes` LANES, one row tile each; op1 follows plainly."""
    each = -(-rows // lanes)
    part = (span(var("l") * each, each), span(0, cols))
    box = whole(rows, cols)
    root = Place("t0", "L1", box, 1, Place("t1", "L1", box, 1, Seq((
        Move("t0", "DDR", "L1", box),
        Loop("l", lanes, LoopKind.LANES, Compute("op0", part, "vec")),
        Place("t2", "L1", box, 1, Seq((
            Compute("op1", (*box, span(0, 1)), "vec"), Move("t2", "L1", "DDR", box),
        )), None, Init.IDENTITY),
    ))))  # fmt: skip
    return Schedule(chain_graph(rows, cols), root, "hand", 0)
