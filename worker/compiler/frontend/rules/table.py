"""The rules of every operator."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from worker.compiler.frontend.rules import (
    attention,
    computing,
    indexing,
    recurrent,
    scaling,
    shaping,
)
from worker.compiler.frontend.rules.site import Rule
from worker.compiler.frontend.rules.windows import (
    COLUMNS,
    DEFORMED,
    POOL,
    TRANSPOSED,
    UNPOOL,
    convolution,
)

_WINDOWS: dict[str, tuple[Rule, ...]] = {
    "Conv": convolution(),
    "ConvInteger": convolution(1, None),
    "QLinearConv": convolution(3, 8),
    "ConvTranspose": TRANSPOSED,
    "Col2Im": COLUMNS,
    "DeformConv": DEFORMED,
    "MaxPool": POOL,
    "AveragePool": POOL,
    "LpPool": POOL,
    "MaxUnpool": UNPOOL,
}


def _joined(*tables: Mapping[str, tuple[Rule, ...]]) -> Mapping[str, tuple[Rule, ...]]:
    found: dict[str, tuple[Rule, ...]] = {}
    for table in tables:
        for op_type, rules in table.items():
            found[op_type] = (*found.get(op_type, ()), *rules)
    return MappingProxyType(found)


RULES = _joined(
    _WINDOWS,
    shaping.RULES,
    indexing.RULES,
    scaling.RULES,
    computing.RULES,
    recurrent.RULES,
    attention.RULES,
)
"""Operator of the main domain -> what its definition forbids."""
