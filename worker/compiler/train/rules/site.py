"""What a gradient rule sees: a node of the forward pass and the gradients of its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir

from worker.compiler.frontend.edit import constant_of
from worker.compiler.train.emit import Emitter, dims


class NoRule(Exception):
    """A node is outside of what its operator's rule covers; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Site:
    """One node, while its gradient is made."""

    node: onnx_ir.Node
    emit: Emitter
    grads: tuple[onnx_ir.Value | None, ...]
    """Of each output; None where the loss does not depend on it."""
    wanted: frozenset[int]
    """Inputs whose gradient somebody needs."""

    @property
    def grad(self) -> onnx_ir.Value:
        """Gradient of the first output.

        Raises:
            NoRule: only other outputs of the operator reach the loss.
        """
        if self.grads[0] is None:
            raise NoRule("the loss depends on an output other than the first")
        return self.grads[0]

    def only_first(self) -> None:
        """Refuse a node of which the loss reads more than the first output."""
        if any(g is not None for g in self.grads[1:]):
            raise NoRule("the loss depends on an output other than the first")

    def has(self, index: int) -> bool:
        """Whether input `index` is given."""
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def x(self, index: int = 0) -> onnx_ir.Value:
        """Input `index`."""
        value = self.node.inputs[index]
        assert value is not None
        return value

    @property
    def y(self) -> onnx_ir.Value:
        """The first output."""
        return self.node.outputs[0]

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Static shape of input `index`."""
        return dims(self.x(index))

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        found = self.node.attributes.get(name)
        return default if found is None else found.as_int()

    def integers(self, name: str) -> tuple[int, ...] | None:
        """A list attribute, None where it is absent."""
        found = self.node.attributes.get(name)
        return None if found is None else tuple(found.as_ints())

    def number(self, name: str, default: float) -> float:
        """A real attribute, rounded to 32 bits as ONNX stores it."""
        found = self.node.attributes.get(name)
        return default if found is None else found.as_float()

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        found = self.node.attributes.get(name)
        return default if found is None else found.as_string()

    def constant(self, index: int) -> np.ndarray[Any, Any]:
        """The value of a constant input.

        Raises:
            NoRule: it is computed.
        """
        tensor = constant_of(self.node.inputs[index])
        if tensor is None:
            raise NoRule(f"input {index} is computed; the rule needs a constant")
        found: np.ndarray[Any, Any] = tensor.numpy()
        return found

    def axis(self, default: int, rank: int | None = None) -> int:
        """Attribute `axis`, counted from the front."""
        found = self.integer("axis", default)
        return found + (len(self.shape()) if rank is None else rank) if found < 0 else found

    def like(self, made: Callable[[int], onnx_ir.Value]) -> dict[int, onnx_ir.Value]:
        """The gradient of each wanted input."""
        return {index: made(index) for index in sorted(self.wanted)}


Rule: TypeAlias = "Callable[[Site], Mapping[int, onnx_ir.Value]]"
"""Gradients of the wanted inputs; one that is left out is zero."""


@dataclass(frozen=True, slots=True)
class Derivative:
    """How an operator is differentiated."""

    rule: Rule
    operands: frozenset[int] | None = None
    """Inputs that the gradient flows to; None for all.  Others are parameters of the operator."""
