"""Every way the compiler says no, as types with stable codes.

CompilerError
├─ InputError ─ ModelError (node, attribute) · SpecError (JSON pointer) · OptionError
├─ Infeasible (carries a Shortfall; raised only when even the last resort does not fit)
├─ BudgetExceeded (search candidates)
└─ InternalError ─ VerifyError (stage, value path, rule) · PassContractError
SimulationError ─ Deadlock · MemoryFault · Mismatch

An error travels to the user as one `Problem`: code, fault, stage, place, limit against actual,
remedy.  `ERROR_CATALOG` (error_catalog.py) is the closed list of codes; constructing an error with
an unknown code is a bug and fails at once.
"""

from __future__ import annotations

import errno
import re
from dataclasses import asdict, dataclass
from typing import TypeAlias

from worker.compiler.error_catalog import ERROR_CATALOG, ErrorEntry, Fault

Detail: TypeAlias = "str | int | float | bool | list[Detail] | dict[str, Detail] | None"


DISK_FULL = "TW-SVC-030"
TOOL_KILLED = "TW-SVC-031"
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What the kernel says of a disk, or a user's share of one, that is full."""
_MOST_CHARACTERS = 500
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")


def said(error: BaseException) -> str:
    """Type and message of an error, the same in every process."""
    return _ADDRESS.sub("0x...", f"{type(error).__name__}: {error}")[:_MOST_CHARACTERS]


@dataclass(frozen=True, slots=True)
class FaultPlace:
    """Where the user should look: an ONNX node, a JSON pointer into a document, or an option."""

    node: str | None = None
    pointer: str | None = None
    attribute: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One of several defects reported together."""

    code: str
    message: str
    pointer: str | None = None
    node: str | None = None
    allowed: Detail = None
    actual: Detail = None


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why something does not fit, and the smallest changes that would make it fit."""

    resource: str
    """Name of the exhausted resource, e.g. `memory:L1`."""
    demand: int
    bound: int
    unit: str
    terms: tuple[tuple[str, int], ...] = ()
    """What adds up to the demand, largest first."""
    levers: tuple[str, ...] = ()
    """Sentences; the first is the smallest change that fixes it."""


class CompilerError(Exception):
    """Base of everything the compiler raises on purpose."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        stage: str | None = None,
        node: str | None = None,
        pointer: str | None = None,
        attribute: str | None = None,
        limit: Detail = None,
        actual: Detail = None,
        remedy: str | None = None,
        findings: tuple[Finding, ...] = (),
    ) -> None:
        if code not in ERROR_CATALOG:
            raise KeyError(f"error code {code!r} is not in ERROR_CATALOG")
        super().__init__(message)
        self.code = code
        self.message = message
        self.stage = stage or ERROR_CATALOG[code].stage
        self.place = FaultPlace(node=node, pointer=pointer, attribute=attribute)
        self.limit = limit
        self.actual = actual
        self.remedy = remedy or ERROR_CATALOG[code].remedy
        self.findings = findings

    @property
    def entry(self) -> ErrorEntry:
        return ERROR_CATALOG[self.code]

    def to_problem(self) -> dict[str, Detail]:
        """Give the JSON object that jobs, the API and `--json` all show for this error."""
        entry = self.entry
        errors: list[Detail] = [
            {
                "code": f.code,
                "message": f.message,
                "pointer": f.pointer,
                "node": f.node,
                "allowed": f.allowed,
                "actual": f.actual,
            }
            for f in self.findings
        ]
        return {
            "type": f"urn:tilewright:error:{self.code}",
            "title": entry.title,
            "status": entry.status,
            "code": self.code,
            "fault": str(entry.fault),
            "retryable": entry.fault is Fault.TRANSIENT,
            "stage": self.stage,
            "detail": self.message,
            "node": self.place.node,
            "pointer": self.place.pointer,
            "attribute": self.place.attribute,
            "limit": self.limit,
            "actual": self.actual,
            "remedy": self.remedy,
            "errors": errors,
            "hints": [self.remedy],
            "exit_code": entry.exit_code,
        }


class InputError(CompilerError):
    """The user's model, spec or options are at fault."""


class ModelError(InputError):
    """The ONNX model is malformed, unsafe, or says something we must refuse."""


class SpecError(InputError):
    """The hardware spec is wrong; `pointer` names the field."""


class OptionError(InputError):
    """A compile option is wrong."""


class Infeasible(CompilerError):
    """Nothing fits: the shortfall names resource, demand, bound and levers."""

    def __init__(
        self,
        message: str,
        shortfall: Shortfall,
        *,
        node: str | None = None,
        stage: str = "schedule",
    ) -> None:
        super().__init__(
            "TW-PLAN-001",
            message,
            stage=stage,
            node=node,
            limit=shortfall.bound,
            actual=shortfall.demand,
            remedy=shortfall.levers[0] if shortfall.levers else None,
        )
        self.shortfall = shortfall

    def to_problem(self) -> dict[str, Detail]:
        """Give the problem, with what exactly is short under `shortfall`."""
        short = self.shortfall
        told: dict[str, Detail] = {
            **asdict(short),
            "terms": [list(term) for term in short.terms],
            "levers": list(short.levers),
        }
        return {**super().to_problem(), "shortfall": told}


class BudgetExceeded(CompilerError):
    """A search used up its candidate budget (never a wall clock)."""


class InternalError(CompilerError):
    """Our bug.  The user is told so, with what to send us."""


class VerifyError(InternalError):
    """A stage's value breaks one of its rules."""

    def __init__(self, stage: str, path: str, rule: str, message: str) -> None:
        super().__init__("TW-INT-002", f"{stage}: {path}: {rule}: {message}", stage=stage)
        self.path = path
        self.rule = rule


class PassContractError(InternalError):
    """A pass returned something its contract forbids."""

    def __init__(self, pass_name: str, message: str) -> None:
        super().__init__("TW-INT-003", f"pass {pass_name}: {message}")
        self.pass_name = pass_name


class SimulationError(CompilerError):
    """The simulated or executed program misbehaved."""


class Deadlock(SimulationError):
    """Engines wait on each other for ever."""

    def __init__(self, message: str) -> None:
        super().__init__("TW-SIM-001", message)


class MemoryFault(SimulationError):
    """An access outside its buffer or arena."""

    def __init__(self, message: str) -> None:
        super().__init__("TW-SIM-002", message)


class Mismatch(SimulationError):
    """Executed kernels disagree with the reference."""

    def __init__(
        self, message: str, *, limit: float, actual: float, node: str | None = None
    ) -> None:
        super().__init__("TW-VERIFY-001", message, node=node, limit=limit, actual=actual)
