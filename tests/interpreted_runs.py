"""Kernels by the interpreter, from the bytes of a stream of their own."""

from __future__ import annotations

from worker.compiler.clock.run import run_unit
from worker.compiler.isa.program import OperandRole, UnitProgram
from worker.compiler.machine.machine import Machine
from worker.compiler.package.build import find_compiler, has_fused_products
from worker.compiler.package.executable import level_specs
from worker.compiler.package.region_code import DataEntry, EntryRole, RegionCall, RegionCode
from worker.compiler.package.stream.codec import encode_stream
from worker.compiler.package.stream.tasks import unit_tasks
from worker.compiler.schedule.nodes import Schedule
from worker.interpreter.run import Counts, Interpreter

ROLE_OF = {
    OperandRole.INPUT: EntryRole.INPUT, OperandRole.CONSTANT: EntryRole.CONSTANT,
    OperandRole.OUTPUT: EntryRole.OUTPUT, OperandRole.SCRATCH: EntryRole.INTERMEDIATE,
}  # fmt: skip


def region_of(schedule: Schedule, program: UnitProgram, machine: Machine) -> RegionCode:
    """One call of one kernel, its operands as entries of their own names."""
    entries, at = [], 0
    for operand in program.operands:
        entries.append(
            DataEntry(
                operand.tensor, ROLE_OF[operand.role], operand.dtype, operand.shape, at,
                operand.size_bytes,
            )
        )  # fmt: skip
        at += -(-operand.size_bytes // 64) * 64
    call = RegionCall(0, tuple(range(len(entries))), 0, "Kernel", ("node",))
    return RegionCode(
        0, "npu", "tw_region_0", tuple(entries), (program,), ("tw_k",), (call,),
        (unit_tasks(schedule, program, machine),), level_specs(machine), machine.num_cores,
    )  # fmt: skip


def stream_of(schedule: Schedule, program: UnitProgram, machine: Machine) -> bytes:
    return encode_stream(region_of(schedule, program, machine))


def interpreter_of(
    schedule: Schedule, program: UnitProgram, machine: Machine, seed: int = 0
) -> Interpreter:
    """Rounds as kernels that are built here do."""
    is_fused = has_fused_products(find_compiler())
    return Interpreter(stream_of(schedule, program, machine), seed=seed, is_fused=is_fused)


def assert_counts(counts: Counts, program: UnitProgram, machine: Machine) -> None:
    """Bytes through every port, and operations, are those of the simulator's clock."""
    run = run_unit(program, machine)
    assert list(counts.port_bytes) == run.resource_bytes.tolist()
    assert counts.macs == int(run.stream_macs.sum())
