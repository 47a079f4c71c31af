"""Does a target's capability list allow one node?  (Expressibility is asked separately.)

A refusal is one sentence made from the rule that refuses: operator, actual value, what the target
allows, the author's note, and what would lift it.  The manual (manual.py) words rules by the same
functions.  Source: BYOC section 3.1.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import onnx_ir

from worker.compiler.frontend.ops.call import DTYPES
from worker.compiler.frontend.tensor_checks import num_bytes
from worker.compiler.frontend.work import static_shape
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import (
    AcceleratorTarget,
    Capabilities,
    Conversion,
    Machine,
    OpSupport,
)
from worker.compiler.partition.attributes import (
    STANDARD_DOMAINS,
    allowed_text,
    attribute_miss,
    attribute_value,
    value_text,
)
from worker.compiler.partition.quantities import quantity
from worker.compiler.rejection import ReasonCode, Rejection

FREE_DTYPES = frozenset({DType.I64, DType.I32, DType.BOOL})
"""Index and mask types: carried by every datapath that moves memory."""
_PARAMETERS: Mapping[str, frozenset[int]] = MappingProxyType(
    {
        "QLinearConv": frozenset({1, 4, 6}),
        "QLinearMatMul": frozenset({1, 4, 6}),
        "Resize": frozenset({1, 2}),
        "Upsample": frozenset({1}),
    }
)
"""Input positions of scales: constants there become part of the operator, whatever their type."""


@dataclass(frozen=True, slots=True)
class Miss:
    """The first rule that a node breaks."""

    code: ReasonCode
    fact: str
    """Actual value against what the target allows, a full clause."""
    lever: str
    """What would lift it."""


def misfit(node: onnx_ir.Node, machine: Machine) -> Rejection | None:
    """Whether a tensor that the node reads or writes is larger than the home memory.

    Then no strategy needs to look for tiles of it: its search could be as long as the tensor.
    """
    usable = machine.home.usable_bytes
    for value in (*node.inputs, *node.outputs):
        shape = static_shape(value)
        if value is None or shape is None or value.dtype is None:
            continue
        size = num_bytes(value.dtype, shape) or 0
        if size > usable:
            fact = f"{value.name} needs {size} bytes of {machine.home.name}, which has {usable}"
            return Rejection(ReasonCode.DOES_NOT_FIT, f"{node_text(node)}: {fact}")
    return None


def sentence(node: onnx_ir.Node, miss: Miss, support: OpSupport | None) -> str:
    """Operator, fact, note and lever as one sentence."""
    note = f" ({support.note})" if support is not None and support.note else ""
    return f"{node_text(node)}: {miss.fact}{note}; {miss.lever}"


def node_text(node: onnx_ir.Node) -> str:
    """A node as refusals call it: `Conv (stem/conv)`."""
    return f"{node.op_type} ({node.name})" if node.name else node.op_type


def find_miss(
    node: onnx_ir.Node,
    target: AcceleratorTarget,
    stand_in: Mapping[onnx_ir.DataType, DType],
    label: str,
    opset: int,
) -> Miss | None:
    """The rule that refuses the node: listed, type, rank, quantities, attributes, constants."""
    if node.domain not in STANDARD_DOMAINS:
        return Miss(
            ReasonCode.CAPABILITY_OP,
            f"operators of domain {node.domain!r} are not offered by {label}",
            "export the model with standard ONNX operators",
        )
    support = target.capabilities.support(node.op_type)
    if support is None:
        return Miss(
            ReasonCode.CAPABILITY_OP,
            f"{label} does not list {node.op_type} among the operators it offers",
            f"listing {node.op_type} in the ops of the spec would allow it",
        )
    return (
        tensor_miss(node, support.dtypes, target, stand_in, label)
        or limit_miss(node, support, label, opset)
        or _attribute_miss(node, support, label, opset)
        or _constant_miss(node, support, label)
    )


def tensor_miss(
    node: onnx_ir.Node,
    dtypes: tuple[DType, ...],
    target: AcceleratorTarget,
    stand_in: Mapping[onnx_ir.DataType, DType],
    label: str,
) -> Miss | None:
    """Element types and ranks of all operands and results; `dtypes` empty: the target's."""
    offered = target.capabilities
    allowed = dtypes or offered.dtypes
    scales = _PARAMETERS.get(node.op_type, frozenset())
    operands = [
        value
        for k, value in enumerate(node.inputs)
        if k not in scales or value is None or value.const_value is None
    ]
    for value in (*operands, *node.outputs):
        if value is None or not value.name:
            continue
        found = element_type(value)
        if found is None:
            continue
        dtype = stand_in.get(found) or DTYPES.get(found)
        if dtype is None or (dtype not in allowed and dtype not in FREE_DTYPES):
            name = found.name.lower() if dtype is None else str(dtype)
            return Miss(
                ReasonCode.CAPABILITY_DTYPE,
                f"{value.name} is {name}, {label} allows {node.op_type} of {dtypes_text(allowed)}",
                _dtype_lever(node.op_type, dtype, allowed, target.conversions),
            )
        shape = static_shape(value)
        if shape is not None and len(shape) > offered.max_rank:
            return Miss(
                ReasonCode.CAPABILITY_RANK,
                f"{value.name} has rank {len(shape)}, {label} allows {rank_text(offered)}",
                "reshaping it to fewer dimensions would allow it",
            )
    return None


def element_type(value: onnx_ir.Value) -> onnx_ir.DataType | None:
    """Element type of a value; of a constant without one, its array's."""
    if value.dtype is None and value.const_value is not None:
        return value.const_value.dtype
    return value.dtype


def _dtype_lever(
    op_type: str,
    dtype: DType | None,
    allowed: Sequence[DType],
    conversions: Sequence[Conversion],
) -> str:
    for conversion in conversions:
        covers = not conversion.op_types or op_type in conversion.op_types
        if dtype in conversion.sources and conversion.dtype in allowed and covers:
            return (
                f"converting it to {conversion.dtype} would allow it"
                f" (option precision={conversion.dtype})"
            )
    return f"a model in {dtypes_text(allowed)} would be allowed"


def limit_miss(node: onnx_ir.Node, support: OpSupport, label: str, opset: int) -> Miss | None:
    """The first limit of sizes that a node does not keep."""
    for name, low, high in support.limits:
        actual = quantity(node, name, opset)
        if actual is not None and not low <= actual <= high:
            bound = f"a maximum of {actual}" if actual > high else f"a minimum of {actual}"
            return Miss(
                ReasonCode.CAPABILITY_ATTRIBUTE,
                f"{name} is {actual}, {label} allows {limit_text(low, high)}",
                f"{bound} for {name} in the spec would allow it",
            )
    return None


def _attribute_miss(node: onnx_ir.Node, support: OpSupport, label: str, opset: int) -> Miss | None:
    for rule in support.attributes:
        if attribute_miss(node, rule, opset) is not None:
            value = attribute_value(node, rule.name, opset)
            actual = "not set" if value is None else value_text(value)
            return Miss(
                ReasonCode.CAPABILITY_ATTRIBUTE,
                f"{rule.name} is {actual}, {label} allows {allowed_text(rule)}",
                f"another {rule.name} in the model, or a wider rule in the spec, would allow it",
            )
    return None


def _constant_miss(node: onnx_ir.Node, support: OpSupport, label: str) -> Miss | None:
    for k in support.constant_inputs:
        value = node.inputs[k] if k < len(node.inputs) else None
        if value is not None and value.name and not _is_constant(value):
            return Miss(
                ReasonCode.CONSTANT_INPUT,
                f"input {k} ({value.name}) is computed, {label} allows only constants there",
                "making it an initializer of the model would allow it",
            )
    return None


def _is_constant(value: onnx_ir.Value) -> bool:
    """Whether a value is an initializer, or the dequantisation of one: quantised weights."""
    if value.const_value is not None:
        return True
    producer = value.producer()
    if producer is None or producer.op_type != "DequantizeLinear":
        return False
    return all(v is None or v.const_value is not None for v in producer.inputs)


def dtypes_text(dtypes: Sequence[DType]) -> str:
    """Types in words."""
    return " or ".join(dtypes)


def limit_text(low: int, high: int) -> str:
    """Bounds in words."""
    return f"{low} to {high}" if low < high else f"only {low}"


def rank_text(capabilities: Capabilities) -> str:
    """The rank limit in words."""
    return f"at most {capabilities.max_rank}"


def support_texts(support: OpSupport) -> Iterator[str]:
    """The conditions of a rule in words, in the order they are checked; types apart."""
    for name, low, high in support.limits:
        yield f"{name} {limit_text(low, high)}"
    for rule in support.attributes:
        yield f"{rule.name} {allowed_text(rule)}"
    for k in support.constant_inputs:
        yield f"input {k} constant"
