"""Edits keep the meaning of a schedule, and refuse what would change it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from toy_schedules import Toy, double_then_blur, inputs_of, machine, row_fused, span

from worker.compiler.ir.affine import var
from worker.compiler.ir.axis import Axis
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Fn, Read
from worker.compiler.schedule.edit import EditRefused, fuse, node_at, place, reorder, split
from worker.compiler.schedule.interpret import interpret
from worker.compiler.schedule.nodes import Compute, Init, Loop, LoopKind, Move, Place, Schedule, Seq

ROWS, COLS = 8, 6


def chain() -> Toy:
    """t1 = t0 + t0; t2 = t1 + t1, straight at home, one loop over rows and columns each."""
    i, j = var("i"), var("j")

    def op(name: str, source: str, target: str) -> TensorOp:
        return TensorOp(
            name, (Axis("i", ROWS), Axis("j", COLS)), (Access(source, (i, j)),),
            Access(target, (i, j)), Apply(Fn.ADD, (Read(0), Read(0))), None,
            double_then_blur(2, 2).ops[0].origin,
        )  # fmt: skip

    graph = Graph.build(
        (op("first", "t0", "t1"), op("second", "t1", "t2")),
        tuple(Tensor(f"t{k}", (ROWS, COLS), DType.F32) for k in range(3)), ("t0",), ("t2",),
    )  # fmt: skip

    def loops(name: str, a: str, b: str) -> Loop:
        box = (span(var(a) * 2, 2), span(var(b) * 2, 2))
        return Loop(a, 4, LoopKind.TIME, Loop(b, 3, LoopKind.TIME, Compute(name, box, "vec")))

    root = Seq((loops("first", "a", "b"), loops("second", "c", "d")))
    return Schedule(graph, root, "hand", 0), machine(), inputs_of(graph)


def same_meaning(schedule: Schedule, graph: Graph) -> None:
    inputs = inputs_of(graph)
    got = interpret(schedule, inputs, home="DDR")
    want = evaluate(graph, inputs)
    for name in graph.outputs:
        np.testing.assert_array_equal(got[name], want[name])


def test_split_reorder_place_fuse_compose() -> None:
    schedule, toy, _ = chain()
    result = split(schedule, "0.0", 2, toy)
    outer = node_at(result.root, "0.0")
    assert isinstance(outer, Loop)
    assert outer.trip == 2
    result = reorder(result, "0.0.0", toy)
    inner = node_at(result.root, "0.0.0")
    assert isinstance(inner, Loop)
    assert inner.var == "b"
    tile = (span(var("a") * 4, 4), span(0, COLS))
    result = place(result, "0.0.0", "t0", "L1", tile, toy)
    assert isinstance(node_at(result.root, "0.0.0"), Place)
    same_meaning(result, schedule.graph)
    fused = fuse(schedule, "0", 0, toy)
    assert isinstance(fused.root, Loop)
    same_meaning(fused, schedule.graph)


def test_split_of_cores_keeps_core_ids() -> None:
    schedule, _, _ = chain()
    root = schedule.root
    assert isinstance(root, Seq)
    first = root.parts[0]
    assert isinstance(first, Loop)
    cores = replace(schedule, root=Seq((replace(first, kind=LoopKind.CORES, core_stride=1),
                                        root.parts[1])))  # fmt: skip
    four = machine(4)
    result = split(cores, "0.0", 2, four)
    outer = node_at(result.root, "0.0")
    assert isinstance(outer, Loop)
    assert outer.core_stride == 2
    same_meaning(result, schedule.graph)


@pytest.mark.parametrize(
    ("path", "factor", "reason"),
    [("0.0", 3, "does not divide"), ("0", 2, "not a loop"), ("0.9", 2, "no node")],
)
def test_split_refuses(path: str, factor: int, reason: str) -> None:
    schedule, toy, _ = chain()
    with pytest.raises(EditRefused, match=reason) as refused:
        split(schedule, path, factor, toy)
    assert (refused.value.rule, refused.value.path) == ("split", path)


def test_reorder_refuses_without_an_inner_loop() -> None:
    schedule, toy, _ = chain()
    with pytest.raises(EditRefused, match="not a loop"):
        reorder(schedule, "0.0.0", toy)


def test_place_refuses_a_tile_too_small_and_a_written_tensor() -> None:
    schedule, toy, _ = chain()
    with pytest.raises(EditRefused, match="leaves the tile"):
        place(schedule, "0.0", "t0", "L1", (span(0, 1), span(0, COLS)), toy)
    with pytest.raises(EditRefused, match="is written inside"):
        place(schedule, "0.0", "t1", "L1", (span(0, ROWS), span(0, COLS)), toy)
    with pytest.raises(EditRefused, match="unknown tensor"):
        place(schedule, "0.0", "nope", "L1", (), toy)
    fused, fused_toy, _ = row_fused()
    with pytest.raises(EditRefused, match="placed already"):
        place(fused, "0.0.1", "t1", "L1", (span(0, 5), span(0, 6)), fused_toy)


def test_fuse_refuses_what_needs_later_iterations() -> None:
    schedule, toy, _ = chain()
    graph = double_then_blur(ROWS, COLS)
    box = (span(var("a") * 2, 2), span(0, COLS))
    near = (span(var("c") * 2, 2), span(0, COLS))
    blur = Place("t2", "L1", near, 1, Seq((
        Compute("blur", (*near, span(0, 3)), "vec"), Move("t2", "L1", "DDR", near),
    )), None, Init.IDENTITY)  # fmt: skip
    root = Seq((
        Loop("a", 4, LoopKind.TIME, Compute("double", box, "vec")),
        Loop("c", 4, LoopKind.TIME, blur),
    ))  # fmt: skip
    with pytest.raises(EditRefused, match="not written before"):
        fuse(Schedule(graph, root, "hand", 0), "0", 0, toy)
    with pytest.raises(EditRefused, match="needs a seq"):
        fuse(schedule, "0", 1, toy)
    uneven = Seq((root.parts[0], Loop("d", 2, LoopKind.TIME, blur)))
    with pytest.raises(EditRefused, match="trip count"):
        fuse(Schedule(graph, uneven, "hand", 0), "0", 0, toy)
