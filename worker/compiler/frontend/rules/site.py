"""One node as the rules see it: attributes with their defaults, shapes and constants, or None."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx.defs
import onnx.helper
import onnx_ir

from worker.compiler.errors import Detail
from worker.compiler.frontend.edit import constant_of

_MAX_ELEMENTS = 1 << 24
"""Larger constants are weights: their values are not looked at."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a node."""

    message: str
    allowed: Detail = None
    actual: Detail = None


Rule: TypeAlias = "Callable[[Site], Iterator[Problem]]"


@dataclass(frozen=True, slots=True)
class _Schema:
    version: int
    inputs: tuple[str, ...]
    defaults: dict[str, Any]


@lru_cache(maxsize=1024)
def _schema(op_type: str, opset: int) -> _Schema | None:
    try:
        found = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    defaults: dict[str, Any] = {}
    for name, attribute in found.attributes.items():
        if attribute.default_value.type:
            value = onnx.helper.get_attribute_value(attribute.default_value)
            defaults[name] = value.decode() if isinstance(value, bytes) else value
    return _Schema(found.since_version, tuple(i.name for i in found.inputs), defaults)


class Site:
    """A node of the main domain in its opset.

    `is_certain` is False where the node may never run (a branch): then shapes and constants are
    not known to it, and only what is wrong with the attributes alone is seen.
    """

    def __init__(self, node: onnx_ir.Node, opset: int, *, is_certain: bool = True) -> None:
        self.node = node
        self.op = node.op_type
        self.is_certain = is_certain
        self._schema = _schema(node.op_type, opset)

    @property
    def version(self) -> int:
        """Opset in which this form of the operator came; 0 when there is none."""
        return self._schema.version if self._schema is not None else 0

    def has(self, name: str) -> bool:
        """Whether the attribute is written at the node."""
        return name in self.node.attributes

    def attr(self, name: str) -> Any:
        """Value of an attribute, its default, or None."""
        found = self.node.attributes.get(name)
        if found is None or found.is_ref():
            return None if self._schema is None else self._schema.defaults.get(name)
        value = found.value
        return tuple(value) if isinstance(value, list) else value

    def place(self, name: str) -> int | None:
        """Position of a formal input."""
        if self._schema is None or name not in self._schema.inputs:
            return None
        return self._schema.inputs.index(name)

    def value(self, index: int | str) -> onnx_ir.Value | None:
        """What is connected to an input, or None."""
        place = self.place(index) if isinstance(index, str) else index
        if place is None or place >= len(self.node.inputs):
            return None
        found = self.node.inputs[place]
        return found if found is not None and found.name else None

    def dims(self, index: int | str) -> tuple[int | None, ...] | None:
        """Dimensions of an input as far as known; None while the rank is not."""
        value = self.value(index) if self.is_certain else None
        if value is None or value.shape is None:
            return None
        return tuple(d if isinstance(d, int) else None for d in value.shape)

    def shape(self, index: int | str) -> tuple[int, ...] | None:
        """Dimensions of an input when all are known."""
        dims = self.dims(index)
        if dims is None:
            return None
        known = tuple(d for d in dims if d is not None)
        return known if len(known) == len(dims) else None

    def rank(self, index: int | str = 0) -> int | None:
        """Number of dimensions of an input."""
        dims = self.dims(index)
        return None if dims is None else len(dims)

    def const(self, index: int | str) -> npt.NDArray[Any] | None:
        """Value of a constant input."""
        tensor = constant_of(self.value(index)) if self.is_certain else None
        if tensor is None or tensor.size > _MAX_ELEMENTS:
            return None
        if tensor.dtype == onnx_ir.DataType.STRING:
            return None
        return np.asarray(tensor.numpy())

    def ints(self, name: str) -> tuple[int, ...] | None:
        """Whole numbers given by an attribute or, in other opsets, by the constant input."""
        if self.place(name) is not None:
            array = self.const(name)
            if array is None or array.dtype.kind not in "iu":
                return None
            return tuple(int(v) for v in array.reshape(-1))
        value = self.attr(name)
        if value is None or isinstance(value, str | float):
            return None
        return (value,) if isinstance(value, int) else tuple(value)
