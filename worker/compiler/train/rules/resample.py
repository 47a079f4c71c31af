"""Resize to nearest neighbours by whole factors: each element's copies are summed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, floor

import onnx_ir

from worker.compiler.train.emit import dims
from worker.compiler.train.rules.site import Derivative, NoRule, Site

_PLACES: dict[str, Callable[[int, int], float]] = {
    "asymmetric": lambda i, times: i / times,
    "half_pixel": lambda i, times: (i + 0.5) / times - 0.5,
}
_ROUNDS: dict[str, Callable[[float], int]] = {
    "floor": floor,
    "ceil": ceil,
    "round_prefer_floor": lambda place: ceil(place - 0.5),
    "round_prefer_ceil": lambda place: floor(place + 0.5),
}


def _resize(site: Site) -> Mapping[int, onnx_ir.Value]:
    if site.text("mode", "nearest") != "nearest":
        raise NoRule(f"mode {site.text('mode', '')!r} has no rule, nearest has")
    place = _PLACES.get(site.text("coordinate_transformation_mode", "half_pixel"))
    rounded = _ROUNDS[site.text("nearest_mode", "round_prefer_floor")]
    split: list[int] = []
    for extent, whole in zip(site.shape(), dims(site.y), strict=True):
        times = whole // extent
        if whole != times * extent or place is None or any(
            min(max(rounded(place(i, times)), 0), extent - 1) != i // times for i in range(whole)
        ):  # fmt: skip
            raise NoRule(f"it makes {whole} of {extent} elements, not each one several times")
        split += [extent, times]
    apart = site.emit.reshape(site.grad, split)
    summed = site.emit.total(apart, range(1, len(split), 2), keep=False)
    return {0: site.emit.reshape(summed, site.shape())}


RULES = {"Resize": Derivative(_resize, frozenset({0}))}
