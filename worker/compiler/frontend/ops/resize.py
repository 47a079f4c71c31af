"""Resize and Upsample: nearest as an index map, linear and cubic as one weighted sum of taps."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from worker.compiler.frontend.ops.body import mul
from worker.compiler.frontend.ops.call import Call, Expression
from worker.compiler.frontend.ops.elementwise import require_float
from worker.compiler.frontend.ops.index_table import check_table, fit
from worker.compiler.frontend.ops.nest import Nest
from worker.compiler.frontend.ops.reduce import normal_axis
from worker.compiler.frontend.ops.refusal import shape_mismatch, unsupported_attribute
from worker.compiler.frontend.ops.resample import (
    COORDINATE_MODES,
    NEAREST_MODES,
    Resample,
    Taps,
    cubic_filter,
    exact_scale,
    filter_taps,
    linear_filter,
    resampled,
)
from worker.compiler.frontend.ops.slice_pad import table_constant
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.op import Reduce, Tensor
from worker.compiler.ir.scalar import Scalar
from worker.compiler.ir.scalar_type import promoted


def resize(call: Call) -> None:
    """Resize (opset 10 on)."""
    first_scales = 1 if call.opset < 11 else 2
    modes = ("nearest", "linear", "cubic")
    mode = call.attrs.choice("mode", "nearest", modes)
    if call.opset < 11:
        _resize(call, mode, _scales(call, first_scales), None, "asymmetric", "floor")
        return
    transform = call.attrs.choice("coordinate_transformation_mode", "half_pixel", COORDINATE_MODES)
    rounding = call.attrs.choice("nearest_mode", "round_prefer_floor", NEAREST_MODES)
    scales = _scales(call, 2) if call.has_input(2) and call.shape(2) != (0,) else None
    sizes = call.integers(3) if call.has_input(3) and scales is None else None
    _resize(call, mode, scales, sizes, transform, rounding)


def upsample(call: Call) -> None:
    """Upsample (until opset 9)."""
    mode = call.attrs.choice("mode", "nearest", ("nearest", "linear"))
    given = call.attrs.reals("scales")
    scales = _scales(call, 1) if given is None else tuple(exact_scale(s) for s in given)
    _resize(call, mode, scales, None, "asymmetric", "floor")


def _scales(call: Call, k: int) -> tuple[Fraction, ...]:
    scales = tuple(exact_scale(float(v)) for v in call.array(k).reshape(-1))
    if any(s <= 0 for s in scales):
        raise shape_mismatch("Resize by a scale that is not positive")
    return scales


def _resize(
    call: Call,
    mode: str,
    scales: tuple[Fraction, ...] | None,
    sizes: tuple[int, ...] | None,
    transform: str,
    rounding: str,
) -> None:
    x = call.tensor(0)
    dims = _dimensions(call, x, scales, sizes, transform)
    out = call.output(0, tuple(d.out for d in dims), x.dtype)
    a = call.attrs.real("cubic_coeff_a", -0.75)
    exclude = call.attrs.integer("exclude_outside", 0) != 0
    antialias = call.attrs.integer("antialias", 0) != 0
    beyond = call.attrs.real("extrapolation_value", 0.0)
    is_cropped = any(d.is_outside(o) for d in dims for o in range(d.out))
    if is_cropped and (mode == "nearest" or beyond != 0.0):
        raise unsupported_attribute("a crop that leaves the input, with extrapolation")
    if mode == "nearest":
        _emit(call, out, x, [_Map.of_table(d, d.nearest(rounding)) for d in dims])
        return
    require_float(call)
    kernel, half_width = (linear_filter, 1) if mode == "linear" else (cubic_filter(a), 2)
    maps = []
    for d in dims:
        if d.out == d.size and d.scale == 1 and d.mode != "tf_crop_and_resize":
            maps.append(_Map.of_table(d, list(range(d.size))))
        else:
            taps = filter_taps(d, kernel, half_width, antialias=antialias, exclude_outside=exclude)
            maps.append(_Map(list(taps.start), taps, d))
    _emit(call, out, x, maps)


def _dimensions(
    call: Call,
    x: Tensor,
    scales: tuple[Fraction, ...] | None,
    sizes: tuple[int, ...] | None,
    transform: str,
) -> list[Resample]:
    rank = len(x.shape)
    given = call.attrs.integers("axes")
    axes = tuple(range(rank)) if given is None else tuple(normal_axis(a, rank) for a in given)
    policy = call.attrs.choice(
        "keep_aspect_ratio_policy", "stretch", ("stretch", "not_larger", "not_smaller")
    )
    wanted = scales if scales is not None else sizes
    if wanted is None or len(wanted) != len(axes):
        raise shape_mismatch(f"Resize of {x.shape} along {axes} to {sizes or scales}")
    regions = _regions(call, axes, transform)
    dims = resampled(x.shape, axes, scales, sizes or (), transform, policy, regions)
    for a in axes:
        d = dims[a]
        if transform == "align_corners" and d.scale * d.size != d.out and sizes is None:
            # ONNX's text counts the resized elements, its reference the fraction before rounding
            raise unsupported_attribute(
                f"align_corners with scale {float(d.scale):g} of {d.size} elements, which is no"
                " whole number; give sizes instead"
            )
        check_table("Resize", max(d.out, d.size))
    return dims


def _regions(call: Call, axes: Sequence[int], transform: str) -> list[tuple[Fraction, Fraction]]:
    if transform != "tf_crop_and_resize":
        return [(Fraction(0), Fraction(1))] * len(axes)
    values = [Fraction(float(v)) for v in call.array(1).reshape(-1)]
    if len(values) != 2 * len(axes):
        raise shape_mismatch(f"Resize crops {len(values)} coordinates of {len(axes)} axes")
    return [(values[k], values[len(axes) + k]) for k in range(len(axes))]


class _Map:
    """How one dimension is read: a start index per output, and taps when elements are mixed."""

    def __init__(self, start: list[int], taps: Taps | None, dim: Resample) -> None:
        self.start = start
        self.taps = taps
        self.dim = dim

    @staticmethod
    def of_table(dim: Resample, table: list[int]) -> _Map:
        return _Map(table, None, dim)

    @property
    def num_taps(self) -> int:
        return 1 if self.taps is None else len(self.taps.weight[0])

    def place(self, call: Call, nest: Nest, o: Affine, d: int) -> Affine:
        """Start index at output o: affine if it can be, else looked up."""
        found = fit(self.start, o, (1 / self.dim.scale,))
        if found is not None:
            return found
        low = min(self.start)
        # tables hold indices; one that starts before the tensor is shifted back after the lookup
        shifted = [s - min(low, 0) for s in self.start]
        return nest.lookup(table_constant(call, f"index{d}", shifted), (o,)) + min(low, 0)


def _emit(call: Call, out: Tensor, x: Tensor, maps: list[_Map]) -> None:
    nest = call.nest()
    index = nest.axes("i", out.shape)
    t = nest.reduce_axes("t", [m.num_taps for m in maps])
    starts = [m.place(call, nest, o, d) for d, (m, o) in enumerate(zip(maps, index, strict=True))]
    is_mixed = any(m.taps is not None for m in maps)
    value: Scalar = nest.read(
        x, [s + k for s, k in zip(starts, t, strict=True)], 0.0 if is_mixed else None
    )
    for d, m in enumerate(maps):
        if m.taps is not None:
            value = mul(value, nest.read(_weights(call, x, m.taps, d), (index[d], t[d])))
    nest.write(out, index, value, Reduce.ADD)


def _weights(call: Call, x: Tensor, taps: Taps, d: int) -> Tensor:
    shape = (len(taps.weight), len(taps.weight[0]))
    kind = promoted(x.dtype)
    return call.constant(f"weight{d}", shape, kind, lambda: np.asarray(taps.weight, np.float64))


EXPRESSIONS: dict[str, Expression] = {"Resize": resize, "Upsample": upsample}
