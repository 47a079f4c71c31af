"""Keeps the process alive where ONNX's own shape inference would end it.

Windows that are larger than what they slide over, or a negative constant, make inference write
negative dimensions, which are refused later, at their node (`rules`).  A Slice of such a tensor
ends the process before that: the wheels of onnx (1.23.2) assert that the bounds of a std::clamp are
in order, and abort.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import onnx
import onnx.defs
from onnx.shape_inference import InferenceContext, InferenceError

_VERSIONS = (1, 10, 11, 13)
"""Opsets in which Slice was defined anew."""


@cache
def guard_inference() -> None:
    """From now on inference says nothing of a Slice whose input has a negative dimension but its
    element type, and of one that contradicts itself nothing but to `complaints`.  For the whole
    process; a second call does nothing."""
    for version in _VERSIONS:
        schema = onnx.defs.get_schema("Slice", version, "")
        schema.set_type_and_shape_inference_function(
            _guarded(schema.get_type_and_shape_inference_function())
        )
        onnx.defs.deregister_schema("Slice", version, "")
        onnx.defs.register_schema(schema)


@contextmanager
def complaints() -> Iterator[list[tuple[str, str]]]:
    """(name of a node, complaint) of each Slice that inference refuses meanwhile: these do not
    reach the caller as others do, because C++ takes no exception of ours for its own."""
    found: list[tuple[str, str]] = []
    _listeners.append(found)
    try:
        yield found
    finally:
        _listeners.remove(found)


_listeners: list[list[tuple[str, str]]] = []
_NAMED = "node Slice ("
"""What stands before a node's name in what inference calls it."""


def _guarded(infer: Callable[[InferenceContext], None]) -> Callable[[InferenceContext], None]:
    def guarded(context: InferenceContext) -> None:
        given: Any = context.get_input_type(0)
        if given is None or not any(d.dim_value < 0 for d in given.tensor_type.shape.dim):
            try:
                infer(context)
            except InferenceError as error:
                name = context.get_display_name().removeprefix(_NAMED).removesuffix(")")
                for listener in _listeners:
                    listener.append((name, str(error)))
            return
        made = onnx.TypeProto()
        made.tensor_type.elem_type = given.tensor_type.elem_type
        context.set_output_type(0, made)

    return guarded
