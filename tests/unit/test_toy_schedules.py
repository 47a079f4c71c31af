"""The five hand-written trees verify, print, interpret, lower, run as C and simulate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from toy_schedules import TOYS

from worker.compiler.codegen.kernel import generate_kernel
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.isa.verify import verify_program
from worker.compiler.lower.lower import lower_unit
from worker.compiler.package.build import build_library
from worker.compiler.package.emulator import Arena, Emulator
from worker.compiler.package.executable import level_specs
from worker.compiler.schedule.interpret import interpret
from worker.compiler.schedule.text import parse_schedule, print_schedule
from worker.compiler.schedule.verify import verify
from worker.simulator.run import simulate_unit


@pytest.mark.parametrize("name", TOYS)
def test_toy_means_its_graph(name: str) -> None:
    schedule, machine, inputs = TOYS[name]()
    verify(schedule, machine)
    got = interpret(schedule, inputs, home="DDR")
    want = evaluate(schedule.graph, inputs)
    for output in schedule.graph.outputs:
        np.testing.assert_array_equal(got[output], want[output])


@pytest.mark.parametrize("name", TOYS)
def test_toy_text_round_trips(name: str) -> None:
    schedule, _, _ = TOYS[name]()
    assert parse_schedule(print_schedule(schedule)) == schedule


@pytest.mark.parametrize("name", TOYS)
def test_toy_runs_as_c_and_simulates(name: str, tmp_path: Path) -> None:
    schedule, machine, inputs = TOYS[name]()
    program = lower_unit(schedule, machine, name)
    verify_program(program, machine)
    kernel = f"tw_{name}"
    source = generate_kernel(schedule, program, machine, kernel)
    library = build_library({kernel: source}, tmp_path)
    home = Arena(1 << 16)
    memory = home.buffer()
    offsets: list[int] = []
    at = 0
    for operand in program.operands:
        offsets.append(at)
        if operand.tensor in inputs:
            raw = np.ascontiguousarray(inputs[operand.tensor]).tobytes()
            memory[at : at + len(raw)] = raw
        at += -(-operand.size_bytes // 64) * 64
    emulator = Emulator(library, level_specs(machine), [program])
    emulator.call(kernel, program, [home.address + offset for offset in offsets])
    want = evaluate(schedule.graph, inputs)
    for operand, start in zip(program.operands, offsets, strict=True):
        if operand.tensor in schedule.graph.outputs:
            raw = bytes(memory[start : start + operand.size_bytes])
            dtype = schedule.graph.tensors[operand.tensor].dtype.numpy
            got = np.frombuffer(raw, dtype=dtype).reshape(operand.shape)
            np.testing.assert_array_equal(got, want[operand.tensor])
    simulated = simulate_unit(program, machine)
    assert simulated.cycles >= max(bound.cycles for bound in simulated.bounds)
    assert all(check.passed for check in simulated.checks), simulated.checks
