"""GridSample: interpolation at places that are data."""

from __future__ import annotations

from dataclasses import dataclass

from worker.compiler.frontend.ops.body import (
    add,
    convert,
    div,
    less,
    lit,
    maximum,
    minimum,
    mul,
    product,
    select,
    sub,
)
from worker.compiler.frontend.ops.body import call as apply
from worker.compiler.frontend.ops.call import Call, Expression
from worker.compiler.frontend.ops.elementwise import require_float
from worker.compiler.frontend.ops.refusal import shape_mismatch, unsupported_attribute
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce, Tensor
from worker.compiler.ir.scalar import Cast, Fn, Index, Scalar
from worker.compiler.ir.scalar_type import promoted

_TAPS = {"nearest": 1, "linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}
_SHARPNESS = -0.75
"""The cubic kernel's parameter; ONNX gives no other."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """One sampled axis, in the grid's compute type."""

    extent: int
    is_aligned: bool
    padding: str
    taps: int
    kind: DType

    def number(self, value: float) -> Scalar:
        return lit(value, self.kind)

    @property
    def low(self) -> float:
        return 0.0 if self.is_aligned else -0.5

    @property
    def high(self) -> float:
        return self.extent - 1.0 if self.is_aligned else self.extent - 0.5

    def place(self, g: Scalar) -> Scalar:
        """A coordinate in [-1, 1] as a place on the axis; borders and mirrors applied."""
        shifted = add(g, self.number(1))
        if self.is_aligned:
            u = mul(div(shifted, self.number(2)), self.number(self.extent - 1))
        else:
            u = div(sub(mul(shifted, self.number(self.extent)), self.number(1)), self.number(2))
        if self.taps == 1:
            u = apply(Fn.ROUND, u)
        if self.padding == "zeros":
            return u
        outside = apply(
            Fn.OR, less(u, self.number(self.low)), apply(Fn.GT, u, self.number(self.high))
        )
        moved = self.clamped(u) if self.padding == "border" else self.mirrored(u)
        return select(outside, moved, u)

    def clamped(self, u: Scalar) -> Scalar:
        return minimum(maximum(u, self.number(0)), self.number(self.extent - 1))

    def mirrored(self, u: Scalar) -> Scalar:
        """Reflected at the ends of the axis as often as it takes."""
        low, high = self.number(self.low), self.number(self.high)
        span = self.number(self.high - self.low)
        is_below = less(u, low)
        beyond = maximum(sub(low, u), sub(u, high))
        turns = apply(Fn.FLOOR, div(beyond, span))
        rest = sub(beyond, mul(turns, span))
        half = apply(Fn.FLOOR, div(turns, self.number(2)))
        is_even = apply(Fn.EQ, mul(half, self.number(2)), turns)
        from_low, from_high = add(low, rest), sub(high, rest)
        below = select(is_even, from_low, from_high)
        above = select(is_even, from_high, from_low)
        is_outside = apply(Fn.GT, beyond, self.number(0))
        return select(is_outside, select(is_below, below, above), u)

    def first(self, u: Scalar) -> Scalar:
        """Place of tap 0."""
        if self.taps == 1:
            return u
        return sub(apply(Fn.FLOOR, u), self.number(1 if self.taps == 4 else 0))

    def weight(self, u: Scalar, tap: Scalar) -> Scalar:
        """Weight of the pixel at place `tap`."""
        if self.taps == 1:
            return self.number(1)
        away = apply(Fn.ABS, sub(u, tap))
        if self.taps == 2:
            return sub(self.number(1), away)
        a = _SHARPNESS
        near = add(mul(mul(sub(mul(self.number(a + 2), away), self.number(a + 3)), away), away),
                   self.number(1))  # fmt: skip
        far = sub(mul(self.number(a), away), self.number(5 * a))
        far = sub(mul(add(mul(far, away), self.number(8 * a)), away), self.number(4 * a))
        return select(apply(Fn.LE, away, self.number(1)), near, far)

    def pixel(self, tap: Scalar) -> Scalar:
        """The pixel that stands at place `tap`, an index inside the axis."""
        inside = self.mirrored(tap) if self.padding == "reflection" else tap
        return Cast(DType.I64, self.clamped(inside))

    def counts(self, tap: Scalar, weight: Scalar) -> Scalar:
        """The weight, nothing where zeros stand outside."""
        if self.padding != "zeros":
            return weight
        is_inside = apply(
            Fn.AND, apply(Fn.GE, tap, self.number(0)),
            apply(Fn.LE, tap, self.number(self.extent - 1)),
        )  # fmt: skip
        return select(is_inside, weight, self.number(0))


def grid_sample(call: Call) -> None:
    """GridSample of any rank: per axis the pixels and their weights, then one weighted sum."""
    require_float(call)
    x, grid = call.tensor(0), call.tensor(1)
    rank = len(x.shape) - 2
    if (
        rank < 1
        or len(grid.shape) != rank + 2
        or grid.shape[-1] != rank
        or (grid.shape[0] != x.shape[0])
    ):
        raise shape_mismatch(f"GridSample of {x.shape} at {grid.shape}")
    if not grid.dtype.is_float:
        raise shape_mismatch(f"GridSample at places of {grid.dtype}")
    taps = _TAPS[call.attrs.choice("mode", "linear", tuple(_TAPS))]
    padding = call.attrs.choice("padding_mode", "zeros", ("zeros", "border", "reflection"))
    is_aligned = call.attrs.integer("align_corners", 0) != 0
    if padding == "border" and taps == 4:
        raise unsupported_attribute(
            "cubic with a border: ONNX's reference moves the place onto it, ONNX Runtime the pixels"
        )
    if padding == "reflection" and is_aligned and 1 in x.shape[2:]:
        raise unsupported_attribute("reflection between aligned corners of one pixel")
    out = call.output(0, (*x.shape[:2], *grid.shape[1:-1]), x.dtype)
    kind = promoted(grid.dtype)
    tables = [
        _tables(call, grid, rank - 1 - d, _Axis(extent, is_aligned, padding, taps, kind))
        for d, extent in enumerate(x.shape[2:])
    ]
    nest = call.nest()
    index = nest.axes("i", out.shape)
    chosen = nest.reduce_axes("t", (taps,) * rank)
    at = (index[0], *index[2:])
    places = [nest.lookup(pixels, (*at, k)) for (pixels, _), k in zip(tables, chosen, strict=True)]
    weights = [nest.read(w, (*at, k)) for (_, w), k in zip(tables, chosen, strict=True)]
    value = nest.read(x, (index[0], index[1], *places))
    factor = convert(product(weights), kind, promoted(x.dtype))
    nest.write(out, index, mul(value, factor), Reduce.ADD)


def _tables(call: Call, grid: Tensor, component: int, axis: _Axis) -> tuple[Tensor, Tensor]:
    """[batch, place..., tap]: pixels along one axis (I64), and their weights."""
    shape = (*grid.shape[:-1], axis.taps)
    pixels = call.temp("pixels", shape, DType.I64)
    weights = call.temp("weights", shape, axis.kind)
    for out in (pixels, weights):
        nest = call.nest()
        index = nest.axes("i", shape)
        u = axis.place(nest.read(grid, (*index[:-1], Affine.of(component))))
        tap = add(axis.first(u), Cast(axis.kind, Index(index[-1])))
        is_weight = out is weights
        body = axis.counts(tap, axis.weight(u, tap)) if is_weight else axis.pixel(tap)
        nest.write(out, index, body)
    return pixels, weights


EXPRESSIONS: dict[str, Expression] = {"GridSample": grid_sample}
