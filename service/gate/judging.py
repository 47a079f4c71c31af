"""Outcomes of a tree and of its base -> a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date

from service.gate.baseline import Base, Key
from service.gate.checks import budget_findings, change_findings
from service.gate.differences import Difference, host_findings, regression_findings
from service.gate.figures import whole_figure
from service.gate.file import GateFile
from service.gate.levels import RESULT_OF
from service.gate.places import line_of
from service.gate.runs import Outcome
from service.gate.selection import Pair
from service.gate.tree import Tree
from service.gate.verdict import Check, Compared, Finding, Place, Result, Verdict
from service.gate.waivers import waived
from service.text import one_line
from worker.compiler.errors import InputError


def judge(
    gate: GateFile, text: str, file: str, pairs: Sequence[Pair], heads: Mapping[Key, Outcome],
    base: Base, today: date, tree: Tree, prefix: str,
) -> Verdict:  # fmt: skip
    """Apply every rule.

    Args:
        text, file: the gate file, and its path from the top of the repository.
        prefix: of the gate file's folder there.
    """
    differences = _differences(pairs, heads, base)
    found = [
        *change_findings(gate, pairs, heads, base),
        *host_findings(pairs, differences, RESULT_OF[gate.changes.host]),
        *regression_findings(gate, pairs, differences),
        *budget_findings(gate, pairs, heads),
    ]
    found = [_placed(f, pairs, heads, differences, tree, prefix) for f in found]
    found = [replace(f, message=one_line(f.message)) for f in waived(found, gate.waivers, today)]
    pointers = dict.fromkeys(finding.pointer for finding in found)
    places = {pointer: Place(file, line_of(text, pointer)) for pointer in pointers}
    compared = tuple(_compared(pair, heads, base, differences) for pair in pairs)
    return Verdict(file, base.says, today.isoformat(), tuple(found), compared, places)


def _differences(
    pairs: Sequence[Pair], heads: Mapping[Key, Outcome], base: Base
) -> dict[Key, Difference]:
    """Comparisons of the pairs that compile on both sides; what cannot be read has a reason."""
    found: dict[Key, Difference] = {}
    for pair in pairs:
        head, before = heads[pair.key], base.outcomes.get(pair.key)
        if before is None or head.report is None or before.report is None:
            continue
        try:
            found[pair.key] = Difference.of(before, head)
        except InputError as error:
            del base.outcomes[pair.key]
            base.reasons[pair.key] = str(error)
    return found


def _placed(
    finding: Finding, pairs: Sequence[Pair], heads: Mapping[Key, Outcome],
    differences: Mapping[Key, Difference], tree: Tree, prefix: str,
) -> Finding:  # fmt: skip
    """The finding with the line of the spec that is to blame, where one is."""
    key = (finding.model, finding.hardware)
    pair = next((pair for pair in pairs if pair.key == key), None)
    if pair is None or pair.spec is None or finding.result is Result.PASSED:
        return finding
    pointer = None
    problem = heads[key].problem
    if finding.check is Check.FAILING and problem is not None:
        if str(problem.get("code", "")).startswith("TW-SPEC"):
            pointer = str(problem.get("pointer") or "")
    elif finding.check in (Check.REGRESSION, Check.HOST) and key in differences:
        pointer = next(_spec_pointers(differences[key]), None)
    file = tree.file(pair.spec)
    if pointer is None or file is None:
        return finding
    text = file.read_text(encoding="utf-8", errors="replace")
    return replace(finding, place=Place(prefix + pair.spec, line_of(text, pointer)))


def _spec_pointers(difference: Difference) -> Iterator[str]:
    for reason in difference.comparison.reasons:
        if reason.kind == "spec":
            yield reason.where


def _compared(
    pair: Pair, heads: Mapping[Key, Outcome], base: Base, differences: Mapping[Key, Difference]
) -> Compared:
    head, before = heads[pair.key], base.outcomes.get(pair.key)
    difference = differences.get(pair.key)
    if difference is not None:
        headline = difference.comparison.headline
    elif head.problem is not None:
        headline = f"fails: {head.problem.get('code')} {head.problem.get('detail')}"
    elif before is not None:
        headline = "compiles; the base did not"
    else:
        headline = base.reasons.get(pair.key) or base.why_none or "new"

    def figure(outcome: Outcome | None, name: str) -> float | None:
        report = None if outcome is None else outcome.report
        return None if report is None else whole_figure(report, name)

    if difference is None:
        return Compared(
            *pair.key, one_line(headline), False, figure(before, "latency_ms"),
            figure(head, "latency_ms"), figure(before, "energy_mj"), figure(head, "energy_mj"),
        )  # fmt: skip
    comparison = difference.comparison
    return Compared(
        *pair.key, one_line(headline), comparison.is_same, figure(before, "latency_ms"),
        figure(head, "latency_ms"), figure(before, "energy_mj"), figure(head, "energy_mj"),
        one_line(difference.cause),
        tuple(one_line(r.sentence) for r in comparison.reasons if r.kind.is_input),
        comparison.as_json(),
    )  # fmt: skip
