"""Composing a region: every rule and every refusal on hand-written graphs, values by the oracle."""

from __future__ import annotations

import numpy as np
import pytest
from compose_toys import (
    ADD,
    EXP,
    F16,
    F32,
    I1,
    I2,
    I3,
    I4,
    MUL,
    PLUS,
    RELU,
    Toy,
    composed,
    const,
    fn,
    index_of,
    names,
    nodes,
)

from worker.compiler.cost.compute import Contraction, contraction
from worker.compiler.ir.affine import Affine, Lookup, var
from worker.compiler.ir.compose_moves import num_divisions
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import (
    Access,
    Origin,
    Reduce,
    TensorOp,
)
from worker.compiler.ir.scalar import Apply, Cast, Const, Fn, Read, Scalar, children
from worker.compiler.rewrite.compose_region import (
    MAX_BODY_NODES,
    MAX_TENSORS,
)

# --- moves


def attention() -> Graph:
    """One attention block as BERT has it: 6 positions, 2 heads of 4, 8 features."""
    toy = Toy()
    toy.given("x", 6, 8)
    toy.given("mask", 6, 6)
    for name in "qkvo":
        toy.given(f"w{name}", 8, 8, is_constant=True)
        toy.given(f"b{name}", 8, is_constant=True)
    heads = {"i": 6, "j": 2, "k": 4}
    for name in "qkv":
        toy.matmul(f"{name}.mm", "x", f"w{name}", 6, 8, 8)
        toy.op(name, {"i": 6, "j": 8}, [(f"{name}.mm", (I1, I2)), (f"b{name}", (I2,))], ADD)
        toy.op(f"{name}.view", heads, [(name, (I1, 4 * I2 + I3))])
    toy.op("qt", {"i": 2, "j": 6, "k": 4}, [("q.view", (I2, I1, I3))])
    toy.op("kt", {"i": 2, "j": 4, "k": 6}, [("k.view", (I3, I1, I2))])
    toy.op("vt", {"i": 2, "j": 6, "k": 4}, [("v.view", (I2, I1, I3))])
    square = {"i": 2, "j": 6, "k": 6}
    toy.op(
        "scores", {**square, "l": 4}, [("qt", (I1, I2, I4)), ("kt", (I1, I4, I3))], MUL,
        reduce=Reduce.ADD, over="l",
    )  # fmt: skip
    toy.op("scaled", square, [("scores", (I1, I2, I3))], fn(Fn.MUL, Read(0), const(0.5)))
    toy.op("masked", square, [("scaled", (I1, I2, I3)), ("mask", (I2, I3))], ADD)
    toy.op("max", square, [("masked", (I1, I2, I3))], reduce=Reduce.MAX, over="k")
    toy.op(
        "exp", square, [("masked", (I1, I2, I3)), ("max", (I1, I2))],
        fn(Fn.EXP, fn(Fn.SUB, Read(0), Read(1))),
    )  # fmt: skip
    toy.op("sum", square, [("exp", (I1, I2, I3))], reduce=Reduce.ADD, over="k")
    toy.op("soft", square, [("exp", (I1, I2, I3)), ("sum", (I1, I2))], fn(Fn.DIV, Read(0), Read(1)))
    toy.op(
        "context", {"i": 2, "j": 6, "k": 4, "l": 6},
        [("soft", (I1, I2, I4)), ("vt", (I1, I4, I3))], MUL,
        reduce=Reduce.ADD, over="l",
    )  # fmt: skip
    toy.op("ct", {"i": 6, "j": 2, "k": 4}, [("context", (I2, I1, I3))])
    toy.op("flat", {"i": 6, "j": 8}, [("ct", (I1, I2.floordiv(4), I2.mod(4)))])
    toy.matmul("o.mm", "flat", "wo", 6, 8, 8)
    toy.op("o", {"i": 6, "j": 8}, [("o.mm", (I1, I2)), ("bo", (I2,))], ADD)
    toy.op("y", {"i": 6, "j": 8}, [("o", (I1, I2)), ("x", (I1, I2))], ADD)
    return toy.graph("y")


def test_attention_has_no_moves_left() -> None:
    result = composed(attention())
    assert names(result) == [
        "q.mm", "q", "k.mm", "k", "v.mm", "v", "scores", "masked", "max", "exp", "sum", "soft",
        "context", "o.mm", "y",
    ]  # fmt: skip
    assert all(num_divisions(op) == 0 for op in result.ops)
    scores, context = result.op("scores"), result.op("context")
    assert (index_of(scores, 0), index_of(scores, 1)) == (("j", "4*i + l"), ("k", "4*i + l"))
    assert context.write.tensor == "flat"
    assert [str(e) for e in context.write.index] == ["j", "4*i + k"]


def test_attention_keeps_the_roles_of_its_contractions() -> None:
    before, after = attention(), composed(attention())
    found = 0
    for op in before.ops:
        roles = contraction(op)
        if roles is not None:
            assert contraction(after.op(op.name)) == roles
            assert after.op(op.name).body == op.body
            found += 1
    assert found == 6


def test_origins_unite_in_graph_order() -> None:
    result = composed(attention())
    assert result.op("scores").origin.nodes == (
        "n_q.view", "n_k.view", "n_qt", "n_kt", "n_scores",
    )  # fmt: skip
    assert result.op("context").origin.nodes == (
        "n_v.view", "n_vt", "n_context", "n_ct", "n_flat",
    )  # fmt: skip
    assert result.op("y").origin == Origin(("n_o", "n_y"), "Toy")
    everything = {n for op in result.ops for n in op.origin.nodes}
    assert everything == {f"n_{op.name}" for op in attention().ops}


def test_a_move_folds_into_all_its_readers() -> None:
    toy = Toy()
    toy.given("x", 4, 6)
    toy.op("t", {"i": 6, "j": 4}, [("x", (I2, I1))])
    toy.op("a", {"i": 6, "j": 4}, [("t", (I1, I2))], EXP)
    toy.op("b", {"i": 6, "j": 4}, [("t", (I1, I2))], RELU)
    result = composed(toy.graph("a", "b"))
    assert names(result) == ["a", "b"]
    assert index_of(result.op("b"), 0) == ("j", "i")


def test_a_slice_and_an_expand_fold_into_a_pointwise_reader() -> None:
    toy = Toy()
    toy.given("x", 6, 8)
    toy.given("row", 1, 8)
    toy.op("part", {"i": 4, "j": 8}, [("x", (I1 + 2, I2))])
    toy.op("wide", {"i": 4, "j": 8}, [("row", (0, I2))])
    toy.op("y", {"i": 4, "j": 8}, [("part", (I1, I2)), ("wide", (I1, I2))], ADD)
    result = composed(toy.graph("y"))
    assert names(result) == ["y"]
    assert [a.tensor for a in result.op("y").reads] == ["x", "row"]


def test_an_expand_stays_where_it_would_change_the_roles_of_axes() -> None:
    toy = Toy()
    toy.given("x", 8)
    toy.given("w", 8, 5)
    toy.op("wide", {"i": 4, "k": 8}, [("x", (I3,))])
    toy.op("b", {"i": 4, "j": 5, "k": 8}, [("wide", (I1, I3)), ("w", (I3, I2))], MUL,
           reduce=Reduce.ADD, over="k")  # fmt: skip
    roles = contraction(toy.graph("b").op("b"))
    assert roles == Contraction((0,), (1,), (2,), (), (0, 1))
    assert names(composed(toy.graph("b"))) == ["wide", "b"]


def test_padding_becomes_the_fill_of_the_reader() -> None:
    toy = Toy()
    toy.given("x", 4, 6)
    toy.given("w", 3, 4, 5)
    toy.op("pad", {"i": 4, "j": 8}, [Access("x", (I1, I2 - 1), 0.0)])
    toy.op(
        "y", {"i": 5, "j": 6, "k": 4, "l": 3}, [("pad", (I3, I2 + I4)), ("w", (I4, I3, I1))], MUL,
        reduce=Reduce.ADD, over="kl",
    )  # fmt: skip
    result = composed(toy.graph("y"))
    assert names(result) == ["y"]
    assert result.op("y").reads[0].fill == 0.0


def test_a_reshape_that_divides_stays_before_a_contraction() -> None:
    toy = Toy()
    toy.given("x", 6, 4)
    toy.given("w", 3, 5)
    flat = 3 * I1 + I2
    toy.op("view", {"i": 8, "j": 3}, [("x", (flat.floordiv(4), flat.mod(4)))])
    toy.matmul("y", "view", "w", 8, 5, 3)
    assert names(composed(toy.graph("y"))) == ["view", "y"]


def test_a_result_that_leaves_is_not_folded_away() -> None:
    toy = Toy()
    toy.given("x", 4, 6)
    toy.op("a", {"i": 4, "j": 6}, [("x", (I1, I2))], PLUS)
    toy.op("t", {"i": 6, "j": 4}, [("a", (I2, I1))])
    toy.op("y", {"i": 6, "j": 4}, [("t", (I1, I2))], RELU)
    assert names(composed(toy.graph("a", "t", "y"))) == ["a", "t", "y"]
    assert names(composed(toy.graph("t", "y"))) == ["a", "y"]  # `a` writes t, which y still reads
    assert names(composed(toy.graph("y"))) == ["y"]


def test_two_readings_of_one_tensor_stay_apart() -> None:
    """Folded, x would be read straight and transposed at once: no one box serves both."""
    toy = Toy()
    toy.given("x", 6, 6)
    toy.op("t", {"i": 6, "j": 6}, [("x", (I2, I1))])
    toy.op("y", {"i": 6, "j": 6}, [("x", (I1, I2)), ("t", (I1, I2))], ADD)
    assert names(composed(toy.graph("y"))) == ["t", "y"]


@pytest.mark.parametrize(("rows", "kept"), [(4, ["t", "y"]), (5, ["y"])])
def test_tiny_results_are_left(rows: int, kept: list[str]) -> None:
    toy = Toy()
    toy.given("x", 4, rows)
    toy.op("t", {"i": rows, "j": 4}, [("x", (I2, I1))])
    toy.op("y", {"i": rows, "j": 4}, [("t", (I1, I2))], RELU)
    assert names(composed(toy.graph("y"))) == kept


def test_constant_only_operators_are_left() -> None:
    toy = Toy()
    toy.given("x", 6, 4)
    toy.given("w", 4, 6, is_constant=True)
    toy.op("t", {"i": 6, "j": 4}, [("w", (I2, I1))])
    toy.op("p", {"i": 6, "j": 4}, [("t", (I1, I2))], PLUS)
    toy.op("y", {"i": 6, "j": 4}, [("p", (I1, I2)), ("x", (I1, I2))], ADD)
    assert names(composed(toy.graph("y"))) == ["t", "y"]


# --- concatenations


def concatenation(*, is_shared: bool, has_operand: bool) -> Toy:
    """p and q side by side in c; shared pieces are read elsewhere and cannot be written there."""
    toy = Toy()
    toy.given("x", 4, 6)
    toy.given("z", 8, 6)
    toy.op("p", {"i": 4, "j": 6}, [("x", (I1, I2))], EXP)
    toy.op("q", {"i": 4, "j": 6}, [("x", (I1, I2))], RELU)
    toy.op("c0", {"i": 4, "j": 6}, [("p", (I1, I2))], to=("c", (8, 6), (I1, I2)))
    toy.op("c1", {"i": 4, "j": 6}, [("q", (I1, I2))], to=("c", (8, 6), (I1 + 4, I2)))
    if is_shared:
        toy.op("r", {"i": 4, "j": 6}, [("p", (I1, I2)), ("q", (I1, I2))], ADD)
    if has_operand:
        toy.op("late", {"i": 8, "j": 6}, [("z", (I1, I2))], reduce=Reduce.ADD, over="j")
        toy.op("y", {"i": 8, "j": 6}, [("c", (I1, I2)), ("late", (I1,))], ADD)
    return toy


def test_pieces_are_written_where_they_belong() -> None:
    result = composed(concatenation(is_shared=False, has_operand=False).graph("c"))
    assert names(result) == ["p", "q"]
    assert [str(e) for e in result.op("q").write.index] == ["i + 4", "j"]


def test_a_pointwise_reader_works_on_the_pieces() -> None:
    """The pieces move behind `late`, which they now read."""
    result = composed(concatenation(is_shared=True, has_operand=True).graph("r", "y"))
    assert names(result) == ["p", "q", "r", "late", "c0", "c1"]
    assert "c" not in result.tensors
    piece = result.op("c1")
    assert (piece.write.tensor, index_of(piece, 1)) == ("y", ("i + 4",))
    assert piece.origin.nodes == ("n_c1", "n_y")


def test_the_whole_is_kept_for_other_readers() -> None:
    toy = concatenation(is_shared=True, has_operand=True)
    assert names(composed(toy.graph("r", "y", "c"))) == names(toy.graph("r", "y", "c"))


def joined_product(copied: int) -> Graph:
    """The first rows of c are a copy, the last ones a product; y is made of all of c."""
    toy = Toy()
    toy.given("x", copied, 6)
    toy.given("v", 4, 5)
    toy.given("w", 5, 6, is_constant=True)
    rows = copied + 4
    toy.op("c0", {"i": copied, "j": 6}, [("x", (I1, I2))], to=("c", (rows, 6), (I1, I2)))
    toy.op(
        "mm", {"i": 4, "j": 6, "k": 5}, [("v", (I1, var("k"))), ("w", (var("k"), I2))], MUL,
        reduce=Reduce.ADD, over="k", to=("c", (rows, 6), (I1 + copied, I2)),
    )  # fmt: skip
    toy.op("y", {"i": rows, "j": 6}, [("c", (I1, I2))], RELU)
    return toy.graph("y")


def test_a_piece_that_a_sum_writes_gets_a_tensor_of_its_own() -> None:
    result = composed(joined_product(copied=8))
    assert names(result) == ["mm", "c0", "mm/y"]
    assert "c" not in result.tensors and result.tensors["mm/y"].shape == (4, 6)
    behind = result.op("mm/y")
    assert (behind.write.tensor, str(behind.write.index[0])) == ("y", "i + 8")
    assert behind.body == RELU and behind.origin.nodes == ("n_y",)


def test_a_whole_that_is_mostly_sums_stays() -> None:
    """Copying the few other rows costs less than a tensor for the product."""
    graph = joined_product(copied=2)
    assert names(composed(graph)) == names(graph)


# --- pointwise chains


def gelu(dtype: DType = F32) -> Graph:
    toy = Toy(dtype)
    toy.given("x", 4, 6)
    toy.given("b", 6, is_constant=True)
    square = {"i": 4, "j": 6}
    toy.op("linear", square, [("x", (I1, I2)), ("b", (I2,))], ADD)
    toy.op("div", square, [("linear", (I1, I2))], fn(Fn.DIV, Read(0), const(1.4142135)))
    toy.op("erf", square, [("div", (I1, I2))], fn(Fn.ERF, Read(0)))
    toy.op("one", square, [("erf", (I1, I2))], fn(Fn.ADD, Read(0), const(1.0)))
    toy.op("half", square, [("one", (I1, I2))], fn(Fn.MUL, Read(0), const(0.5)))
    toy.op("gelu", square, [("linear", (I1, I2)), ("half", (I1, I2))], MUL)
    return toy.graph("gelu")


def test_gelu_is_one_operator_with_one_erf() -> None:
    result = composed(gelu())
    assert names(result) == ["gelu"]
    body = result.op("gelu").body

    def count(expr: Scalar) -> int:
        own = isinstance(expr, Apply) and expr.fn is Fn.ERF
        return own + sum(count(c) for c in children(expr))

    assert count(body) == 1
    assert nodes(body, Cast) == 0


def test_half_precision_chains_round_where_they_did() -> None:
    """`composed` compares bits; without the casts the bits are others."""
    graph = gelu(F16)
    result = composed(graph)
    assert names(result) == ["gelu"]
    rng = np.random.default_rng(7)
    values = {n: rng.standard_normal(graph.tensors[n].shape).astype(np.float16) for n in "xb"}

    def bare(expr: Scalar) -> Scalar:
        match expr:
            case Cast(_, arg):
                return bare(arg)
            case Apply(which, args):
                return Apply(which, tuple(bare(a) for a in args))
            case _:
                return expr

    op = result.op("gelu")
    unrounded = Graph.build(
        (TensorOp(op.name, op.domain, op.reads, op.write, bare(op.body), None, op.origin),),
        tuple(result.tensors.values()), result.inputs, result.outputs, result.constants,
    )  # fmt: skip
    one, other = evaluate(result, values)["gelu"], evaluate(unrounded, values)["gelu"]
    assert not np.array_equal(one, other)


def test_a_half_precision_move_leaves_the_arithmetic_alone() -> None:
    toy = Toy(F16)
    toy.given("x", 6, 4)
    toy.given("w", 6, 5)
    toy.op("t", {"i": 4, "j": 6}, [("x", (I2, I1))])
    toy.matmul("y", "t", "w", 4, 5, 6)
    result = composed(toy.graph("y"))
    assert names(result) == ["y"]
    assert result.op("y").body == MUL


def test_a_fill_that_half_precision_rounds_stays_rounded() -> None:
    toy = Toy(F16)
    toy.given("x", 4, 6)
    toy.op("pad", {"i": 4, "j": 8}, [Access("x", (I1, I2 - 1), 0.1)])
    toy.op("y", {"i": 4, "j": 8}, [("pad", (I1, I2))], fn(Fn.MUL, Read(0), const(1000.0)))
    assert names(composed(toy.graph("y"))) == ["y"]


def test_what_two_operators_read_is_computed_once() -> None:
    toy = Toy()
    toy.given("x", 4, 6)
    square = {"i": 4, "j": 6}
    toy.op("exp", square, [("x", (I1, I2))], EXP)
    toy.op("sum", square, [("exp", (I1, I2))], reduce=Reduce.ADD, over="j")
    toy.op("soft", square, [("exp", (I1, I2)), ("sum", (I1,))], fn(Fn.DIV, Read(0), Read(1)))
    assert names(composed(toy.graph("soft"))) == ["exp", "sum", "soft"]


@pytest.mark.parametrize(("body", "kept"), [(EXP, ["a", "y"]), (PLUS, ["y"])])
def test_special_functions_are_not_repeated_in_a_body(body: Scalar, kept: list[str]) -> None:
    toy = Toy()
    toy.given("x", 4, 6)
    toy.op("a", {"i": 4, "j": 6}, [("x", (I1, I2))], body)
    toy.op("y", {"i": 4, "j": 6}, [("a", (I1, I2))], fn(Fn.MUL, Read(0), Read(0)))
    assert names(composed(toy.graph("y"))) == kept


def test_a_body_stays_small() -> None:
    toy = Toy()
    toy.given("x", 4, 6)
    source = "x"
    for k in range(40):
        toy.op(f"a{k}", {"i": 4, "j": 6}, [(source, (I1, I2))], PLUS)
        source = f"a{k}"
    result = composed(toy.graph(source))
    sizes = [nodes(op.body, object) for op in result.ops]
    assert max(sizes) <= MAX_BODY_NODES
    assert len(sizes) == 3  # 15 additions of 2 nodes each fit beside the read


def test_an_operator_reads_few_tensors() -> None:
    toy = Toy()
    toy.given("x0", 4, 6)
    source = "x0"
    for k in range(1, 9):
        toy.given(f"x{k}", 4, 6)
        toy.op(f"a{k}", {"i": 4, "j": 6}, [(source, (I1, I2)), (f"x{k}", (I1, I2))], ADD)
        source = f"a{k}"
    result = composed(toy.graph(source))
    assert len(result.ops) == 2
    assert all(len(o.input_names()) <= MAX_TENSORS for o in result.ops)


def test_a_small_operand_is_not_computed_again_for_every_row() -> None:
    toy = Toy()
    toy.given("x", 6, 24)
    toy.given("b", 24)
    toy.op("p", {"j": 24}, [("b", (I2,))], PLUS)
    toy.op("y", {"i": 6, "j": 24}, [("x", (I1, I2)), ("p", (I2,))], ADD)
    assert names(composed(toy.graph("y"))) == ["p", "y"]


@pytest.mark.parametrize(("step", "kept"), [(1, ["a", "pool"]), (2, ["pool"])])
def test_a_window_takes_pointwise_work_unless_windows_overlap(step: int, kept: list[str]) -> None:
    toy = Toy()
    toy.given("x", 4, 8)
    toy.op("a", {"i": 4, "j": 8}, [("x", (I1, I2))], PLUS)
    count = 7 if step == 1 else 4
    toy.op("pool", {"i": 4, "j": count, "k": 2}, [("a", (I1, step * I2 + I3))], reduce=Reduce.MAX,
           over="k")  # fmt: skip
    assert names(composed(toy.graph("pool"))) == kept


def test_no_arithmetic_enters_a_contraction_or_makes_one() -> None:
    toy = Toy()
    toy.given("x", 4, 6)
    toy.given("w", 6, 5)
    toy.op("a", {"i": 4, "j": 6}, [("x", (I1, I2))], RELU)
    toy.matmul("y", "a", "w", 4, 5, 6)
    assert names(composed(toy.graph("y"))) == ["a", "y"]
    toy = Toy()
    toy.given("x", 4, 6)
    toy.given("w", 4, 6)
    toy.op("a", {"i": 4, "j": 6}, [("x", (I1, I2)), ("w", (I1, I2))], MUL)
    toy.op("y", {"i": 4, "j": 6}, [("a", (I1, I2))], reduce=Reduce.ADD, over="j")
    assert names(composed(toy.graph("y"))) == ["a", "y"]


def test_an_epilogue_stays_behind_its_contraction() -> None:
    """Into a reader of the same shape it may go, not into one that sums or turns."""
    toy = Toy()
    toy.given("x", 4, 6)
    toy.given("w", 6, 5)
    toy.matmul("m", "x", "w", 4, 5, 6)
    toy.op("a", {"i": 4, "j": 5}, [("m", (I1, I2))], RELU)
    toy.op("b", {"i": 4, "j": 5}, [("a", (I1, I2))], PLUS)
    toy.op("sum", {"i": 4, "j": 5}, [("b", (I1, I2))], reduce=Reduce.ADD, over="j")
    assert names(composed(toy.graph("sum"))) == ["m", "b", "sum"]
    toy.op("turned", {"i": 5, "j": 4}, [("b", (I2, I1))], EXP)
    turned = toy.graph("turned", "sum")
    assert names(composed(turned)) == ["m", "b", "sum", "turned"]


def test_tables_are_left_alone() -> None:
    toy = Toy(DType.I32)
    toy.given("at", 24)
    toy.given("table", 3)
    toy.op("k", {"i": 24}, [("at", (I1,))], fn(Fn.FLOORMOD, Read(0), Const(3, DType.I32)))
    picked = Affine(((Lookup(0), 1),))
    toy.op("row", {"i": 24}, [("k", (I1,)), ("table", (picked,))], Read(1))
    toy.op("y", {"i": 24}, [("row", (I1,))], fn(Fn.ADD, Read(0), Const(1, DType.I32)))
    assert names(composed(toy.graph("y"))) == ["k", "row", "y"]
