"""Operators that work element by element, with numpy broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from worker.compiler.frontend.ops.call import Call, Operand
from worker.compiler.frontend.ops.refusal import shape_mismatch
from worker.compiler.ir.affine import Affine, const
from worker.compiler.ir.op import Tensor
from worker.compiler.ir.scalar import Const, Scalar

BodyOf: TypeAlias = "Callable[[Sequence[Scalar]], Scalar]"


def broadcast_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Shape that all of `shapes` broadcast to.

    Raises:
        Refusal: SHAPE_MISMATCH when there is none.
    """
    rank = max((len(s) for s in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for k, extent in enumerate(shape):
            at = rank - len(shape) + k
            if extent != 1:
                if result[at] not in (1, extent):
                    raise shape_mismatch(f"shapes {list(shapes)} do not broadcast together")
                result[at] = extent
    return tuple(result)


def broadcast_index(shape: tuple[int, ...], index: Sequence[Affine]) -> tuple[Affine, ...]:
    """Right-aligned index into a tensor of `shape` at output point `index`."""
    tail = index[len(index) - len(shape) :]
    return tuple(const(0) if n == 1 else e for n, e in zip(shape, tail, strict=True))


def pointwise(call: Call, out: Tensor, operands: Sequence[Operand], body: BodyOf) -> Tensor:
    """Emit out[i] = body(operands at i), operands broadcast to `out`."""
    nest = call.nest()
    index = nest.axes("i", out.shape)
    values: list[Scalar] = []
    for operand in operands:
        if isinstance(operand, Const):
            values.append(operand)
        else:
            values.append(nest.read(operand, broadcast_index(operand.shape, index)))
    return nest.write(out, index, body(values))
