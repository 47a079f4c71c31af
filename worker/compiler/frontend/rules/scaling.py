"""Rules of scales: resizing, and the scales and zero points of quantised tensors."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from worker.compiler.frontend.rules.kinds import (
    axes,
    dim_of,
    finite,
    in_range,
    one_of,
    positive,
    rank_is,
    same_dim,
    single,
)
from worker.compiler.frontend.rules.site import Problem, Rule, Site


def _resize(site: Site) -> Iterator[Problem]:
    """Scales or sizes, one per resized dimension, all above zero; `roi` two per dimension."""
    rank, named = site.rank(0), site.attr("axes")
    count = rank if named is None else len(named)
    asked = {}
    for name in ("scales", "sizes"):
        dims = site.shape(name)
        if site.value(name) is not None and dims != (0,):
            asked[name] = dims
    if site.version >= 11 and site.is_certain and len(asked) != 1:
        yield Problem(
            "both 'scales' and 'sizes' are given" if asked else "neither 'scales' nor 'sizes'",
            "one of them", len(asked),
        )  # fmt: skip
        return
    for name, dims in asked.items():
        if dims is None or count is None:
            continue
        if len(dims) != 1 or dims[0] != count:
            yield Problem(f"{name!r} has shape {list(dims)} for {count} dimensions", [count],
                          list(dims))  # fmt: skip
            return
    sizes = site.const("sizes")
    if sizes is not None and sizes.size and int(sizes.min()) < 1:
        yield Problem(f"'sizes' has {int(sizes.min())}", "at least 1", int(sizes.min()))
    crops = site.attr("coordinate_transformation_mode") == "tf_crop_and_resize"
    roi = site.shape("roi")
    if crops and roi is not None and count is not None and roi != (2 * count,):
        yield Problem(f"'roi' has shape {list(roi)} for {count} dimensions", [2 * count],
                      list(roi))  # fmt: skip


def _upsample(site: Site) -> Iterator[Problem]:
    """Scales of at least one, one per dimension."""
    rank, given = site.rank(0), site.attr("scales")
    array = site.const("scales") if site.place("scales") is not None else None
    values = np.asarray(given if given is not None else [] if array is None else array)
    if not values.size:
        return
    if rank is not None and values.shape != (rank,):
        yield Problem(f"'scales' has shape {list(values.shape)}", [rank], list(values.shape))
    elif float(values.min()) < 1:
        yield Problem(f"'scales' has {float(values.min()):g}", "at least 1",
                      f"{float(values.min()):g}")  # fmt: skip


def _granular(scale: str, zero_point: str) -> Rule:
    """A scale is one number, one per channel of the axis, or one per block; zero points alike."""

    def check(site: Site) -> Iterator[Problem]:
        dims, scales, zeros = site.shape(0), site.shape(scale), site.shape(zero_point)
        if scales is not None and zeros is not None and _differ(scales, zeros):
            yield Problem(f"{zero_point!r} has shape {list(zeros)}, {scale!r} {list(scales)}",
                          list(scales), list(zeros))  # fmt: skip
            return
        block = site.attr("block_size") or 0
        if block < 0:
            yield Problem(f"'block_size' is {block}", "at least 0", block)
            return
        if dims is None or scales is None or (scales in ((), (1,)) and not block):
            return
        where = site.attr("axis")
        if where is None:
            return
        if not -len(dims) <= where < len(dims):
            yield Problem(f"'axis' is {where}, the input has {len(dims)} dimensions",
                          f"{-len(dims)} to {len(dims) - 1}", where)  # fmt: skip
        elif block:
            yield from _blocked(dims, scales, where % len(dims), block, scale)
        elif scales != (dims[where],):
            yield Problem(f"{scale!r} has shape {list(scales)} for {dims[where]} channels",
                          [dims[where]], list(scales))  # fmt: skip

    return check


def _differ(scales: tuple[int, ...], zeros: tuple[int, ...]) -> bool:
    """A scalar and a list of one are alike."""
    return scales != zeros and (prod(scales) != 1 or prod(zeros) != 1)


def _blocked(
    dims: tuple[int, ...], scales: tuple[int, ...], where: int, block: int, name: str
) -> Iterator[Problem]:
    want = [*dims]
    if len(scales) == len(dims) and scales[where]:
        want[where] = scales[where]
        low = -(-dims[where] // scales[where])
        high = -(-dims[where] // (scales[where] - 1)) - 1 if scales[where] > 1 else block
        if list(scales) == want and low <= block <= high:
            return
    want[where] = -(-dims[where] // block)
    yield Problem(
        f"{name!r} has shape {list(scales)} for blocks of {block} of {list(dims)}", list(want),
        list(scales),
    )  # fmt: skip


def _per_filter(weight: str, parameter: str) -> Rule:
    """One number, or one for each filter."""

    def check(site: Site) -> Iterator[Problem]:
        dims, given = site.dims(weight), site.shape(parameter)
        filters = dims[0] if dims else None
        if given is None or given in ((), (1,)) or filters is None:
            return
        if given != (filters,):
            yield Problem(f"{parameter!r} has shape {list(given)}", [filters], list(given))

    return check


def _per_row(tensor: str, parameter: str, is_column: bool) -> Rule:
    """One number, or one for each row of `a` (column of `b`); of the result one number here."""

    def check(site: Site) -> Iterator[Problem]:
        dims, given = site.shape(tensor), site.shape(parameter)
        if given is None or given in ((), (1,)):
            return
        if dims is None or len(dims) < 2:
            if not given or 0 in given:
                yield Problem(f"{parameter!r} has shape {list(given)}", "one number", list(given))
            return
        count = dims[-1] if is_column else dims[-2]
        tail = (1, count) if is_column else (count, 1)
        if given not in ((count,), (*dims[:-2], *tail)):
            yield Problem(f"{parameter!r} has shape {list(given)}", [count], list(given))

    return check


_MODES = one_of("mode", "nearest", "linear", "cubic")
_RESIZE: tuple[Rule, ...] = (
    _MODES,
    one_of("nearest_mode", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    one_of(
        "coordinate_transformation_mode", "half_pixel", "half_pixel_symmetric",
        "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn",
        "tf_crop_and_resize",
    ),
    one_of("antialias", 0, 1),
    one_of("exclude_outside", 0, 1),
    one_of("keep_aspect_ratio_policy", "stretch", "not_larger", "not_smaller"),
    axes(),
    positive("scales"),
    _resize,
)  # fmt: skip
_MATMUL_PARAMETERS = tuple(
    ("a" if tensor == "y" else tensor, f"{tensor}_{what}", is_column)
    for tensor, is_column in (("a", False), ("b", True), ("y", False))  # y has the rows of a
    for what in ("scale", "zero_point")
)
RULES: dict[str, tuple[Rule, ...]] = {
    "Resize": _RESIZE,
    "Upsample": (one_of("mode", "nearest", "linear"), positive("scales"), _upsample),
    "QuantizeLinear": (positive("y_scale"), _granular("y_scale", "y_zero_point")),
    "DequantizeLinear": (_granular("x_scale", "x_zero_point"),),
    "QLinearConv": (
        positive("y_scale"), finite("x_scale", "w_scale"),
        _per_filter("w", "w_scale"), _per_filter("w", "w_zero_point"),
        single("x_scale", "y_scale", "x_zero_point", "y_zero_point"),
    ),
    "ConvInteger": (single("x_zero_point"), _per_filter("w", "w_zero_point")),
    "MatMulInteger": (
        _per_row("A", "a_zero_point", False), _per_row("B", "b_zero_point", True),
    ),
    "QLinearMatMul": (
        positive("y_scale"), finite("a_scale", "b_scale"),
        *(_per_row(t, p, last) for t, p, last in _MATMUL_PARAMETERS),
    ),
    "GridSample": (
        one_of("mode", "linear", "bilinear", "nearest", "cubic", "bicubic"),
        one_of("padding_mode", "zeros", "border", "reflection"),
    ),
    "RoiAlign": (
        one_of("mode", "avg", "max"),
        in_range("batch_indices", dim_of(0, 0), low=0), rank_is("rois", 2),
        same_dim("rois", 0, "batch_indices", 0),
        one_of("coordinate_transformation_mode", "half_pixel", "output_half_pixel"),
    ),

}  # fmt: skip
