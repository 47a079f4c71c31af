"""Hand-written trees of every shape through lowering's addresses and the kernels, against numpy."""

from __future__ import annotations

import lower_toys as toys
import numpy as np
import pytest
from kernel_toys import run_units

from worker.compiler.ir.evaluate import evaluate
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule

CASES: dict[str, tuple[Schedule, Machine]] = {
    "two levels of scratchpads": (toys.cluster_matmul(2, 2, 2), toys.cluster_machine()),
    "fused rows": (toys.fused_rows(10, 6, 4), toys.flat_machine()),
    "halo through home": (toys.split_halo(9, 5), toys.flat_machine()),
    "queue in the consumer": (toys.piped(10, 6, 2, 2, "L1"), toys.flat_machine()),
    "queue in a shared memory": (toys.piped(10, 6, 3, 3, "LLB"), toys.cluster_machine()),
    "queues that skip a stage": (toys.skipping(10, 6, 2, (1, 2), "L1"), toys.flat_machine(3)),
    "computed in place": (toys.in_place(10, 6, 3), toys.flat_machine()),
    "private blocks": (toys.private_rows(32, 6, 2, 4, 2), toys.cluster_machine()),
    "lanes": (toys.laned(8, 6, 4), toys.flat_machine()),
    "gather": (toys.gather(10, 6, 30, 4), toys.flat_machine()),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels_at_planned_addresses_compute_the_graph(name: str) -> None:
    schedule, machine = CASES[name]
    graph = schedule.graph
    rng = np.random.default_rng(0)
    inputs = {}
    for tensor in (*graph.inputs, *graph.constants):
        shape, dtype = graph.tensors[tensor].shape, graph.tensors[tensor].dtype
        inputs[tensor] = rng.integers(0, 9, shape).astype(dtype.numpy)
    program = lower_unit(schedule, machine, "0" * 64)
    result = run_units([(schedule, program, inputs)], machine)[0]
    want = evaluate(graph, inputs)
    for output in graph.outputs:  # small integers: sums are exact in any order
        np.testing.assert_array_equal(result[output], want[output])


def test_private_blocks_have_different_addresses() -> None:
    schedule, machine = CASES["private blocks"]
    program = lower_unit(schedule, machine, "0" * 64)
    assert max(buffer.blocks for buffer in program.buffers) > 1
