"""Why a pattern does not stand at a node: the deepest point an attempt reached, in a sentence.

First place by place (types, attributes, operands), each judged by itself; when every place would
do, the conflict of the first way as a whole (an escaping value, another composite, bindings).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir

from worker.compiler.machine.pattern import Alternatives, AnyValue, OpMatch, PathTo, SameValue
from worker.compiler.partition.patterns.local import orders
from worker.compiler.partition.patterns.search import (
    MAX_STEPS,
    Search,
    TooManyWays,
    Way,
)
from worker.compiler.partition.patterns.steps import Step
from worker.compiler.partition.patterns.view import FREE, OUTSIDE, ModelIndex, Operands


@dataclass(frozen=True, slots=True)
class _Miss:
    """How far an attempt came below one place, and what stopped it."""

    depth: int
    """Nodes matched on the way down to the failure."""
    at: int | None
    """Node that failed; None: the value itself, and whoever reads it names the operand."""
    clause: str


class Explainer:
    """Explains patterns on one model; places are judged once per value."""

    def __init__(self, view: ModelIndex, search: Search) -> None:
        self._view = view
        self._search = search
        self._known: dict[tuple[int, int], _Miss | None] = {}

    def why(self, root: Step, k: int, before: Mapping[int, str]) -> tuple[int, str]:
        """The node where the attempt with root node `k` failed, and the sentence.

        `before` maps nodes of composites that come first to their patterns' names.
        """
        view = self._view
        value = view.nodes[k].outputs[0]
        miss = self._place(root, value)
        if miss is not None:
            at = k if miss.at is None else miss.at
            return at, f"{view.name(at)}: {miss.clause}"
        try:
            for way in self._search.ways_at(root, k):
                conflict = self._search.conflict(way, k, before)
                if conflict is not None:
                    return self._conflict(way, *conflict, before)
        except TooManyWays:
            return k, (
                f"{view.name(k)}: no match among the first {MAX_STEPS} ways in which the pattern's "
                "choices can be combined here, where the search ends"
            )
        return k, (
            f"{view.name(k)}: every part matches, but not together: a wildcard stands for a value "
            "that the composite itself computes, or one name is bound to different values"
        )

    def _conflict(self, way: Way, kind: str, at: int, before: Mapping[int, str]) -> tuple[int, str]:
        view = self._view
        match kind:
            case "taken":
                text = (
                    f"{view.name(at)} is already part of a composite {before[at]}, "
                    "which has precedence"
                )
            case "escape":
                text = f"{view.name(at)}: {view.escape_text(at, way.nodes)}"
            case _:
                text = f"{view.name(at)}: {_binding_text(way)}"
        return at, text

    def _place(self, step: Step, value: onnx_ir.Value) -> _Miss | None:
        key = (id(step), id(value))
        if key not in self._known:
            self._known[key] = self._judge(step, value)
        return self._known[key]

    def _judge(self, step: Step, value: onnx_ir.Value) -> _Miss | None:
        """None when the place could stand at the value, considered by itself."""
        view = self._view
        if not step.is_open:
            definer = view.definer(value)
            if definer == OUTSIDE or view.types[definer] not in step.heads:
                wanted = " or ".join(step.wanted)
                return _Miss(0, None, f"{view.origin_text(value)}, the pattern wants {wanted}")
        match step.pattern:
            case AnyValue(value=rule):
                found = view.value_miss(value, rule)
                return None if found is None else _Miss(0, None, found)
            case SameValue():
                return None
            case Alternatives():
                return _deepest(*(self._place(child, value) for child in step.children))
            case PathTo() as path:
                return self._path(path, step, value)
            case OpMatch() as op:
                present = self._node(op, step, value)
                if not op.optional or present is None or op.through >= len(step.children):
                    return None if op.optional and op.through >= len(step.children) else present
                return _deepest(present, self._place(step.children[op.through], value))

    def _node(self, op: OpMatch, step: Step, value: onnx_ir.Value) -> _Miss | None:
        view = self._view
        k = view.definer(value)
        if k == OUTSIDE or view.types[k] not in op.op_types:
            wanted = " or ".join(op.op_types)
            return _Miss(0, None, f"{view.origin_text(value)}, the pattern wants {wanted}")
        node = view.nodes[k]
        if node.outputs[0] is not value:
            position = node.outputs.index(value)
            return _Miss(
                0, None, f"is output {position} of {view.name(k)}; patterns refer to first outputs"
            )
        if len(step.children) > len(node.inputs):
            return _Miss(
                1, k, f"has {len(node.inputs)} inputs, the pattern wants {len(step.children)}"
            )
        found = view.attribute_miss(k, op.attributes)
        if found is not None:
            return _Miss(1, k, found)
        if op.value != FREE:
            found = view.value_miss(value, op.value)
            if found is not None:
                return _Miss(1, k, f"its result {found}")
        operands = view.operands[k]
        tries = [self._operands(children, operands, k) for children in orders(op, step, operands)]
        return _deepest(*tries)

    def _operands(self, children: tuple[Step, ...], operands: Operands, k: int) -> _Miss | None:
        """The deepest failure among the operands of node `k`, in one order."""
        worst: _Miss | None = None
        for position, (child, (operand, _)) in enumerate(zip(children, operands, strict=False)):
            miss = self._operand(child, operand, position, k)
            if miss is not None and (worst is None or miss.depth > worst.depth):
                worst = miss
        return worst

    def _operand(
        self, child: Step, operand: onnx_ir.Value | None, position: int, k: int
    ) -> _Miss | None:
        if operand is None:
            return _Miss(1, k, f"input {position} is absent")
        miss = self._place(child, operand)
        if miss is not None:
            if miss.at is None:
                return _Miss(miss.depth + 1, k, f"input {position} {miss.clause}")
            return _Miss(miss.depth + 1, miss.at, miss.clause)
        definer = self._view.definer(operand)
        if not child.is_open and self._view.leaves(definer):
            text = self._view.escape_text(definer, frozenset(range(len(self._view.nodes))))
            return _Miss(2, definer, text)
        return None

    def _path(self, path: PathTo, step: Step, value: onnx_ir.Value) -> _Miss | None:
        chain, values = self._search.local.chain(path, value)
        tries: list[_Miss | None] = []
        for count in range(len(chain), -1, -1):
            miss = self._place(step.children[0], values[count])
            if miss is not None and count:
                owner = chain[count - 1]
                position = self._view.nodes[owner].inputs.index(values[count])
                at = owner if miss.at is None else miss.at
                clause = f"input {position} {miss.clause}" if miss.at is None else miss.clause
                miss = _Miss(miss.depth + count, at, clause)
            tries.append(miss)
        return _deepest(*tries)


def _deepest(*tries: _Miss | None) -> _Miss | None:
    """None when one of the attempts would do, else the one that came furthest; first on a tie."""
    worst: _Miss | None = None
    for miss in tries:
        if miss is None:
            return None
        if worst is None or miss.depth > worst.depth:
            worst = miss
    return worst


def _binding_text(way: Way) -> str:
    bound = dict(way.bound)
    for name, value in way.asked:
        if name not in bound:
            return f"nothing is bound to {name} in the way that matches, so nothing can be the same"
        if bound[name] is not value:
            return f"{name} is bound to {bound[name].name}, but {value.name} stands in its place"
    raise AssertionError("asked only of a way whose bindings conflict")
