"""Problem documents: from payloads, checked because they are not trusted, and back into errors."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from worker.compiler.error_catalog import ERROR_CATALOG
from worker.compiler.errors import (
    BudgetExceeded,
    CompilerError,
    Detail,
    Finding,
    Infeasible,
    InputError,
    InternalError,
    ModelError,
    OptionError,
    Shortfall,
    SimulationError,
    SpecError,
)
from worker.sandbox import wire

_CLASSES: tuple[tuple[str, type[CompilerError]], ...] = (
    ("TW-MODEL-", ModelError),
    ("TW-SPEC-", SpecError),
    ("TW-OPT-", OptionError),
    ("TW-CAL-", InputError),
    ("TW-UNSUP-", InputError),
    ("TW-CLI-", InputError),
    ("TW-RUN-006", CompilerError),
    ("TW-RUN-", InputError),
    ("TW-LIB-", InputError),
    ("TW-LINK-008", OptionError),
    ("TW-LINK-", InputError),
    ("TW-PLUG-001", SpecError),
    ("TW-PLUG-004", SpecError),
    ("TW-PLUG-006", SpecError),
    ("TW-VERIFY-001", SimulationError),
    ("TW-VERIFY-", InputError),
    ("TW-SIM-", SimulationError),
    ("TW-PLAN-002", BudgetExceeded),
    ("TW-INT-", InternalError),
)
"""Which error a code is, by the first prefix that fits; any other is a plain `CompilerError`."""


def problem_in(frame: wire.Message) -> dict[str, Detail]:
    """The problem document of a frame.

    Raises:
        ProtocolError: it is none, or has a code that is not of the catalogue.
    """
    document = frame.head.get("problem")
    if not isinstance(document, dict) or document.get("code") not in ERROR_CATALOG:
        raise wire.ProtocolError("a problem needs a code of the catalogue")
    return document


def error_of(problem: Mapping[str, Detail]) -> CompilerError:
    """The error that a problem document is of: `to_problem()` of it gives the document again.

    What has another type than errors write is left out, and an unknown code (of a newer server) is
    told within TW-INT-001.
    """
    code = problem.get("code")
    detail = _text(problem.get("detail")) or ""
    if not isinstance(code, str) or code not in ERROR_CATALOG:
        return InternalError("TW-INT-001", f"{code}: {detail}")
    if code == "TW-PLAN-001":
        try:
            shortfall = msgspec.convert(problem.get("shortfall"), Shortfall)
        except msgspec.ValidationError:
            pass  # an older server's
        else:
            stage = _text(problem.get("stage")) or "schedule"
            return Infeasible(detail, shortfall, node=_text(problem.get("node")), stage=stage)
    found = problem.get("errors")
    kind = next((kind for prefix, kind in _CLASSES if code.startswith(prefix)), CompilerError)
    return kind(
        code,
        detail,
        stage=_text(problem.get("stage")),
        node=_text(problem.get("node")),
        pointer=_text(problem.get("pointer")),
        attribute=_text(problem.get("attribute")),
        limit=problem.get("limit"),
        actual=problem.get("actual"),
        remedy=_text(problem.get("remedy")),
        findings=tuple(
            _finding(row) for row in (found if isinstance(found, list) else []) if _is_row(row)
        ),
    )


def _text(value: Detail) -> str | None:
    return value if isinstance(value, str) else None


def _is_row(row: Detail) -> bool:
    return isinstance(row, dict) and isinstance(row.get("code"), str)


def _finding(row: Detail) -> Finding:
    assert isinstance(row, dict)
    return Finding(
        _text(row["code"]) or "",
        _text(row.get("message")) or "",
        _text(row.get("pointer")),
        _text(row.get("node")),
        row.get("allowed"),
        row.get("actual"),
    )
