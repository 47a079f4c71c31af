"""Strict reading of a node's attributes: every one present must be asked for, with its type."""

from __future__ import annotations

from math import isnan

import onnx_ir as ir

from worker.compiler.frontend.ops.refusal import Refusal, unsupported_attribute
from worker.compiler.rejection import ReasonCode


class Attributes:
    """A node's attributes, crossed off as they are read.

    `finish` refuses what was never asked for: an unknown attribute may change the meaning.
    """

    def __init__(self, node: ir.Node) -> None:
        self._node = node
        self._unread = dict.fromkeys(node.attributes)

    def has(self, name: str) -> bool:
        """Whether the attribute is present (does not cross it off)."""
        return name in self._node.attributes

    def _get(self, name: str, kind: ir.AttributeType) -> ir.Attr | None:
        self._unread.pop(name, None)
        attr = self._node.attributes.get(name)
        if attr is None:
            return None
        if attr.is_ref():
            raise unsupported_attribute(
                f"attribute {name!r} refers to a function parameter; inline the function first"
            )
        if attr.type != kind:
            raise unsupported_attribute(
                f"attribute {name!r} is of type {attr.type.name}, expected {kind.name}"
            )
        return attr

    def _require(self, name: str) -> Refusal:
        return unsupported_attribute(f"attribute {name!r} is required by {self._node.op_type}")

    def integer(self, name: str, default: int | None = None) -> int:
        """An INT attribute; refuses when absent without a default."""
        attr = self._get(name, ir.AttributeType.INT)
        if attr is not None:
            return attr.as_int()
        if default is None:
            raise self._require(name)
        return default

    def real(self, name: str, default: float | None = None) -> float:
        """A FLOAT attribute."""
        attr = self._get(name, ir.AttributeType.FLOAT)
        if attr is not None:
            value = float(attr.as_float())
            if isnan(value):
                raise unsupported_attribute(f"attribute {name!r} is not a number")
            return value
        if default is None:
            raise self._require(name)
        return default

    def integers(self, name: str) -> tuple[int, ...] | None:
        """An INTS attribute, or None when absent."""
        attr = self._get(name, ir.AttributeType.INTS)
        return None if attr is None else tuple(attr.as_ints())

    def reals(self, name: str) -> tuple[float, ...] | None:
        """A FLOATS attribute, or None when absent."""
        attr = self._get(name, ir.AttributeType.FLOATS)
        return None if attr is None else tuple(attr.as_floats())

    def text(self, name: str, default: str | None = None) -> str:
        """A STRING attribute."""
        attr = self._get(name, ir.AttributeType.STRING)
        if attr is not None:
            return attr.as_string()
        if default is None:
            raise self._require(name)
        return default

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        """A STRING attribute with a closed set of values."""
        value = self.text(name, default)
        if value not in allowed:
            raise unsupported_attribute(
                f"attribute {name!r} is {value!r}; supported: {', '.join(allowed)}"
            )
        return value

    def ignore(self, *names: str) -> None:
        """Cross off attributes that do not change the result."""
        for name in names:
            self._unread.pop(name, None)

    def finish(self) -> None:
        """Refuse unread attributes."""
        if self._unread:
            raise Refusal(
                ReasonCode.UNSUPPORTED_ATTRIBUTE,
                f"attribute {next(iter(self._unread))!r} of {self._node.op_type} is not understood",
            )
