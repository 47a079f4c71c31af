"""Attributes of ONNX nodes as rules see them: absent ones count with their ONNX default.

The only place of this room that reads `onnx.defs`.  Defaults that the standard states in prose
(strides of one, no padding, a kernel as large as its weights) are worked out here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import isclose
from types import MappingProxyType

import onnx.defs
import onnx_ir

from worker.compiler.frontend.work import static_shape
from worker.compiler.machine.pattern import AttributeRule

Value = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
"""What an attribute may hold as far as rules can ask; tensors and graphs are not among them."""

STANDARD_DOMAINS = ("", "ai.onnx")
_WEIGHTED = frozenset({"Conv", "ConvTranspose", "ConvInteger", "QLinearConv"})
_POOLS = frozenset({"MaxPool", "AveragePool", "LpPool"})
_WEIGHT_INPUT = {"QLinearConv": 3}
_RELATIVE_TOLERANCE = 1e-6
"""Attributes are stored as 32-bit floats, rules are written in decimal."""


def opset_of(nodes: Sequence[onnx_ir.Node]) -> int:
    """The opset of the graph that the nodes stand in; the newest known one for loose nodes."""
    for node in nodes:
        graph = node.graph
        found = None if graph is None else graph.opset_imports.get("")
        if found is None:
            found = node.version
        if found is not None:
            return found
    return int(onnx.defs.onnx_opset_version())


def attribute_value(node: onnx_ir.Node, name: str, opset: int) -> Value | None:
    """The value of an attribute, or its default; None when it has neither.

    `kernel_shape` of a convolution is inferred from its weights, and `pads` from `auto_pad`.

    Cost: constant.
    """
    attribute = node.attributes.get(name)
    if attribute is not None and not attribute.is_ref():
        return _plain(attribute)
    found = _defaults(node.op_type, opset).get(name)
    return _inferred(node, name, opset) if found is None else found


def attribute_miss(node: onnx_ir.Node, rule: AttributeRule, opset: int) -> str | None:
    """None when the node obeys the rule, else a clause: actual against allowed.

    A list attribute obeys `allowed` when it equals an allowed list, or when each of its elements
    equals an allowed number; bounds hold for every element.
    """
    value = attribute_value(node, rule.name, opset)
    if value is None:
        return f"{rule.name} is not set, the rule wants {allowed_text(rule)}"
    elements = value if isinstance(value, tuple) else (value,)
    numbers = [e for e in elements if not isinstance(e, str)]
    has_text = len(numbers) < len(elements)
    ok = not rule.allowed or _is_allowed(value, elements, rule)
    if rule.minimum is not None:
        ok = ok and not has_text and all(e >= rule.minimum for e in numbers)
    if rule.maximum is not None:
        ok = ok and not has_text and all(e <= rule.maximum for e in numbers)
    if ok:
        return None
    return f"{rule.name} is {value_text(value)}, the rule wants {allowed_text(rule)}"


def allowed_text(rule: AttributeRule) -> str:
    """What a rule allows, in words."""
    parts = []
    if rule.allowed:
        parts.append(" or ".join(value_text(v) for v in rule.allowed))
    match rule.minimum, rule.maximum:
        case None, None:
            pass
        case low, None:
            parts.append(f"at least {low:g}")
        case None, high:
            parts.append(f"at most {high:g}")
        case low, high:
            parts.append(f"{low:g} to {high:g}")
    return " and ".join(parts) or "any value"


def value_text(value: Value) -> str:
    """An attribute value as users write it."""
    match value:
        case tuple():
            return f"[{', '.join(value_text(e) for e in value)}]"
        case float():
            return f"{value:.7g}"
        case _:
            return str(value)


def _is_allowed(value: Value, elements: Sequence[int | float | str], rule: AttributeRule) -> bool:
    if any(_equal(value, wanted) for wanted in rule.allowed):
        return True
    single = [w for w in rule.allowed if not isinstance(w, tuple)]
    return (
        isinstance(value, tuple)
        and bool(single)
        and all(any(_equal(e, w) for w in single) for e in elements)
    )


def _equal(value: Value, wanted: Value) -> bool:
    if isinstance(value, tuple) and isinstance(wanted, tuple):
        ours: tuple[int | float | str, ...] = value
        theirs: tuple[int | float | str, ...] = wanted
        return len(ours) == len(theirs) and all(map(_equal, ours, theirs))
    if isinstance(value, int | float) and isinstance(wanted, int | float):
        return isclose(value, wanted, rel_tol=_RELATIVE_TOLERANCE)
    return value == wanted


def _plain(attribute: onnx_ir.Attr) -> Value | None:
    match attribute.type:
        case onnx_ir.AttributeType.INT:
            return attribute.as_int()
        case onnx_ir.AttributeType.FLOAT:
            return attribute.as_float()
        case onnx_ir.AttributeType.STRING:
            return attribute.as_string()
        case onnx_ir.AttributeType.INTS:
            return tuple(attribute.as_ints())
        case onnx_ir.AttributeType.FLOATS:
            return tuple(attribute.as_floats())
        case onnx_ir.AttributeType.STRINGS:
            return tuple(attribute.as_strings())
        case _:
            return None


@cache
def _defaults(op_type: str, opset: int) -> Mapping[str, Value]:
    """Defaults that the schema of an op states."""
    try:
        schema = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:  # an op of another domain or a newer opset has none we know
        return {}
    found: dict[str, Value] = {}
    for name, attribute in schema.attributes.items():
        default = onnx_ir.serde.deserialize_attribute(attribute.default_value)
        if default.type is onnx_ir.AttributeType.UNDEFINED:
            continue
        value = _plain(default)
        if value is not None:
            found[name] = value
    return MappingProxyType(found)


def _inferred(node: onnx_ir.Node, name: str, opset: int) -> Value | None:
    """Defaults that the standard states in prose."""
    shape = static_shape(node.inputs[0]) if node.inputs else None
    if node.op_type == "Transpose" and name == "perm" and shape is not None:
        return tuple(reversed(range(len(shape))))
    if node.op_type not in _WEIGHTED and node.op_type not in _POOLS:
        return None
    rank = max(0, len(shape) - 2) if shape is not None else None
    if name == "kernel_shape" and node.op_type in _WEIGHTED:
        k = _WEIGHT_INPUT.get(node.op_type, 1)
        weights = static_shape(node.inputs[k]) if len(node.inputs) > k else None
        return None if weights is None else weights[2:]
    if rank is None:
        return None
    match name:
        case "strides" | "dilations":
            return (1,) * rank
        case "output_padding" if node.op_type == "ConvTranspose":
            return (0,) * rank
        case "pads":
            return _pads(node, rank, opset)
        case _:
            return None


def _pads(node: onnx_ir.Node, rank: int, opset: int) -> Value | None:
    """Zeros, or what `auto_pad` comes to; None where that needs an unknown shape.

    Source: ONNX operator specification, Conv and the pools: SAME pads so that the output has
    ceil(input / stride) elements, the odd one at the end (UPPER) or at the start (LOWER).
    """
    auto_pad = attribute_value(node, "auto_pad", opset)
    if auto_pad in (None, "NOTSET", "VALID"):
        return (0,) * (2 * rank)
    kernel = _ints(node, "kernel_shape", rank, opset)
    strides = _ints(node, "strides", rank, opset)
    dilations = _ints(node, "dilations", rank, opset)
    shape = static_shape(node.inputs[0])
    if node.op_type == "ConvTranspose" or shape is None:
        return None
    if kernel is None or strides is None or dilations is None:
        return None
    begins: list[int] = []
    ends: list[int] = []
    for size, taps, step, gap in zip(shape[2:], kernel, strides, dilations, strict=True):
        total = max(0, (-(-size // step) - 1) * step + (taps - 1) * gap + 1 - size)
        less, more = total // 2, total - total // 2
        begins.append(less if auto_pad == "SAME_UPPER" else more)
        ends.append(more if auto_pad == "SAME_UPPER" else less)
    return (*begins, *ends)


def _ints(node: onnx_ir.Node, name: str, count: int, opset: int) -> tuple[int, ...] | None:
    value = attribute_value(node, name, opset)
    if not isinstance(value, tuple) or len(value) != count:
        return None
    return tuple(e for e in value if isinstance(e, int))
