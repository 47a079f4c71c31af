"""The one way in which a pass edits a model: what the user was promised is checked after it.

A pass may do what it likes inside; a model's inputs and outputs keep their names, order and types,
and every output stays defined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import onnx_ir

from worker.compiler.errors import PassContractError
from worker.compiler.frontend.model import OnnxModel

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Promise:
    """One input or output: its name, and its type as ONNX says it ("" while it is unknown)."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Interface:
    """What the users of a model see of it, in order."""

    inputs: tuple[Promise, ...]
    outputs: tuple[Promise, ...]


@dataclass(frozen=True, slots=True)
class Ingested:
    """A user's model as it was read, and what every later form of it keeps."""

    model: OnnxModel
    interface: Interface


def interface_of(model: onnx_ir.Model) -> Interface:
    """Cost: linear in inputs and outputs."""
    return Interface(_promises(model.graph.inputs), _promises(model.graph.outputs))


def _promises(values: Iterable[onnx_ir.Value]) -> tuple[Promise, ...]:
    return tuple(Promise(v.name or "", _type_of(v)) for v in values)


def _type_of(value: onnx_ir.Value) -> str:
    """A file may declare a value of no element type: that promises nothing."""
    if value.type is None or value.dtype is onnx_ir.DataType.UNDEFINED:
        return ""
    return str(value.type)


def run_pass(name: str, model: onnx_ir.Model, edit: Callable[[onnx_ir.Model], T]) -> T:
    """Run `edit`, which changes `model` in place, and give what it returns.

    Raises:
        PassContractError: TW-INT-003 naming the pass and the input or output it lost or changed.

    Cost: that of `edit`, and linear in inputs and outputs.
    """
    before = interface_of(model)
    result = edit(model)
    require_interface(name, before, model)
    return result


def require_interface(name: str, before: Interface, model: onnx_ir.Model) -> None:
    """Check that `model`, made by pass `name`, still has the interface `before`.

    A type may become known, not change.

    Raises:
        PassContractError: TW-INT-003.
    """
    after = interface_of(model)
    require_names(name, _names(before), model)
    for role, old, new in (
        ("input", before.inputs, after.inputs),
        ("output", before.outputs, after.outputs),
    ):
        for was, now in zip(old, new, strict=True):
            if was.type and was.type != now.type:
                raise PassContractError(
                    name, f"{role} {was.name!r} was of type {was.type} and is now {now.type}"
                )
    graph = model.graph
    for value in graph.outputs:
        maker = value.producer()
        is_made = maker is not None and maker.graph is graph
        if not (is_made or value.is_graph_input() or value.is_initializer()):
            raise PassContractError(name, f"nothing defines output {value.name!r} any more")


def require_names(
    name: str, names: tuple[tuple[str, ...], tuple[str, ...]], model: onnx_ir.Model
) -> None:
    """Check that `model`, made by pass `name`, has inputs and outputs of these names, in order.

    Raises:
        PassContractError: TW-INT-003.
    """
    for role, old, new in zip(("input", "output"), names, _names(interface_of(model)), strict=True):
        if old != new:
            raise PassContractError(name, f"the model's {role}s were {[*old]} and are now {[*new]}")


def _names(interface: Interface) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(p.name for p in interface.inputs), tuple(p.name for p in interface.outputs)
