"""Does a target's capability list allow one node?  (Expressibility is asked separately.)

A refusal is one sentence made from the rule that refuses: operator, actual value, what the target
allows, the author's note, and what would lift it.  What a row demands beside types is
evaluated in conditions.py; the manual (manual.py) words rules by the same functions.
Source: BYOC section 3.1.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from worker.compiler.partition.attributes import STANDARD_DOMAINS
from worker.compiler.partition.conditions import (
    Miss,
    Subject,
    clause_miss,
    clause_of,
    clause_texts,
)
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
    """Operator, fact, note, lever and place of the rule as one sentence."""
    note = f" ({support.note})" if support is not None and support.note else ""
    rule = f" [rule {miss.pointer}]" if miss.pointer else ""
    return f"{node_text(node)}: {miss.fact}{note}; {miss.lever}{rule}"


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
    offered = target.capabilities
    support = offered.support(node.op_type)
    if support is None:
        return Miss(
            ReasonCode.CAPABILITY_OP,
            f"{label} does not list {node.op_type} among the operators it offers",
            f"listing {node.op_type} in the ops of the spec would allow it",
            f"{offered.pointer}/ops" if offered.pointer else "",
        )
    miss = tensor_miss(node, support, target, stand_in, label)
    if miss is not None and not (miss.code is ReasonCode.CAPABILITY_DTYPE and target.conversions):
        return miss
    # Behind the other rules where types can be converted: that alone might not be enough.
    return clause_miss(Subject(node, opset, label, stand_in), clause_of(support)) or miss


def tensor_miss(
    node: onnx_ir.Node,
    support: OpSupport | None,
    target: AcceleratorTarget,
    stand_in: Mapping[onnx_ir.DataType, DType],
    label: str,
) -> Miss | None:
    """Element types and ranks of all operands and results, by the row or else the target."""
    offered = target.capabilities
    allowed = (support.dtypes if support is not None else ()) or offered.dtypes
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
                dtypes_pointer(offered, support),
            )
        shape = static_shape(value)
        if shape is not None and len(shape) > offered.max_rank:
            return Miss(
                ReasonCode.CAPABILITY_RANK,
                f"{value.name} has rank {len(shape)}, {label} allows {rank_text(offered)}",
                "reshaping it to fewer dimensions would allow it",
                f"{offered.pointer}/max_rank" if offered.pointer else "",
            )
    return None


def dtypes_pointer(offered: Capabilities, support: OpSupport | None) -> str:
    """Where the types that count for a row stand in the user's document; empty: nowhere."""
    has_own = support is not None and bool(support.dtypes)
    place = support.pointer if has_own and support is not None else offered.pointer
    return f"{place}/dtypes" if place else ""


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


def dtypes_text(dtypes: Sequence[DType]) -> str:
    """Types in words."""
    return " or ".join(dtypes)


def rank_text(capabilities: Capabilities) -> str:
    """The rank limit in words."""
    return f"at most {capabilities.max_rank}"


def support_texts(support: OpSupport) -> Iterator[str]:
    """The conditions of a rule in words, in the order they are checked; types apart."""
    return clause_texts(clause_of(support))
