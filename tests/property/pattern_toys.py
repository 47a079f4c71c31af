"""Random toy graphs, and patterns grown along them so that they often match, then distorted."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import onnx_ir as ir

from worker.compiler.machine.pattern import (
    Alternatives,
    AnyValue,
    AttributeRule,
    OpMatch,
    PathTo,
    Pattern,
    PatternRule,
    SameValue,
    ValueRule,
)

UNARY = ("Relu", "Neg")
BINARY = ("Add", "Mul")
_TYPE = ir.TensorType(ir.DataType.FLOAT)


def toy_graph(rng: Random) -> ir.Graph:
    """Up to nine nodes: unary, binary, and a node with two outputs."""
    ones = ir.tensor(np.ones(2, np.float32))
    values = [
        ir.val("c", type=_TYPE, shape=ir.Shape([2]), const_value=ones),
        ir.val("x", type=_TYPE, shape=ir.Shape([2])),
    ]
    given = values[1]
    nodes: list[ir.Node] = []
    for k in range(rng.randint(2, 9)):
        op_type = rng.choice((*UNARY, *UNARY, *BINARY, *BINARY, "Split"))
        pool = values[-3:] if rng.random() < 0.8 else values
        first = values[-1] if rng.random() < 0.7 else rng.choice(pool)
        inputs = [first, rng.choice(pool)] if op_type in BINARY else [first]
        rng.shuffle(inputs)
        node = ir.Node(
            "", op_type, inputs, [ir.AttrInt64("level", rng.randint(0, 1))],
            num_outputs=2 if op_type == "Split" else 1, name=f"n{k}", version=18,
        )  # fmt: skip
        for j, value in enumerate(node.outputs):
            value.name = f"v{k}_{j}"
        nodes.append(node)
        values.extend(reversed(node.outputs))
    computed = [v for node in nodes for v in node.outputs]
    outputs = [v for v in computed if not v.uses() or rng.random() < 0.06]
    return ir.Graph([given], outputs, nodes=nodes, name="toy", opset_imports={"": 18})


class Grower:
    """Grows one pattern backwards from a value; knows which names it has bound to what."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._bound: dict[ir.Value, str] = {}

    def chance(self, share: float) -> bool:
        return self._rng.random() < share

    def root(self, node: ir.Node) -> Pattern:
        pattern = self._op(node, 3)
        if self.chance(0.15):
            return Alternatives((replace(pattern, op_types=("Neg",)), pattern))
        if self.chance(0.1):
            return PathTo(UNARY, pattern, 2)
        return pattern

    def grow(self, value: ir.Value, depth: int) -> Pattern:
        node = value.producer()
        if value in self._bound and self.chance(0.5):
            return SameValue(self._bound[value])
        if node is None or depth == 0 or self.chance(0.2):
            return self._leaf(value)
        pattern: Pattern = self._op(node, depth)
        if self.chance(0.25):
            assert isinstance(pattern, OpMatch)
            through = self._rng.randrange(len(pattern.inputs))
            pattern = replace(pattern, optional=True, through=through)
        if self.chance(0.2):
            decoy = self._rng.choice((*UNARY, "Split"))
            pattern = OpMatch((decoy,), (pattern,), optional=True)
        if self.chance(0.2):
            other = self._op(node, depth) if self.chance(0.5) else AnyValue()
            options = [pattern, other]
            self._rng.shuffle(options)
            pattern = Alternatives(tuple(options))
        if self.chance(0.2):
            types = tuple(self._rng.sample((*UNARY, *BINARY), 2))
            pattern = PathTo(types, pattern, self._rng.randint(1, 3))
        return pattern

    def _leaf(self, value: ir.Value) -> Pattern:
        if self.chance(0.1):
            return SameValue(self._rng.choice("pqrs"))
        is_constant = value.const_value is not None
        rule = ValueRule(constant=is_constant if self.chance(0.3) else None)
        return AnyValue(rule, self._name(value))

    def _name(self, value: ir.Value) -> str | None:
        if not self.chance(0.3):
            return None
        name = self._rng.choice("pqrs")
        self._bound[value] = name
        return name

    def _op(self, node: ir.Node, depth: int) -> OpMatch:
        op_types = (node.op_type,)
        if self.chance(0.1):
            op_types = (self._rng.choice((*UNARY, *BINARY)),)
        elif self.chance(0.2):
            op_types = ("Neg", node.op_type) if node.op_type != "Neg" else ("Relu", "Neg")
        name = self._name(node.outputs[0])
        inputs = [self.grow(v, depth - 1) for v in node.inputs if v is not None]
        commutative = len(inputs) == 2 and self.chance(0.6)
        if commutative:
            self._rng.shuffle(inputs)
        uses = self._rng.choice((None, None, None, None, (0, 1), (1, 2)))
        level = AttributeRule("level", (node.attributes["level"].as_int(),))
        return OpMatch(
            op_types,
            tuple(inputs),
            (level,) if self.chance(0.15) else (),
            commutative=commutative,
            value=ValueRule(uses=uses),
            bind=name,
        )


def toy_rules(graph: ir.Graph, rng: Random) -> tuple[PatternRule, ...]:
    """One to three patterns, each grown from some node of the graph."""
    nodes = list(graph)
    roots = [Grower(rng).root(rng.choice(nodes)) for _ in range(rng.randint(1, 3))]
    return tuple(PatternRule(f"rule{k}", root) for k, root in enumerate(roots))
