"""Reverse mode: gradients of a scalar by parameters, node by node from the loss backwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx_ir

from worker.compiler.errors import Finding, ModelError
from worker.compiler.train.emit import FLOATS, Emitter
from worker.compiler.train.joined import joined_products
from worker.compiler.train.rules.registry import NO_VALUES, REWRITTEN, RULES, STEPS
from worker.compiler.train.rules.site import NoRule, Rule, Site


def flows(node: onnx_ir.Node) -> tuple[int, ...]:
    """Inputs of a node that a gradient flows to, when one reaches its outputs.

    All of them for an operator without a rule, so that it is found.
    """
    if node.domain == "" and node.op_type in STEPS | NO_VALUES:
        return ()
    allowed = REWRITTEN.get(node.op_type) if node.domain == "" else None
    if node.domain == "" and node.op_type in RULES:
        allowed = RULES[node.op_type].operands
    return tuple(
        k for k, value in enumerate(node.inputs)
        if value is not None and value.dtype in FLOATS and (allowed is None or k in allowed)
    )  # fmt: skip


def reaching(
    nodes: Sequence[onnx_ir.Node], target: onnx_ir.Value, sources: Iterable[onnx_ir.Value]
) -> list[onnx_ir.Node]:
    """Nodes, in order, that a gradient passes on its way from `target` to `sources`."""
    active = set(sources)
    forward = []
    for node in nodes:
        if any(node.inputs[k] in active for k in flows(node)):
            forward.append(node)
            active.update(v for v in node.outputs if v.dtype in FLOATS)
    needed = {target}
    passed = []
    for node in reversed(forward):
        if any(v in needed for v in node.outputs):
            passed.append(node)
            needed.update(v for k in flows(node) if (v := node.inputs[k]) in active and v)
    return passed[::-1]


def gradients(
    emit: Emitter,
    nodes: Sequence[onnx_ir.Node],
    loss: onnx_ir.Value,
    seed: onnx_ir.Value,
    parameters: Sequence[onnx_ir.Value],
    closed: Mapping[onnx_ir.Node, tuple[onnx_ir.Value, Rule]],
    reasons: Mapping[str, str],
) -> dict[onnx_ir.Value, onnx_ir.Value]:
    """Append the backward pass of `nodes`; give each reached parameter its gradient.

    `seed` is the gradient of `loss`, whose shape it has.  A node of `closed` has a rule of its own,
    which gives the gradient of the value beside it: what lies between is passed over.  `reasons`
    say of nodes, by name, why they could not be written out.  Sums of several gradients are in the
    order of the nodes, last first.

    Raises:
        ModelError: TW-TRAIN-003, nodes on the way have no rule: a finding each.

    Cost: linear in nodes.
    """
    passed = reaching(nodes, loss, parameters)
    findings = [
        _missing(node, reasons.get(str(node.name), "the operator has no gradient rule"))
        for node in passed if not _has_rule(node)
    ]  # fmt: skip
    active = set(parameters)
    for node in passed:
        active.update(node.outputs)
    found: dict[onnx_ir.Value, onnx_ir.Value] = {loss: seed}
    for node in reversed(passed):
        summed = [found.pop(v, None) for v in node.outputs]
        if all(grad is None for grad in summed):
            continue
        emit.begin(f"{node.name}/gradient")
        grads = tuple(
            None if grad is None else joined_products(emit, grad, found) for grad in summed
        )
        wanted = frozenset(k for k in flows(node) if node.inputs[k] in active)
        site = Site(node, emit, grads, wanted)
        if node in closed:
            source, rule = closed[node]
            _add(emit, found, source, rule(site)[0])
            continue
        try:
            made = RULES[node.op_type].rule(site) if _has_rule(node) else _of_their_shapes(site)
        except NoRule as refusal:
            findings.append(_missing(node, str(refusal)))
            made = _of_their_shapes(site)
        for index in sorted(made):
            if index in wanted:
                _add(emit, found, site.x(index), made[index])
    if findings:
        raise _refusal(findings)
    reached = [value for value in parameters if value in found]
    for value in reached:
        emit.begin(f"{value.name}/gradient")
        total = found.pop(value)
        found[value] = joined_products(emit, total, found)
    return {value: found[value] for value in reached}


def _add(
    emit: Emitter,
    found: dict[onnx_ir.Value, onnx_ir.Value],
    value: onnx_ir.Value,
    grad: onnx_ir.Value,
) -> None:
    found[value] = emit.op("Add", found[value], grad) if value in found else grad


def _has_rule(node: onnx_ir.Node) -> bool:
    return node.domain == "" and node.op_type in RULES


def _of_their_shapes(site: Site) -> dict[int, onnx_ir.Value]:
    """Something of the right shape, so that what lies further back is looked at, too."""
    return site.like(site.x)


def _missing(node: onnx_ir.Node, why: str) -> Finding:
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return Finding("TW-TRAIN-003", f"{kind}: {why}", None, node.name, None, kind)


def _refusal(findings: list[Finding]) -> ModelError:
    kinds = dict.fromkeys(str(f.actual) for f in findings)
    named = ", ".join(f"{f.node!r} ({f.actual})" for f in findings[:10])
    more = f" and {len(findings) - 10} more" if len(findings) > 10 else ""
    return ModelError(
        "TW-TRAIN-003",
        f"no gradient for {', '.join(kinds)}: {named}{more}; {findings[0].message}",
        node=findings[0].node, findings=tuple(findings),
    )  # fmt: skip
