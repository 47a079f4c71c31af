"""Findings as workflow commands, which GitHub shows at the lines of a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from service.gate.verdict import Result, Verdict

_COMMANDS = {
    Result.FAILED: "error",
    Result.WARNED: "warning",
    Result.WAIVED: "notice",
    Result.NEUTRAL: "notice",
}


def github_annotations(verdict: Verdict) -> Iterator[str]:
    """A line for every finding that somebody should see."""
    for finding in verdict.findings:
        command = _COMMANDS.get(finding.result)
        if command is not None:
            place = verdict.place_of(finding)
            title = f"tilewright gate: {finding.check}"
            yield (
                f"::{command} file={_property(place.path)},line={place.line},"
                f"title={_property(title)}::{_data(finding.message)}"
            )


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
