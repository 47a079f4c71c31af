"""AffineGrid: the places that GridSample samples, from one affine map per image."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from worker.compiler.frontend.ops.body import add, mul
from worker.compiler.frontend.ops.call import Call, Expression
from worker.compiler.frontend.ops.elementwise import require_float
from worker.compiler.frontend.ops.refusal import shape_mismatch, unsupported_attribute
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.scalar import Scalar
from worker.compiler.ir.scalar_type import promoted


def affine_grid(call: Call) -> None:
    """AffineGrid in 2 or 3 dimensions: theta times (x, y, z, 1); the size is known."""
    require_float(call)
    theta, size = call.tensor(0), call.integers(1)
    count = len(size) - 2
    if count not in (2, 3) or theta.shape != (size[0], count, count + 1) or min(size) < 1:
        raise shape_mismatch(f"AffineGrid of {theta.shape} for {size}")
    is_aligned = call.attrs.integer("align_corners", 0) != 0
    spatial = size[2:]
    if is_aligned and 1 in spatial:
        raise unsupported_attribute("aligned corners of one pixel have no distance")
    kind = promoted(theta.dtype)
    steps = [
        call.constant(f"steps{d}", (extent,), kind, partial(_steps, extent, is_aligned=is_aligned))
        for d, extent in enumerate(spatial)
    ]
    out = call.output(0, (size[0], *spatial, count), theta.dtype)
    nest = call.nest()
    n, *places, row = nest.axes("i", out.shape)
    total: Scalar | None = None
    for column in range(count):  # x runs along the last dimension
        dim = count - 1 - column
        factor = nest.read(theta, (n, row, Affine.of(column)))
        term = mul(factor, nest.read(steps[dim], (places[dim],)))
        total = term if total is None else add(total, term)
    assert total is not None
    body = add(total, nest.read(theta, (n, row, Affine.of(count))))
    nest.write(out, (n, *places, row), body)


def _steps(extent: int, *, is_aligned: bool) -> npt.NDArray[np.float64]:
    """Coordinates in [-1, 1] of the pixels of a dimension: corners or centres at the ends."""
    if is_aligned:
        return np.linspace(-1, 1, extent)
    return (2 * np.arange(extent) + 1) / extent - 1.0


EXPRESSIONS: dict[str, Expression] = {"AffineGrid": affine_grid}
