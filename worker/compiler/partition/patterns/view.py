"""The model as the pattern matcher reads it: who defines a value, who reads it, what it is like."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir

from worker.compiler.frontend.ops.call import DTYPES
from worker.compiler.machine.pattern import AttributeRule, ValueRule
from worker.compiler.partition.attributes import STANDARD_DOMAINS, attribute_miss, opset_of

OUTSIDE = -1
"""Stands for every reader or definer that is not one of the given nodes."""
FREE = ValueRule()
"""Asks nothing."""

Operands = tuple[tuple[onnx_ir.Value | None, int], ...]
"""Inputs of a node with the positions of their definers."""


class ModelIndex:
    """Nodes by position; what is asked of a node or value is worked out once and kept.

    Cost: linear in the nodes at first; each question constant plus the number of uses.
    """

    def __init__(self, nodes: Sequence[onnx_ir.Node], graph_outputs: Sequence[str]) -> None:
        self.nodes = tuple(nodes)
        self.opset = opset_of(self.nodes)
        self.types = tuple(
            node.op_type if node.domain in STANDARD_DOMAINS else "" for node in self.nodes
        )
        """Op types; empty for an operator of a foreign domain."""
        self._outputs = tuple(graph_outputs)
        self._output_names = frozenset(graph_outputs)
        self._position = {id(node): k for k, node in enumerate(self.nodes)}
        self._definers = {
            id(value): k for k, node in enumerate(self.nodes) for value in node.outputs
        }
        self._readers: dict[int, frozenset[int]] = {}
        self.by_type: dict[str, list[int]] = {}
        for k, op_type in enumerate(self.types):
            self.by_type.setdefault(op_type, []).append(k)
        self.operands: tuple[Operands, ...] = tuple(
            tuple((v, OUTSIDE if v is None else self.definer(v)) for v in node.inputs)
            for node in self.nodes
        )
        """Inputs of every node, each with the position of the node that defines it."""

    def definer(self, value: onnx_ir.Value) -> int:
        """Position of the node that computes the value, else OUTSIDE."""
        return self._definers.get(id(value), OUTSIDE)

    def leaves(self, k: int) -> bool:
        """Whether an output of node `k` is read where no match can reach."""
        return k != OUTSIDE and OUTSIDE in self.readers(k)

    def readers(self, k: int) -> frozenset[int]:
        """Positions of the nodes that read any output of node `k`; OUTSIDE among them when a graph
        output, a control-flow body or a node that was not given reads one."""
        found = self._readers.get(k)
        if found is None:
            positions: set[int] = set()
            for value in self.nodes[k].outputs:
                if value.is_graph_output() or value.name in self._output_names:
                    positions.add(OUTSIDE)
                for use in value.uses():
                    positions.add(self._position.get(id(use.node), OUTSIDE))
            found = self._readers[k] = frozenset(positions)
        return found

    def uses(self, value: onnx_ir.Value) -> int:
        """How many node inputs and graph outputs read the value."""
        return len(value.uses()) + self._outputs.count(value.name or "\0")

    def name(self, k: int) -> str:
        """Name of a node for messages."""
        node = self.nodes[k]
        return node.name or f"{node.op_type}_{k}"

    def origin_text(self, value: onnx_ir.Value) -> str:
        """Where a value comes from, as the end of a sentence about it."""
        definer = self.definer(value)
        if definer != OUTSIDE:
            return f"is defined by {self.name(definer)} ({self.nodes[definer].op_type})"
        if value.const_value is not None:
            return f"is a constant ({value.name})"
        return f"is {value.name}, which no node of the graph defines"

    def escape_text(self, k: int, inside: frozenset[int]) -> str:
        """Which output of node `k` is read outside the nodes `inside`, and by whom."""
        for value in self.nodes[k].outputs:
            if value.is_graph_output() or value.name in self._output_names:
                reader = "is also an output of the model"
            else:
                outer = [
                    use.node
                    for use in value.uses()
                    if self._position.get(id(use.node), OUTSIDE) not in inside
                ]
                if not outer:
                    continue
                reader = f"is also read by {outer[0].name or outer[0].op_type}"
            return f"the value {value.name} {reader}, so it cannot disappear inside the composite"
        raise AssertionError("asked only of a node whose values leave")

    def attribute_miss(self, k: int, rules: Sequence[AttributeRule]) -> str | None:
        """The first attribute rule that node `k` breaks, as a clause."""
        for rule in rules:
            found = attribute_miss(self.nodes[k], rule, self.opset)
            if found is not None:
                return found
        return None

    def value_miss(self, value: onnx_ir.Value, rule: ValueRule) -> str | None:
        """None when the value obeys the rule, else a clause: actual against allowed.

        An unknown type, rank or dimension obeys no rule about it.
        """
        if rule.constant is not None and _is_constant(value) != rule.constant:
            if rule.constant:
                return "is computed, the pattern wants a constant"
            return "is a constant, the pattern wants a computed value or a model input"
        if rule.dtypes:
            dtype = None if value.dtype is None else DTYPES.get(value.dtype)
            if dtype not in rule.dtypes:
                actual = str(dtype) if dtype else "of an unknown or unsupported type"
                return f"is {actual}, the pattern wants {' or '.join(rule.dtypes)}"
        if rule.rank is not None:
            rank = None if value.shape is None else len(value.shape)
            if rank is None or not rule.rank[0] <= rank <= rule.rank[1]:
                return f"has rank {_known(rank)}, the pattern wants {_range(rule.rank)}"
        if rule.shape is not None:
            found = _shape_miss(value, rule.shape)
            if found is not None:
                return found
        if rule.uses is not None:
            uses = self.uses(value)
            if not rule.uses[0] <= uses <= rule.uses[1]:
                return f"is read {uses} times, the pattern wants {_range(rule.uses)}"
        return None


def _is_constant(value: onnx_ir.Value) -> bool:
    """Whether the model holds the value: as it is, or quantised, with its dequantisation."""
    definer = value.producer()
    if definer is not None and definer.op_type == "DequantizeLinear":
        source = definer.inputs[0]
        return source is not None and source.const_value is not None
    return value.const_value is not None


def _shape_miss(value: onnx_ir.Value, bounds: Sequence[tuple[int, int] | None]) -> str | None:
    dims = None if value.shape is None else tuple(value.shape)
    if dims is None or len(dims) != len(bounds):
        rank = None if dims is None else len(dims)
        return f"has rank {_known(rank)}, the pattern wants {len(bounds)} dimensions"
    for axis, (dim, allowed) in enumerate(zip(dims, bounds, strict=True)):
        if allowed is None:
            continue
        if not isinstance(dim, int) or not allowed[0] <= dim <= allowed[1]:
            actual = dim if isinstance(dim, int) else "unknown"
            return f"has dimension {axis} = {actual}, the pattern wants {_range(allowed)}"
    return None


def _range(bounds: tuple[int, int]) -> str:
    low, high = bounds
    return str(low) if low == high else f"{low} to {high}"


def _known(rank: int | None) -> str:
    return "unknown" if rank is None else str(rank)
