"""How to make an instance of every operator that the front end can express."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx

from worker.conformance.movement import MOVEMENT_RECIPES
from worker.conformance.sample import Array, OpRecipe, Request, Sample, constants, i64
from worker.conformance.scattered import SCATTERED_RECIPES
from worker.conformance.windows import WINDOW_RECIPES

_DOMAINS: Mapping[str, tuple[float, float]] = {
    "Acos": (-0.9, 0.9), "Acosh": (1.1, 3.0), "Asin": (-0.9, 0.9), "Atanh": (-0.9, 0.9),
    "Log": (0.3, 3.0), "Sqrt": (0.1, 4.0), "Reciprocal": (0.5, 3.0), "Tan": (-1.0, 1.0),
    "Round": (-9.0, 9.0), "Ceil": (-9.0, 9.0), "Floor": (-9.0, 9.0),
}  # fmt: skip
"""Intervals where a function is defined and well conditioned."""
_PLAIN_UNARY = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Celu", "Cos",
    "Cosh", "Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish",
    "Identity", "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu",
    "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan",
    "Tanh", "ThresholdedRelu",
)  # fmt: skip
_ROWS, _DEPTH, _COLUMNS = 12, 20, 24
"""Of matrix products: large enough for the code generator to use the matrix instruction."""
_OPSETS = {"Swish": 24, "RMSNormalization": 23}
_BINARY = (
    "Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater",
    "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mul", "Or", "Sub", "Sum", "Xor",
)  # fmt: skip
_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip


def _unary(op_type: str, request: Request) -> Sample:
    dims = request.dims(2, 3, 4, 5)
    if op_type in _DOMAINS and request.dtype.kind not in "iub":
        x = request.between(*_DOMAINS[op_type], dims)
    else:
        x = request.values(dims)
    return Sample((x,), dict(request.attributes), opset=_OPSETS.get(op_type, 21))


def _binary(op_type: str, request: Request) -> Sample:
    dims = request.dims(2, 3, 4, 5)
    other = dims
    match request.variant:
        case "broadcast":
            other = (*(1,) * (len(dims) - 1), dims[-1])
        case "per channel":
            other = tuple(d if k == 1 else 1 for k, d in enumerate(dims))
    x = request.values(dims)
    y = request.between(1, 4, other) if op_type == "Div" else request.values(other)
    fixed = constants(1) if request.variant else constants()
    return Sample((x, y), dict(request.attributes), fixed)


def _mod(request: Request) -> Sample:
    dims = request.dims(2, 3, 4, 5)
    is_integer = request.dtype.kind in "iu"
    attributes = {"fmod": 0 if is_integer else 1, **request.attributes}
    return Sample((request.values(dims), request.between(1, 4, dims)), attributes)


def _pow(request: Request) -> Sample:
    dims = request.dims(2, 3, 4, 5)
    if request.dtype.kind in "iu" or request.variant == "square":
        power = np.array(2, request.dtype)
        return Sample((request.values(dims), power), dict(request.attributes), constants(1))
    return Sample(
        (request.between(0.5, 2.0, dims), request.between(0.0, 2.0, dims)),
        dict(request.attributes),
    )


def _prelu(request: Request) -> Sample:
    dims = request.dims(2, 3, 4, 5)
    slope = request.between(0.1, 0.9, tuple(d if k == 1 else 1 for k, d in enumerate(dims))[1:])
    return Sample((request.values(dims), slope), dict(request.attributes), constants(1))


def _shift(request: Request) -> Sample:
    dims = request.dims(2, 3, 4, 5)
    direction = "RIGHT" if request.variant == "right" else "LEFT"
    attributes = {"direction": direction, **request.attributes}
    return Sample((request.values(dims), request.between(0, 3, dims)), attributes)


def _where(request: Request) -> Sample:
    dims = request.dims(2, 3, 4, 5)
    chosen = request.typed(bool).values(dims)
    return Sample((chosen, request.values(dims), request.values(dims)), dict(request.attributes))


def _clip(request: Request) -> Sample:
    x = request.values(request.dims(2, 3, 4, 5))
    low, high = (0, 3) if request.dtype.kind in "iu" else (-0.5, 1.0)
    bounds: tuple[Array | None, ...] = (np.array(low, request.dtype), np.array(high, request.dtype))
    if request.variant == "one bound":
        bounds = (None, bounds[1])
    return Sample((x, *bounds), dict(request.attributes), constants(1, 2))


def _odd_numbers(request: Request) -> Sample:
    """Infinities and NaN among the numbers."""
    x = request.values(request.dims(2, 3, 4, 5))
    if request.dtype.kind not in "iub":
        x.reshape(-1)[: min(3, x.size)] = np.array([np.inf, np.nan, -np.inf])[: min(3, x.size)]
    return Sample((x,), dict(request.attributes))


def _measured(request: Request) -> Sample:
    return Sample((request.values(request.dims(2, 3, 4, 5)),), dict(request.attributes))


def _filled(request: Request) -> Sample:
    return Sample((i64(*request.dims(2, 3, 4)),), dict(request.attributes), constants(0))


def _reduction(op_type: str, request: Request) -> Sample:
    dims = request.dims(2, 3, 4, 5)
    axes: tuple[int, ...] = {"last": (-1,), "spatial": (2, 3), "all": ()}.get(request.variant, (1,))
    axes = tuple(a for a in axes if -len(dims) <= a < len(dims)) or (0,)
    if op_type in ("ReduceLogSum", "ReduceProd"):
        x = request.between(0.5, 1.5, dims)
    else:
        x = request.values(dims)
    attributes = {"keepdims": int(request.variant != "last"), **request.attributes}
    if request.variant == "all":
        return Sample((x,), attributes)
    return Sample((x, i64(*axes)), attributes, constants(1))


def _arg(request: Request) -> Sample:
    dims = request.dims(2, 3, 4, 5)
    x = request.rng.permutation(int(np.prod(dims))).reshape(dims)
    if request.dtype.itemsize == 1:
        x = x % 100
    axis = {"axis": -1 if request.variant == "last" else 0}
    return Sample((x.astype(request.dtype),), {**axis, **request.attributes})


def _softmax(request: Request) -> Sample:
    x = request.values(request.dims(2, 3, 4, 5))
    axis = {"axis": 1 if request.variant == "channels" else -1}
    return Sample((x,), {**axis, **request.attributes})


def _per_channel(request: Request, dims: tuple[int, ...]) -> tuple[Array, Array]:
    channels = (dims[1] if len(dims) > 1 else 1,)
    return request.between(0.5, 1.5, channels), request.values(channels)


def _batch_norm(request: Request) -> Sample:
    dims = request.dims(2, 3, 4, 5)
    x = request.values(dims)
    scale, shift = _per_channel(request, dims)
    variance, mean = _per_channel(request, dims)
    return Sample(
        (x, scale, shift, mean, variance), dict(request.attributes), constants(1, 2, 3, 4)
    )


def _channel_norm(op_type: str, request: Request) -> Sample:
    dims = request.dims(2, 4, 4, 5)
    scale, shift = _per_channel(request, dims)
    attributes: dict[str, Any] = dict(request.attributes)
    if op_type == "GroupNormalization":
        attributes.setdefault("num_groups", 2 if dims[1] % 2 == 0 else 1)
    return Sample((request.values(dims), scale, shift), attributes, constants(1, 2))


def _layer_norm(op_type: str, request: Request) -> Sample:
    dims = request.dims(2, 3, 8)
    axis = len(dims) - 2 if request.variant == "two axes" and len(dims) > 1 else -1
    tail = dims[axis:]
    attributes = {"axis": axis, **request.attributes}
    inputs = (request.values(dims), request.between(0.5, 1.5, tail), request.values(tail))
    if op_type == "RMSNormalization":
        return Sample(inputs[:2], attributes, constants(1), opset=_OPSETS[op_type])
    return Sample(inputs, attributes, constants(1, 2))


def _with_axis(op_type: str, request: Request) -> Sample:
    x = request.values(request.dims(2, 4, 4, 5))
    own: dict[str, dict[str, Any]] = {
        "LRN": {"size": 3},
        "LpNormalization": {"axis": 1, "p": 1 if request.variant == "p=1" else 2},
        "MeanVarianceNormalization": {"axes": [0, 2, 3]},
    }
    return Sample((x,), {**own[op_type], **request.attributes})


def _matmul(request: Request) -> Sample:
    if "macs" in request.quantities or "weight_elements" in request.quantities:
        depth = request.quantities.get("macs", request.quantities.get("weight_elements", 1))
        a, b = request.values((1, depth)), request.values((depth, 1))
    else:
        dims = request.dims(2, _ROWS, _DEPTH) if request.variant != "matrix" else (_ROWS, _DEPTH)
        a, b = request.values(dims), request.values((dims[-1], _COLUMNS))
        if request.variant == "batched":
            b = request.values((*dims[:-2], dims[-1], _COLUMNS))
    fixed = constants() if request.variant in ("batched", "computed") else constants(1)
    return Sample((a, b), dict(request.attributes), fixed)


def _gemm(request: Request) -> Sample:
    m, k = request.shape or (_ROWS, _DEPTH)
    n = _COLUMNS
    if "macs" in request.quantities or "weight_elements" in request.quantities:
        m, n = 1, 1
        k = request.quantities.get("macs", request.quantities.get("weight_elements", 1))
    m = request.quantities.get("batch", m)
    k = request.quantities.get("in_channels", request.quantities.get("width", k))
    attributes: dict[str, Any] = dict(request.attributes)
    if request.variant == "transposed":
        attributes.update({"transA": 1, "transB": 1})
    if request.variant == "scaled":
        alpha = 2.0 if request.dtype.kind in "iu" else 0.5
        attributes.update({"alpha": alpha, "beta": 2.0})
    a = request.values((k, m) if attributes.get("transA") else (m, k))
    b = request.values((n, k) if attributes.get("transB") else (k, n))
    if request.variant == "no bias":
        return Sample((a, b), attributes, constants(1))
    return Sample((a, b, request.values((n,))), attributes, constants(1, 2))


def _einsum(request: Request) -> Sample:
    a, b = request.values((2, 6, 8)), request.values((2, 8, _COLUMNS))
    return Sample((a, b), {"equation": "bij,bjk->bik", **request.attributes})


def _matmul_integer(request: Request) -> Sample:
    a, b = request.values((_ROWS, _DEPTH)), request.values((_DEPTH, _COLUMNS))
    if request.variant == "zero points":
        zeros = (np.array(2, request.dtype), np.array(1, request.dtype))
        return Sample((a, b, *zeros), dict(request.attributes), constants(1, 2, 3))
    return Sample((a, b), dict(request.attributes), constants(1))


def _qlinear_matmul(request: Request) -> Sample:
    a, b = request.values((_ROWS, _DEPTH)), request.values((_DEPTH, _COLUMNS))
    zero = np.array(0 if request.dtype.kind == "i" else 3, request.dtype)
    inputs = (
        a, np.float32(0.1), zero, b, np.float32(0.05), zero, np.float32(0.05), zero,
    )  # fmt: skip
    return Sample(
        tuple(np.asarray(v) for v in inputs), dict(request.attributes),
        constants(1, 2, 3, 4, 5, 6, 7),
    )  # fmt: skip


def _cast(request: Request) -> Sample:
    target = request.variant.removeprefix("to ") if request.variant else "INT32"
    if not request.variant and request.dtype == np.int32:
        target = "FLOAT"
    to = getattr(onnx.TensorProto, target)
    dims = request.dims(2, 3, 4, 5)
    # a negative number as an unsigned one is undefined in C and differs between processors
    x = request.between(0, 100, dims) if target == "UINT8" else request.values(dims)
    return Sample((x,), {"to": to, **request.attributes})


def _cast_like(request: Request) -> Sample:
    dtype = np.float32 if request.dtype == np.int32 else np.int32
    x = request.values(request.dims(2, 3, 4, 5))
    return Sample((x, np.zeros(1, dtype)), dict(request.attributes), constants(1))


def _dequantize(request: Request) -> Sample:
    x = request.values(request.dims(2, 3, 4, 5))
    inputs: tuple[Array, ...] = (x, np.array(0.1, np.float32))
    if request.dtype.itemsize == 1:
        inputs = (*inputs, np.array(2, request.dtype))
    return Sample(inputs, dict(request.attributes), constants(1, 2))


def _quantize(request: Request) -> Sample:
    x = request.values(request.dims(2, 3, 4, 5))
    zero = np.array(3, np.uint8) if request.variant == "u8" else np.array(-2, np.int8)
    scale = np.array(2 if request.dtype.kind == "i" else 0.05, request.dtype)
    return Sample((x, scale, zero), dict(request.attributes), constants(1, 2))


def _dynamic_quantize(request: Request) -> Sample:
    return Sample((request.values(request.dims(3, 4)),), dict(request.attributes), outputs=3)


def _elementary(op_type: str) -> OpRecipe:
    return OpRecipe(partial(_unary, op_type), is_pointwise=True, is_elementary=True)


_CASTS = tuple(f"to {n}" for n in ("FLOAT", "FLOAT16", "INT8", "UINT8", "INT64", "BOOL"))

_SPECIFIC: Mapping[str, OpRecipe] = {
    "Mod": OpRecipe(_mod, (), True, True),
    "Pow": OpRecipe(_pow, ("square",), True, True, "square"),
    "PRelu": OpRecipe(_prelu, (), True),
    "BitShift": OpRecipe(_shift, ("right",), True, True),
    "Where": OpRecipe(_where, (), True, True),
    "Clip": OpRecipe(_clip, ("one bound",), True, True),
    "IsInf": OpRecipe(_odd_numbers, (), True, True),
    "IsNaN": OpRecipe(_odd_numbers, (), True, True),
    "ArgMax": OpRecipe(_arg, ("last",)),
    "ArgMin": OpRecipe(_arg, ("last",)),
    "Hardmax": OpRecipe(_arg, ("last",)),
    "Softmax": OpRecipe(_softmax, ("channels",)),
    "LogSoftmax": OpRecipe(_softmax, ("channels",)),
    "BatchNormalization": OpRecipe(_batch_norm, ({"rank": 3},)),
    "GroupNormalization": OpRecipe(partial(_channel_norm, "GroupNormalization"), ({"rank": 3},)),
    "InstanceNormalization": OpRecipe(
        partial(_channel_norm, "InstanceNormalization"), ({"rank": 3},)
    ),
    "LayerNormalization": OpRecipe(partial(_layer_norm, "LayerNormalization"), ("two axes",)),
    "RMSNormalization": OpRecipe(partial(_layer_norm, "RMSNormalization"), ("two axes",)),
    "LRN": OpRecipe(partial(_with_axis, "LRN")),
    "LpNormalization": OpRecipe(partial(_with_axis, "LpNormalization"), ("p=1",)),
    "MeanVarianceNormalization": OpRecipe(partial(_with_axis, "MeanVarianceNormalization")),
    "MatMul": OpRecipe(_matmul, ("matrix", "batched", "computed")),
    "Gemm": OpRecipe(_gemm, ("transposed", "scaled", "no bias")),
    "Einsum": OpRecipe(_einsum),
    "MatMulInteger": OpRecipe(_matmul_integer, ("zero points",)),
    "QLinearMatMul": OpRecipe(_qlinear_matmul),
    "Cast": OpRecipe(_cast, _CASTS),
    "CastLike": OpRecipe(_cast_like),
    "Shape": OpRecipe(_measured),
    "Size": OpRecipe(_measured),
    "ConstantOfShape": OpRecipe(_filled),
    "DequantizeLinear": OpRecipe(_dequantize),
    "QuantizeLinear": OpRecipe(_quantize, ("u8",)),
    "DynamicQuantizeLinear": OpRecipe(_dynamic_quantize),
}

RECIPES: Mapping[str, OpRecipe] = MappingProxyType(
    {
        **{name: _elementary(name) for name in _PLAIN_UNARY},
        **{
            name: OpRecipe(partial(_binary, name), ("broadcast", "per channel"), True, True)
            for name in _BINARY
        },
        **{
            name: OpRecipe(partial(_reduction, name), ("last", "spatial", "all"))
            for name in _REDUCTIONS
        },
        **_SPECIFIC,
        **WINDOW_RECIPES,
        **MOVEMENT_RECIPES,
        **SCATTERED_RECIPES,
    }
)
"""ONNX op type -> how to make instances of it."""
