"""Pattern matching by brute force at toy size, written from the language's definition alone.

A derivation gives every place of the pattern a value.  All derivations are enumerated, in the order
of preference that the language states, and each is judged as a whole.  No memory, no pruning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir

from worker.compiler.machine.pattern import (
    Alternatives,
    AnyValue,
    OpMatch,
    PathTo,
    Pattern,
    PatternRule,
    SameValue,
)


@dataclass(frozen=True)
class Derivation:
    nodes: tuple[onnx_ir.Node, ...] = ()
    wildcards: tuple[onnx_ir.Value, ...] = ()
    bound: tuple[tuple[str, onnx_ir.Value], ...] = ()
    same: tuple[tuple[str, onnx_ir.Value], ...] = ()

    def __add__(self, other: Derivation) -> Derivation:
        return Derivation(
            self.nodes + other.nodes, self.wildcards + other.wildcards,
            self.bound + other.bound, self.same + other.same,
        )  # fmt: skip


def derivations(pattern: Pattern, value: onnx_ir.Value) -> Iterator[Derivation]:
    match pattern:
        case AnyValue(value=rule, bind=bind):
            is_constant = value.const_value is not None
            if rule.constant is None or rule.constant == is_constant:
                yield Derivation(wildcards=(value,), bound=((bind, value),) if bind else ())
        case SameValue(bind=bind):
            yield Derivation(same=((bind, value),))
        case Alternatives(options=options):
            for option in options:
                yield from derivations(option, value)
        case PathTo():
            yield from along(pattern, value)
        case OpMatch():
            bound = Derivation(bound=((pattern.bind, value),) if pattern.bind else ())
            for found in present(pattern, value):
                yield bound + found
            if pattern.optional:
                for found in derivations(pattern.inputs[pattern.through], value):
                    yield bound + found


def present(pattern: OpMatch, value: onnx_ir.Value) -> Iterator[Derivation]:
    node = value.producer()
    if node is None or node.op_type not in pattern.op_types or node.outputs[0] is not value:
        return
    for rule in pattern.attributes:
        if node.attributes[rule.name].as_int() not in rule.allowed:
            return
    if pattern.value.uses is not None:
        low, high = pattern.value.uses
        if not low <= len(value.uses()) + value.is_graph_output() <= high:
            return
    if len(node.inputs) < len(pattern.inputs):
        return
    lists = [list(pattern.inputs)]
    if pattern.commutative:
        lists.append([pattern.inputs[1], pattern.inputs[0], *pattern.inputs[2:]])
    for inputs in lists:
        for found in product(inputs, node.inputs):
            yield Derivation(nodes=(node,)) + found


def product(
    patterns: Sequence[Pattern], values: Sequence[onnx_ir.Value | None]
) -> Iterator[Derivation]:
    if not patterns:
        yield Derivation()
        return
    if values[0] is None:
        return
    for first in derivations(patterns[0], values[0]):
        for rest in product(patterns[1:], values[1:]):
            yield first + rest


def along(path: PathTo, value: onnx_ir.Value) -> Iterator[Derivation]:
    """Longest first: go on through the node if it may be on the path, then try the end here."""
    node = value.producer()
    if path.max_nodes > 0 and node is not None and node.op_type in path.op_types:
        data = {id(v): v for v in node.inputs if v is not None and v.const_value is None}
        if len(data) == 1 and node.outputs[0] is value:
            (operand,) = data.values()
            shorter = PathTo(path.op_types, path.end, path.max_nodes - 1)
            for found in along(shorter, operand):
                yield Derivation(nodes=(node,)) + found
    yield from derivations(path.end, value)


def is_valid(found: Derivation, root: onnx_ir.Node, taken: set[str]) -> bool:
    names = {node.name for node in found.nodes}
    if root.name not in names or names & taken:
        return False
    for value in found.wildcards:
        producer = value.producer()
        if producer is not None and producer.name in names:
            return False
    values: dict[str, onnx_ir.Value] = {}
    for name, value in found.bound:
        if values.setdefault(name, value) is not value:
            return False
    for name, value in found.same:
        if values.get(name) is not value:
            return False
    for node in found.nodes:
        for value in node.outputs:
            readers = {use.node.name for use in value.uses()}
            if node is not root and (value.is_graph_output() or not readers <= names):
                return False
    return True


def brute_force(
    nodes: Sequence[onnx_ir.Node], rules: Sequence[PatternRule]
) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Root's name -> (rule, names of the nodes in model order)."""
    taken: set[str] = set()
    matches: dict[str, tuple[str, tuple[str, ...]]] = {}
    for rule in rules:
        for root in nodes:
            for found in derivations(rule.root, root.outputs[0]):
                if is_valid(found, root, taken):
                    names = {node.name for node in found.nodes}
                    taken |= names  # type: ignore[arg-type]  # toy nodes have names
                    members = tuple(str(n.name) for n in nodes if n.name in names)
                    matches[str(root.name)] = (rule.name, members)
                    break
    return matches
