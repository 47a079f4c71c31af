"""Moves in the algebra: what is one, redirecting a writer, cutting axes instead of dividing."""

from __future__ import annotations

from compose_toys import (
    F16,
    I1,
    I2,
    PLUS,
    RELU,
    Toy,
    composed,
    index_of,
    names,
    nodes,
)

from worker.compiler.ir.axis import Axis
from worker.compiler.ir.compose import pull
from worker.compiler.ir.compose_moves import is_move, num_divisions, redirect, split_axes
from worker.compiler.ir.op import (
    Access,
    Origin,
    Reduce,
    Tensor,
    TensorOp,
)
from worker.compiler.ir.scalar import Cast, Read


def reshape(rows: int, columns: int) -> TensorOp:
    """[rows, columns] read as one row."""
    index = (I1.floordiv(columns), I1.mod(columns))
    axis = Axis("i", rows * columns)
    return TensorOp(
        "v",
        (axis,),
        (Access("x", index),),
        Access("v", (I1,)),
        Read(0),
        None,
        Origin((), "Reshape"),
    )


def test_split_axes_takes_the_divisions_out() -> None:
    split = split_axes(reshape(6, 4))
    assert [(a.name, a.extent) for a in split.domain] == [("io", 6), ("ii", 4)]
    assert index_of(split, 0) == ("io", "ii")
    assert [str(e) for e in split.write.index] == ["ii + 4*io"]
    assert (num_divisions(reshape(6, 4)), num_divisions(split)) == (2, 0)


def test_split_axes_cuts_again_for_three_digits() -> None:
    index = (I1.floordiv(12), I1.floordiv(4).mod(3), I1.mod(4))
    op = TensorOp("v", (Axis("i", 24),), (Access("x", index),), Access("v", (I1,)), Read(0), None,
                  Origin((), "Reshape"))  # fmt: skip
    split = split_axes(op)
    assert num_divisions(split) == 0
    assert [a.extent for a in split.domain] == [2, 3, 4]


def test_split_axes_leaves_what_does_not_divide() -> None:
    odd = TensorOp("v", (Axis("i", 10),), (Access("x", (I1.floordiv(4),)),), Access("v", (I1,)),
                   Read(0), None, Origin((), "Toy"))  # fmt: skip
    assert split_axes(odd) == odd


def test_redirect_refuses_what_is_not_one_to_one() -> None:
    toy = Toy()
    toy.given("x", 6, 8)
    toy.op("a", {"i": 6, "j": 8}, [("x", (I1, I2))], RELU)
    toy.op("slice", {"i": 4, "j": 8}, [("a", (I1, I2))])
    toy.op("expand", {"i": 6, "j": 8, "k": 2}, [("a", (I1, I2))])
    toy.op("pad", {"i": 6, "j": 8}, [Access("a", (I1, I2), 0.0)])
    toy.op("turn", {"i": 8, "j": 6}, [("a", (I2, I1))])
    graph = toy.graph("slice", "expand", "pad", "turn")
    a = graph.op("a")
    for name in ("slice", "expand", "pad"):
        assert redirect(a, graph.op(name), graph.tensors) is None
    turned = redirect(a, graph.op("turn"), graph.tensors)
    assert turned is not None
    assert [str(e) for e in turned.write.index] == ["j", "i"]


def test_is_move_means_copying_without_computing() -> None:
    toy = Toy()
    toy.given("x", 4, 6)
    toy.op("move", {"i": 6, "j": 4}, [("x", (I2, I1))])
    toy.op("plus", {"i": 4, "j": 6}, [("x", (I1, I2))], PLUS)
    toy.op("max", {"i": 4, "j": 6}, [("x", (I1, I2))], reduce=Reduce.MAX, over="j")
    toy.tensors["half"] = Tensor("half", (4, 6), F16)
    toy.op("half", {"i": 4, "j": 6}, [("x", (I1, I2))])
    graph = toy.graph("move", "plus", "max", "half")
    found = [op.name for op in graph.ops if is_move(op, graph.tensors)]
    assert found == ["move"]


def test_pull_of_a_narrowing_copy_keeps_its_rounding() -> None:
    toy = Toy()
    toy.given("x", 4, 6)
    toy.tensors["half"] = Tensor("half", (4, 6), F16)
    toy.op("half", {"i": 4, "j": 6}, [("x", (I1, I2))])
    toy.op("y", {"i": 4, "j": 6}, [("half", (I1, I2))], PLUS)
    graph = toy.graph("y")
    pulled = pull(graph.op("y"), graph.op("half"), graph.tensors)
    assert pulled is not None
    assert nodes(pulled.body, Cast) == 2
    assert names(composed(graph)) == ["y"]
