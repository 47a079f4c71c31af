"""A row chain that every cluster computes whole, because all of its result is needed everywhere."""

from __future__ import annotations

import numpy as np
import pytest
from multi_layer_schedules import machine
from row_chain_graphs import build, fn, inputs_of, op, ops_of, whole_box

from worker.compiler.errors import VerifyError
from worker.compiler.ir.affine import Affine, var
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.scalar import Fn, Read
from worker.compiler.lower.lower import lower_unit
from worker.compiler.schedule.interpret import interpret
from worker.compiler.schedule.nodes import Compute, Loop, LoopKind, Move, Place, Schedule, Seq, Span
from worker.compiler.schedule.verify import verify
from worker.compiler.tiling.chain.emit import emit_chain
from worker.compiler.tiling.chain.plan import ChainPlan
from worker.compiler.tiling.chain.plan_chain import plan_chain
from worker.simulator.run import simulate_unit

ROWS, COLS = 6, 4
MACHINE = machine(4, 2)


def _graph() -> Graph:
    """t = exp(x) + 1; y is t upside down, so half of y takes the other half of t."""
    at = ("i", "j")
    axes = [("i", ROWS), ("j", COLS)]
    return build(
        (op("exp", axes, [("x", at)], ("e", at), fn(Fn.EXP, Read(0))),
         op("add", axes, [("e", at)], ("t", at), fn(Fn.ADD, Read(0), 1.0)),
         op("flip", axes, [("t", (var("i") * -1 + (ROWS - 1), "j"))], ("y", at), Read(0))),
        dict.fromkeys(("x", "e", "t", "y"), (ROWS, COLS)), ("y",),
    )  # fmt: skip


def _schedule(graph: Graph, *, recompute: bool, cores: int) -> Schedule:
    plan = plan_chain(
        graph, ops_of(graph)[:2], None, {"t": "GB"}, MACHINE, num_cores=cores,
        budget_bytes=MACHINE.level("L1").usable_bytes, num_groups=2,
    )  # fmt: skip
    assert isinstance(plan, ChainPlan)
    whole = whole_box(graph, "t")
    half = (Span(var("cl") * (ROWS // 2), ROWS // 2), Span(Affine(), COLS))
    last = Place("t", "L1", whole, 1, Place("y", "L1", half, 1, Seq((
        Move("t", "GB", "L1", whole), Compute("flip", half, "vec"), Move("y", "L1", "DDR", half),
    ))))  # fmt: skip
    body = Seq((emit_chain(plan, "z", recompute=recompute), last))
    root = Loop("cl", 2, LoopKind.CORES, Place("t", "GB", whole, 1, body), 2)
    return Schedule(graph, root, "graphturbo", 0)


@pytest.mark.parametrize("cores", [1, 2])
def test_a_chain_computed_whole_by_every_cluster(cores: int) -> None:
    graph = _graph()
    schedule = _schedule(graph, recompute=True, cores=cores)
    verify(schedule, MACHINE)
    given = inputs_of(graph)
    np.testing.assert_array_equal(interpret(schedule, given)["y"], evaluate(graph, given)["y"])
    assert simulate_unit(lower_unit(schedule, MACHINE, "s"), MACHINE).cycles > 0


@pytest.mark.parametrize("cores", [1, 2])
def test_the_repetition_must_be_declared(cores: int) -> None:
    with pytest.raises(VerifyError, match="is computed 2 times"):
        verify(_schedule(_graph(), recompute=False, cores=cores), MACHINE)
