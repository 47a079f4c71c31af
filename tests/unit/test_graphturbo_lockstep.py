"""Small layers of independent chains run level by level; everything else keeps its order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from row_chain_graphs import build, fn, op

from worker.compiler.ir.affine import var
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import TensorOp
from worker.compiler.ir.scalar import Fn, Read
from worker.compiler.rewrite.lockstep import SMALL_BYTES, in_lockstep
from worker.compiler.tiling.layer.layers import Layer, layer_edges

SMALL, LARGE = 8, SMALL_BYTES // 4 + 1


def step(name: str, source: str, target: str, size: int) -> TensorOp:
    """target = 2 * source."""
    body = fn(Fn.MUL, Read(0), 2.0)
    return op(name, [("i", size)], [(source, ("i",))], (target, ("i",)), body)


def alone(graph: Graph) -> tuple[Layer, ...]:
    return tuple(Layer((o.name,), is_chain=False) for o in graph.ops)


def names(layers: Sequence[Layer]) -> list[str]:
    return [name for layer in layers for name in layer.ops]


def chains(count: int, length: int, size: int) -> Graph:
    """`count` chains of `length` operators that read x, one after the other."""
    ops: list[TensorOp] = []
    shapes: dict[str, tuple[int, ...]] = {"x": (size,)}
    for c in range(count):
        for k in range(length):
            source = f"t{c}_{k - 1}" if k else "x"
            ops.append(step(f"o{c}_{k}", source, f"t{c}_{k}", size))
            shapes[f"t{c}_{k}"] = (size,)
    return build(ops, shapes, tuple(f"t{c}_{length - 1}" for c in range(count)))


def test_small_chains_run_level_by_level() -> None:
    graph = chains(3, 2, SMALL)
    found = names(in_lockstep(graph, alone(graph)))
    assert found == ["o0_0", "o1_0", "o2_0", "o0_1", "o1_1", "o2_1"]


def test_large_chains_stay_depth_first() -> None:
    graph = chains(3, 2, LARGE)
    assert in_lockstep(graph, alone(graph)) == alone(graph)


def test_a_large_layer_ends_a_run() -> None:
    ops = [
        step("a0", "x", "a", SMALL), step("a1", "a", "b", SMALL), step("c0", "x", "c", SMALL),
        step("large", "y", "z", LARGE),
        step("d0", "x", "d", SMALL), step("d1", "d", "e", SMALL), step("f0", "x", "f", SMALL),
    ]  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys("xabcdef", (SMALL,)), "y": (LARGE,), "z": (LARGE,),
    }  # fmt: skip
    graph = build(ops, shapes, ("b", "c", "z", "e", "f"))
    found = names(in_lockstep(graph, alone(graph)))
    assert found == ["a0", "c0", "a1", "large", "d0", "f0", "d1"]


def test_what_is_read_while_it_is_written_keeps_its_place() -> None:
    """A reader of the first half stands before the writer of the second."""

    def half(name: str, source: str, target: str, at: int, to: int) -> TensorOp:
        body = fn(Fn.MUL, Read(0), 2.0)
        reads = [(source, (var("i") + at,))]
        return op(name, [("i", SMALL)], reads, (target, (var("i") + to,)), body)

    ops = [
        half("w0", "x", "t", 0, 0), half("r0", "t", "u", 0, 0),
        half("w1", "u", "t", 0, SMALL), half("r1", "t", "y", SMALL, 0),
    ]  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "x": (SMALL,), "t": (2 * SMALL,), "u": (SMALL,), "y": (SMALL,),
    }  # fmt: skip
    graph = build(ops, shapes, ("y",))
    assert names(in_lockstep(graph, alone(graph))) == ["w0", "r0", "w1", "r1"]


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=14))
def test_every_layer_runs_once_behind_what_it_reads(drawn: list[tuple[int, bool]]) -> None:
    ops: list[TensorOp] = []
    shapes: dict[str, tuple[int, ...]] = {"s": (SMALL,), "l": (LARGE,)}
    made = {False: ["s"], True: ["l"]}
    for k, (pick, is_large) in enumerate(drawn):
        source = made[is_large][pick % len(made[is_large])]
        size = LARGE if is_large else SMALL
        ops.append(step(f"o{k}", source, f"t{k}", size))
        shapes[f"t{k}"] = (size,)
        made[is_large].append(f"t{k}")
    graph = build(ops, shapes, tuple(f"t{k}" for k in range(len(drawn))))
    found = in_lockstep(graph, alone(graph))
    assert sorted(names(found)) == sorted(o.name for o in graph.ops)
    assert all(a < b for a, b in layer_edges(graph, found))
    large = [int(n[1:]) for n in names(found) if drawn[int(n[1:])][1]]
    assert all(a < b for a, b in pairwise(large))
    assert in_lockstep(graph, found) == found
