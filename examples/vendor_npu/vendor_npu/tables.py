"""Tables of 256 entries for functions of one element: as f32 has them, one rounding an operation.

Whole numbers that a table gives are those of the compiled kernels: the same operations in the same
order; e^x is rounded from 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Attributes = Mapping[str, Any]
_F = np.float32


def _sigmoid(x: Floats, told: Attributes) -> Floats:
    del told
    small = np.exp(-np.abs(x).astype(np.float64)).astype(np.float32)
    return np.where(x >= 0, _F(1), small) / (_F(1) + small)


def _tanh(x: Floats, told: Attributes) -> Floats:
    del told
    return np.tanh(x.astype(np.float64)).astype(np.float32)


def _line(x: Floats, alpha: float, beta: float) -> Floats:
    return np.maximum(_F(0), np.minimum(_F(1), x * _F(alpha) + _F(beta)))


def _hard_sigmoid(x: Floats, told: Attributes) -> Floats:
    return _line(x, told.get("alpha", 0.2), told.get("beta", 0.5))


def _hard_swish(x: Floats, told: Attributes) -> Floats:
    del told
    return x * _line(x, 1.0 / 6.0, 0.5)


def _leaky(x: Floats, told: Attributes) -> Floats:
    return np.where(x < 0, x * _F(told.get("alpha", 0.01)), x)


def _same(x: Floats, told: Attributes) -> Floats:
    del told
    return x


Function: TypeAlias = Callable[[Floats, Attributes], Floats]
FUNCTIONS: Mapping[str, Function] = {
    "Sigmoid": _sigmoid,
    "Tanh": _tanh,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "LeakyRelu": _leaky,
    "Concat": _same,
}


def with_constant(op_type: str, number: float) -> Function:
    """Adding a number of f32, or multiplying by one."""

    def found(x: Floats, told: Attributes) -> Floats:
        del told
        return x + _F(number) if op_type == "Add" else x * _F(number)

    return found


def table(
    function: Function,
    told: Attributes,
    taken: tuple[float, int],
    given: tuple[float, int],
    low: int,
    high: int,
) -> bytes:
    """What every byte becomes: taken and given are (scale, zero point), low and high the limits."""
    steps = np.arange(256, dtype=np.uint8).view(np.int8).astype(np.int32)
    x = (steps - taken[1]).astype(np.float32) * _F(taken[0])
    y = function(x, told)
    whole = np.rint(y / _F(given[0])) + _F(given[1])
    return np.clip(whole, low, high).astype(np.int8).tobytes()
