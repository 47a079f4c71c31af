"""The command line, called in this process: exit code and everything it printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.hostile.child import Verdict

REFUSALS = frozenset({2, 3, 4})
"""Exit codes that say: this input is not good."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    text: str


def invoke(arguments: Sequence[str]) -> Ended:
    """Run one command; its own boundary turns what it raises into an exit code."""
    from typer.testing import CliRunner

    from service.cli.main import app

    result = CliRunner().invoke(app, list(arguments))
    text = result.output
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ended(result.exit_code, text)


def verdict_of(ended: Ended) -> Verdict:
    """Accepted, refused with a reason, or a fault."""
    code = next((w.strip(":,.()") for w in ended.text.split() if w.startswith("TW-")), "")
    if ended.code == 0:
        return Verdict("accepted")
    if ended.code in REFUSALS and "Traceback" not in ended.text:
        return Verdict("refused", code or f"exit {ended.code}", ended.text[-200:])
    return Verdict("internal", code or f"exit {ended.code}", ended.text[-400:])
