"""Einsum as one contraction: output letters are PARALLEL axes, the others REDUCE."""

from __future__ import annotations

from worker.compiler.frontend.ops.body import product
from worker.compiler.frontend.ops.call import Call, Expression
from worker.compiler.frontend.ops.refusal import Refusal, shape_mismatch, unsupported_attribute
from worker.compiler.ir.affine import Affine, const
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce
from worker.compiler.rejection import ReasonCode

_DOTS = "..."


def einsum(call: Call) -> None:
    """Einsum with any number of operands, repeated letters (diagonals) and broadcast dots."""
    if call.num_inputs == 0:
        raise shape_mismatch("Einsum of nothing")
    tensors = [call.tensor(k) for k in range(call.num_inputs)]
    dtype = tensors[0].dtype
    if dtype is DType.BOOL or any(t.dtype is not dtype for t in tensors):
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, "Einsum of booleans or mixed types")
    terms, result = _parse(call, [len(t.shape) for t in tensors])
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


def _parse(call: Call, ranks: list[int]) -> tuple[list[list[str]], list[str]]:
    """Labels of every operand and of the result; dots become the labels "0", "1", ... from the
    right, so that shorter ones broadcast."""
    equation = call.attrs.text("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    words = left.split(",")
    if len(words) != len(ranks):
        raise unsupported_attribute(f"equation {equation!r} for {len(ranks)} operands")
    terms = [_labels(word, rank, equation) for word, rank in zip(words, ranks, strict=True)]
    dots = max((int(lb) + 1 for term in terms for lb in term if lb.isdecimal()), default=0)
    ellipsis = [str(k) for k in reversed(range(dots))]
    if arrow:
        result = _labels(right, len(right.replace(_DOTS, "")) + dots, equation)
        if _DOTS not in right and dots:
            result = [*right]
    else:
        letters = [lb for term in terms for lb in term if not lb.isdecimal()]
        result = [*ellipsis, *sorted(lb for lb in set(letters) if letters.count(lb) == 1)]
    known = {lb for term in terms for lb in term}
    if len(set(result)) != len(result) or not known.issuperset(result):
        raise unsupported_attribute(f"equation {equation!r} has a malformed result")
    return terms, result


def _labels(word: str, rank: int, equation: str) -> list[str]:
    before, dots, after = word.partition(_DOTS)
    letters = before + after
    hidden = rank - len(letters)
    if (letters and not letters.isalpha()) or hidden < 0 or (hidden and not dots):
        raise unsupported_attribute(f"equation {equation!r} does not fit operands of rank {rank}")
    return [*before, *(str(k) for k in reversed(range(hidden))), *after]


EXPRESSIONS: dict[str, Expression] = {"Einsum": einsum}
