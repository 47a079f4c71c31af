"""An operator's whole domain, and whether its points write apart."""

from __future__ import annotations

from worker.compiler.ir.affine import Interval
from worker.compiler.ir.op import TensorOp


def full_box(op: TensorOp) -> dict[str, Interval]:
    """The operator's whole domain."""
    return {axis.name: (0, axis.extent - 1) for axis in op.domain}


def write_is_injective(op: TensorOp) -> bool:
    """True when distinct PARALLEL points provably write distinct elements.

    Sufficient test: ordering the axes of each linear dimension by coefficient, each coefficient
    exceeds what the smaller ones can reach, and every PARALLEL axis occurs in some dimension.
    """
    box = full_box(op)
    seen: set[str] = set()
    for expr in op.write.index:
        if not expr.is_linear:
            return False
        reach = 0
        for name in sorted(expr.variables(), key=lambda v: abs(expr.coeff(v))):
            coeff = abs(expr.coeff(name))
            if coeff <= reach:
                return False
            reach += coeff * box[name][1]
            seen.add(name)
    return all(a.name in seen or a.extent == 1 for a in op.parallel_axes)
