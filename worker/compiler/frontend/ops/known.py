"""Shape, Size, ConstantOfShape: results that are known once shapes are."""

from __future__ import annotations

import math

import numpy as np

from worker.compiler.frontend.ops.body import lit
from worker.compiler.frontend.ops.call import DTYPES, Call, Expression
from worker.compiler.frontend.ops.pointwise import pointwise
from worker.compiler.frontend.ops.refusal import Refusal
from worker.compiler.ir.dtype import DType
from worker.compiler.rejection import ReasonCode


def shape_of(call: Call) -> None:
    """Shape: the dimensions from `start` to `end` of a tensor whose elements do not matter."""
    dims = call.shape(0)
    start, end = call.attrs.integer("start", 0), call.attrs.integer("end", len(dims))
    picked = dims[slice(start, end)]
    out = call.output(0, (len(picked),), DType.I64)
    values = call.constant("dims", out.shape, DType.I64, lambda: np.array(picked, np.int64))
    pointwise(call, out, [values], lambda v: v[0])


def size_of(call: Call) -> None:
    """Size: the number of elements."""
    count = math.prod(call.shape(0))
    pointwise(call, call.output(0, (), DType.I64), [], lambda v: lit(count, DType.I64))


def constant_of_shape(call: Call) -> None:
    """ConstantOfShape: one value everywhere; the shape must be known."""
    shape = call.integers(0)
    found = call.node.attributes.get("value")
    call.attrs.ignore("value")
    if found is None:
        kind, value = DType.F32, 0.0
    else:
        tensor = found.as_tensor()
        if tensor.dtype not in DTYPES:
            raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"a value of type {tensor.dtype.name}")
        kind, value = DTYPES[tensor.dtype], tensor.numpy().reshape(-1)[0].item()
        if isinstance(value, float) and math.isnan(value):
            raise Refusal(ReasonCode.UNSUPPORTED_ATTRIBUTE, "the value is not a number")
    out = call.output(0, shape, kind)
    pointwise(call, out, [], lambda v: lit(value, kind))


EXPRESSIONS: dict[str, Expression] = {
    "Shape": shape_of,
    "Size": size_of,
    "ConstantOfShape": constant_of_shape,
}
