"""Which rule differentiates which ONNX operator, and what has no slope to follow."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from worker.compiler.train.rules import (
    contraction,
    convolution,
    cut,
    elementwise,
    layout,
    lookup,
    normalise,
    pointwise,
    products,
    reduction,
    resample,
    transposed,
    windows,
)
from worker.compiler.train.rules.site import Derivative

_FAMILIES = (
    products, contraction, convolution, transposed, elementwise, pointwise, reduction, windows,
    layout, cut, normalise, lookup, resample,
)  # fmt: skip


def _collect() -> Mapping[str, Derivative]:
    table: dict[str, Derivative] = {}
    for family in _FAMILIES:
        assert table.keys().isdisjoint(family.RULES)
        table.update(family.RULES)
    return MappingProxyType(table)


RULES: Mapping[str, Derivative] = _collect()
"""ONNX operator type (default domain) -> its derivative."""

STEPS = frozenset({"Ceil", "Floor", "Round", "Sign"})
"""Operators whose slope is zero wherever they have one: nothing flows back through them."""

NO_VALUES = frozenset({"Shape", "Size"})
"""Operators that look at no element."""

REWRITTEN: Mapping[str, frozenset[int]] = MappingProxyType(
    {
        "BatchNormalization": frozenset({0, 1, 2}),
        "LayerNormalization": frozenset({0, 1, 2}),
        "InstanceNormalization": frozenset({0, 1, 2}),
        "GroupNormalization": frozenset({0, 1, 2}),
    }
)
"""Operators that `standardise` writes with others -> inputs that the gradient flows to."""
