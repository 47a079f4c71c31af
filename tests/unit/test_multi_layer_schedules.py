"""The trees of several layers print, interpret, lower, run as C and simulate like the toys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kernel_runs import check_kernel
from multi_layer_schedules import TREES, ChainShape, chain, machine

from worker.compiler.ir.evaluate import evaluate
from worker.compiler.schedule.interpret import interpret
from worker.compiler.schedule.text import parse_schedule, print_schedule


@pytest.mark.parametrize("name", TREES)
def test_tree_means_its_graph(name: str) -> None:
    schedule, _, inputs = TREES[name]()
    got = interpret(schedule, inputs, home="DDR")
    want = evaluate(schedule.graph, inputs)
    for output in schedule.graph.outputs:
        np.testing.assert_array_equal(got[output], want[output])


@pytest.mark.parametrize("name", TREES)
def test_text_round_trips(name: str) -> None:
    schedule, _, _ = TREES[name]()
    assert parse_schedule(print_schedule(schedule)) == schedule


DEEP = "chain of 20 layers"


@pytest.mark.parametrize("name", [*TREES, DEEP])
def test_tree_runs_as_c_in_its_planned_arenas_and_simulates(name: str, tmp_path: Path) -> None:
    """20 layers in a GB of two activations: the addresses of dead tensors are used again."""
    deep = ChainShape(layers=20)
    schedule, on, inputs = (
        chain(deep, machine(2, 1, gb_bytes=2 * 4 * 8 * 4)) if name == DEEP else TREES[name]()
    )
    if name == DEEP:  # integers that stay exact in f32 through all layers
        inputs = {k: (np.eye(8) if k[0] == "w" else v).astype(v.dtype) for k, v in inputs.items()}
    check_kernel(schedule, on, inputs, tmp_path, inside=True, orders=12)
