"""What a team wants done about something: `fail`, `warn` or `ignore`, as results."""

from __future__ import annotations

from collections.abc import Mapping

from service.gate.file import Budget, Level, Regression
from service.gate.verdict import Check, Finding, Result

RESULT_OF: Mapping[Level, Result] = {
    "fail": Result.FAILED,
    "warn": Result.WARNED,
    "ignore": Result.NOTED,
}


def unmatched(level: Level, at: str, rule: Budget | Regression) -> Finding:
    """A rule that was about pairs that compile, and found nothing to look at in any of them."""
    why = f"no report has {rule.figure}"
    if rule.node is not None:
        why = f"no layer with a node {rule.node} has {rule.figure}"
    return Finding(
        Check.UNMATCHED, RESULT_OF[level], f"{_called(rule)} looked at nothing: {why}", at,
        figure=rule.figure,
    )  # fmt: skip


def uncaused(level: Level, at: str, rule: Budget | Regression) -> Finding:
    """A rule of causes that no run has.  That may be so for good, so that it fails nothing."""
    return Finding(
        Check.UNMATCHED, Result.NOTED if level == "ignore" else Result.WARNED,
        f"{_called(rule)} took 0 for what it looks at: no run has a cause {rule.cause}", at,
        figure=rule.figure, cause=rule.cause,
    )  # fmt: skip


def _called(rule: Budget | Regression) -> str:
    kind = "budget" if isinstance(rule, Budget) else "regression"
    return f"the {kind} of {rule.figure}"
