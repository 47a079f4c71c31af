"""Types of scalar expressions: which type each step of a body computes in."""

from __future__ import annotations

from worker.compiler.errors import VerifyError
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.scalar import Apply, Cast, Const, Fn, Index, Read, Scalar, Select

YIELDS_BOOL = frozenset(
    {Fn.EQ, Fn.NE, Fn.LT, Fn.LE, Fn.GT, Fn.GE, Fn.AND, Fn.OR, Fn.XOR, Fn.NOT, Fn.ISNAN, Fn.ISINF}
)


def promoted(dtype: DType) -> DType:
    """Type in which an element of `dtype` takes part in arithmetic.

    16-bit floats compute in F32 and small integers in I32, as accelerators' datapaths do; the
    write converts back.  BOOL stays BOOL.
    """
    return dtype if dtype is DType.BOOL else dtype.accumulator


def scalar_type(expr: Scalar, read_types: tuple[DType, ...]) -> DType:
    """Type of `expr` when slot k reads elements of `read_types[k]`.

    Raises:
        VerifyError: arguments of different types, or a logical function on non-booleans.
    """
    match expr:
        case Read(slot):
            return promoted(read_types[slot])
        case Const(_, dtype):
            return dtype
        case Index(_):
            return DType.I64
        case Cast(dtype, arg):
            scalar_type(arg, read_types)
            return dtype
        case Select(cond, a, b):
            kinds = [scalar_type(e, read_types) for e in (cond, a, b)]
            if kinds[0] is not DType.BOOL or kinds[1] is not kinds[2]:
                raise VerifyError("express", "body", "types", f"select of {kinds}")
            return kinds[1]
        case Apply(fn, args):
            kinds = [scalar_type(e, read_types) for e in args]
            if any(k is not kinds[0] for k in kinds):
                raise VerifyError("express", "body", "types", f"{fn} of {kinds}")
            if fn in (Fn.AND, Fn.OR, Fn.XOR, Fn.NOT) and kinds[0] is not DType.BOOL:
                raise VerifyError("express", "body", "types", f"{fn} of {kinds}")
            return DType.BOOL if fn in YIELDS_BOOL else kinds[0]
