"""What the families emit, as naive units in C: each agrees with the reference interpreter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from machine_rates import with_every_format
from naive_schedules import naive_answer

from benchmarks.onnx_coverage import Case, feeds_of, node_cases, prepare, sample
from worker.compiler.codegen.kernel import generate_kernel
from worker.compiler.errors import Shortfall
from worker.compiler.frontend.express import express_region
from worker.compiler.ir.bits import load
from worker.compiler.ir.evaluate import evaluate, evaluate_op
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Tensor, TensorOp
from worker.compiler.ir.region import Cuts
from worker.compiler.ir.signature import canonicalize
from worker.compiler.isa.program import UnitProgram
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.compiler.package.build import build_library
from worker.compiler.package.emulator import Emulator
from worker.compiler.package.executable import level_specs

TOLERANCE = {"f16": 2e-3, "bf16": 2e-2}


@dataclass(frozen=True, slots=True)
class Trial:
    """One operator of one case: its unit, the arrays around it, and its canonical names."""

    case: str
    op: TensorOp
    tensors: dict[str, Tensor]
    arrays: dict[str, npt.NDArray[Any]]
    original: dict[str, str]
    signature: str


def trials_of(cases: Iterable[Case]) -> list[Trial]:
    trials = []
    for case in cases:
        prepared = prepare(case)
        if prepared.why is not None:
            continue
        names = [value.name for value in case.model.graph.output]
        expressed = express_region(prepared.nodes, names, prepared.opset)
        graph = expressed.graph
        arrays = feeds_of(case, expressed)
        arrays |= evaluate(graph, arrays)
        for op in graph.ops:
            canonical = canonicalize(Cuts.of(graph).piece((op.name,)))
            trials.append(
                Trial(
                    case.name, op, dict(graph.tensors), arrays, dict(canonical.tensor_of),
                    canonical.signature,
                )
            )  # fmt: skip
    return trials


def unit(trial: Trial, machine: Machine) -> tuple[UnitProgram, str]:
    """The operator's program and kernel by the naive strategy."""
    names = (*trial.op.input_names(), trial.op.write.tensor)
    graph = Graph.build(
        (trial.op,),
        tuple(trial.tensors[n] for n in dict.fromkeys(names)),
        trial.op.input_names(),
        (trial.op.write.tensor,),
    )
    schedule = naive_answer(graph, machine)
    assert not isinstance(schedule, Shortfall), (trial.case, schedule)
    program = lower_unit(schedule, machine, trial.signature)
    return program, generate_kernel(schedule, program, machine, f"unit_{trial.signature[:24]}")


def check(preset: str, cases: Iterable[Case], build_dir: Path) -> int:
    """Run every operator of the cases as C; gives how many were compared."""
    machine = with_every_format(load_preset(preset))
    trials = trials_of(cases)
    units: dict[str, tuple[UnitProgram, str]] = {}
    for trial in trials:
        if trial.signature not in units:
            units[trial.signature] = unit(trial, machine)
    library = build_library({f"unit_{s[:24]}": c for s, (_, c) in units.items()}, build_dir)
    emulator = Emulator(library, level_specs(machine), [p for p, _ in units.values()])
    for trial in trials:
        program, _ = units[trial.signature]
        compare(trial, program, emulator)
    return len(trials)


def compare(trial: Trial, program: UnitProgram, emulator: Emulator) -> None:
    out = trial.tensors[trial.op.write.tensor]
    buffers: dict[str, npt.NDArray[Any]] = {}
    for operand in program.operands:
        name = trial.original[operand.tensor]
        array = np.zeros(out.shape, out.dtype.numpy) if name == out.name else trial.arrays[name]
        buffers[name] = np.array(array, order="C", copy=True)
    emulator.call(
        f"unit_{trial.signature[:24]}",
        program,
        [buffers[trial.original[o.tensor]].ctypes.data for o in program.operands],
    )
    blank = np.zeros(out.shape, out.dtype.numpy)
    want = load(evaluate_op(trial.op, trial.tensors, trial.arrays, blank), out.dtype)
    have = load(buffers[out.name], out.dtype)
    tolerance = TOLERANCE.get(out.dtype, 1e-5) if out.dtype.is_float else 0.0
    np.testing.assert_allclose(
        have.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance,
        err_msg=f"{trial.case}: {trial.op.name}",
    )  # fmt: skip


@pytest.fixture(scope="module")
def cases() -> tuple[Case, ...]:
    return node_cases()


def test_a_few_operators_as_kernels(cases: tuple[Case, ...], tmp_path: Path) -> None:
    assert check("stcp920-inferred", sample(cases)[::3], tmp_path) >= 30


@pytest.mark.campaign(smoke=False)
@pytest.mark.parametrize("preset", ["stcp920-inferred", "kapla-16x16", "a100"])
def test_every_operator_as_a_kernel(preset: str, cases: tuple[Case, ...], tmp_path: Path) -> None:
    assert check(preset, cases, tmp_path) > 1000
