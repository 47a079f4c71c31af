"""Why rows of a pattern table do not stand where they might: what `hardware match` prints.

The composites are the annotation's own, so that what is explained here is what a compile does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir

from worker.compiler.machine.machine import AcceleratorTarget
from worker.compiler.machine.operator import DeclaredOperator
from worker.compiler.machine.pattern import op_types
from worker.compiler.partition.annotate import Annotation
from worker.compiler.partition.attributes import opset_of
from worker.compiler.partition.implied import implied_rules
from worker.compiler.partition.patterns.matching import (
    Match,
    NearMiss,
    match_patterns,
    near_misses,
)
from worker.compiler.partition.plan import HOST, Composite, CompositeKind
from worker.compiler.partition.vendor_calls import CONVERTING, VendorCall, vendor_calls
from worker.compiler.partition.vendor_rows import (
    Ask,
    call_misses,
    other_rows,
    unmet,
    vendor_rows,
)


def missed_rows(
    nodes: Sequence[onnx_ir.Node],
    outputs: Sequence[str],
    target: AcceleratorTarget,
    found: Annotation,
    operators: Sequence[DeclaredOperator] = (),
) -> tuple[NearMiss, ...]:
    """Near misses of a target's rows: by shape, by what the target refuses, by saturation.

    `nodes` are those that were annotated; `outputs` names the values that leave the graph;
    `operators`: those that the machine defines.
    Cost: as `near_misses`, once more for the quantised operators, and for calls of vendors.
    """
    rules = other_rows(target)
    matches = [match for name, match in found.matches if name == target.name]
    inside = {k for match in matches for k in match.nodes}
    refused = [
        match for match in match_patterns(nodes, rules, outputs) if inside.isdisjoint(match.nodes)
    ]
    return (
        *_missed_calls(nodes, outputs, operators, target, found, matches),
        *(_refused(match, nodes, target, found) for match in refused),
        *near_misses(nodes, rules, outputs, (*matches, *refused)),
        *_without_activation(nodes, outputs, target, found, inside),
    )


def _missed_calls(
    nodes: Sequence[onnx_ir.Node],
    outputs: Sequence[str],
    operators: Sequence[DeclaredOperator],
    target: AcceleratorTarget,
    found: Annotation,
    matches: Sequence[Match],
) -> Iterator[NearMiss]:
    """Calls of foreign operators that no row takes as a whole, although one names them."""
    taken = {k for match in matches for k in match.nodes}
    row_of: dict[str, str] = {}
    for row in vendor_rows(target):
        for name in op_types(row.root):
            row_of.setdefault(name, row.name)
    whole: list[VendorCall] = []
    for call in vendor_calls(nodes, outputs):
        name, row_name = call.call.name, row_of.get(call.call.op)
        if row_name is None or not taken.isdisjoint(call.nodes):
            continue
        why = unmet(call, operators)
        refused = next((found.placement[k] for k in call.nodes
                        if found.placement[k].target == HOST), None)  # fmt: skip
        if why or refused is not None:
            said = why or (refused.reason if refused is not None else "")
            at = name if refused is None else refused.node
            yield NearMiss(row_name, name, at, f"{name}: {said}")
        if not why:
            whole.append(call)
    yield from call_misses(
        Ask(nodes, outputs, whole, range(len(nodes)), target, target.name, opset_of(nodes),
            lambda node: {}),
        matches,
    )  # fmt: skip


def _refused(
    match: Match, nodes: Sequence[onnx_ir.Node], target: AcceleratorTarget, found: Annotation
) -> NearMiss:
    """A match of the operators that the annotation did not take."""
    root = nodes[match.root].name or ""
    rows = [found.placement[k] for k in match.nodes]
    for row in rows:
        if row.target == HOST:
            return NearMiss(match.rule.name, root, row.node, f"{root}: {row.reason}")
    for row in rows:
        if row.target != target.name:
            text = f"{root}: {row.node} goes to {row.target}, which has precedence"
            return NearMiss(match.rule.name, root, row.node, text)
    text = f"{root}: its operators are quantised one by one, so they run as several"
    return NearMiss(match.rule.name, root, root, text)


def _without_activation(
    nodes: Sequence[onnx_ir.Node],
    outputs: Sequence[str],
    target: AcceleratorTarget,
    found: Annotation,
    inside: set[int],
) -> Iterator[NearMiss]:
    """Quantised operators that no row takes, although saturation may count as an activation."""
    rules = implied_rules(other_rows(target), None)
    for name, composite in found.composites:
        if name != target.name or not _is_open(composite, inside):
            continue
        own = [nodes[k] for k in composite.nodes if nodes[k].op_type not in CONVERTING]
        for match in match_patterns(own, rules, outputs):
            root = own[match.root].name or ""
            text = (
                f"{root}: it ends in no activation, and its quantisation has numbers below zero, so"
                " that its saturation is no Relu"
            )
            yield NearMiss(match.rule.name, root, root, text)
            break
        else:
            yield from near_misses(own, rules, outputs, ())


def _is_open(composite: Composite, inside: set[int]) -> bool:
    return composite.kind is CompositeKind.CLUSTER and inside.isdisjoint(composite.nodes)
