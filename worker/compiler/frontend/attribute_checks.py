"""Are a node's attributes those of its operator: known, of the right type, none missing?

ONNX's own checker says so too, but not of nodes that hold graphs, and not whether a number that
names an element type names one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import onnx
import onnx.defs

from worker.compiler.errors import Detail, Finding

_ELEMENT_TYPES = {
    "to": False, "dtype": False, "output_datatype": False, "softmax_precision": False,
    "stash_type": False, "output_dtype": True, "precision": True,
}  # fmt: skip
"""Attributes that name an element type -> whether 0 (\"not given\") is allowed."""


_MOST_DIMENSIONS = 64
"""No `axis` or entry of `axes` is farther from 0: ONNX's own inference dies of 2^63 - 1."""
_FLAGS = frozenset(
    {"align_corners", "allowzero", "antialias", "broadcast", "ceil_mode", "center_point_box",
     "count_include_pad", "detect_negative", "detect_positive", "exclude_outside", "exclusive",
     "fmod", "input_forget", "interleaved", "inverse", "is_case_sensitive", "is_causal", "is_test",
     "keepdims", "largest", "linear_before_reset", "new_axis", "noop_with_empty_axes", "onesided",
     "output_sequence", "periodic", "reverse", "saturate", "select_last_index", "sorted", "spatial",
     "training_mode", "transA", "transB", "upper"}
)  # fmt: skip
"""Attributes that must be 0 or 1: of other numbers runtimes make different things.  Of
`training_mode` one asks whether it is 1, another whether it is not 0."""


@lru_cache(maxsize=1024)
def _schema(op_type: str, domain: str, opset: int) -> Any:
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


def attribute_findings(node: Any, name: str, opsets: Mapping[str, int]) -> list[Finding]:
    """TW-MODEL-021 for each attribute of a NodeProto that its operator does not have like this.

    Cost: linear in the node's attributes.
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    schema = _schema(node.op_type, domain, opsets.get(domain, 0))
    if schema is None:
        return []

    def bad(message: str, allowed: Detail, actual: Detail) -> Finding:
        return Finding(
            "TW-MODEL-021", f"{node.op_type}: {message}", None, name, allowed, actual
        )  # fmt: skip

    found: list[Finding] = []
    known = schema.attributes
    for attribute in node.attribute:
        spec = known.get(attribute.name)
        if spec is None:
            listed: list[Detail] = [*sorted(known)]
            found.append(bad(f"there is no attribute {attribute.name!r}", listed, attribute.name))
            continue
        kind = onnx.AttributeProto.AttributeType.Name(attribute.type)
        if kind != spec.type.name:
            found.append(
                bad(f"attribute {attribute.name!r} is of type {kind}", spec.type.name, kind)
            )
        elif attribute.name in _ELEMENT_TYPES and kind == "INT":
            may_be_zero = _ELEMENT_TYPES[attribute.name]
            if not (attribute.i in _NUMBERS or (attribute.i == 0 and may_be_zero)):
                found.append(
                    bad(f"attribute {attribute.name!r} names the element type {attribute.i}",
                        f"1 to {max(_NUMBERS)}", attribute.i)
                )  # fmt: skip
        elif attribute.name in _FLAGS and kind == "INT" and attribute.i not in (0, 1):
            message = f"attribute {attribute.name!r} is {attribute.i}"
            found.append(bad(message, "0 or 1", attribute.i))
        elif attribute.name in ("axis", "axes"):
            far = [a for a in (attribute.i, *attribute.ints) if abs(a) > _MOST_DIMENSIONS]
            if far:
                message = f"attribute {attribute.name!r} names dimension {far[0]}"
                found.append(bad(message, _MOST_DIMENSIONS, far[0]))
    given = {a.name for a in node.attribute}
    found += [
        bad(f"attribute {each!r} is missing", each, None)
        for each, spec in sorted(known.items())
        if spec.required and each not in given
    ]
    return found


def empty_operands(node: Any, opsets: Mapping[str, int]) -> list[int]:
    """Positions of repeated operands that are left out, which no operator allows.

    ONNX's own checker looks at single ones only, and ONNX Runtime dies of `Mean(a, "")`.
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    schema = _schema(node.op_type, domain, opsets.get(domain, 0))
    if schema is None or not schema.inputs:
        return []
    repeated = onnx.defs.OpSchema.FormalParameterOption.Variadic
    if schema.inputs[-1].option != repeated:
        return []
    return [k for k, each in enumerate(node.input) if not each and k >= len(schema.inputs) - 1]


_NUMBERS = frozenset(onnx.TensorProto.DataType.values()) - {onnx.TensorProto.UNDEFINED}
