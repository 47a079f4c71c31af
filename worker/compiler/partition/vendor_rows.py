"""Rows about foreign operators, asked on a model in which their calls are single nodes.

Such rows come before all others, those of the pattern table before those of `ops`; a call that none
takes is left to the other rows, which see its body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir

from worker.compiler.frontend.declared import declared_digests
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import AcceleratorTarget
from worker.compiler.machine.operator import DeclaredOperator, is_foreign
from worker.compiler.machine.pattern import OpMatch, PatternRule, op_types
from worker.compiler.partition.conditions import Miss, Subject, clause_miss, clause_of
from worker.compiler.partition.patterns.matching import Match, NearMiss, match_patterns, near_misses
from worker.compiler.partition.rules import tensor_miss
from worker.compiler.partition.vendor_calls import Contracted, VendorCall, contracted


def rows_of(target: AcceleratorTarget) -> tuple[PatternRule, ...]:
    """All rows of which a composite may be: the pattern table, then rows of `ops` about foreign
    operators."""
    return (*target.capabilities.patterns, *_op_rows(target))


def vendor_rows(target: AcceleratorTarget) -> tuple[PatternRule, ...]:
    """Rows that name foreign operators, by precedence."""
    patterns = target.capabilities.patterns
    named = tuple(p for p in patterns if any(map(is_foreign, op_types(p.root))))
    return (*named, *_op_rows(target))


def _op_rows(target: AcceleratorTarget) -> tuple[PatternRule, ...]:
    return tuple(
        PatternRule(s.op_type, OpMatch((s.op_type,)), pointer=s.pointer)
        for s in target.capabilities.ops
        if is_foreign(s.op_type)
    )


def other_rows(target: AcceleratorTarget) -> tuple[PatternRule, ...]:
    """Rows of the pattern table about operators of the standard alone."""
    return tuple(
        p for p in target.capabilities.patterns if not any(map(is_foreign, op_types(p.root)))
    )


def unmet(call: VendorCall, operators: Sequence[DeclaredOperator]) -> str:
    """Why a call does not stand as one operator; empty: it does.  `operators`: the machine's."""
    name = call.call.op
    declared = declared_digests(operators).get(name)
    if declared is not None and declared != call.call.definition:
        return f"the model itself defines {name}, otherwise than the hardware spec does"
    if call.broken:
        return f"it is no longer the operator that was called: {call.broken}"
    return ""


@dataclass(frozen=True, slots=True)
class Ask:
    """What rows are asked about, and for whom."""

    nodes: Sequence[onnx_ir.Node]
    """Of the model."""
    outputs: Sequence[str]
    calls: Sequence[VendorCall]
    """Those that may stand as one."""
    others: Sequence[int]
    """Positions of nodes that may be in a composite with them."""
    target: AcceleratorTarget
    label: str
    """What sentences call the target."""
    opset: int
    stand_in: Callable[[onnx_ir.Node], Mapping[onnx_ir.DataType, DType]]
    """Element types that a conversion replaces at a node."""

    def model(self) -> Contracted:
        """The model with the calls as nodes."""
        wanted = {name for row in vendor_rows(self.target) for name in op_types(row.root)}
        others = [k for k in self.others if self.nodes[k].op_type in wanted]
        return contracted(self.nodes, self.calls, others, self.opset)

    def miss(self, rule: PatternRule, node: onnx_ir.Node, body: Sequence[int]) -> Miss | None:
        """What a row of `ops` refuses of a call, by the same rules as of any operator."""
        support = self.target.capabilities.support(rule.name)
        if support is None or not is_foreign(rule.name):
            return None
        stand_in = {k: v for n in body for k, v in self.stand_in(self.nodes[n]).items()}
        found = tensor_miss(node, support, self.target, stand_in, self.label)
        subject = Subject(node, self.opset, self.label, stand_in)
        return found or clause_miss(subject, clause_of(support))


def match_calls(ask: Ask) -> tuple[Match, ...]:
    """Composites of rows about foreign operators, with positions in the model.

    Cost: that of `match_patterns` where the model has such calls and the target such rows.
    """
    rows = vendor_rows(ask.target)
    if not ask.calls or not rows:
        return ()
    model = ask.model()
    found: list[Match] = []
    for match in match_patterns(model.nodes, rows, ask.outputs):
        last = model.members[match.root]
        if ask.miss(match.rule, model.nodes[match.root], last) is None:
            nodes = sorted(n for k in match.nodes for n in model.members[k])
            found.append(Match(match.rule, tuple(nodes), last[-1], match.bindings))
    return tuple(found)


def call_misses(ask: Ask, matches: Sequence[Match]) -> tuple[NearMiss, ...]:
    """Why rows about foreign operators do not take the calls outside `matches`."""
    rows = vendor_rows(ask.target)
    if not ask.calls or not rows:
        return ()
    model = ask.model()
    inside = {n for match in matches for n in match.nodes}
    own: list[Match] = []
    refused: list[NearMiss] = []
    for match in match_patterns(model.nodes, rows, ask.outputs):
        node, body = model.nodes[match.root], model.members[match.root]
        miss = ask.miss(match.rule, node, body)
        if miss is None and inside.isdisjoint(n for k in match.nodes for n in model.members[k]):
            miss_text = "its operators are placed one by one, so they run as several"
        elif miss is None:
            own.append(match)
            continue
        else:
            rule = f" [rule {miss.pointer}]" if miss.pointer else ""
            miss_text = f"{miss.fact}; {miss.lever}{rule}"
        name = node.name or ""
        refused.append(NearMiss(match.rule.name, name, name, f"{name}: {miss_text}"))
        own.append(match)
    return (*refused, *near_misses(model.nodes, rows, ask.outputs, own))
