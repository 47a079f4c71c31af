"""One dimension of Resize: which source elements an output mixes, and with which weights.

Coordinates are exact fractions, so that ties fall where the formulas put them and integer scales
give affine index maps.
Source: the coordinate transformations and filters of ONNX's Resize.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

import numpy as np

HALF = Fraction(1, 2)
_DENOMINATOR_LIMIT = 1 << 12
"""A float scale is taken for the nearest fraction with at most this denominator, if it rounds to
the same f32: 1/3 means one third."""
COORDINATE_MODES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True, slots=True)
class Resample:
    """A dimension to resize."""

    size: int
    out: int
    scale: Fraction
    mode: str
    """Coordinate transformation."""
    region: tuple[Fraction, Fraction] = (Fraction(0), Fraction(1))
    """Normalised crop, for tf_crop_and_resize."""

    def coordinate(self, o: int) -> Fraction:
        """Source coordinate of output o, where source element i sits at i."""
        match self.mode:
            case "half_pixel":
                return (o + HALF) / self.scale - HALF
            case "half_pixel_symmetric":
                covered = Fraction(self.out) / (self.scale * self.size)
                return Fraction(self.size, 2) * (1 - covered) + (o + HALF) / self.scale - HALF
            case "pytorch_half_pixel":
                return (o + HALF) / self.scale - HALF if self.out > 1 else Fraction(0)
            case "align_corners":
                return Fraction(o * (self.size - 1), self.out - 1) if self.out > 1 else Fraction(0)
            case "tf_half_pixel_for_nn":
                return (o + HALF) / self.scale
            case "tf_crop_and_resize":
                start, end = self.region
                if self.out == 1:
                    return HALF * (start + end) * (self.size - 1)
                return (start + o * (end - start) / (self.out - 1)) * (self.size - 1)
            case _:
                return Fraction(o) / self.scale

    def is_outside(self, o: int) -> bool:
        """Whether output o takes the extrapolation value (crops only)."""
        return self.mode == "tf_crop_and_resize" and not (0 <= self.coordinate(o) <= self.size - 1)

    def nearest(self, rounding: str) -> list[int]:
        """Source index of every output."""
        rounded: Callable[[Fraction], int]
        match rounding:
            case "round_prefer_floor":
                rounded = _round_half_down
            case "round_prefer_ceil":
                rounded = _round_half_up
            case "ceil":
                rounded = ceil
            case _:
                rounded = floor
        return [min(max(rounded(self.coordinate(o)), 0), self.size - 1) for o in range(self.out)]


def _round_half_down(x: Fraction) -> int:
    return ceil(x - HALF)


def _round_half_up(x: Fraction) -> int:
    return floor(x + HALF)


def exact_scale(value: float) -> Fraction:
    """The fraction that a scale given as f32 stands for."""
    exact = Fraction(value)
    near = exact.limit_denominator(_DENOMINATOR_LIMIT)
    return near if np.float32(float(near)) == np.float32(value) else exact


def resampled(
    shape: Sequence[int],
    axes: Sequence[int],
    scales: Sequence[Fraction] | None,
    sizes: Sequence[int],
    transform: str,
    policy: str,
    regions: Sequence[tuple[Fraction, Fraction]] | None = None,
) -> list[Resample]:
    """Every dimension of a Resize of `axes` by `scales`, or to `sizes` where those are None."""
    dims = [Resample(n, n, Fraction(1), "half_pixel") for n in shape]
    factors = scales or [Fraction(s, shape[a]) for s, a in zip(sizes, axes, strict=True)]
    if scales is None and policy != "stretch":
        common = min(factors) if policy == "not_larger" else max(factors)
        factors = [common] * len(axes)
        outs = [floor(common * shape[a] + HALF) for a in axes]
    elif scales is None:
        outs = list(sizes)
    else:
        outs = [floor(f * shape[a]) for f, a in zip(factors, axes, strict=True)]
    for k, (a, factor, out) in enumerate(zip(axes, factors, outs, strict=True)):
        region = regions[k] if regions else (Fraction(0), Fraction(1))
        dims[a] = Resample(shape[a], out, factor, transform, region)
    return dims


@dataclass(frozen=True, slots=True)
class Taps:
    """Output o mixes sources start[o] + t with weight[o][t]; other weights are 0."""

    start: tuple[int, ...]
    weight: tuple[tuple[float, ...], ...]


def linear_filter(x: float) -> float:
    """Triangle of half width 1."""
    return max(1.0 - abs(x), 0.0)


def cubic_filter(a: float) -> Callable[[float], float]:
    """Keys' cubic convolution kernel of half width 2."""

    def weight(x: float) -> float:
        x = abs(x)
        if x <= 1.0:
            return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
        return (((x - 5.0) * x + 8.0) * x - 4.0) * a if x < 2.0 else 0.0

    return weight


def filter_taps(
    dim: Resample,
    kernel: Callable[[float], float],
    half_width: int,
    *,
    antialias: bool,
    exclude_outside: bool,
) -> Taps:
    """Taps of a filter of the given half width; anti-aliasing widens it when shrinking.

    Taps outside the source either weigh nothing (`exclude_outside`) or repeat the border, whose
    weight they add to.
    """
    shrink = min(dim.scale, Fraction(1)) if antialias else Fraction(1)
    first = floor(-half_width / shrink) + 1
    count = 2 - 2 * first
    starts = [floor(dim.coordinate(o)) + first for o in range(dim.out)]
    rows: list[dict[int, float]] = []
    for o, start in enumerate(starts):
        at = dim.coordinate(o)
        row: dict[int, float] = {}
        for q in range(start, start + count):
            w = kernel(float((q - at) * shrink))
            inside = min(max(q, 0), dim.size - 1)
            if q == inside or not exclude_outside:
                row[inside] = row.get(inside, 0.0) + w
        total = sum(row.values())
        outside = dim.is_outside(o) or total == 0.0
        rows.append({q: 0.0 if outside else w / total for q, w in row.items()})
    if not all(q - s in range(count) for s, row in zip(starts, rows, strict=True) for q in row):
        # the border is out of reach of some window: move windows inside the source
        count = min(count, dim.size)
        starts = [min(max(s, 0), dim.size - count) for s in starts]
    weights = [
        tuple(row.get(s + t, 0.0) for t in range(count))
        for s, row in zip(starts, rows, strict=True)
    ]
    return Taps(tuple(starts), tuple(weights))
