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

_SIBLINGS = {
    DType.U8: DType.I8, DType.I8: DType.U8, DType.U16: DType.I16, DType.I16: DType.U16,
    DType.U32: DType.I32, DType.I32: DType.U32, DType.U64: DType.I64, DType.I64: DType.U64,
    DType.BOOL: DType.U8, DType.BF16: DType.F16,
    DType.I4: DType.I8, DType.U4: DType.U8, DType.I2: DType.I8, DType.U2: DType.U8,
    **{dtype: DType.F16 for dtype in DType if dtype.is_narrow_float},
}  # fmt: skip
"""An engine without a rate for the key computes it at the rate of the value."""


def peak_rate(engine: Engine, program: UnitProgram) -> float:
    """Operations per cycle that no instruction of this unit can beat on one core."""
    names = [o.dtype for o in program.operands] + [b.dtype for b in program.buffers]
    dtypes = {DType(name) for name in names}
    dtypes |= {_SIBLINGS[d] for d in dtypes if d in _SIBLINGS}
    rates = [rate for dtype, rate in engine.macs_per_cycle.items() if dtype in dtypes]
    rates = rates or list(engine.macs_per_cycle.values())
    rates += [prod(i.extents) / i.cycles for i in engine.intrinsics if i.cycles > 0]
    rates += [engine.special_ops_per_cycle]
    return max(rates)


def main_dtype(engine: Engine, program: UnitProgram) -> DType | None:
    """Dtype of the largest operand that the engine computes; None for an engine without rates."""
    known = engine.macs_per_cycle
    order = sorted(
        program.operands,
        key=lambda o: (o.role not in (OperandRole.INPUT, OperandRole.CONSTANT), -o.size_bytes),
    )
    for operand in order:
        dtype = DType(operand.dtype)
        for candidate in (dtype, _SIBLINGS.get(dtype)):
            if candidate is not None and candidate in known:
                return candidate
    return next(iter(known), None)
