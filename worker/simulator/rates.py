"""What a unit's dtypes mean for an engine: peak rate, and energy of one operation.

A UnitProgram names dtypes for operands and buffers, not for instructions: bounds take the fastest
rate that any of them allows (a lower bound must not overstate), energy the dtype of the largest
operand the engine knows.
"""

from __future__ import annotations

import numpy as np

from worker.compiler.ir.dtype import DType
from worker.compiler.isa.program import OperandRole, UnitProgram
from worker.compiler.machine.machine import Engine


def peak_rate(engine: Engine, program: UnitProgram) -> float:
    """Operations per cycle that no instruction of this unit can beat on one core.

    Where the unit names none of the engine's types, its fastest: less might overstate a bound.  An
    output stage does several operations of an element at a time: there, as many as an instruction
    does at most.  Cost: linear in instructions where there is a stage.
    """
    dtypes = _dtypes(program)
    rates = [rate for dtype, rate in engine.macs_per_cycle.items() if dtype in dtypes]
    rates = rates or list(engine.macs_per_cycle.values())
    rates += [size.peak for intrinsic in engine.intrinsics for size in intrinsic.sizes]
    if engine.output_stage:
        rates.append(_fastest(engine, program))
    return max(*rates, engine.special_ops_per_cycle)


def _fastest(engine: Engine, program: UnitProgram) -> float:
    """Most operations per cycle of any instruction on the engine, its start apart."""
    mine = np.array([stream.engine == engine.name for stream in program.streams])
    rows = program.instructions
    macs, cycles = rows["macs"], rows["cycles"] - engine.startup_cycles
    used = mine[rows["stream"]] & (macs > 0)
    return float(np.max(macs[used] / np.maximum(cycles[used], 1), initial=0.0))


def _dtypes(program: UnitProgram) -> frozenset[DType]:
    names = [o.dtype for o in program.operands] + [b.dtype for b in program.buffers]
    return frozenset(DType(name) for name in names)


def main_dtype(engine: Engine, program: UnitProgram) -> DType | None:
    """Dtype of the largest operand, else buffer, that the engine computes; None: of none."""
    operands = sorted(
        program.operands,
        key=lambda o: (o.role not in (OperandRole.INPUT, OperandRole.CONSTANT), -o.size_bytes),
    )
    buffers = sorted(program.buffers, key=lambda b: -b.size_bytes)
    names = (*(o.dtype for o in operands), *(b.dtype for b in buffers))
    return next((DType(n) for n in names if DType(n) in (engine.op_energy_pj or {})), None)
