"""Keeps the process alive where ONNX's own shape inference would end it.

Windows that are larger than what they slide over, or a negative constant, make inference write
negative dimensions, which are refused later, at their node (`rules`).  A Slice of such a tensor
ends the process before that: the wheels of onnx (1.23.2) assert that the bounds of a std::clamp are
in order, and abort.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import onnx
import onnx.defs
from onnx.shape_inference import InferenceContext

_VERSIONS = (1, 10, 11, 13)
"""Opsets in which Slice was defined anew."""


@cache
def guard_inference() -> None:
    """From now on inference says nothing of a Slice whose input has a negative dimension but its
    element type.  For the whole process; a second call does nothing."""
    for version in _VERSIONS:
        schema = onnx.defs.get_schema("Slice", version, "")
        schema.set_type_and_shape_inference_function(
            _guarded(schema.get_type_and_shape_inference_function())
        )
        onnx.defs.deregister_schema("Slice", version, "")
        onnx.defs.register_schema(schema)


def _guarded(infer: Callable[[InferenceContext], None]) -> Callable[[InferenceContext], None]:
    def guarded(context: InferenceContext) -> None:
        given: Any = context.get_input_type(0)
        if given is None or not any(d.dim_value < 0 for d in given.tensor_type.shape.dim):
            infer(context)
            return
        made = onnx.TypeProto()
        made.tensor_type.elem_type = given.tensor_type.elem_type
        context.set_output_type(0, made)

    return guarded
