"""Layers: anchors take the pointwise operators behind them, vector operators chain over rows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multi_layer_schedules import machine
from row_chain_graphs import Axes, build, fn, layer_norm, op, softmax

from worker.compiler.cost.compute import engines_of
from worker.compiler.ir.affine import var
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import (
    Reduce,
    TensorOp,
)
from worker.compiler.ir.scalar import Fn, Read
from worker.compiler.tiling.layer.layers import Layer, form_layers, layer_edges

MACHINE = machine()
SIZE = 4
AT = ("i", "j")
AXES: Axes = [("i", SIZE), ("j", SIZE)]
MUL = fn(Fn.MUL, Read(0), Read(1))
ADD = fn(Fn.ADD, Read(0), Read(1))


def _matmul(name: str, left: str, right: str, out: str) -> TensorOp:
    domain: Axes = [*AXES, ("k", SIZE, "r")]
    reads = [(left, ("i", "k")), (right, ("k", "j"))]
    return op(name, domain, reads, (out, AT), MUL, Reduce.ADD)


def _pointwise(name: str, source: str, out: str, other: str = "") -> TensorOp:
    if other:
        return op(name, AXES, [(source, AT), (other, AT)], (out, AT), ADD)
    return op(name, AXES, [(source, AT)], (out, AT), fn(Fn.MAX, Read(0), 0.0))


def _square(ops: Sequence[TensorOp], outputs: tuple[str, ...]) -> Graph:
    """A graph in which every tensor is SIZE x SIZE."""
    names = dict.fromkeys(n for o in ops for n in (*o.input_names(), o.write.tensor))
    return build(ops, dict.fromkeys(names, (SIZE, SIZE)), outputs)


def _ops(layers: Sequence[Layer]) -> list[tuple[str, ...]]:
    return [layer.ops for layer in layers]


def test_an_anchor_takes_its_epilogue() -> None:
    graph = _square(
        (_matmul("mm", "x", "w", "a"), _pointwise("bias", "a", "b", "c"),
         _pointwise("relu", "b", "d"), _matmul("mm2", "d", "w2", "y")), ("y",),
    )  # fmt: skip
    layers = form_layers(graph, MACHINE)
    assert _ops(layers) == [("mm", "bias", "relu"), ("mm2",)]
    assert not any(layer.is_chain for layer in layers)
    assert layer_edges(graph, layers) == ((0, 1),)


def test_an_epilogue_ends_where_a_result_is_wanted_elsewhere() -> None:
    line = (_matmul("mm", "x", "w", "a"), _pointwise("p", "a", "b"), _pointwise("q", "b", "c"))
    graph = _square((*line, _matmul("mm2", "c", "b", "y")), ("y",))
    # b is read twice: by q and by the next anchor.
    assert _ops(form_layers(graph, MACHINE)) == [("mm", "p"), ("q",), ("mm2",)]
    graph = _square(line, ("b", "c"))
    assert _ops(form_layers(graph, MACHINE)) == [("mm", "p"), ("q",)]


def test_an_epilogue_ends_at_a_reduction() -> None:
    graph = build(
        (_matmul("mm", "x", "w", "a"), _pointwise("p", "a", "b"),
         op("sum", [("i", SIZE), ("j", SIZE, "r")], [("b", AT)], ("s", ("i",)), Read(0),
            Reduce.ADD)),
        {**dict.fromkeys(("x", "w", "a", "b"), (SIZE, SIZE)), "s": (SIZE,)}, ("s",),
    )  # fmt: skip
    assert _ops(form_layers(graph, MACHINE)) == [("mm", "p"), ("sum",)]


def test_an_epilogue_waits_for_its_other_operand() -> None:
    # The residual of mm's epilogue is made by mm2, so the layer of mm stands after mm2.
    graph = _square(
        (_matmul("mm", "x", "w", "a"), _matmul("mm2", "x", "v", "b"),
         _pointwise("add", "a", "c", "b")), ("c",),
    )  # fmt: skip
    layers = form_layers(graph, MACHINE)
    assert _ops(layers) == [("mm2",), ("mm", "add")]
    assert layer_edges(graph, layers) == ((0, 1),)


def test_an_epilogue_does_not_read_a_tensor_that_others_complete() -> None:
    # mm writes the upper half of t, copy the lower one; r reads all of it.
    graph = build(
        (_matmul("mm", "x", "w", "a"),
         op("up", AXES, [("a", AT)], ("t", AT), fn(Fn.MAX, Read(0), 0.0)),
         op("low", AXES, [("x", AT)], ("t", (var("i") + SIZE, "j")), Read(0)),
         op("r", [("i", 2 * SIZE), ("j", SIZE)], [("t", AT)], ("y", AT), fn(Fn.NEG, Read(0)))),
        {**dict.fromkeys(("x", "w", "a"), (SIZE, SIZE)),
         **dict.fromkeys(("t", "y"), (2 * SIZE, SIZE))}, ("y",),
    )  # fmt: skip
    layers = form_layers(graph, MACHINE)
    [anchor] = [layer for layer in layers if "mm" in layer.ops]
    assert "r" not in anchor.ops
    _check(graph, layers)


@pytest.mark.parametrize("graph", [softmax(2, SIZE, SIZE), layer_norm(SIZE, SIZE)])
def test_vector_operators_chain_over_rows(graph: Graph) -> None:
    [layer] = form_layers(graph, MACHINE)
    assert layer.is_chain
    assert layer.ops == tuple(o.name for o in graph.ops)
    alone = form_layers(graph, MACHINE, chains=False)
    assert _ops(alone) == [(o.name,) for o in graph.ops]
    assert not any(one.is_chain for one in alone)


def test_anchors_part_chains() -> None:
    graph = _square(
        (_pointwise("p", "x", "a"), _pointwise("q", "a", "b"), _matmul("mm", "b", "w", "c"),
         _matmul("mm2", "c", "w", "d"), _pointwise("r", "c", "e", "d"),
         _pointwise("s", "e", "y", "d")), ("y",),
    )  # fmt: skip
    layers = form_layers(graph, MACHINE)
    assert _ops(layers) == [("p", "q"), ("mm",), ("mm2",), ("r", "s")]
    assert [layer.is_chain for layer in layers] == [True, False, False, True]
    assert layer_edges(graph, layers) == ((0, 1), (1, 2), (1, 3), (2, 3))


def test_every_operator_needs_an_engine() -> None:
    graph = _square((_matmul("mm", "x", "w", "a"), _pointwise("p", "a", "y")), ("y",))
    engines = engines_of(graph.ops, graph.tensors, MACHINE)
    assert not isinstance(engines, str)
    assert {name: engine.name for name, engine in engines.items()} == {"mm": "mme", "p": "vec"}


@st.composite
def _graphs(draw: st.DrawFn) -> Graph:
    """Anchors and vector operators that read anything made before them."""
    ops: list[TensorOp] = []
    known = ["x", "w"]
    for k in range(draw(st.integers(1, 9))):
        left, right = draw(st.sampled_from(known)), draw(st.sampled_from(known))
        if draw(st.booleans()):
            ops.append(_matmul(f"o{k}", left, right, f"t{k}"))
        elif draw(st.booleans()):
            ops.append(_pointwise(f"o{k}", left, f"t{k}"))
        elif left != right:
            ops.append(_pointwise(f"o{k}", left, f"t{k}", right))
        else:
            ops.append(_pointwise(f"o{k}", left, f"t{k}"))
        known.append(f"t{k}")
    read = {name for o in ops for name in o.input_names()}
    unread = tuple(o.write.tensor for o in ops if o.write.tensor not in read)
    extra = draw(st.sampled_from([o.write.tensor for o in ops]))
    return _square(ops, tuple(dict.fromkeys((*unread, extra))))


def _check(graph: Graph, layers: Sequence[Layer]) -> None:
    """Every operator once, nothing read before every writer of it ran."""
    by_name = {o.name: o for o in graph.ops}
    order = [name for layer in layers for name in layer.ops]
    assert sorted(order) == sorted(by_name)
    place = {name: k for k, name in enumerate(order)}
    writers: dict[str, list[str]] = {}
    for o in graph.ops:
        tensor = o.write.tensor
        writers.setdefault(tensor, []).append(o.name)
    for o in graph.ops:
        for tensor in o.input_names():
            assert all(place[w] < place[o.name] for w in writers.get(tensor, ()))
    for first, second in layer_edges(graph, layers):
        assert first < second


@given(_graphs())
def test_layers_run_in_their_order(graph: Graph) -> None:
    layers = form_layers(graph, MACHINE)
    _check(graph, layers)
    assert layers == form_layers(graph, MACHINE)
    outside = {
        name for layer in layers for k, o in enumerate(layer.ops) if k
        for name in graph.op(o).input_names()
    }  # fmt: skip
    assert outside.issubset(graph.tensors)
    for layer in layers:
        anchors = [name for name in layer.ops if graph.op(name).reduce is not None]
        assert anchors in ([], [layer.ops[0]])
        made = {graph.op(name).write.tensor for name in layer.ops[:-1]}
        if not layer.is_chain:  # an epilogue keeps all but its last result to itself
            users = [o for o in graph.ops if o.name not in layer.ops]
            assert made.isdisjoint(n for o in users for n in o.input_names())
            assert made.isdisjoint(graph.outputs)
