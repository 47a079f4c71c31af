"""Einsum as one contraction: output letters are PARALLEL axes, the others REDUCE."""

from __future__ import annotations

from worker.compiler.frontend.equation import MalformedEquationError, read_equation
from worker.compiler.frontend.ops.body import product
from worker.compiler.frontend.ops.call import Call, Expression
from worker.compiler.frontend.ops.refusal import Refusal, shape_mismatch, unsupported_attribute
from worker.compiler.ir.affine import Affine, const
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce
from worker.compiler.rejection import ReasonCode


def einsum(call: Call) -> None:
    """Einsum with any number of operands, repeated letters (diagonals) and broadcast dots."""
    if call.num_inputs == 0:
        raise shape_mismatch("Einsum of nothing")
    tensors = [call.tensor(k) for k in range(call.num_inputs)]
    dtype = tensors[0].dtype
    if dtype is DType.BOOL or any(t.dtype is not dtype for t in tensors):
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, "Einsum of booleans or mixed types")
    try:
        said = read_equation(call.attrs.text("equation"), [len(t.shape) for t in tensors])
    except MalformedEquationError as error:
        raise unsupported_attribute(str(error)) from error
    terms, result = said.operands, said.result
    extents: dict[str, int] = {}
    for term, tensor in zip(terms, tensors, strict=True):
        for label, extent in zip(term, tensor.shape, strict=True):
            known = extents.get(label, 1)
            if known != 1 and extent not in (1, known):
                raise shape_mismatch(f"Einsum index {label!r} is both {known} and {extent}")
            extents[label] = max(known, extent)
    out = call.output(0, tuple(extents[label] for label in result), dtype)
    nest = call.nest()
    axes: dict[str, Affine] = {
        label: nest.axis(_axis_name(label), extents[label]) for label in result
    }
    for label, extent in extents.items():
        if label not in axes:
            axes[label] = nest.axis(_axis_name(label), extent, AxisKind.REDUCE)
    factors = [
        nest.read(
            tensor,
            [
                const(0) if extent == 1 else axes[label]
                for label, extent in zip(term, tensor.shape, strict=True)
            ],
        )
        for term, tensor in zip(terms, tensors, strict=True)
    ]
    nest.write(out, [axes[label] for label in result], product(factors), Reduce.ADD)


def _axis_name(label: str) -> str:
    return f"d{label}" if label.isdecimal() else label


EXPRESSIONS: dict[str, Expression] = {"Einsum": einsum}
