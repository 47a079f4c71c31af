"""Normalisations: statistics over some axes in f32, then one pass that applies them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from worker.compiler.frontend.ops.body import (
    add,
    div,
    lit,
    mul,
    select,
    sub,
)
from worker.compiler.frontend.ops.body import (
    call as apply,
)
from worker.compiler.frontend.ops.call import DTYPES, Call, Expression
from worker.compiler.frontend.ops.elementwise import require_float
from worker.compiler.frontend.ops.nest import Nest
from worker.compiler.frontend.ops.pointwise import broadcast_shape, pointwise
from worker.compiler.frontend.ops.reduce import normal_axis, reduce_over
from worker.compiler.frontend.ops.refusal import Refusal, shape_mismatch, unsupported_attribute
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce, Tensor
from worker.compiler.ir.scalar import Cast, Const, Fn, Scalar
from worker.compiler.ir.scalar_type import promoted
from worker.compiler.rejection import ReasonCode


def layer_norm(call: Call) -> None:
    """LayerNormalization: (x - mean) / sqrt(variance + eps) * scale + bias, and both statistics."""
    require_float(call)
    x = call.tensor(0)
    axis = normal_axis(call.attrs.integer("axis", -1), len(x.shape))
    epsilon = call.attrs.real("epsilon", 1e-5)
    kind = _statistics_type(call, x)
    axes = tuple(range(axis, len(x.shape)))
    kept = tuple(1 if d in axes else n for d, n in enumerate(x.shape))
    out = call.output(0, x.shape, x.dtype)
    mean = call.output(1, kept, kind) if call.uses_output(1) else call.temp("mean", kept, kind)
    _mean_over(call, mean, x, axes, lambda read: read(x))
    variance = call.temp("variance", kept, kind)
    _mean_over(call, variance, x, axes, lambda read: _square(sub(read(x), read(mean))))
    eps = lit(epsilon, kind)
    spread: Tensor = variance
    if call.uses_output(2):
        spread = call.output(2, kept, kind)
        pointwise(call, spread, [variance], lambda v: apply(Fn.RSQRT, add(v[0], eps)))

    def normal(values: Sequence[Scalar]) -> Scalar:
        inverse = values[2] if spread is not variance else apply(Fn.RSQRT, add(values[2], eps))
        return mul(sub(values[0], values[1]), inverse)

    _affine(call, out, [x, mean, spread], normal, scale=1, bias=2)


def rms_norm(call: Call) -> None:
    """RMSNormalization: x / sqrt(mean of squares + eps) * scale."""
    require_float(call)
    x = call.tensor(0)
    axis = normal_axis(call.attrs.integer("axis", -1), len(x.shape))
    eps = lit(call.attrs.real("epsilon", 1e-5), x.dtype)
    kind = _statistics_type(call, x)
    axes = tuple(range(axis, len(x.shape)))
    kept = tuple(1 if d in axes else n for d, n in enumerate(x.shape))
    out = call.output(0, x.shape, x.dtype)
    squares = call.temp("squares", kept, kind)
    _mean_over(call, squares, x, axes, lambda read: _square(read(x)))
    _affine(
        call, out, [x, squares],
        lambda v: mul(v[0], apply(Fn.RSQRT, add(v[1], eps))), scale=1, bias=None,
    )  # fmt: skip


def _statistics_type(call: Call, x: Tensor) -> DType:
    """Type of mean and variance: f32, or f64 for f64 input.

    Refuses a stash_type in which ONNX would round the statistics to 16 bits.
    """
    stash = call.attrs.integer("stash_type", 1)
    kind = next((d for t, d in DTYPES.items() if t.value == stash), None)
    if kind is None or not kind.is_float or promoted(kind) is not kind:
        raise unsupported_attribute(f"stash_type {stash} is not a 32- or 64-bit float")
    if kind is not promoted(x.dtype):
        raise unsupported_attribute(f"stash_type {stash} for {x.dtype} data")
    return kind


def _square(value: Scalar) -> Scalar:
    return mul(value, value)


def _mean_over(
    call: Call,
    out: Tensor,
    x: Tensor,
    axes: tuple[int, ...],
    body: Callable[[Callable[[Tensor], Scalar]], Scalar],
) -> None:
    scale = lit(1.0 / prod(x.shape[d] for d in axes), out.dtype)
    reduce_over(call, out, x.shape, axes, Reduce.ADD, lambda read: mul(body(read), scale))


def _affine(
    call: Call,
    out: Tensor,
    tensors: list[Tensor],
    normal: Callable[[Sequence[Scalar]], Scalar],
    *,
    scale: int,
    bias: int | None,
) -> None:
    """out = normal(tensors) * input `scale` + input `bias`, all broadcast to `out`."""
    operands = [*tensors, call.operand(scale)]
    if bias is not None and call.has_input(bias):
        operands.append(call.operand(bias))
    for operand in operands:
        shape = () if isinstance(operand, Const) else operand.shape
        if broadcast_shape([shape, out.shape]) != out.shape:
            raise shape_mismatch(f"a parameter of shape {shape} does not fit {out.shape}")
    count = len(tensors)
    kind = promoted(out.dtype)

    def body(values: Sequence[Scalar]) -> Scalar:
        given = [
            value if promoted(operand.dtype) is kind else Cast(kind, value)
            for operand, value in zip(operands, values, strict=True)
        ]
        scaled = mul(normal(given), given[count])
        return add(scaled, given[count + 1]) if len(given) > count + 1 else scaled

    pointwise(call, out, operands, body)


def batch_norm(call: Call) -> None:
    """BatchNormalization at inference: constant statistics fold into one scale and one shift."""
    require_float(call)
    x = call.tensor(0)
    epsilon = call.attrs.real("epsilon", 1e-5)
    call.attrs.ignore("momentum", "is_test")
    if call.attrs.integer("training_mode", 0) != 0:
        raise unsupported_attribute("BatchNormalization in training mode updates its statistics")
    if call.attrs.integer("spatial", 1) != 1:
        raise unsupported_attribute("BatchNormalization with spatial=0")
    if any(call.uses_output(k) for k in range(1, 5)):
        raise Refusal(ReasonCode.UNSUPPORTED_OUTPUT, "BatchNormalization's statistics are used")
    channels = (x.shape[1] if len(x.shape) > 1 else 1,)
    if any(call.shape(k) != channels for k in range(1, 5)):
        raise shape_mismatch(f"BatchNormalization of {x.shape}: parameters must be {channels}")
    out = call.output(0, x.shape, x.dtype)
    kind = promoted(x.dtype)
    nest = call.nest()
    index = nest.axes("i", x.shape)
    where = (index[1],) if len(x.shape) > 1 else (0,)
    value = nest.read(x, index)
    if all(call.is_constant(k) for k in range(1, 5)):
        scale, shift = _folded(call, channels, kind, epsilon)
        body = add(mul(value, nest.read(scale, where)), nest.read(shift, where))
    else:
        scale_, bias_, mean_, variance_ = (
            _parameter(call, nest, k, where, kind) for k in range(1, 5)
        )
        inverse = apply(Fn.RSQRT, add(variance_, lit(epsilon, kind)))
        body = add(mul(mul(sub(value, mean_), inverse), scale_), bias_)
    nest.write(out, index, body)


def _parameter(
    call: Call, nest: Nest, k: int, where: Sequence[Affine | int], kind: DType
) -> Scalar:
    tensor = call.tensor(k)
    value = nest.read(tensor, where)
    return value if promoted(tensor.dtype) is kind else Cast(kind, value)


def _folded(
    call: Call, channels: tuple[int, ...], kind: DType, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Per-channel scale and shift, computed in f64 when the weights are asked for."""

    def factor() -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        gamma, variance = call.array(1).astype(np.float64), call.array(4).astype(np.float64)
        return np.asarray(gamma / np.sqrt(variance + epsilon))

    def offset() -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        beta, mean = call.array(2).astype(np.float64), call.array(3).astype(np.float64)
        return np.asarray(beta - mean * factor())

    return (
        call.constant("scale", channels, kind, factor),
        call.constant("shift", channels, kind, offset),
    )


def instance_norm(call: Call) -> None:
    """InstanceNormalization: every channel of every sample is a group."""
    require_float(call)
    x = call.tensor(0)
    if len(x.shape) < 3:
        raise shape_mismatch(f"InstanceNormalization of {x.shape}: no spatial dimensions")
    _group_norm(call, x, x.shape[1], call.attrs.real("epsilon", 1e-5), per_group=False)


def group_norm(call: Call) -> None:
    """GroupNormalization; scale and bias per channel (opset 21) or per group (opset 18)."""
    require_float(call)
    x = call.tensor(0)
    groups = call.attrs.integer("num_groups")
    _statistics_type(call, x)
    if len(x.shape) < 3 or groups < 1 or x.shape[1] % groups:
        raise shape_mismatch(f"GroupNormalization of {x.shape} in {groups} groups")
    per_group = call.opset < 21 and call.shape(1) == (groups,) != (x.shape[1],)
    _group_norm(call, x, groups, call.attrs.real("epsilon", 1e-5), per_group=per_group)


def _group_norm(call: Call, x: Tensor, groups: int, epsilon: float, *, per_group: bool) -> None:
    batch, channels, *space = x.shape
    members = channels // groups
    expected = (groups if per_group else channels,)
    if call.shape(1) != expected or call.shape(2) != expected:
        raise shape_mismatch(f"{call.node.op_type} of {x.shape}: parameters must be {expected}")
    kind = promoted(x.dtype)
    out = call.output(0, x.shape, x.dtype)
    mean = call.temp("mean", (batch, groups), kind)
    variance = call.temp("variance", (batch, groups), kind)
    scale = lit(1.0 / (members * prod(space)), kind)
    for target in (mean, variance):
        nest = call.nest()
        n, g = nest.axis("n", batch), nest.axis("g", groups)
        c = nest.axis("c", members, AxisKind.REDUCE)
        s = nest.reduce_axes("s", space)
        value = nest.read(x, (n, g * members + c, *s))
        if target is variance:
            value = _square(sub(value, nest.read(mean, (n, g))))
        nest.write(target, (n, g), mul(value, scale), Reduce.ADD)
    nest = call.nest()
    index = nest.axes("i", x.shape)
    group = (index[0], index[1].floordiv(members))
    where = (index[1].floordiv(members) if per_group else index[1],)
    inverse = apply(Fn.RSQRT, add(nest.read(variance, group), lit(epsilon, kind)))
    normal = mul(sub(nest.read(x, index), nest.read(mean, group)), inverse)
    gamma, beta = (_parameter(call, nest, k, where, kind) for k in (1, 2))
    nest.write(out, index, add(mul(normal, gamma), beta))


def mean_variance_norm(call: Call) -> None:
    """MeanVarianceNormalization: (x - mean) / (standard deviation + 1e-9)."""
    require_float(call)
    x = call.tensor(0)
    given = call.attrs.integers("axes") or (0, 2, 3)
    axes = tuple(sorted(normal_axis(a, len(x.shape)) for a in given))
    kept = tuple(1 if d in axes else n for d, n in enumerate(x.shape))
    kind = promoted(x.dtype)
    out = call.output(0, x.shape, x.dtype)
    mean, variance = call.temp("mean", kept, kind), call.temp("variance", kept, kind)
    _mean_over(call, mean, x, axes, lambda read: read(x))
    _mean_over(call, variance, x, axes, lambda read: _square(sub(read(x), read(mean))))
    floor = lit(1e-9, kind)
    pointwise(
        call,
        out,
        [x, mean, variance],
        lambda v: div(sub(v[0], v[1]), add(apply(Fn.SQRT, v[2]), floor)),
    )


def lp_norm(call: Call) -> None:
    """LpNormalization: x over its 1- or 2-norm along one axis; 0 where the norm is 0."""
    require_float(call)
    x = call.tensor(0)
    axis = normal_axis(call.attrs.integer("axis", -1), len(x.shape))
    order = call.attrs.integer("p", 2)
    if order not in (1, 2):
        raise unsupported_attribute(f"attribute 'p' is {order}; supported: 1, 2")
    kept = tuple(1 if d == axis else n for d, n in enumerate(x.shape))
    kind = promoted(x.dtype)
    out = call.output(0, x.shape, x.dtype)
    total = call.temp("sum", kept, kind)
    reduce_over(
        call, total, x.shape, (axis,), Reduce.ADD,
        lambda read: apply(Fn.ABS, read(x)) if order == 1 else _square(read(x)),
    )  # fmt: skip
    zero = lit(0, kind)

    def body(values: Sequence[Scalar]) -> Scalar:
        norm = values[1] if order == 1 else apply(Fn.SQRT, values[1])
        return select(apply(Fn.EQ, values[1], zero), zero, div(values[0], norm))

    pointwise(call, out, [x, total], body)


EXPRESSIONS: dict[str, Expression] = {
    "LayerNormalization": layer_norm,
    "RMSNormalization": rms_norm,
    "BatchNormalization": batch_norm,
    "InstanceNormalization": instance_norm,
    "GroupNormalization": group_norm,
    "MeanVarianceNormalization": mean_variance_norm,
    "LpNormalization": lp_norm,
}
