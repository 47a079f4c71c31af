"""The disassembly of a row-fused pair of operators, as a golden file."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.compiler.ir.dtype import DType
from worker.compiler.isa.text import print_program
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.machine import (
    AcceleratorTarget,
    Capabilities,
    Engine,
    EngineKind,
    Host,
    Machine,
    Managed,
    MemoryLevel,
)
from worker.compiler.schedule.text import parse_schedule

GOLDEN = Path(__file__).parent / "lower"


def machine() -> Machine:
    """Home and one scratchpad for one core with a vector engine and two DMA engines."""
    levels = tuple(
        MemoryLevel(name, size, 1, rate, rate, latency, 1.0, 1.0, Managed.SCRATCHPAD, 16)
        for name, size, rate, latency in (("DDR", 1 << 20, 8.0, 40), ("L1", 1024, 64.0, 2))
    )
    engines = (
        Engine("vec", EngineKind.VECTOR, "L1", {DType.F32: 4.0}),
        Engine("in", EngineKind.DMA_IN, "L1", {}),
        Engine("out", EngineKind.DMA_OUT, "L1", {}),
    )
    host = Host("host", 1e9, 1e9, 1e9, 1e-6, 1e-5)
    return Machine(
        "golden",
        1e9,
        1,
        1,
        levels,
        engines,
        (),
        host,
        (AcceleratorTarget("accelerator", Capabilities((), (), 8)),),
        0,
    )


@pytest.mark.parametrize("name", ["fused_rows"])
def test_disassembly(name: str, request: pytest.FixtureRequest) -> None:
    schedule = parse_schedule((GOLDEN / f"{name}.schedule").read_text(encoding="utf-8"))
    text = print_program(lower_unit(schedule, machine(), "golden"))
    golden = GOLDEN / f"{name}.program"
    if request.config.getoption("--update-golden"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
