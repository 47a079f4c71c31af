"""Composing operators through intermediate tensors: same values, and one refusal per rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from worker.compiler.ir.affine import Affine, Lookup, var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.compose import absorb, compose, pull, simplified
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Origin, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Cast, Const, Fn, Index, Read, Scalar

ORIGIN = Origin(("node",), "Toy")
ROW, COL = var("i"), var("j")
PICKED = Affine(((Lookup(0), 1),))
RNG = np.random.default_rng(3)
F32, I8, I64 = DType.F32, DType.I8, DType.I64


def tensor(name: str, shape: tuple[int, ...], dtype: DType = F32) -> Tensor:
    return Tensor(name, shape, dtype)


def table(*tensors: Tensor) -> dict[str, Tensor]:
    return {t.name: t for t in tensors}


def op(
    name: str,
    shape: tuple[int, ...],
    reads: list[tuple[str, tuple[Affine | int, ...]] | Access],
    write: tuple[Affine | int, ...],
    body: Scalar,
    reduce: Reduce | None = None,
) -> TensorOp:
    """An operator writing tensor `name` over axes i, j, k; the last reduces if `reduce`."""
    kinds = [AxisKind.PARALLEL] * len(shape)
    if reduce is not None:
        kinds[-1] = AxisKind.REDUCE
    axes = tuple(Axis(n, e, k) for n, e, k in zip("ijk", shape, kinds, strict=False))
    accesses = tuple(
        r if isinstance(r, Access) else Access(r[0], tuple(Affine.of(e) for e in r[1]))
        for r in reads
    )
    return TensorOp(
        f"op_{name}", axes, accesses, Access(name, tuple(Affine.of(e) for e in write)), body,
        reduce, ORIGIN,
    )  # fmt: skip


def plus(value: float) -> Scalar:
    return Apply(Fn.ADD, (Read(0), Const(value, F32)))


def run(
    ops: tuple[TensorOp, ...], tensors: dict[str, Tensor], inputs: dict[str, npt.NDArray[Any]],
    outputs: tuple[str, ...],
) -> dict[str, npt.NDArray[Any]]:  # fmt: skip
    used = {a.tensor for o in ops for a in (*o.reads, o.write)}
    graph = Graph.build(
        ops, tuple(t for t in tensors.values() if t.name in used),
        tuple(n for n in inputs if n in used), outputs,
    )  # fmt: skip
    results = evaluate(graph, inputs)
    return {name: results[name] for name in outputs}


def same(
    ops: tuple[TensorOp, ...], tensors: dict[str, Tensor], inputs: dict[str, npt.NDArray[Any]],
    outputs: tuple[str, ...], count: int,
) -> tuple[TensorOp, ...]:  # fmt: skip
    """Compose, compare with the chain, and check how many operators are left."""
    composed = compose(ops, tensors, outputs)
    assert len(composed) == count
    want, have = run(ops, tensors, inputs, outputs), run(composed, tensors, inputs, outputs)
    for name in outputs:
        np.testing.assert_array_equal(have[name], want[name])
    return composed


TENSORS = table(
    tensor("x", (4, 6)), tensor("t", (4, 6)), tensor("y", (4, 6)), tensor("u", (6, 4)),
    tensor("s", (4,)), tensor("h", (4, 6), DType.F16), tensor("b", (4, 6), I8),
    tensor("c", (4, 6), I8), tensor("p", (6, 6)), tensor("w", (8, 6)), tensor("k", (3,), I64),
    tensor("g", (3, 6)),
)  # fmt: skip
X = {"x": RNG.standard_normal((4, 6)).astype(np.float32)}
FILL = op("t", (4, 6), [("x", (ROW, COL))], (ROW, COL), plus(1.5))


def test_pull_through_a_transpose() -> None:
    turn = op("u", (6, 4), [("t", (COL, ROW))], (ROW, COL), plus(2.0))
    (one,) = same((FILL, turn), TENSORS, X, ("u",), 1)
    assert one.reads == (Access("x", (COL, ROW)),)


def test_pull_into_a_reduction_and_two_readers() -> None:
    total = op("s", (4, 6), [("t", (ROW, COL))], (ROW,), Read(0), Reduce.ADD)
    twice = op("y", (4, 6), [("t", (ROW, COL)), ("t", (ROW, 5 - COL))], (ROW, COL),
               Apply(Fn.MUL, (Read(0), Read(1))))  # fmt: skip
    same((FILL, total, twice), TENSORS, X, ("s", "y"), 2)


def test_an_intermediate_in_half_precision_still_rounds() -> None:
    half = op("h", (4, 6), [("x", (ROW, COL))], (ROW, COL), plus(1000.3))
    back = op("y", (4, 6), [("h", (ROW, COL))], (ROW, COL), plus(0.0))
    (one,) = same((half, back), TENSORS, X, ("y",), 1)
    wide = run(
        (op("y", (4, 6), [("x", (ROW, COL))], (ROW, COL), plus(1000.3)),), TENSORS, X, ("y",)
    )
    assert not np.array_equal(run((one,), TENSORS, X, ("y",))["y"], wide["y"])


def test_an_index_in_the_body_moves_along() -> None:
    ramp = op("t", (4, 6), [("x", (ROW, COL))], (ROW, COL),
              Apply(Fn.ADD, (Read(0), Cast(F32, Index(ROW * 10 + COL)))))  # fmt: skip
    turn = op("u", (6, 4), [("t", (COL, ROW))], (ROW, COL), Read(0))
    same((ramp, turn), TENSORS, X, ("u",), 1)


@pytest.mark.parametrize("fill", [0.0, 0.1, -7.25])
def test_a_fill_keeps_its_value(fill: float) -> None:
    dequantise = op("t", (4, 6), [("b", (ROW, COL))], (ROW, COL), Apply(Fn.MUL, (
        Cast(F32, Apply(Fn.SUB, (Read(0), Const(5, DType.I32)))), Const(0.5, F32))))  # fmt: skip
    pad = op("p", (6, 6), [Access("t", (ROW - 1, COL), fill)], (ROW, COL), plus(1.0))
    inputs = {"b": RNG.integers(-128, 128, (4, 6)).astype(np.int8)}
    (one,) = same((dequantise, pad), TENSORS, inputs, ("p",), 1)
    has_source = fill == 0.0  # 0 is the value of the zero point, 5; the others are none's
    assert (one.reads[0].fill == 5) is has_source


def test_lookups_are_renumbered() -> None:
    gather = op("g", (3, 6), [("k", (ROW,)), ("t", (PICKED, COL))], (ROW, COL), Read(1))
    doubled = op(
        "t",
        (4, 6),
        [("x", (ROW, COL)), ("s", (ROW,))],
        (ROW, COL),
        Apply(Fn.MUL, (Read(0), Read(1))),
    )
    inputs = {**X, "k": np.array([3, 0, 2]), "s": RNG.standard_normal(4).astype(np.float32)}
    same((doubled, gather), TENSORS, inputs, ("g",), 1)


def test_pieces_absorb_what_follows_them() -> None:
    """Two writers of one tensor: the reader goes into both, its table read at their places."""
    first, second = (
        op("t", (2, 6), [("x", (ROW * 2 + k, COL))], (ROW + 2 * k, COL), plus(float(k)))
        for k in (0, 1)
    )
    pieces = (first, replace(second, name="second"))
    scale = op(
        "y",
        (4, 6),
        [("t", (ROW, COL)), ("s", (ROW,))],
        (ROW, COL),
        Apply(Fn.MUL, (Read(0), Read(1))),
    )
    inputs = {**X, "s": RNG.standard_normal(4).astype(np.float32)}
    one, other = same((*pieces, scale), TENSORS, inputs, ("y",), 2)
    assert (one.name, other.name) == ("op_y", "second")


def test_what_cannot_be_removed_stays() -> None:
    total = op("s", (4, 6), [("x", (ROW, COL))], (ROW,), Read(0), Reduce.ADD)
    spread = op("y", (4, 6), [("s", (ROW,))], (ROW, COL), plus(1.0))
    same((total, spread), TENSORS, X, ("y",), 2)
    same(
        (FILL, op("y", (4, 6), [("t", (ROW, COL))], (ROW, COL), plus(2.0))),
        TENSORS,
        X,
        ("t", "y"),
        2,
    )


READ_T = op("y", (4, 6), [("t", (ROW, COL))], (ROW, COL), Read(0))
PIECE = op("t", (2, 6), [("x", (ROW, COL))], (ROW + 1, COL), Read(0))


@pytest.mark.parametrize(
    ("reader", "producer"),
    [
        pytest.param(READ_T, PIECE, id="writes a part"),
        pytest.param(
            READ_T, op("t", (4, 6), [("x", (ROW, COL))], (ROW, 5 - COL), Read(0)), id="backwards"
        ),
        pytest.param(
            op("y", (4,), [("s", (ROW,))], (ROW, 0), Read(0)),
            op("s", (4, 6), [("x", (ROW, COL))], (ROW,), Read(0), Reduce.ADD), id="reduces",
        ),
        pytest.param(
            op("y", (4, 6), [("b", (ROW, COL))], (ROW, COL), Cast(F32, Read(0))),
            op("b", (4, 6), [("x", (ROW, COL))], (ROW, COL), Read(0)), id="a store that wraps",
        ),
        pytest.param(
            op("g", (3, 6), [("k", (ROW,)), ("x", (PICKED, COL))], (ROW, COL), Read(1)),
            op("k", (3,), [("k2", (ROW,))], (ROW,), Read(0)), id="decides an index",
        ),
    ],
)  # fmt: skip
def test_pull_refuses(reader: TensorOp, producer: TensorOp) -> None:
    assert pull(reader, producer, {**TENSORS, "k2": tensor("k2", (3,), I64)}) is None


@pytest.mark.parametrize(
    ("producer", "reader"),
    [
        pytest.param(
            PIECE,
            op("y", (4, 6), [("t", (ROW, COL)), ("t", (ROW, 5 - COL))], (ROW, COL), Read(0)),
            id="two places",
        ),
        pytest.param(PIECE, op("y", (4, 5), [("t", (ROW, COL))], (ROW, COL), Read(0)), id="a part"),
        pytest.param(
            PIECE, op("p", (6, 6), [Access("t", (ROW - 1, COL), 0.0)], (ROW, COL), Read(0)),
            id="a fill",
        ),
        pytest.param(PIECE, op("s", (4, 6), [("t", (ROW, COL))], (ROW,), Read(0), Reduce.ADD),
                     id="reader reduces"),
        pytest.param(op("s", (4, 6), [("x", (ROW, COL))], (ROW,), Read(0), Reduce.ADD),
                     op("y", (4,), [("s", (ROW,))], (ROW, 0), Read(0)), id="producer reduces"),
    ],
)  # fmt: skip
def test_absorb_refuses(producer: TensorOp, reader: TensorOp) -> None:
    assert absorb(producer, reader, TENSORS) is None


def requantise(scale_in: float, scale_out: float) -> TensorOp:
    value = Apply(Fn.MUL, (Cast(F32, Read(0)), Const(scale_in, F32)))
    steps = Apply(Fn.ROUND, (Apply(Fn.DIV, (value, Const(scale_out, F32))),))
    return op("c", (4, 6), [("b", (ROW, COL))], (ROW, COL), Cast(I8, steps))


def test_a_body_that_changes_nothing_is_a_copy() -> None:
    assert simplified(requantise(0.1, 0.1), TENSORS).body == Read(0)
    other = requantise(0.1, 0.1004)  # differs from a copy at the ends of the range only
    assert simplified(other, TENSORS) == other
