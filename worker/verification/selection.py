"""Models whose host parts select by value: TopK, NonMaxSuppression, NonZero, data-dependent loops.

Two correct programs may pick different elements there when values tie to within rounding, and every
later tensor then differs wholly.  So the floats that enter such a host part are compared with the
reference *before* the selection, within the ordinary tolerance, and the part then runs on the
reference's values: everything computed on the accelerator is still judged, before and after.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir

from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.ops.call import DTYPES
from worker.compiler.ir.dtype import DType
from worker.compiler.judge.compiled import CompiledModel

SELECTING = frozenset(
    {"TopK", "NonMaxSuppression", "NonZero", "ArgMax", "ArgMin", "Unique", "Compress", "Loop", "If"}
)
"""Operators whose result changes by a jump when an input changes by a rounding error."""


def _op_types(node: onnx_ir.Node) -> Iterator[str]:
    yield node.op_type
    for attribute in node.attributes.values():
        if attribute.type == onnx_ir.AttributeType.GRAPH:
            for inner in attribute.as_graph():
                yield from _op_types(inner)


def selection_inputs(compiled: CompiledModel) -> tuple[str, ...]:
    """Computed floats (or what they are quantised to) that enter host parts with selecting
    operators, in call order."""
    nodes = list(compiled.model.ir.graph)
    quantised = {
        node.inputs[0].name
        for node in nodes
        if node.op_type == "DequantizeLinear" and node.inputs[0] is not None
    }
    dtype_of = {
        value.name: DTYPES.get(value.dtype)
        for node in nodes
        for value in node.outputs
        if value.dtype is not None
    }
    found: dict[str, None] = {}
    for host in compiled.linked.hosts:
        kinds = {kind for k in host.nodes for kind in _op_types(nodes[k])}
        if kinds & SELECTING:
            for name in host.inputs:
                dtype = dtype_of.get(name)
                if isinstance(dtype, DType) and (dtype.is_float or name in quantised):
                    found.setdefault(name)
    return tuple(found)


def values_selected_by(model: OnnxModel) -> dict[str, tuple[str, ...]]:
    """Computed values that the model's own selecting nodes read, by operator type.

    Two evaluations of the model agree about what is selected where they share these.
    """
    found: dict[str, dict[str, None]] = {}
    made = {v.name for node in model.ir.graph for v in node.outputs if v.name}
    for node in model.ir.graph:
        if node.op_type in SELECTING:
            names = [v.name for v in node.inputs if v is not None and v.name in made]
            found.setdefault(node.op_type, {}).update((n, None) for n in names if n)
    return {kind: tuple(names) for kind, names in found.items()}
