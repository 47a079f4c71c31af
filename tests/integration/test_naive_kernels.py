"""From an operator to numbers on real presets: naive, lowering, C, execution, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_toys import conv_graph, elementwise_graph, matmul_graph, run_units
from naive_schedules import naive_answer

from worker.compiler.errors import Shortfall
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.scalar import Apply, Fn, Read
from worker.compiler.ir.signature import canonicalize
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import load_preset

GRAPHS: tuple[tuple[Graph, float], ...] = (
    (matmul_graph(64, 96, 130), 1e-5),
    (matmul_graph(1, 300, 200), 1e-5),
    (matmul_graph(24, 40, 64, DType.F16), 2e-3),
    (conv_graph(8, 16, 17, 3, 2, 1), 1e-5),
    (conv_graph(12, 12, 14, 5, 1, 2, groups=12), 1e-5),
    (elementwise_graph(Apply(Fn.MUL, (Read(0), Read(1))), (DType.F32,) * 2, DType.F32, (33, 70)),
     1e-6),
)  # fmt: skip


@pytest.mark.parametrize("preset", ["a100", "ascend910", "stcp920", "ipu-gc200", "eyeriss"])
def test_naive_schedules_compute_the_right_numbers(preset: str) -> None:
    machine = load_preset(preset)
    cases, graphs = [], []
    for seed, (graph, bound) in enumerate(GRAPHS):
        canonical = canonicalize(graph)
        schedule = naive_answer(canonical.graph, machine)
        if isinstance(schedule, Shortfall):
            assert schedule.resource == "engine"
            continue  # the preset has no engine for this type
        program = lower_unit(schedule, machine, canonical.signature)
        rng = np.random.default_rng(seed)
        inputs = {
            n: rng.standard_normal(canonical.graph.tensors[n].shape).astype(
                canonical.graph.tensors[n].dtype.numpy
            )
            for n in canonical.graph.inputs
        }
        cases.append((schedule, program, inputs))
        graphs.append((canonical.graph, bound))
    assert len(cases) >= 3
    for (schedule, _, inputs), (graph, bound), result in zip(
        cases, graphs, run_units(cases, machine), strict=True
    ):
        (name,) = graph.outputs
        want = evaluate(graph, inputs)[name].astype(np.float64)
        error = np.max(np.abs(result[name] - want)) / np.max(np.abs(want))
        assert error <= bound, (preset, schedule.strategy)
