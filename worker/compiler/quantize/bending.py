"""Readers that flatten what they read: an error far out on a sigmoid is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import onnx_ir

from worker.compiler.frontend.edit import constant_of
from worker.compiler.frontend.work import static_shape
from worker.compiler.quantize.clipping import Bent
from worker.compiler.quantize.ranges import Observed

F64 = npt.NDArray[np.float64]

_FUNCTIONS: Mapping[str, Callable[[F64], F64]] = MappingProxyType(
    {
        "Sigmoid": lambda x: 0.5 + 0.5 * np.tanh(0.5 * x),
        "Tanh": np.tanh,
        "Relu": lambda x: np.maximum(x, 0.0),
    }
)


def bent_by(value: onnx_ir.Value, observed: Mapping[str, Observed]) -> Bent | None:
    """What the only reader of `value` makes of it, a constant added on the way or not; else None.

    Samples of values of one shape hold the same places, so an operand's sample tells where on the
    function each element lies.
    """
    reader = _only_reader(value)
    through = value
    if (
        reader is not None
        and reader.op_type == "Add"
        and all(v is value or constant_of(v) is not None for v in reader.inputs)
    ):
        through = reader.outputs[0]
        reader = _only_reader(through)
    if reader is None or reader.op_type not in _FUNCTIONS or reader.domain not in ("", "ai.onnx"):
        return None
    own, seen = observed.get(value.name or ""), observed.get(through.name or "")
    if own is None or seen is None or static_shape(value) != static_shape(through):
        return None
    return Bent(_FUNCTIONS[reader.op_type], seen.sample)


def _only_reader(value: onnx_ir.Value) -> onnx_ir.Node | None:
    uses = tuple(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None
