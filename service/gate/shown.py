"""A verdict on a terminal: the first line, then a table of what is not as it should be."""

from __future__ import annotations

from service.gate.verdict import Result, Verdict

COLUMNS = ("result", "check", "model", "hardware", "figure", "base", "head", "limit", "what")
SHOWN = (Result.FAILED, Result.WARNED, Result.WAIVED, Result.NEUTRAL, Result.NOTED)


def rows(verdict: Verdict) -> list[dict[str, object]]:
    """A row for every finding but what passed, the worst results first."""
    found: list[dict[str, object]] = []
    for result in SHOWN:
        for finding in verdict.of(result):
            place = verdict.place_of(finding)
            found.append({
                "result": str(result), "check": str(finding.check),
                "model": finding.model or None, "hardware": finding.hardware or None,
                "figure": finding.figure, "base": finding.base, "head": finding.head,
                "limit": finding.limit, "what": f"{finding.message} ({place.path}:{place.line})",
            })  # fmt: skip
    return found
