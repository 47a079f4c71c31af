"""Runs a schedule's C kernel in the arenas that lowering planned; checks what it computes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from interpreted_runs import assert_counts, interpreter_of

from worker.compiler.codegen.kernel import generate_kernel, generate_steps
from worker.compiler.cost.floor import kernel_floor
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.isa.program import OperandRole
from worker.compiler.isa.verify import verify_program
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.machine import Machine
from worker.compiler.package.build import build_library
from worker.compiler.package.emulator import Arena, Emulator
from worker.compiler.package.executable import level_specs
from worker.compiler.schedule.nodes import Schedule
from worker.simulator.results import UnitSimulation
from worker.simulator.run import simulate_unit
from worker.verification.interleaved import InterleavedKernel, why_not


def check_kernel(
    schedule: Schedule,
    on: Machine,
    inputs: Mapping[str, npt.NDArray[Any]],
    folder: Path,
    *,
    near: float = 0.0,
    inside: bool = False,
    orders: int = 0,
) -> UnitSimulation:
    """Every output is what the graph says, to `near` (relative and absolute); sound simulation.

    `inputs` are arrays of the graph's inputs and constants.  `inside`: the observed form gives the
    same output bits, and its inner tensors are what the graph says where they were computed.
    `orders`: so many legal orders of the program's instructions give the same output bits.
    """
    program = lower_unit(schedule, on, "unit")
    verify_program(program, on)
    library = build_library({"tw_k": generate_kernel(schedule, program, on, "tw_k")}, folder)
    starts: dict[str, int] = {}
    at = 0
    for operand in program.operands:
        starts[operand.tensor] = at
        at += -(-operand.size_bytes // 64) * 64
    home = Arena(at + 64)
    memory = home.buffer()
    for name in inputs.keys() & starts.keys():
        raw = np.ascontiguousarray(inputs[name]).tobytes()
        memory[starts[name] : starts[name] + len(raw)] = raw
    given = {o.tensor: bytes(memory[starts[o.tensor] :][: o.size_bytes]) for o in program.operands}
    emulator = Emulator(library, level_specs(on), [program])
    emulator.call("tw_k", program, [home.address + start for start in starts.values()])
    want = evaluate(schedule.graph, inputs)
    interpreter = interpreter_of(schedule, program, on)
    interpreted = interpreter.run(given)
    for output in schedule.graph.outputs:
        tensor = schedule.graph.tensors[output]
        raw = bytes(memory[starts[output] : starts[output] + tensor.size_bytes])
        got = np.frombuffer(raw, dtype=tensor.dtype.numpy).reshape(tensor.shape)
        np.testing.assert_allclose(got, want[output], rtol=near, atol=near)
        assert interpreted[output] == raw
    assert_counts(interpreter.counts[0], program, on)
    if inside:
        outputs = [starts[name] for name in schedule.graph.outputs]
        sizes = [schedule.graph.tensors[name].size_bytes for name in schedule.graph.outputs]
        plain = [bytes(memory[at : at + size]) for at, size in zip(outputs, sizes, strict=True)]
        for at, size in zip(outputs, sizes, strict=True):
            memory[at : at + size] = b"\xa5" * size
        tensors = {n: t for n, t in schedule.graph.tensors.items()
                   if n in want and n not in schedule.graph.outputs}  # fmt: skip
        text = generate_kernel(schedule, program, on, "tw_k", observed=tuple(tensors))
        emulator = Emulator(build_library({"tw_k": text}, folder), level_specs(on), [program])
        data = {n: np.zeros(t.shape, t.dtype.numpy) for n, t in tensors.items()}
        marks = {n: np.zeros(t.shape, np.bool_) for n, t in tensors.items()}
        extra = [a.ctypes.data for n in tensors for a in (data[n], marks[n])]
        emulator.call("tw_k", program, [*(home.address + s for s in starts.values()), *extra])
        again = [bytes(memory[at : at + size]) for at, size in zip(outputs, sizes, strict=True)]
        assert again == plain
        for name in tensors:
            assert marks[name].any()
            np.testing.assert_allclose(
                data[name][marks[name]], want[name][marks[name]], rtol=near, atol=near
            )
    if orders and why_not(schedule, program, on) is None:
        given = [
            np.frombuffer(bytes(memory[starts[o.tensor] :][: o.size_bytes]), dtype=np.uint8)
            for o in program.operands
        ]
        text = generate_steps(schedule, program, on, "tw_steps")
        library = build_library({"tw_steps": text}, folder, is_quick=True)
        kernel = InterleavedKernel(schedule, program, on, library, "tw_steps")
        for seed in range(orders):
            for operand, made, first in zip(
                program.operands, kernel.run(given, seed), given, strict=True
            ):
                if operand.role is OperandRole.OUTPUT:
                    assert made.tobytes() == first.tobytes(), f"order {seed}"
    simulated = simulate_unit(program, on, floor=kernel_floor(schedule.graph, on))
    assert all(check.passed for check in simulated.checks), simulated.checks
    assert simulated.cycles >= max(simulated.roofline.cycles, simulated.lower_bound_cycles) > 0
    return simulated
