"""Recipes of operators that move elements: shapes, slices, gathers, resampling."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from worker.conformance.sample import Array, OpRecipe, Request, Sample, constants, i64


def _attributes(request: Request, **own: Any) -> dict[str, Any]:
    return {**own, **request.attributes}


def _flatten(request: Request) -> Sample:
    x = request.values(request.dims(2, 3, 4, 5))
    axis = 2 if request.variant == "later" else 1
    return Sample((x,), _attributes(request, axis=axis))


def _reshape(request: Request) -> Sample:
    dims = request.dims(2, 3, 4, 5)
    shape = i64(dims[0], -1) if request.variant == "rows" and len(dims) > 1 else i64(prod(dims))
    return Sample((request.values(dims), shape), _attributes(request), constants(1))


def _squeeze(request: Request) -> Sample:
    dims = (2, 1, 4) if request.shape is None else request.shape
    ones = [k for k, d in enumerate(dims) if d == 1]
    x = request.values(dims)
    if not ones:
        return Sample((x,), _attributes(request))
    return Sample((x, i64(ones[0])), _attributes(request), constants(1))


def _unsqueeze(request: Request) -> Sample:
    x = request.values(request.dims(2, 3, 4))
    axes = i64(0, -1) if request.variant == "two" else i64(1)
    return Sample((x, axes), _attributes(request), constants(1))


def _concat(request: Request) -> Sample:
    dims = request.dims(2, 3, 4, 5)
    axis = request.attributes.get(
        "axis", -1 if request.variant == "last" else min(1, len(dims) - 1)
    )
    assert isinstance(axis, int)
    other = list(dims)
    other[axis] += 1
    inputs = (request.values(dims), request.values(tuple(other)))
    return Sample(inputs, _attributes(request, axis=axis))


def _depth_to_space(request: Request) -> Sample:
    x = request.values(request.dims(1, 8, 3, 4))
    mode = "CRD" if request.variant == "crd" else "DCR"
    return Sample((x,), _attributes(request, blocksize=2, mode=mode))


def _space_to_depth(request: Request) -> Sample:
    return Sample((request.values(request.dims(1, 2, 4, 6)),), _attributes(request, blocksize=2))


def _expand(request: Request) -> Sample:
    dims = (3, 1, 4) if request.shape is None else request.shape
    shape = i64(*(2 if d == 1 else d for d in dims))
    return Sample((request.values(dims), shape), _attributes(request), constants(1))


def _gather(request: Request) -> Sample:
    dims = request.dims(4, 3, 5)
    axis = request.attributes.get("axis", 1 if request.variant == "axis 1" and len(dims) > 1 else 0)
    assert isinstance(axis, int)
    indices = request.rng.integers(0, dims[axis], (2, 3)).astype(np.int64)
    fixed = constants() if request.variant == "computed" else constants(1)
    return Sample((request.values(dims), indices), _attributes(request, axis=axis), fixed)


def _gather_elements(request: Request) -> Sample:
    dims = request.dims(4, 3)
    indices = request.rng.integers(0, dims[0], dims).astype(np.int64)
    return Sample((request.values(dims), indices), _attributes(request, axis=0), constants(1))


def _gather_nd(request: Request) -> Sample:
    dims = request.dims(4, 3, 5)
    indices = request.rng.integers(0, min(dims[:1]), (3, 1)).astype(np.int64)
    return Sample((request.values(dims), indices), _attributes(request), constants(1))


def _pad(request: Request) -> Sample:
    dims = request.dims(1, 3, 4, 5)
    pads = i64(*(0,) * (len(dims) - 1), 1, *(0,) * (len(dims) - 1), 2)
    mode = request.variant or "constant"
    inputs: tuple[Array, ...] = (request.values(dims), pads)
    if mode == "constant":
        inputs = (*inputs, np.array(1, request.dtype))
    return Sample(inputs, _attributes(request, mode=mode), constants(1, 2))


def _resize(request: Request) -> Sample:
    dims = request.dims(1, 2, 4, 5)
    scales = np.ones(len(dims), np.float32)
    scales[-2:] = 2.0
    own: dict[str, Any] = {
        "mode": "nearest", "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }  # fmt: skip
    if request.variant == "linear":
        own = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    if request.variant == "sizes":
        sizes = i64(*(d * (2 if k >= len(dims) - 2 else 1) for k, d in enumerate(dims)))
        return Sample(
            (request.values(dims), None, None, sizes), _attributes(request, **own), constants(3)
        )
    return Sample((request.values(dims), None, scales), _attributes(request, **own), constants(2))


def _upsample(request: Request) -> Sample:
    x = request.values(request.dims(1, 2, 4, 5))
    scales = np.array([1.0] * (x.ndim - 2) + [2.0] * 2, np.float32)
    return Sample((x, scales), _attributes(request, mode="nearest"), constants(1), opset=9)


def _slice(request: Request) -> Sample:
    dims = request.dims(2, 6, 5)
    axis = len(dims) - 1
    start, end, step = (0, dims[axis], 2)
    if request.variant == "backwards":
        start, end, step = (-1, -dims[axis] - 1, -1)
    rows = (i64(start), i64(end), i64(axis), i64(step))
    return Sample((request.values(dims), *rows), _attributes(request), constants(1, 2, 3, 4))


def _split(request: Request) -> Sample:
    dims = request.dims(2, 6, 5)
    axis = request.attributes.get(
        "axis", -1 if request.variant == "last" else min(1, len(dims) - 1)
    )
    assert isinstance(axis, int)
    parts = i64(1, dims[axis] - 1)
    return Sample(
        (request.values(dims), parts), _attributes(request, axis=axis), constants(1), outputs=2
    )


def _tile(request: Request) -> Sample:
    dims = request.dims(2, 3, 4)
    repeats = i64(*(2 if k == len(dims) - 1 else 1 for k in range(len(dims))))
    return Sample((request.values(dims), repeats), _attributes(request), constants(1))


def _transpose(request: Request) -> Sample:
    dims = request.dims(2, 3, 4, 5)
    if request.variant == "channels last" and len(dims) > 2:
        perm = [0, *range(2, len(dims)), 1]
    else:
        perm = list(reversed(range(len(dims))))
    return Sample((request.values(dims),), _attributes(request, perm=perm))


def _trilu(request: Request) -> Sample:
    x = request.values(request.dims(2, 4, 5))
    if request.variant == "lower":
        return Sample((x, np.array(1, np.int64)), _attributes(request, upper=0), constants(1))
    return Sample((x,), _attributes(request))


def _center_crop_pad(request: Request) -> Sample:
    dims = request.dims(4, 6)
    shape = i64(*(d + 2 if k == 0 else d - 2 for k, d in enumerate(dims)))
    return Sample((request.values(dims), shape), _attributes(request), constants(1))


def _eye_like(request: Request) -> Sample:
    return Sample((request.values((4, 5)),), _attributes(request, k=1))


def _one_hot(request: Request) -> Sample:
    indices = request.rng.integers(0, 5, (3, 2)).astype(np.int64)
    values = np.array([0, 1], np.float32).astype(request.dtype)
    return Sample((indices, np.array(5, np.int64), values), _attributes(request), constants(1, 2))


MOVEMENT_RECIPES: Mapping[str, OpRecipe] = {
    "Flatten": OpRecipe(_flatten, ("later",)),
    "Reshape": OpRecipe(_reshape, ("rows",)),
    "Squeeze": OpRecipe(_squeeze),
    "Unsqueeze": OpRecipe(_unsqueeze, ("two",)),
    "Concat": OpRecipe(_concat, ("last",)),
    "DepthToSpace": OpRecipe(_depth_to_space, ("crd",)),
    "SpaceToDepth": OpRecipe(_space_to_depth),
    "Expand": OpRecipe(_expand),
    "Gather": OpRecipe(_gather, ("axis 1", "computed")),
    "GatherElements": OpRecipe(_gather_elements),
    "GatherND": OpRecipe(_gather_nd),
    "Pad": OpRecipe(_pad, ("reflect", "edge")),
    "Resize": OpRecipe(_resize, ("linear", "sizes")),
    "Upsample": OpRecipe(_upsample),
    "Slice": OpRecipe(_slice, ("backwards",)),
    "Split": OpRecipe(_split, ("last",)),
    "Tile": OpRecipe(_tile),
    "Transpose": OpRecipe(_transpose, ("channels last",)),
    "Trilu": OpRecipe(_trilu, ("lower",)),
    "CenterCropPad": OpRecipe(_center_crop_pad),
    "EyeLike": OpRecipe(_eye_like),
    "OneHot": OpRecipe(_one_hot),
}
