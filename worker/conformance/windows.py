"""Recipes of convolutions and pools: geometry from wanted quantities and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import gcd, isqrt
from typing import Any

import numpy as np

from worker.compiler.machine.pattern import AttributeValue
from worker.conformance.sample import Array, OpRecipe, Request, Sample, constants

_CHANNELS = 4
_OUT_CHANNELS = 12
_KERNEL = 3
_LEAST_SIZE = 6


@dataclass(frozen=True, slots=True)
class Window:
    """Geometry of one sliding window."""

    batch: int
    channels: int
    out_channels: int
    group: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    """All beginnings, then all ends."""

    def attributes(self) -> dict[str, Any]:
        return {
            "kernel_shape": list(self.kernel),
            "strides": list(self.strides),
            "dilations": list(self.dilations),
            "pads": list(self.pads),
        }


def window(request: Request, weighted: bool) -> Window:
    """The geometry a request describes; what it leaves open is small and legal.

    `weighted`: a convolution, whose pads may exceed its kernel.
    """
    want, given = request.quantities, request.attributes
    rank = len(request.shape) if request.shape else want.get("rank", 4)
    axes = max(1, rank - 2)
    collapsed = bool(want.keys() & {"weight_elements", "macs", "elements"})
    kernel = _along(want, given, "kernel", "kernel_shape", axes, 1 if collapsed else _KERNEL)
    if "kernel_size" in want:
        kernel = _factors(want["kernel_size"], axes)
    strides = _along(want, given, "stride", "strides", axes, 1)
    dilations = _along(want, given, "dilation", "dilations", axes, 1)
    pads = _pads(want, given, kernel, axes)
    if not weighted and ("pad_h" in want or "pad_w" in want):
        kernel = tuple(max(k, p + 1) for k, p in zip(kernel, pads[:axes], strict=True))
    size = tuple(
        max(_LEAST_SIZE, (k - 1) * d + 1 + s)
        for k, s, d in zip(kernel, strides, dilations, strict=True)
    )
    channels, out, group = _channels(want, given, collapsed)
    batch = want.get("batch", 1)
    if collapsed:
        size = (1,) * axes
        if "weight_elements" in want:
            out = want["weight_elements"]
        else:
            size = (*(1,) * (axes - 1), want.get("macs") or want["elements"])
            out = 1
        pads = (0,) * (2 * axes)
    if request.shape:
        batch, channels = request.shape[0], request.shape[1]
        size = request.shape[2:]
        if channels % group:
            group = 1
    size = tuple(
        want.get(name, found)
        for name, found in zip((*("",) * (axes - 2), "height", "width")[-axes:], size, strict=True)
    )
    return Window(batch, channels, out, group, size, kernel, strides, dilations, pads)


def _along(
    want: Mapping[str, int],
    given: Mapping[str, AttributeValue],
    prefix: str,
    attribute: str,
    axes: int,
    default: int,
) -> tuple[int, ...]:
    found = [default] * axes
    value = given.get(attribute)
    if isinstance(value, tuple):
        found = [int(v) for v in value]
    elif isinstance(value, int | float):
        found = [int(value)] * axes
    found[-1] = want.get(f"{prefix}_w", found[-1])
    found[0] = want.get(f"{prefix}_h", found[0])
    return tuple(found)


def _pads(
    want: Mapping[str, int],
    given: Mapping[str, AttributeValue],
    kernel: tuple[int, ...],
    axes: int,
) -> tuple[int, ...]:
    value = given.get("pads")
    if isinstance(value, tuple):
        return tuple(int(v) for v in value)
    if isinstance(value, int | float):
        return (int(value),) * (2 * axes)
    each = [min(1, k - 1) for k in kernel]
    each[-1] = want.get("pad_w", each[-1])
    each[0] = want.get("pad_h", each[0])
    return (*each, *each)


def _channels(
    want: Mapping[str, int], given: Mapping[str, AttributeValue], collapsed: bool
) -> tuple[int, int, int]:
    small = 1 if collapsed else _CHANNELS
    channels = want.get("in_channels", small)
    out = want.get("out_channels", 1 if collapsed else _OUT_CHANNELS)
    value = given.get("group")
    group = int(value) if isinstance(value, int) else want.get("group", 1)
    if want.get("depthwise") == 1:
        if "group" in want and "in_channels" not in want and group > 1:
            channels = group
        channels = max(2, channels)
        group = channels
    if channels % group:
        channels = channels * group // gcd(channels, group)
    if want.get("depthwise") == 0 and group > 1 and group == channels:
        channels *= 2
    if out % group:
        out = out * group // gcd(out, group)
    return channels, out, group


def _factors(size: int, axes: int) -> tuple[int, ...]:
    """`size` as a product of two numbers as equal as possible, and ones."""
    if axes == 1:
        return (size,)
    small = next(k for k in range(isqrt(size), 0, -1) if size % k == 0)
    return (size // small, *(1,) * (axes - 2), small)


def _weights(request: Request, shape: tuple[int, ...]) -> Array:
    fan = max(1, int(np.prod(shape[1:])))
    scaled: Array = request.typed(np.float32).values(shape) / np.float32(np.sqrt(fan))
    return scaled.astype(request.dtype)


def _conv(request: Request) -> Sample:
    w = window(request, weighted=True)
    x = request.values((w.batch, w.channels, *w.size))
    weights = _weights(request, (w.out_channels, w.channels // w.group, *w.kernel))
    bias = None if request.variant == "no bias" else request.values((w.out_channels,))
    inputs = (x, weights) if bias is None else (x, weights, bias)
    fixed = constants() if request.variant == "computed weights" else constants(1, 2)
    attributes = _set(request, {**w.attributes(), "group": w.group})
    return Sample(inputs, attributes, fixed)


def _conv_transpose(request: Request) -> Sample:
    w = window(request, weighted=True)
    x = request.values((w.batch, w.channels, *w.size))
    weights = _weights(request, (w.channels, w.out_channels // w.group, *w.kernel))
    fixed = constants() if request.variant == "computed weights" else constants(1, 2)
    attributes = _set(request, {**w.attributes(), "group": w.group})
    return Sample((x, weights, request.values((w.out_channels,))), attributes, fixed)


def _conv_integer(request: Request) -> Sample:
    w = window(request, weighted=True)
    x = request.values((w.batch, w.channels, *w.size))
    weights = request.values((w.out_channels, w.channels // w.group, *w.kernel))
    inputs: tuple[Array, ...] = (x, weights)
    if request.variant == "zero points":
        inputs = (x, weights, np.array(2, request.dtype), np.array(1, request.dtype))
    attributes = _set(request, {**w.attributes(), "group": w.group})
    return Sample(inputs, attributes, constants(1, 2, 3))


def _qlinear_conv(request: Request) -> Sample:
    w = window(request, weighted=True)
    x = request.values((w.batch, w.channels, *w.size))
    weights = request.values((w.out_channels, w.channels // w.group, *w.kernel))
    zero = np.array(0 if request.dtype.kind == "i" else 3, request.dtype)
    spread = float(np.sqrt(weights[0].size)) * 0.2
    inputs = (
        x, np.float32(0.1), zero, weights, np.float32(0.05), zero, np.float32(spread * 0.1), zero,
    )  # fmt: skip
    attributes = _set(request, {**w.attributes(), "group": w.group})
    arrays = tuple(np.asarray(a) for a in inputs)
    return Sample(arrays, attributes, constants(1, 2, 3, 4, 5, 6, 7))


def _pool(op_type: str, request: Request) -> Sample:
    w = window(request, weighted=False)
    attributes = w.attributes()
    if op_type == "LpPool" and request.variant != "p=1":
        attributes["p"] = 2
    if request.variant == "ceil":
        attributes["ceil_mode"] = 1
    if request.variant == "count padding":
        attributes["count_include_pad"] = 1
    x = request.values((w.batch, w.channels, *w.size))
    return Sample((x,), _set(request, attributes))


def _global_pool(request: Request) -> Sample:
    want = dict(request.quantities)
    size = (want.pop("kernel_h", 5), want.pop("kernel_w", 6))
    if "kernel_size" in want:
        size = (want.pop("kernel_size"), 1)
    dims = request.dims(1, 4, *size)
    return Sample((request.values(dims),), _set(request, {}))


def _set(request: Request, attributes: dict[str, Any]) -> dict[str, Any]:
    """Attributes that the geometry does not own, as asked for; automatic padding replaces pads."""
    owned = {"kernel_shape", "strides", "dilations", "pads", "group"}
    extra = {n: v for n, v in request.attributes.items() if n not in owned}
    if extra.get("auto_pad", "NOTSET") != "NOTSET":
        attributes = {n: v for n, v in attributes.items() if n != "pads"}
    return {**attributes, **extra}


_SHAPES: tuple[Mapping[str, int] | str, ...] = (
    {"stride_h": 2, "stride_w": 2}, {"dilation_h": 2, "dilation_w": 2}, {"rank": 3}, {"rank": 5},
    {"kernel_h": 1, "kernel_w": 1}, {"batch": 3}, {"kernel_h": 2, "kernel_w": 5},
)  # fmt: skip
_GROUPS: tuple[Mapping[str, int] | str, ...] = ({"group": 2, "depthwise": 0}, {"depthwise": 1})

WINDOW_RECIPES: Mapping[str, OpRecipe] = {
    "Conv": OpRecipe(_conv, (*_SHAPES, *_GROUPS, "no bias", "computed weights")),
    "ConvTranspose": OpRecipe(_conv_transpose, (*_SHAPES, {"group": 2, "depthwise": 0})),
    "ConvInteger": OpRecipe(_conv_integer, (*_SHAPES, *_GROUPS, "zero points")),
    "QLinearConv": OpRecipe(_qlinear_conv, (*_SHAPES, *_GROUPS)),
    "MaxPool": OpRecipe(partial(_pool, "MaxPool"), (*_SHAPES, "ceil")),
    "AveragePool": OpRecipe(partial(_pool, "AveragePool"), (*_SHAPES, "ceil", "count padding")),
    "LpPool": OpRecipe(partial(_pool, "LpPool"), (*_SHAPES, "p=1")),
    "GlobalAveragePool": OpRecipe(_global_pool, ({"rank": 3}, {"rank": 5}, {"batch": 2})),
    "GlobalMaxPool": OpRecipe(_global_pool, ({"rank": 3}, {"rank": 5}, {"batch": 2})),
    "GlobalLpPool": OpRecipe(_global_pool, ({"rank": 3}, {"batch": 2})),
}
