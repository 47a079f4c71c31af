"""Single operators keep their schedules: fusing composites must not move the naive baseline.

The digests were taken from version 2 before it fused anything; version 3 changed fused kernels
alone, version 4 what a vector engine computes (a multiply-accumulate is one operation there, not
two).  If they have to change, the strategy's version has to change with them.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from kernel_toys import conv_graph, elementwise_graph, matmul_graph
from naive_schedules import naive_schedule

from worker.compiler.cost.compute import pick_engine
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.scalar import Apply, Fn, Read
from worker.compiler.machine import load_preset
from worker.compiler.schedule.text import print_schedule
from worker.compiler.strategies.naive.strategy import NaiveStrategy

GOLDEN = Path(__file__).parent / "schedule" / "naive_single.digests"
PRESETS = (
    "a100", "ascend910", "goya", "xavier", "kapla-16x16", "stcp920", "simba", "ethos-u65",
    "ipu-gc2",
)  # fmt: skip
PRODUCT = Apply(Fn.MUL, (Read(0), Read(1)))
GRAPHS: dict[str, Graph] = {
    "matmul": matmul_graph(64, 96, 130),
    "thin": matmul_graph(1, 300, 200),
    "matmul-f16": matmul_graph(24, 40, 64, DType.F16),
    "conv": conv_graph(8, 16, 17, 3, 2, 1),
    "depthwise": conv_graph(12, 12, 14, 5, 1, 2, groups=12),
    "wide": conv_graph(64, 128, 28, 3, 1, 1),
    "multiply": elementwise_graph(PRODUCT, (DType.F32,) * 2, DType.F32, (33, 70)),
}


def lines() -> list[str]:
    found = [f"version {NaiveStrategy().version}"]
    for preset in PRESETS:
        machine = load_preset(preset)
        for name, graph in GRAPHS.items():
            if pick_engine(graph.ops[0], machine, graph.tensors) is None:
                found.append(f"{preset} {name} no engine has the format")
                continue
            schedule = naive_schedule(graph, machine)
            digest = sha256(print_schedule(schedule).encode()).hexdigest()[:16]
            found.append(f"{preset} {name} {digest}")
    return found


def test_single_operators_keep_their_schedules(request: pytest.FixtureRequest) -> None:
    text = "\n".join(lines()) + "\n"
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(text)
    assert GOLDEN.read_text() == text
