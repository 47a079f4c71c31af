"""Kernels of hand-written schedules against numpy: products, windows, layouts, fusion, pipes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from kernel_toys import (
    ORIGIN,
    conv_graph,
    elementwise_graph,
    graph_of,
    machine,
    matmul_graph,
    run_unit,
    run_units,
    stacked_program,
    tiled,
    whole_tile,
)

from worker.compiler.codegen.kernel import generate_kernel
from worker.compiler.codegen.runtime_header import HEADER_NAME, runtime_header
from worker.compiler.errors import MemoryFault, VerifyError
from worker.compiler.ir.affine import Affine, Lookup, const, var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.bits import bf16_to_f32, f32_to_bf16
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Cast, Const, Fn, Read
from worker.compiler.package.build import find_compiler, flags_for
from worker.compiler.schedule.nodes import (
    Compute,
    Init,
    Loop,
    LoopKind,
    Move,
    Pipe,
    Place,
    Queue,
    Schedule,
    Seq,
    Span,
    Stage,
)


def normal(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def whole(*extents: int) -> tuple[Span, ...]:
    return tuple(Span(const(0), e) for e in extents)


def close(have: np.ndarray, want: np.ndarray, bound: float = 1e-5) -> None:
    assert have.shape == want.shape
    assert np.max(np.abs(have.astype(np.float64) - want)) <= bound * np.max(np.abs(want))


@pytest.mark.parametrize("tile", [{}, {"i": 16, "j": 32, "k": 32}, {"i": 7, "j": 9, "k": 13}])
def test_matmul_on_cores(tile: dict[str, int]) -> None:
    a, b = normal((50, 90)), normal((90, 70), 1)
    result = run_unit(tiled(matmul_graph(50, 70, 90), tile, cores=4), {"a": a, "b": b})
    close(result["c"], a.astype(np.float64) @ b)


@pytest.mark.parametrize(("m", "n"), [(1, 300), (300, 1), (2, 8), (12, 12)])
def test_thin_matmuls(m: int, n: int) -> None:
    a, b = normal((m, 400)), normal((400, n), 1)
    result = run_unit(tiled(matmul_graph(m, n, 400), {"k": 150}), {"a": a, "b": b})
    close(result["c"], a.astype(np.float64) @ b)


@pytest.mark.parametrize(
    "shape", [(8, 16, 14, 3, 1, 1), (8, 16, 15, 3, 2, 1), (3, 12, 30, 7, 2, 3), (16, 8, 9, 1, 1, 0)]
)
@pytest.mark.parametrize("groups", [1, None])
def test_convolution(shape: tuple[int, int, int, int, int, int], groups: int | None) -> None:
    channels, _, size, kernel, stride, pad = shape
    filters = channels if groups is None else shape[1]
    graph = conv_graph(channels, filters, size, kernel, stride, pad, groups=groups or channels)
    x = normal((channels, size, size))
    w = normal((filters, channels // (groups or channels), kernel, kernel), 1)
    schedule = tiled(graph, {"g": 3, "f": 8, "h": 5, "w": 6, "c": 3}, cores=4)
    close(run_unit(schedule, {"x": x, "w": w})["y"], evaluate(graph, {"x": x, "w": w})["y"])


@pytest.mark.parametrize(
    ("dtype", "bound"), [(DType.F16, 1e-3), (DType.F64, 1e-12), (DType.BF16, 8e-3)]
)
def test_matmul_in_other_floats(dtype: DType, bound: float) -> None:
    a, b = normal((20, 300)), normal((300, 40), 1)
    if dtype is DType.BF16:
        stored = [f32_to_bf16(x) for x in (a, b)]
        a, b = (bf16_to_f32(x) for x in stored)
    else:
        stored = [x.astype(dtype.numpy) for x in (a, b)]
        a, b = (x.astype(np.float64) for x in stored)
    schedule = tiled(matmul_graph(20, 40, 300, dtype), {"k": 64, "j": 24})
    have = run_unit(schedule, {"a": stored[0], "b": stored[1]})["c"]
    have = bf16_to_f32(have) if dtype is DType.BF16 else have
    close(have.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64), bound)


def quantized_matmul() -> Graph:
    """c = cast_i32(a - 3) @ cast_i32(b - 5), u8 by i8 into i32."""
    left = Apply(Fn.SUB, (Read(0), Const(3, DType.I32)))
    right = Apply(Fn.SUB, (Read(1), Const(-5, DType.I32)))
    op = TensorOp(
        "qmm",
        (Axis("i", 33), Axis("j", 41), Axis("k", 100, AxisKind.REDUCE)),
        (Access("a", (var("i"), var("k"))), Access("b", (var("j"), var("k")))),
        Access("c", (var("i"), var("j"))),
        Apply(Fn.MUL, (left, right)), Reduce.ADD, ORIGIN,
    )  # fmt: skip
    return graph_of(
        op,
        (Tensor("a", (33, 100), DType.U8), Tensor("b", (41, 100), DType.I8),
         Tensor("c", (33, 41), DType.I32)),
    )  # fmt: skip


def test_quantized_matmul_is_exact() -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(0, 256, (33, 100)).astype(np.uint8)
    b = rng.integers(-128, 128, (41, 100)).astype(np.int8)
    have = run_unit(tiled(quantized_matmul(), {"i": 8, "k": 40}), {"a": a, "b": b})["c"]
    np.testing.assert_array_equal(have, (a.astype(np.int32) - 3) @ (b.astype(np.int32) + 5).T)


def pool_graph(reduce: Reduce, fill: float) -> Graph:
    h, w = var("h") * 2 + var("kh") - 1, var("w") * 2 + var("kw") - 1
    op = TensorOp(
        "pool",
        (Axis("c", 5), Axis("h", 8), Axis("w", 8), Axis("kh", 3, AxisKind.REDUCE),
         Axis("kw", 3, AxisKind.REDUCE)),
        (Access("x", (var("c"), h, w), fill),), Access("y", (var("c"), var("h"), var("w"))),
        Read(0), reduce, ORIGIN,
    )  # fmt: skip
    return graph_of(op, (Tensor("x", (5, 16, 16), DType.F32), Tensor("y", (5, 8, 8), DType.F32)))


@pytest.mark.parametrize(
    ("reduce", "fill"), [(Reduce.MAX, float("-inf")), (Reduce.ADD, 0.0), (Reduce.MIN, float("inf"))]
)
def test_pooling_with_padding_and_nan(reduce: Reduce, fill: float) -> None:
    graph = pool_graph(reduce, fill)
    x = normal((5, 16, 16))
    x[2, 3, 4] = np.nan
    have = run_unit(tiled(graph, {"c": 2, "h": 3, "w": 5}), {"x": x})["y"]
    np.testing.assert_allclose(have, evaluate(graph, {"x": x})["y"], rtol=1e-6, atol=1e-6)
    assert np.isnan(have[2]).any() and not np.isnan(have[[0, 1, 3, 4]]).any()


@pytest.mark.parametrize("reduce", list(Reduce))
def test_long_reductions_of_a_contiguous_axis(reduce: Reduce) -> None:
    op = TensorOp(
        "sum", (Axis("i", 6), Axis("k", 500, AxisKind.REDUCE)),
        (Access("x", (var("i"), var("k"))),), Access("y", (var("i"),)), Read(0), reduce, ORIGIN,
    )  # fmt: skip
    graph = graph_of(op, (Tensor("x", (6, 500), DType.F32), Tensor("y", (6,), DType.F32)))
    x = 1 + normal((6, 500)) / 50
    have = run_unit(tiled(graph, {"i": 4, "k": 170}), {"x": x})["y"]
    np.testing.assert_allclose(have, evaluate(graph, {"x": x})["y"], rtol=1e-5)


@pytest.mark.parametrize("extents", [(1 << 20,), (3, 1 << 18), (40, 50, 700)])
def test_long_sums_of_equal_values_do_not_drift(extents: tuple[int, ...]) -> None:
    """2^26 times 0.637, an Expand under a ReduceSum, came to 3.9 % too little."""
    axes = tuple(Axis(f"k{n}", extent, AxisKind.REDUCE) for n, extent in enumerate(extents))
    op = TensorOp(
        "sum", (Axis("i", 2), *axes), (Access("x", (var("i"),)),), Access("y", (var("i"),)),
        Read(0), Reduce.ADD, ORIGIN,
    )  # fmt: skip
    graph = graph_of(op, (Tensor("x", (2,), DType.F32), Tensor("y", (2,), DType.F32)))
    x = np.array([0.637, 1e-3], np.float32)
    have = run_unit(tiled(graph, {}), {"x": x})["y"]
    want = x.astype(np.float64) * np.prod(extents, dtype=np.int64)
    np.testing.assert_allclose(have, want, rtol=2e-5)


def layout_graph(
    source: tuple[int, ...], target: tuple[int, ...], read: tuple[Affine, ...],
    fill: float | None = None,
) -> Graph:  # fmt: skip
    """y[d0, d1, ..] = x[read(d)]."""
    op = TensorOp(
        "layout", tuple(Axis(f"d{k}", e) for k, e in enumerate(target)),
        (Access("x", read, fill),), Access("y", tuple(var(f"d{k}") for k in range(len(target)))),
        Read(0), None, ORIGIN,
    )  # fmt: skip
    return graph_of(op, (Tensor("x", source, DType.F32), Tensor("y", target, DType.F32)))


def at_home(graph: Graph) -> Schedule:
    """One Compute on whole tensors in the home memory."""
    op = graph.ops[0]
    return Schedule(
        graph, Compute(op.name, whole(*(a.extent for a in op.domain)), "mme"), "test", 0
    )


def test_transpose_reshape_and_pad_maps() -> None:
    x = normal((6, 10, 14))
    d = [var(f"d{k}") for k in range(3)]
    transpose = layout_graph((6, 10, 14), (14, 6, 10), (d[1], d[2], d[0]))
    close(run_unit(tiled(transpose, {"d0": 4, "d2": 3}), {"x": x})["y"], x.transpose(2, 0, 1), 0)
    flat = d[0] * 42 + d[1] * 6 + d[2]
    reshape = layout_graph(
        (6, 10, 14), (20, 7, 6), (flat.floordiv(140), flat.floordiv(14).mod(10), flat.mod(14))
    )
    close(run_unit(at_home(reshape), {"x": x})["y"], x.reshape(20, 7, 6), 0)
    pad = layout_graph((6, 10, 14), (6, 13, 20), (d[0], d[1] - 2, d[2] - 3), fill=2.5)
    want = np.pad(x, ((0, 0), (2, 1), (3, 3)), constant_values=2.5)
    close(run_unit(at_home(pad), {"x": x})["y"], want, 0)
    close(run_unit(tiled(pad, {"d1": 4, "d2": 7}), {"x": x})["y"], want, 0)
    reverse = layout_graph((6, 10, 14), (6, 10, 14), (d[0], d[1], 13 - d[2]))
    close(run_unit(whole_tile(reverse), {"x": x})["y"], x[:, :, ::-1], 0)


def gather_graph(fill: float | None) -> Graph:
    index = Affine(((Lookup(0), 1),), 0)
    op = TensorOp(
        "gather", (Axis("i", 9), Axis("j", 5)),
        (Access("ids", (var("i"),)), Access("table", (index, var("j")), fill)),
        Access("y", (var("i"), var("j"))), Read(1), None, ORIGIN,
    )  # fmt: skip
    return graph_of(
        op,
        (Tensor("ids", (9,), DType.I64), Tensor("table", (30, 5), DType.F32),
         Tensor("y", (9, 5), DType.F32)),
    )  # fmt: skip


def test_gather_in_place_and_its_bounds() -> None:
    table = normal((30, 5))
    ids = np.array([0, 29, 3, 3, 7, 1, 2, 28, 5], np.int64)
    run = run_unit(at_home(gather_graph(None)), {"ids": ids, "table": table})
    close(run["y"], table[ids], 0)
    ids[4] = 30
    with pytest.raises(MemoryFault, match="looked-up index"):
        run_unit(at_home(gather_graph(None)), {"ids": ids, "table": table})
    padded = run_unit(at_home(gather_graph(9.0)), {"ids": ids, "table": table})["y"]
    assert (padded[4] == 9.0).all()
    close(padded[:4], table[ids[:4]], 0)


def test_index_values_and_casts() -> None:
    body = Apply(Fn.ADD, (Read(0), Cast(DType.F32, Apply(Fn.MUL, (Read(1), Read(1))))))
    graph = elementwise_graph(body, (DType.F32, DType.I8), DType.F32, (40, 3))
    x0 = normal((40, 3))
    x1 = np.random.default_rng(0).integers(-128, 128, (40, 3)).astype(np.int8)
    want = x0 + x1.astype(np.int32) ** 2
    close(run_unit(tiled(graph, {"i0": 7}), {"x0": x0, "x1": x1})["z"], want, 1e-7)


def conv_relu_conv() -> Graph:
    """Two padded 1-D convolutions with a relu on the way; the middle tensor stays on chip."""

    def conv(name: str, x: str, w: str, y: str) -> TensorOp:
        return TensorOp(
            name,
            (Axis("f", 6), Axis("l", 40), Axis("c", 6, AxisKind.REDUCE),
             Axis("k", 3, AxisKind.REDUCE)),
            (Access(x, (var("c"), var("l") + var("k") - 1), 0),
             Access(w, (var("f"), var("c"), var("k")))),
            Access(y, (var("f"), var("l"))), Apply(Fn.MUL, (Read(0), Read(1))), Reduce.ADD, ORIGIN,
        )  # fmt: skip

    tensors = tuple(
        Tensor(n, s, DType.F32)
        for n, s in (("x", (6, 40)), ("w1", (6, 6, 3)), ("w2", (6, 6, 3)), ("m", (6, 40)),
                     ("y", (6, 40)))
    )  # fmt: skip
    return Graph.build(
        (conv("c1", "x", "w1", "m"), conv("c2", "m", "w2", "y")), tensors, ("x",), ("y",),
        ("w1", "w2"),
    )  # fmt: skip


def fused(tile: int) -> Schedule:
    """Tiles of y; the halo of m is recomputed per tile and never leaves L1."""
    graph = conv_relu_conv()
    out = (Span(const(0), 6), Span(var("t") * tile, tile))
    mid = (Span(const(0), 6), Span(var("t") * tile - 1, tile + 2))
    src = (Span(const(0), 6), Span(var("t") * tile - 2, tile + 4))
    inner = whole(6, 3)
    body = Seq(
        (Move("x", "DDR", "L1", src, 0), Move("w1", "DDR", "L1", whole(6, 6, 3)),
         Move("w2", "DDR", "L1", whole(6, 6, 3)), Compute("c1", (*mid, *inner), "mme", None, True),
         Compute("c2", (*out, *inner), "mme"), Move("y", "L1", "DDR", out))
    )  # fmt: skip
    tree: Place | Loop = Place("w2", "L1", whole(6, 6, 3), 1, body)
    tree = Place("w1", "L1", whole(6, 6, 3), 1, tree)
    tree = Place("m", "L1", mid, 1, tree, None, Init.IDENTITY)
    tree = Place("y", "L1", out, 1, tree, None, Init.IDENTITY)
    tree = Place("x", "L1", src, 2, tree)
    return Schedule(graph, Loop("t", -(-40 // tile), LoopKind.TIME, tree), "test", 0)


@pytest.mark.parametrize("tile", [40, 16, 7])
def test_fused_convolutions_recompute_the_halo(tile: int) -> None:
    arrays = {"x": normal((6, 40)), "w1": normal((6, 6, 3), 1), "w2": normal((6, 6, 3), 2)}
    want = evaluate(conv_relu_conv(), arrays)["y"]
    close(run_unit(fused(tile), arrays)["y"], want)


def piped() -> Schedule:
    """relu then double through a queue of two tiles, on different cores."""
    graph = Graph.build(
        tuple(
            TensorOp(name, (Axis("i", 50),), (Access(a, (var("i"),)),), Access(b, (var("i"),)),
                     body, None, ORIGIN)
            for name, a, b, body in (
                ("relu", "x", "m", Apply(Fn.MAX, (Read(0), Const(0.0, DType.F32)))),
                ("twice", "m", "y", Apply(Fn.ADD, (Read(0), Read(0)))),
            )
        ),
        tuple(Tensor(n, (50,), DType.F32) for n in "xmy"), ("x",), ("y",),
    )  # fmt: skip
    box = (Span(var("p") * 16, 16),)
    first = Place(
        "x", "L1", box, 1, Seq((Move("x", "DDR", "L1", box), Compute("relu", box, "mme")))
    )
    second = Place(
        "y", "L1", box, 1, Seq((Compute("twice", box, "mme"), Move("y", "L1", "DDR", box)))
    )
    pipe = Pipe("p", 4, (Stage(first, 0), Stage(second, 1)), (Queue("m", "L1", box, 2, 0, (1,)),))
    return Schedule(graph, pipe, "test", 0)


def test_pipes_pass_tiles_through_queues() -> None:
    x = normal((50,))
    close(run_unit(piped(), {"x": x})["y"], 2 * np.maximum(x, 0), 0)


def without_move(schedule: Schedule, tensor: str) -> Schedule:
    """The same schedule with the loads of one tensor left out: a missing transfer."""

    def cut(node):  # type: ignore[no-untyped-def]
        match node:
            case Loop():
                return Loop(node.var, node.trip, node.kind, cut(node.body), node.core_stride)
            case Place():
                return Place(node.tensor, node.memory, node.tile, node.copies, cut(node.body),
                             node.dtype, node.init)  # fmt: skip
            case Seq(parts):
                kept = [
                    cut(p) for p in parts
                    if not (isinstance(p, Move) and p.tensor == tensor and p.src == "DDR")
                ]  # fmt: skip
                return Seq(tuple(kept))
            case _:
                return node

    return Schedule(schedule.graph, cut(schedule.root), "test", 0)


def test_poison_makes_a_missing_move_visible() -> None:
    a, b = normal((50, 90)), normal((90, 70), 1)
    schedule = tiled(matmul_graph(50, 70, 90), {"i": 16, "j": 32, "k": 32})
    assert np.isnan(run_unit(without_move(schedule, "a"), {"a": a, "b": b})["c"]).all()


def test_a_box_outside_its_buffer_faults() -> None:
    graph = elementwise_graph(Read(0), (DType.F32,), DType.F32, (64,))
    box = (Span(var("t") * 16, 16),)
    wrong = (Span(var("t") * 15, 16),)
    body = Seq(
        (Move("x0", "DDR", "L1", box), Compute("ew", box, "mme"), Move("z", "L1", "DDR", box))
    )
    tree = Place("x0", "L1", wrong, 1, Place("z", "L1", box, 1, body))
    schedule = Schedule(graph, Loop("t", 4, LoopKind.TIME, tree), "test", 0)
    with pytest.raises(MemoryFault, match=r"at 0\.0\.0\.0\.0: buffer of x0 at 0\.0 in L1 is left"):
        run_unit(schedule, {"x0": normal((64,))})


def test_a_compute_beyond_its_tile_faults() -> None:
    graph = elementwise_graph(Read(0), (DType.F32,), DType.F32, (64,))
    tile = (Span(const(0), 32),)
    body = Seq((Move("x0", "DDR", "L1", tile), Compute("ew", whole(64), "mme")))
    schedule = Schedule(
        graph, Place("x0", "L1", tile, 1, Place("z", "L1", whole(64), 1, body)), "test", 0
    )
    with pytest.raises(MemoryFault, match=r"elements 0\.\.63 of a dimension of 32"):
        run_unit(schedule, {"x0": normal((64,))})


def test_a_buffer_beyond_its_arena_faults() -> None:
    schedule = tiled(matmul_graph(50, 70, 90), {})
    small = machine(capacity_bytes=4096)
    with pytest.raises(MemoryFault, match="leaves its arena"):
        run_unit(schedule, {"a": normal((50, 90)), "b": normal((90, 70))}, small)


def test_software_half_floats_round_like_the_hardware() -> None:
    """The header's fallback for compilers without _Float16, over every half and many doubles."""
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    rng = np.random.default_rng(0)
    wide = rng.standard_normal(60000) * np.exp2(rng.integers(-28, 18, 60000))
    ties = (np.arange(0, 4096) * 0.5 + 1024) * np.exp2(rng.integers(-26, 6, 4096))
    doubles = np.concatenate([wide, ties, [0.0, -0.0, 65519.99, 65520.0, np.inf, -np.inf]])
    schedules = [
        whole_tile(elementwise_graph(Read(0), (DType.F16,), DType.F32, (65536,))),
        whole_tile(elementwise_graph(Read(0), (DType.F64,), DType.F16, doubles.shape)),
    ]
    header = runtime_header().replace("defined(__FLT16_MANT_DIG__)", "0")
    cases = [
        (s, stacked_program(s, machine()), {"x0": x})
        for s, x in zip(schedules, (halves, doubles), strict=True)
    ]
    widened, narrowed = run_units(cases, machine(), header=header)
    np.testing.assert_array_equal(widened["z"], halves.astype(np.float32))
    with np.errstate(over="ignore"):
        want = doubles.astype(np.float16)
    np.testing.assert_array_equal(narrowed["z"].view(np.uint16), want.view(np.uint16))


HOSTILE = '*/ int main(void) { abort(); } /* "\\\n ??/\n#include </etc/passwd>'


def test_hostile_names_stay_in_comments() -> None:
    op = TensorOp(
        HOSTILE, (Axis(HOSTILE + "axis", 9),), (Access(HOSTILE + "in", (var(HOSTILE + "axis"),)),),
        Access(HOSTILE + "out", (var(HOSTILE + "axis"),)), Apply(Fn.NEG, (Read(0),)), None, ORIGIN,
    )  # fmt: skip
    graph = graph_of(
        op, (Tensor(HOSTILE + "in", (9,), DType.F32), Tensor(HOSTILE + "out", (9,), DType.F32))
    )
    schedule = tiled(graph, {HOSTILE + "axis": 4})
    x = normal((9,))
    close(run_unit(schedule, {HOSTILE + "in": x})[HOSTILE + "out"], -x, 0)
    text = generate_kernel(schedule, stacked_program(schedule, machine()), machine(), "k")
    assert "main" not in text.replace("int main(void) _ abort", "")
    with pytest.raises(VerifyError, match="not a C identifier"):
        generate_kernel(schedule, stacked_program(schedule, machine()), machine(), "k(); x")


def test_kernels_are_strict_c11_without_warnings(tmp_path: Path) -> None:
    (tmp_path / HEADER_NAME).write_text(runtime_header())
    schedules = [
        tiled(matmul_graph(50, 70, 90), {"i": 16, "k": 32}, cores=2), fused(16), piped(),
        tiled(quantized_matmul(), {"i": 8}), at_home(gather_graph(None)),
        tiled(pool_graph(Reduce.MAX, float("-inf")), {"h": 3}),
        tiled(matmul_graph(9, 20, 30, DType.F16), {"k": 7}),
    ]  # fmt: skip
    for k, schedule in enumerate(schedules):
        text = generate_kernel(schedule, stacked_program(schedule, machine()), machine(), f"k{k}")
        assert text == generate_kernel(
            schedule, stacked_program(schedule, machine()), machine(), f"k{k}"
        )
        (tmp_path / f"k{k}.c").write_text(text)
    for flags in (
        list(flags_for(find_compiler())),
        ["-std=c11", "-O1", "-Wall", "-Wextra", "-Wpedantic"],
    ):
        done = subprocess.run(
            [str(find_compiler()), *flags, "-Werror", "-c",
             *(f"k{k}.c" for k in range(len(schedules)))],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[:3000]
