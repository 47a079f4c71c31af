"""Which function expresses which ONNX operator."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from worker.compiler.frontend.ops import (
    activation,
    affine_grid,
    cast,
    col2im,
    compare,
    concat_split,
    conv,
    conv_transpose,
    einsum,
    elementwise,
    fourier,
    gather,
    known,
    layout,
    matmul,
    normalize,
    order,
    pool,
    qlinear,
    quantize,
    recurrent,
    reduce,
    resize,
    running,
    sample_grid,
    scatter,
    select,
    slice_pad,
    softmax,
)
from worker.compiler.frontend.ops.call import Expression

_FAMILIES = (
    conv,
    conv_transpose,
    matmul,
    einsum,
    qlinear,
    elementwise,
    activation,
    compare,
    cast,
    reduce,
    softmax,
    normalize,
    pool,
    layout,
    slice_pad,
    concat_split,
    gather,
    known,
    resize,
    quantize,
    select,
    running,
    scatter,
    order,
    recurrent,
    sample_grid,
    affine_grid,
    col2im,
    fourier,
)


def _collect() -> Mapping[str, Expression]:
    table: dict[str, Expression] = {}
    for family in _FAMILIES:
        assert table.keys().isdisjoint(family.EXPRESSIONS)
        table.update(family.EXPRESSIONS)
    return MappingProxyType(table)


EXPRESSIONS: Mapping[str, Expression] = _collect()
"""ONNX operator type (default domain) -> the function that expresses it."""

CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})

DATA_DEPENDENT: Mapping[str, str] = MappingProxyType(
    {
        "NonZero": "the number of results depends on the data",
        "Unique": "the number of results depends on the data",
        "Compress": "the number of results depends on the data",
        "NonMaxSuppression": "the number of results depends on the data",
        "MaxUnpool": "the places written depend on the data",
    }
)
"""Operators outside the algebra because of what their data decide, with the reason."""
