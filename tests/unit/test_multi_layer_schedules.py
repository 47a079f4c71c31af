"""The trees of several layers print, interpret, lower, run as C and simulate like the toys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from multi_layer_schedules import TREES, ChainShape, chain, machine

from worker.compiler.codegen.kernel import generate_kernel
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.isa.verify import verify_program
from worker.compiler.lower.lower import lower_unit
from worker.compiler.package.build import build_library
from worker.compiler.package.emulator import Arena, Emulator
from worker.compiler.package.executable import level_specs
from worker.compiler.schedule.interpret import interpret
from worker.compiler.schedule.text import parse_schedule, print_schedule
from worker.simulator.run import simulate_unit


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
    program = lower_unit(schedule, on, name)
    verify_program(program, on)
    library = build_library({"tw_k": generate_kernel(schedule, program, on, "tw_k")}, tmp_path)
    home = Arena(1 << 16)
    memory = home.buffer()
    starts: dict[str, int] = {}
    at = 0
    for operand in program.operands:
        starts[operand.tensor] = at
        if operand.tensor in inputs:
            raw = np.ascontiguousarray(inputs[operand.tensor]).tobytes()
            memory[at : at + len(raw)] = raw
        at += -(-operand.size_bytes // 64) * 64
    emulator = Emulator(library, level_specs(on), [program])
    emulator.call("tw_k", program, [home.address + start for start in starts.values()])
    want = evaluate(schedule.graph, inputs)
    for output in schedule.graph.outputs:
        tensor = schedule.graph.tensors[output]
        raw = bytes(memory[starts[output] : starts[output] + tensor.size_bytes])
        got = np.frombuffer(raw, dtype=tensor.dtype.numpy).reshape(tensor.shape)
        np.testing.assert_array_equal(got, want[output])
    simulated = simulate_unit(program, on)
    assert simulated.cycles >= max(bound.cycles for bound in simulated.bounds)
    assert all(check.passed for check in simulated.checks), simulated.checks
