"""What a recipe is asked for, and what it answers: the operands and attributes of one operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.machine.pattern import AttributeValue

Array: TypeAlias = npt.NDArray[Any]
OPSET = 21
"""Opset of the models, unless an operator is newer or older."""
_BASE = (2, 3, 4, 5, 2, 2, 2, 2)
_LEAD = (1, 2)
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Request:
    """One instance of an operator that a case wants."""

    dtype: np.dtype[Any]
    rng: np.random.Generator
    shape: tuple[int, ...] | None = None
    """Of the first operand; None: the recipe's own."""
    quantities: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    """Wanted values of limited quantities, by their name in the spec."""
    attributes: Mapping[str, AttributeValue] = field(default_factory=lambda: NOTHING)
    variant: str = ""
    """One of the recipe's variants."""

    def dims(self, *own: int) -> tuple[int, ...]:
        """Shape of the first operand: as asked for, else `own` bent to the wanted quantities."""
        shape = self.shape or own
        rank = self.quantities.get("rank")
        if rank is not None:
            shape = shape_of_rank(rank)
        if "elements" in self.quantities:
            return (*(1,) * (len(shape) - 1), self.quantities["elements"])
        axes = {"batch": 0, "in_channels": 1, "height": -2, "width": -1}
        found = list(shape)
        for name, axis in axes.items():
            if name in self.quantities and -len(found) <= axis < len(found):
                found[axis] = self.quantities[name]
        return tuple(found)

    def values(self, shape: tuple[int, ...]) -> Array:
        """Ordinary numbers: floats around zero, small integers, fair coins."""
        kind = self.dtype.kind
        if kind == "b":
            return self.rng.integers(0, 2, shape).astype(bool)
        if kind in "iu":
            low = 0 if kind == "u" else -4
            return self.rng.integers(low, 6, shape).astype(self.dtype)
        return self.rng.standard_normal(shape, dtype=np.float32).astype(self.dtype)

    def between(self, low: float, high: float, shape: tuple[int, ...]) -> Array:
        """Numbers of an interval, its ends included for integers."""
        if self.dtype.kind in "iu":
            return self.rng.integers(int(low), int(high) + 1, shape).astype(self.dtype)
        if self.dtype.kind == "b":
            return self.values(shape)
        return self.rng.uniform(low, high, shape).astype(np.float32).astype(self.dtype)

    def typed(self, dtype: npt.DTypeLike) -> Request:
        """The same request for another element type."""
        return replace(self, dtype=np.dtype(dtype))


@dataclass(frozen=True, slots=True)
class Sample:
    """Operands and attributes of one operator."""

    inputs: tuple[Array | None, ...]
    """By position; None: absent."""
    attributes: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    constants: frozenset[int] = frozenset()
    """Positions that are initializers of the model."""
    outputs: int = 1
    opset: int = OPSET


Recipe: TypeAlias = "Callable[[Request], Sample]"


@dataclass(frozen=True, slots=True)
class OpRecipe:
    """How to make instances of one op type."""

    build: Recipe
    variants: tuple[Mapping[str, int] | str, ...] = ()
    """Instances beyond the plain one: quantities to change, or a name the recipe knows."""
    is_pointwise: bool = False
    """Any shape will do: ranks are swept."""
    is_elementary: bool = False
    """All data operands have the first one's shape."""
    integer_variant: str = ""
    """The variant that has a quantised form, where the plain instance has none."""


def shape_of_rank(rank: int) -> tuple[int, ...]:
    """A small shape of a given rank."""
    if rank <= 4:
        return _BASE[:rank] if rank < 4 else (2, 3, 4, 5)
    lead = tuple(_LEAD[k % 2] for k in range(rank - 4))
    return (*lead, 2, 3, 2, 4)


def constants(*positions: int) -> frozenset[int]:
    """Positions of initializers."""
    return frozenset(positions)


def i64(*values: int) -> Array:
    """A vector of indices, sizes or axes."""
    return np.array(values, np.int64)
