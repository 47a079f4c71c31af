"""What a unit's dtypes mean for an engine: peak rate, and energy of one operation.

A UnitProgram names dtypes for operands and buffers, not for instructions: bounds take the fastest
rate that any of them allows (a lower bound must not overstate), energy the dtype of the largest
operand the engine knows.
"""

from __future__ import annotations

from math import prod

from worker.compiler.ir.dtype import DType
from worker.compiler.isa.program import OperandRole, UnitProgram
from worker.compiler.machine.machine import Engine


def peak_rate(engine: Engine, program: UnitProgram) -> float:
    """Operations per cycle that no instruction of this unit can beat on one core.

    Where the unit names none of the engine's types, its fastest: less might overstate a bound.
    """
    dtypes = _dtypes(program)
    rates = [rate for dtype, rate in engine.macs_per_cycle.items() if dtype in dtypes]
    rates = rates or list(engine.macs_per_cycle.values())
    rates += [prod(i.extents) / i.cycles for i in engine.intrinsics if i.cycles > 0]
    return max(*rates, engine.special_ops_per_cycle)


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
    return next((DType(n) for n in names if DType(n) in engine.macs_per_cycle), None)
