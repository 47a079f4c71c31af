"""Units: at repetitions, where least is alive, never through a tensor that a unit half writes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_chain_graphs import Axes, build, fn, op

from worker.compiler.ir.affine import var
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import (
    Access,
    Reduce,
    Tensor,
    TensorOp,
)
from worker.compiler.ir.region import Cuts
from worker.compiler.ir.scalar import Fn, Read
from worker.compiler.ir.signature import canonicalize
from worker.compiler.rewrite.cut_units import MAX_OPS, cut_units

SIDE = 4


def _step(name: str, source: str, target: str, factor: float, size: int = SIDE) -> TensorOp:
    body = fn(Fn.MUL, Read(0), factor)
    return op(name, [("i", size)], [(source, ("i",))], (target, ("i",)), body)


def _line(factors: Sequence[float]) -> Graph:
    """One pointwise operator per factor, in a row."""
    count = len(factors)
    ops = [_step(f"o{k}", f"t{k}", f"t{k + 1}", f) for k, f in enumerate(factors)]
    shapes: dict[str, tuple[int, ...]] = {f"t{k}": (SIDE,) for k in range(count + 1)}
    return build(ops, shapes, (f"t{count}",))


def _sized(sizes: Sequence[int]) -> Graph:
    """A row of operators; operator k makes a vector of sizes[k] elements."""
    ops: list[TensorOp] = []
    for k, size in enumerate(sizes):
        body = fn(Fn.ADD, Read(0), 1.0)
        reads = [(f"t{k}", ("i",), 0.0)]
        ops.append(op(f"o{k}", [("i", size)], reads, (f"t{k + 1}", ("i",)), body))
    shapes: dict[str, tuple[int, ...]] = {"t0": (1,)}
    shapes.update({f"t{k + 1}": (size,) for k, size in enumerate(sizes)})
    return build(ops, shapes, (f"t{len(sizes)}",))


def _names(units: Sequence[Sequence[str]]) -> list[str]:
    return [name for unit in units for name in unit]


def test_what_is_short_is_one_unit() -> None:
    graph = _line([float(k) for k in range(MAX_OPS)])
    assert [len(unit) for unit in cut_units(graph)] == [MAX_OPS]
    graph = _line([float(k) for k in range(MAX_OPS + 1)])
    assert len(cut_units(graph)) == 2


def test_repeated_blocks_are_equal_units() -> None:
    block = [1.0, 2.0, 3.0, 4.0, 5.0]
    graph = _line([9.0, 8.0, *block * 6, 7.0])
    units = cut_units(graph, 5)
    assert _names(units) == [op.name for op in graph.ops]
    signs = [canonicalize(Cuts.of(graph).piece(unit)).signature for unit in units]
    assert len(signs) - len(dict.fromkeys(signs)) >= 4
    assert all(len(unit) <= 5 for unit in units)


def test_short_blocks_share_a_unit() -> None:
    block = [1.0, 2.0, 3.0, 4.0]
    graph = _line(block * 9)
    assert [len(unit) for unit in cut_units(graph, 13)] == [12, 12, 12]
    # As few units as three to a unit would make, but of sizes that are as equal as can be.
    assert [len(unit) for unit in cut_units(_line(block * 7), 13)] == [12, 12, 4]
    assert [len(unit) for unit in cut_units(_line(block * 8), 23)] == [16, 16]


def test_a_block_starts_where_least_is_alive() -> None:
    # Within a period the vectors have 5, 1, 7, 8, 6 elements: the cut follows the one of 1.
    graph = _sized([2, 3, *[5, 1, 7, 8, 6] * 4])
    units = cut_units(graph, 5)
    starts = [int(unit[0][1:]) for unit in units]
    assert [s for s in starts if s >= 4] == [4, 9, 14, 19]


def test_a_block_longer_than_a_unit_is_cut_alike_every_time() -> None:
    sizes = [5, 9, 8, 1, 7, 6, 9, 2, 8, 7]
    units = cut_units(_sized(sizes * 5), 4)
    signs = [len(unit) for unit in units]
    assert max(signs) <= 4
    graph = _sized(sizes * 5)
    different = {canonicalize(Cuts.of(graph).piece(unit)).signature for unit in units}
    assert len(different) <= len(units) // 2


@given(st.lists(st.integers(1, 9), min_size=2, max_size=9), st.integers(1, 5))
def test_least_bytes_cross_the_fewest_cuts(sizes: list[int], most: int) -> None:
    # Against every way of cutting; sizes that repeat may be cut at their repetitions instead.
    distinct = [size * 16 + k for k, size in enumerate(sizes)]
    units = cut_units(_sized(distinct), most)
    assert all(1 <= len(unit) <= most for unit in units)
    assert len(units) == -(-len(sizes) // most)

    def price(cuts: Sequence[int]) -> int:
        return sum(distinct[c - 1] for c in cuts)

    def ways(start: int, left: int) -> list[tuple[int, ...]]:
        if left == 0:
            return [()] if start == len(sizes) else []
        return [
            (end, *rest)
            for end in range(start + 1, min(start + most, len(sizes)) + 1)
            for rest in ways(end, left - 1)
        ]

    found = list(np.cumsum([len(unit) for unit in units]))[:-1]
    assert price(found) == min(price(way[:-1]) for way in ways(0, len(units)))


def _joining(parts: int, between: int, readers: int) -> Graph:
    """`parts` operators write one tensor, `between` others in the middle, `readers` read it."""
    ops: list[TensorOp] = []
    shapes: dict[str, tuple[int, ...]] = {"x": (SIDE,), "t": (SIDE * parts,)}
    source = "x"
    for k in range(parts):
        for j in range(between):
            made = f"b{k}_{j}"
            ops.append(_step(made, source, made, 2.0 + k))
            shapes[made] = (SIDE,)
            source = made
        at = var("i") + SIDE * k
        ops.append(op(f"w{k}", [("i", SIDE)], [(source, ("i",))], ("t", (at,)),
                      fn(Fn.MUL, Read(0), 0.5 + k)))  # fmt: skip
    for k in range(readers):
        ops.append(_step(f"r{k}", "t", f"y{k}", 3.0 + k, SIDE * parts))
        shapes[f"y{k}"] = (SIDE * parts,)
    return build(ops, shapes, tuple(f"y{k}" for k in range(readers)))


def _run_by_unit(graph: Graph, units: Sequence[Sequence[str]]) -> dict[str, object]:
    """Values of the outputs, each unit evaluated by itself from what earlier units left."""
    rng = np.random.default_rng(0)
    known = {n: rng.standard_normal(graph.tensors[n].shape, np.float32) for n in graph.inputs}
    for unit in units:
        piece = Cuts.of(graph).piece(unit)
        made = evaluate(piece, {n: known[n] for n in (*piece.inputs, *piece.constants)})
        for name in piece.outputs:
            whole = known.setdefault(name, np.zeros(graph.tensors[name].shape, np.float32))
            known[name] = np.where(made[name] == 0, whole, made[name])
    return {n: known[n] for n in graph.outputs}


@given(st.integers(2, 5), st.integers(0, 2), st.integers(1, 3), st.integers(1, 8))
def test_no_unit_reads_what_it_writes_a_part_of(
    parts: int, between: int, readers: int, most: int
) -> None:
    graph = _joining(parts, between, readers)
    units = cut_units(graph, most)
    assert _names(units) == [op.name for op in graph.ops]
    assert max(len(unit) for unit in units) <= most
    for unit in units:
        inside = [o for o in graph.ops if o.name in unit]
        written = sum(o.write.tensor == "t" for o in inside)
        assert written in (0, parts) or not any("t" in o.input_names() for o in inside)
    whole = _run_by_unit(graph, (tuple(op.name for op in graph.ops),))
    by_unit = _run_by_unit(graph, units)
    for name in graph.outputs:
        np.testing.assert_array_equal(by_unit[name], whole[name])


def test_a_part_read_before_the_whole_is_written() -> None:
    # r reads the first half while the second is not yet written.
    at, low, high = ("i",), (var("i"),), (var("i") + SIDE,)
    half: Sequence[tuple[str, int]] = [("i", SIDE)]
    graph = build(
        (op("w0", half, [("x", at)], ("t", low), fn(Fn.MUL, Read(0), 2.0)),
         op("r0", half, [("t", low)], ("y0", at), fn(Fn.ADD, Read(0), 1.0)),
         op("w1", half, [("y0", at)], ("t", high), fn(Fn.MUL, Read(0), 3.0)),
         op("r1", [("i", 2 * SIDE)], [("t", at)], ("y1", at), fn(Fn.NEG, Read(0)))),
        {"x": (SIDE,), "t": (2 * SIDE,), "y0": (SIDE,), "y1": (2 * SIDE,)}, ("y0", "y1"),
    )  # fmt: skip
    whole = _run_by_unit(graph, (("w0", "r0", "w1", "r1"),))
    for most in (1, 2, 3):
        units = cut_units(graph, most)
        assert _names(units) == ["w0", "r0", "w1", "r1"]
        by_unit = _run_by_unit(graph, units)
        for name in graph.outputs:
            np.testing.assert_array_equal(by_unit[name], whole[name])


def _renamed(graph: Graph, prefix: str) -> Graph:
    """The same graph, operators and tensors called differently."""

    def access(a: Access) -> Access:
        return Access(prefix + a.tensor, a.index, a.fill)

    ops = tuple(
        TensorOp(prefix + o.name, o.domain, tuple(access(r) for r in o.reads), access(o.write),
                 o.body, o.reduce, o.origin)
        for o in graph.ops
        if isinstance(o, TensorOp)
    )  # fmt: skip
    tensors = tuple(Tensor(prefix + t.name, t.shape, t.dtype) for t in graph.tensors.values())
    inputs = tuple(prefix + n for n in graph.inputs)
    return Graph.build(ops, tensors, inputs, tuple(prefix + n for n in graph.outputs))


@pytest.mark.parametrize("most", [3, 5, 8])
def test_units_do_not_depend_on_names(most: int) -> None:
    for graph in (_joining(4, 2, 3), _line([1.0, 2.0, 3.0, 4.0, 5.0] * 5), _sized([3, 1, 2] * 6)):
        units = cut_units(graph, most)
        assert units == cut_units(graph, most)
        renamed = cut_units(_renamed(graph, "zz"), most)
        assert [[f"zz{n}" for n in unit] for unit in units] == [list(unit) for unit in renamed]


def test_reductions_of_other_kinds_are_no_repetition() -> None:
    # Sums and maxima over equal shapes alternate: the period is two blocks, not one.
    ops: list[TensorOp] = []
    shapes: dict[str, tuple[int, ...]] = {"t0": (SIDE,)}
    for k in range(24):
        kind = (Reduce.ADD, Reduce.MAX)[k // 4 % 2] if k % 4 == 0 else None
        domain: Axes = [("i", SIDE), ("k", 1, "r")] if kind else [("i", SIDE)]
        body = Read(0) if kind else fn(Fn.MUL, Read(0), float(k % 4))
        ops.append(op(f"o{k}", domain, [(f"t{k}", ("i",))], (f"t{k + 1}", ("i",)), body, kind))
        shapes[f"t{k + 1}"] = (SIDE,)
    graph = build(ops, shapes, ("t24",))
    units = cut_units(graph, 8)
    assert [len(unit) for unit in units] == [8, 8, 8]
    signs = {canonicalize(Cuts.of(graph).piece(unit)).signature for unit in units}
    assert len(signs) == 1
