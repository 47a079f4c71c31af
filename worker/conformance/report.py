"""The outcome of a conformance run: a table per operator, a summary, a JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from worker.conformance.case import Untested
from worker.conformance.run import Row

_SHOWN_FAILURES = 40


@dataclass(frozen=True, slots=True)
class OpSummary:
    """All checks of one operator or pattern of one target."""

    target: str
    op_type: str
    dtypes: tuple[str, ...]
    cases: int
    passed: int
    worst_error: float | None
    """Of the case nearest to its tolerance (or furthest beyond)."""
    tolerance: float | None

    @property
    def is_passed(self) -> bool:
        return self.passed == self.cases


@dataclass(frozen=True, slots=True)
class Conformance:
    """What a machine's document claims and what holds."""

    machine: str
    rows: tuple[Row, ...]
    untested: tuple[Untested, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed; a run without a check has shown nothing."""
        return bool(self.rows) and all(row.passed for row in self.rows)

    @property
    def failures(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if not row.passed)

    def summaries(self) -> tuple[OpSummary, ...]:
        """One per operator and pattern, in order of appearance."""
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            groups.setdefault((row.target, row.op_type), []).append(row)
        return tuple(_summary(target, op, rows) for (target, op), rows in groups.items())


def _summary(target: str, op_type: str, rows: Sequence[Row]) -> OpSummary:
    worst, share = None, -1.0
    for row in rows:
        if row.max_error is None or row.tolerance is None:
            continue
        own = row.max_error / row.tolerance if row.tolerance > 0 else row.max_error
        if own > share:
            worst, share = row, own
    return OpSummary(
        target, op_type, tuple(dict.fromkeys(r.dtype for r in rows if r.dtype)), len(rows),
        sum(r.passed for r in rows), None if worst is None else worst.max_error,
        None if worst is None else worst.tolerance,
    )  # fmt: skip


def conformance_table(found: Conformance) -> str:
    """The table, every failure with its reason (the first ones), and a summary, as text."""
    head = ("target", "operator", "types", "cases", "passed", "worst", "allowed", "")
    lines = [head, *(_table_row(summary) for summary in found.summaries())]
    widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
    text = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()
            for line in lines]  # fmt: skip
    failures = found.failures
    if failures:
        text += ["", f"Failures ({len(failures)}):"]
        text += [f"  {_place(row)}: {row.reason}" for row in failures[:_SHOWN_FAILURES]]
        if len(failures) > _SHOWN_FAILURES:
            text.append(f"  ... and {len(failures) - _SHOWN_FAILURES} more; --json lists all")
    text += ["", summary_line(found)]
    return "\n".join(text) + "\n"


def _table_row(s: OpSummary) -> tuple[str, ...]:
    verdict = "ok" if s.is_passed else "FAIL"
    return (
        s.target, s.op_type, " ".join(s.dtypes), str(s.cases), str(s.passed),
        _number(s.worst_error), _number(s.tolerance), verdict,
    )  # fmt: skip


def summary_line(found: Conformance) -> str:
    """The outcome in one line."""
    ops = found.summaries()
    good = sum(s.is_passed for s in ops)
    passed = sum(row.passed for row in found.rows)
    verdict = "conforms" if found.passed else "does not conform"
    untested = f"; {len(found.untested)} ends of claims untested" if found.untested else ""
    return (
        f"{found.machine} {verdict}: {passed} of {len(found.rows)} cases pass,"
        f" {good} of {len(ops)} operators and patterns{untested}"
    )


def conformance_document(found: Conformance) -> dict[str, Any]:
    """Everything as JSON values."""
    return {
        "schema_version": 1,
        "machine": found.machine,
        "passed": found.passed,
        "summary": [asdict(s) | {"ok": s.is_passed} for s in found.summaries()],
        "cases": [_finite(asdict(row)) for row in found.rows],
        "untested": [asdict(u) for u in found.untested],
    }


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: such an error is written as a word."""
    return {k: "inf" if v == float("inf") else v for k, v in row.items()}


def _place(row: Row) -> str:
    form = f" {row.form}" if row.form else ""
    return f"{row.target} {row.op_type} {row.dtype}{form} [{row.case}]"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"
