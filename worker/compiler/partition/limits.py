"""Quantities of an ONNX node that capability lists put limits on.

The names users write in `capabilities.ops[].limits`: kernel_h, kernel_w, stride_h, stride_w,
dilation_h, dilation_w, group, in_channels, out_channels, batch, rank, depthwise.
"""

from __future__ import annotations

import onnx_ir

from worker.compiler.frontend.work import static_shape

_WINDOWED = ("Conv", "ConvTranspose", "ConvInteger", "MaxPool", "AveragePool", "LpPool")
_WEIGHTED = ("Conv", "ConvTranspose", "ConvInteger")


def _pair(node: onnx_ir.Node, name: str, default: int) -> tuple[int, int] | None:
    attribute = node.attributes.get(name)
    values = list(attribute.as_ints()) if attribute is not None else []
    if not values:
        return (default, default)
    return (values[0], values[-1])


def quantities(node: onnx_ir.Node) -> dict[str, int]:
    """Every limited quantity this node has, by name; absent ones do not apply to it."""
    found: dict[str, int] = {}
    first = static_shape(node.inputs[0]) if node.inputs else None
    if first is not None:
        found["rank"] = len(first)
        if first:
            found["batch"] = first[0]
        if len(first) > 1:
            found["in_channels"] = first[1]
    if node.op_type in _WINDOWED:
        kernel = _pair(node, "kernel_shape", 1)
        weight = static_shape(node.inputs[1]) if node.op_type in _WEIGHTED else None
        if weight is not None and len(weight) > 2:
            kernel = (weight[2], weight[-1])
        for label, pair in (
            ("kernel", kernel),
            ("stride", _pair(node, "strides", 1)),
            ("dilation", _pair(node, "dilations", 1)),
        ):
            if pair is not None:
                found[f"{label}_h"], found[f"{label}_w"] = pair
        if node.op_type in _WEIGHTED:
            group = node.attributes.get("group")
            found["group"] = group.as_int() if group is not None else 1
            out = static_shape(node.outputs[0])
            if out is not None and len(out) > 1:
                found["out_channels"] = out[1]
            is_depthwise = found["group"] > 1 and found["group"] == found.get("in_channels")
            found["depthwise"] = int(is_depthwise)
    return found
