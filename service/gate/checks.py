"""Budgets, and changes that are no figures: each rule of a gate file becomes findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from service.gate.baseline import Base
from service.gate.figures import Report, caused_figure, has_cause, layer_figures, whole_figure
from service.gate.file import Budget, GateFile
from service.gate.levels import RESULT_OF, uncaused, unmatched
from service.gate.runs import Outcome
from service.gate.selection import Pair, covers
from service.gate.verdict import Check, Finding, Result
from service.gate.words import amount, subject

Key = tuple[str, str]


def budget_findings(
    gate: GateFile, pairs: Sequence[Pair], heads: Mapping[Key, Outcome]
) -> Iterator[Finding]:
    """A finding for every budget and pair (and layer) that it is about."""
    for k, budget in enumerate(gate.budgets):
        at = f"/budgets/{k}"
        found = False
        is_judged = False
        is_caused = budget.cause is None
        for pair in pairs:
            report = heads[pair.key].report
            if report is None or not covers(budget.model, budget.hardware, pair):
                continue
            is_judged = True
            is_caused = is_caused or has_cause(report, budget.cause or "*")
            for nodes, value in _values(report, budget):
                found = True
                yield _held(budget, pair, nodes, value, at)
        if is_judged and not found:
            yield unmatched(gate.changes.unmatched, at, budget)
        elif is_judged and not is_caused:
            yield uncaused(gate.changes.unmatched, at, budget)


def _values(report: Report, budget: Budget) -> Iterator[tuple[tuple[str, ...], float]]:
    """(nodes, value) of what a budget looks at, where the report has it."""
    if budget.node is not None:
        for layer in layer_figures(report, budget.figure, budget.node, budget.cause):
            if layer.value is not None:
                yield layer.nodes, layer.value
        return
    if budget.cause is not None:
        value = caused_figure(report, report["summary"].get("causes"), budget.figure, budget.cause)
    else:
        value = whole_figure(report, budget.figure)
    if value is not None:
        yield (), value


def _held(budget: Budget, pair: Pair, nodes: tuple[str, ...], value: float, at: str) -> Finding:
    what = subject(pair.label, nodes, budget.cause)
    shown = amount(value, budget.figure)
    limit, result, said = None, Result.PASSED, ""
    if budget.at_most is not None:
        limit, said = budget.at_most, f"within {amount(budget.at_most, budget.figure)}"
        if value > budget.at_most:
            result, said = Result.FAILED, f"over the budget of {amount(limit, budget.figure)}"
    if budget.at_least is not None and result is Result.PASSED:
        limit, said = budget.at_least, f"at least {amount(budget.at_least, budget.figure)}"
        if value < budget.at_least:
            result, said = Result.FAILED, f"below the budget of {amount(limit, budget.figure)}"
    return Finding(
        Check.BUDGET, result, f"{what}: {budget.figure} is {shown}, {said}", at, pair.model,
        pair.hardware, budget.figure, nodes, budget.cause, None, value, limit,
    )  # fmt: skip


def change_findings(
    gate: GateFile, pairs: Sequence[Pair], heads: Mapping[Key, Outcome], base: Base
) -> Iterator[Finding]:
    """Pairs that fail, came or went, and what could not be compared."""
    for pair in pairs:
        head, before = heads[pair.key], base.outcomes.get(pair.key)
        if head.problem is not None:
            yield _failing(gate, pair, head.problem, before, base)
        elif before is None:
            yield _without_base(gate, pair, base)
        elif before.problem is not None:
            said = f"{pair.label} compiles; the base did not ({before.problem.get('code')})"
            yield Finding(Check.NEW, Result.NOTED, said, "/changes/new", *pair.key)
    here = {pair.key for pair in pairs}
    for model, hardware in base.keys:
        if (model, hardware) not in here:
            said = f"{model} on {hardware} is missing: the base has it"
            result = RESULT_OF[gate.changes.missing]
            yield Finding(Check.MISSING, result, said, "/changes/missing", model, hardware)
    if base.rules:
        said = f"this change also changes the gate's own {', '.join(base.rules)}"
        yield Finding(Check.RULES, Result.NOTED, said, f"/{base.rules[0]}")
    if base.why_none is not None and gate.baseline is not None:
        said = f"no baseline: {base.why_none}"
        yield Finding(Check.BASELINE, Result.NEUTRAL, said, "/baseline")


def _failing(
    gate: GateFile, pair: Pair, problem: Mapping[str, object], before: Outcome | None, base: Base
) -> Finding:
    detail = str(problem.get("detail") or problem.get("title"))
    node = problem.get("node")
    at = f" (node {node})" if node else ""
    said = f"{pair.label} fails: {problem.get('code')} {detail}{at}"
    result = RESULT_OF[gate.changes.failing]
    if before is not None and before.problem is not None:
        if before.problem.get("code") == problem.get("code"):
            result, said = Result.NEUTRAL, f"{said}; so does the base"
        else:
            said = f"{said}; the base fails otherwise ({before.problem.get('code')})"
    elif before is not None:
        said = f"{said}; the base compiles"
    nodes = (str(node),) if node else ()
    return Finding(
        Check.FAILING, result, said, "/changes/failing", *pair.key, nodes=nodes,
    )  # fmt: skip


def _without_base(gate: GateFile, pair: Pair, base: Base) -> Finding:
    why = base.reasons.get(pair.key)
    if why is not None:
        said = f"{pair.label} has no baseline: {why}"
        return Finding(Check.BASELINE, Result.NEUTRAL, said, "/baseline", *pair.key)
    if base.why_none is not None:
        said = f"{pair.label} is compared with nothing"
        return Finding(Check.NEW, Result.NOTED, said, "/changes/new", *pair.key)
    said = f"{pair.label} is new: the base has not got it"
    return Finding(Check.NEW, RESULT_OF[gate.changes.new], said, "/changes/new", *pair.key)
