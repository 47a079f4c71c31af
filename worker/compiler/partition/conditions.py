"""Do the demands of a row hold for a node?  The one evaluator of limits, values and comparisons.

A demand about a quantity that the node does not have (the group of an Add, a dimension behind the
last) does not concern it.  Where none of several alternatives holds, the refusal says what is
missing to each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isclose, isfinite, prod
from types import MappingProxyType

import onnx_ir

from worker.compiler.frontend.ops.call import DTYPES
from worker.compiler.frontend.tensor_checks import num_bytes
from worker.compiler.frontend.work import static_shape
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import OpSupport
from worker.compiler.machine.rule import (
    AnyOf,
    AttributeName,
    Clause,
    Comparison,
    Condition,
    OperandName,
    Relation,
    Term,
    attribute_name,
    operand_name,
)
from worker.compiler.partition.attributes import (
    allowed_text,
    attribute_miss,
    attribute_value,
    value_text,
)
from worker.compiler.partition.quantities import quantity
from worker.compiler.rejection import ReasonCode

_TOLERANCE = 1e-9
"""Relative: products of decimal fractions are not exact."""
_WORDS: Mapping[Relation, str] = MappingProxyType(
    {
        Relation.AT_MOST: "at most", Relation.AT_LEAST: "at least", Relation.EQUALS: "only",
        Relation.MULTIPLE_OF: "only multiples of",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Miss:
    """The first rule that a node breaks."""

    code: ReasonCode
    fact: str
    """Actual value against what the target allows, a full clause."""
    lever: str
    """What would lift it."""
    pointer: str = ""
    """Of the rule, in the user's document; empty: it has no place there."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The node that is asked about, and how it is looked at."""

    node: onnx_ir.Node
    opset: int
    label: str
    """What sentences call the target."""
    stand_in: Mapping[onnx_ir.DataType, DType] = field(default_factory=dict)
    """Element types that a quantisation replaces."""


def clause_of(support: OpSupport) -> Clause:
    """What a row demands beside types."""
    return Clause(
        support.limits, support.attributes, support.constant_inputs, support.conditions,
        support.pointer,
    )  # fmt: skip


def clause_miss(subject: Subject, clause: Clause) -> Miss | None:
    """The first demand of a clause that the node breaks: limits, attributes, constants, conditions.

    Cost: linear in the demands.
    """
    return (
        limit_miss(subject, clause)
        or _attribute_miss(subject, clause)
        or _constant_miss(subject, clause)
        or next(
            (m for c in clause.conditions if (m := _condition_miss(subject, c)) is not None), None
        )
    )


def clause_texts(clause: Clause) -> Iterator[str]:
    """The demands in words, in the order they are checked."""
    for name, low, high in clause.limits:
        yield f"{name} {limit_text(low, high)}"
    for rule in clause.attributes:
        yield f"{rule.name} {allowed_text(rule)}"
    for k in clause.constant_inputs:
        yield f"input {k} constant"
    for condition in clause.conditions:
        yield _condition_text(condition)


def limit_text(low: int, high: int) -> str:
    """Bounds in words."""
    return f"{low} to {high}" if low < high else f"only {low}"


def limit_miss(subject: Subject, clause: Clause) -> Miss | None:
    """The first limit of a quantity that the node does not keep."""
    for name, low, high in clause.limits:
        actual = quantity(subject.node, name, subject.opset)
        if actual is not None and not low <= actual <= high:
            bound = f"a maximum of {actual}" if actual > high else f"a minimum of {actual}"
            return Miss(
                ReasonCode.CAPABILITY_ATTRIBUTE,
                f"{name} is {actual}, {subject.label} allows {limit_text(low, high)}",
                f"{bound} for {name} in the spec would allow it",
                _below(clause, f"limits/{name}"),
            )
    return None


def _below(clause: Clause, place: str) -> str:
    return f"{clause.pointer}/{place}" if clause.pointer else ""


def _attribute_miss(subject: Subject, clause: Clause) -> Miss | None:
    for rule in clause.attributes:
        if attribute_miss(subject.node, rule, subject.opset) is not None:
            value = attribute_value(subject.node, rule.name, subject.opset)
            actual = "not set" if value is None else value_text(value)
            return Miss(
                ReasonCode.CAPABILITY_ATTRIBUTE,
                f"{rule.name} is {actual}, {subject.label} allows {allowed_text(rule)}",
                f"another {rule.name} in the model, or a wider rule in the spec, would allow it",
                _below(clause, f"attributes/{rule.name}"),
            )
    return None


def _constant_miss(subject: Subject, clause: Clause) -> Miss | None:
    inputs = subject.node.inputs
    for k in clause.constant_inputs:
        value = inputs[k] if k < len(inputs) else None
        if value is not None and value.name and not _is_constant(value):
            return Miss(
                ReasonCode.CONSTANT_INPUT,
                f"input {k} ({value.name}) is computed, {subject.label} allows only constants"
                " there",
                "making it an initializer of the model would allow it",
                _below(clause, "constant_inputs"),
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


def _condition_miss(subject: Subject, condition: Condition) -> Miss | None:
    match condition:
        case Comparison():
            return _comparison_miss(subject, condition)
        case AnyOf(clauses=clauses, pointer=pointer):
            misses: list[Miss] = []
            for clause in clauses:
                miss = clause_miss(subject, clause)
                if miss is None:
                    return None
                misses.append(miss)
            facts = "; or ".join(miss.fact for miss in misses)
            return Miss(
                ReasonCode.CAPABILITY_ATTRIBUTE,
                f"none of {len(clauses)} alternatives holds: {facts}",
                "one of them in the model, or one more in the spec, would allow it",
                pointer,
            )


def _comparison_miss(subject: Subject, comparison: Comparison) -> Miss | None:
    left = _term_value(subject, comparison.left)
    right = _term_value(subject, comparison.right)
    if left is None or right is None or _holds(left, comparison.relation, right):
        return None
    name, other = term_text(comparison.left), term_text(comparison.right)
    limit = f"{right:.15g}"
    limit = other if other == limit else f"{other} = {limit}"
    return Miss(
        ReasonCode.CAPABILITY_ATTRIBUTE,
        f"{name} is {left:.15g}, {subject.label} allows {_WORDS[comparison.relation]} {limit}",
        f"another {name} in the model, or a wider rule in the spec, would allow it",
        comparison.pointer,
    )


def _holds(left: float, relation: Relation, right: float) -> bool:
    is_equal = isclose(left, right, rel_tol=_TOLERANCE)
    match relation:
        case Relation.AT_MOST:
            return left < right or is_equal
        case Relation.AT_LEAST:
            return left > right or is_equal
        case Relation.EQUALS:
            return is_equal
        case Relation.MULTIPLE_OF:
            if right == 0 or not (isfinite(left) and isfinite(right)):
                return left == right
            return isclose(left / right, round(left / right))


def term_text(term: Term) -> str:
    """A side of a comparison as users read it."""
    return " x ".join(factor.text for factor in term)


def _condition_text(condition: Condition) -> str:
    match condition:
        case Comparison(left=left, relation=relation, right=right):
            return f"{term_text(left)} {_WORDS[relation]} {term_text(right)}"
        case AnyOf(clauses=clauses):
            return " or ".join(f"({', '.join(clause_texts(clause))})" for clause in clauses)


def _term_value(subject: Subject, term: Term) -> float | None:
    """The product, or None where the node lacks one of its quantities."""
    product = 1.0
    for factor in term:
        value = factor.value if factor.value is not None else _measured(subject, factor.text)
        if value is None:
            return None
        product *= value
    return product


def _measured(subject: Subject, text: str) -> float | None:
    operand = operand_name(text)
    if operand is not None:
        return _operand_figure(subject, operand)
    attribute = attribute_name(text)
    if attribute is not None:
        return _attribute_figure(subject, attribute)
    return quantity(subject.node, text, subject.opset)


def _operand_figure(subject: Subject, name: OperandName) -> int | None:
    values = subject.node.inputs if name.is_input else subject.node.outputs
    value = values[name.position] if name.position < len(values) else None
    dims = static_shape(value)
    if value is None or dims is None:
        return None
    match name.figure:
        case "rank":
            return len(dims)
        case "elements":
            return prod(dims)
        case "bytes":
            return _stored_bytes(subject, value, dims)
        case _:
            return dims[name.axis] if -len(dims) <= name.axis < len(dims) else None


def _stored_bytes(subject: Subject, value: onnx_ir.Value, dims: tuple[int, ...]) -> int | None:
    """As stored on the accelerator: of a dequantised operand the integers that it comes from."""
    producer = value.producer()
    if subject.stand_in and producer is not None and producer.op_type == "DequantizeLinear":
        source = producer.inputs[0]
        if source is not None:
            value = source
    found = value.dtype
    if found is None and value.const_value is not None:
        found = value.const_value.dtype
    if found is None:
        return None
    dtype = subject.stand_in.get(found)
    stored = found if dtype is None else next(o for o, ours in DTYPES.items() if ours is dtype)
    return num_bytes(stored, dims)


def _attribute_figure(subject: Subject, name: AttributeName) -> float | None:
    value = attribute_value(subject.node, name.name, subject.opset)
    if isinstance(value, tuple) and name.element is not None:
        if not -len(value) <= name.element < len(value):
            return None
        value = value[name.element]
    return float(value) if isinstance(value, int | float) else None
