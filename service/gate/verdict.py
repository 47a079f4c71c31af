"""What the gate says: a finding for everything that it looked at, and the sum of them.

Equal inputs give equal findings in an equal order: that of the gate file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Check(StrEnum):
    """What was looked at."""

    BUDGET = "budget"
    REGRESSION = "regression"
    FAILING = "failing"
    HOST = "host"
    MISSING = "missing"
    NEW = "new"
    UNMATCHED = "unmatched"
    BASELINE = "baseline"
    """Whether there was something to compare with."""
    RULES = "rules"
    """Whether the gate file's own rules are the base's."""
    WAIVER = "waiver"
    """Whether a waiver is still needed."""


class Result(StrEnum):
    """What came of it."""

    PASSED = "passed"
    FAILED = "failed"
    WARNED = "warned"
    WAIVED = "waived"
    """It failed, and somebody has taken it on."""
    NEUTRAL = "neutral"
    """It could not be told; the message says why."""
    NOTED = "noted"
    """Worth saying, and nobody's fault."""


class State(StrEnum):
    """The gate's own word."""

    PASS = "PASS"
    FAIL = "FAIL"
    NEUTRAL = "NEUTRAL"
    """Nothing failed, but something could not be compared."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a reader should look: a file of the repository and a line of it."""

    path: str
    line: int = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    check: Check
    result: Result
    message: str
    """A sentence without a period, that stands alone."""
    pointer: str
    """Of the rule, in the gate file."""
    model: str = ""
    hardware: str = ""
    figure: str | None = None
    nodes: tuple[str, ...] = ()
    cause: str | None = None
    base: float | None = None
    head: float | None = None
    limit: float | None = None
    """What `head` may be, at worst."""
    place: Place | None = None
    """None: the rule's."""

    @property
    def pair(self) -> str:
        """The pair, for messages; empty where there is none."""
        return f"{self.model} on {self.hardware}" if self.model else ""

    @property
    def is_worst_of_a_run(self) -> bool:
        """Whether it is about a whole run's time."""
        is_time = self.figure in ("latency_ms", "latency_cycles", "throughput_per_s")
        return is_time and not self.nodes and self.cause is None

    def as_json(self) -> dict[str, Any]:
        """Every field; what does not apply is null."""
        place = self.place
        return {
            "check": str(self.check),
            "result": str(self.result),
            "message": self.message,
            "pointer": self.pointer,
            "model": self.model or None,
            "hardware": self.hardware or None,
            "figure": self.figure,
            "nodes": list(self.nodes),
            "cause": self.cause,
            "base": self.base,
            "head": self.head,
            "limit": self.limit,
            "path": None if place is None else place.path,
            "line": None if place is None else place.line,
        }


@dataclass(frozen=True, slots=True)
class Compared:
    """What became of one pair, whatever the rules say."""

    model: str
    hardware: str
    headline: str
    """One sentence: the comparison's, or why there is none."""
    is_same: bool
    """Whether nothing that came out differs from the base; False where there is none."""
    base_latency_ms: float | None
    head_latency_ms: float | None
    base_energy_mj: float | None
    head_energy_mj: float | None
    cause: str = ""
    """The cause and the layer that changed most; empty: no cycle moved, or there is no base."""
    went_in: tuple[str, ...] = ()
    """Sentences: what of model, spec, options and toolchain differs."""
    document: Mapping[str, Any] | None = None
    """The comparison, as `tilewright diff --json` gives it; None: there is none."""

    def as_json(self) -> dict[str, Any]:
        """Every field."""
        return {
            "model": self.model,
            "hardware": self.hardware,
            "headline": self.headline,
            "is_same": self.is_same,
            "base_latency_ms": self.base_latency_ms,
            "head_latency_ms": self.head_latency_ms,
            "base_energy_mj": self.base_energy_mj,
            "head_energy_mj": self.head_energy_mj,
            "comparison": self.document,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """The gate's answer for one tree."""

    file: str
    """Path of the gate file, as annotations name it."""
    base: str
    """What the tree was compared with, in words."""
    today: str
    """The day that waivers were judged on, YYYY-MM-DD."""
    findings: tuple[Finding, ...]
    pairs: tuple[Compared, ...]
    places: Mapping[str, Place] = field(default_factory=dict)
    """Of rules: pointer to its line in the gate file."""

    def of(self, *results: Result) -> list[Finding]:
        """Findings with one of these results."""
        return [finding for finding in self.findings if finding.result in results]

    @property
    def state(self) -> State:
        """FAIL when anything failed, else NEUTRAL when anything could not be told."""
        if self.of(Result.FAILED):
            return State.FAIL
        return State.NEUTRAL if self.of(Result.NEUTRAL) else State.PASS

    @property
    def first_line(self) -> str:
        """The verdict and its biggest cause."""
        failed = sorted(self.of(Result.FAILED), key=_rank)
        if failed:
            more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            return f"{State.FAIL}: {failed[0].message}{more}"
        held = len(self.of(Result.PASSED))
        said = counted(held, "check holds", "checks hold") if held else "nothing to check"
        for result in (Result.WAIVED, Result.WARNED):
            count = len(self.of(result))
            said += f", {count} {result}" if count else ""
        neutral = self.of(Result.NEUTRAL)
        if neutral:
            return f"{State.NEUTRAL}: {neutral[0].message}; {said}"
        return f"{State.PASS}: {said}; {_biggest(self.pairs)}"

    def place_of(self, finding: Finding) -> Place:
        """Where a finding is shown."""
        return finding.place or self.places.get(finding.pointer) or Place(self.file)

    def as_json(self) -> dict[str, Any]:
        """What `tilewright gate --json` prints."""
        shown = [
            {**f.as_json(), "path": self.place_of(f).path, "line": self.place_of(f).line}
            for f in self.findings
        ]
        return {
            "schema_version": 1,
            "verdict": self.state.lower(),
            "first_line": self.first_line,
            "file": self.file,
            "base": self.base,
            "today": self.today,
            "counts": {str(result): len(self.of(result)) for result in Result},
            "findings": shown,
            "pairs": [pair.as_json() for pair in self.pairs],
        }


_ORDER = (
    Check.FAILING, Check.REGRESSION, Check.HOST, Check.MISSING, Check.BUDGET, Check.NEW,
    Check.UNMATCHED,
)  # fmt: skip
"""What is told first: what cannot run at all, then what became worse, then the rest."""


def _rank(finding: Finding) -> tuple[int, bool, float]:
    order = _ORDER.index(finding.check) if finding.check in _ORDER else len(_ORDER)
    return order, not finding.is_worst_of_a_run, -worsening(finding)


def worsening(finding: Finding) -> float:
    """How much worse than its base a figure is, as a share; without one, how far off its limit."""
    of = finding.base if finding.base is not None else finding.limit
    if finding.head is None or of is None:
        return 0.0
    apart = abs(finding.head - of)
    return apart / abs(of) if of else float(apart > 0) * 1e9


def counted(count: int, one: str, many: str) -> str:
    """A number with its noun."""
    return f"{count} {one if count == 1 else many}"


def _biggest(pairs: tuple[Compared, ...]) -> str:
    compared = [p for p in pairs if p.base_latency_ms is not None and p.head_latency_ms is not None]
    changed = [pair for pair in compared if not pair.is_same]
    if not changed:
        shown = counted(len(compared), "pair", "pairs")
        return f"no difference in {shown}" if compared else "nothing was compared"

    def size(pair: Compared) -> float:
        assert pair.base_latency_ms is not None
        assert pair.head_latency_ms is not None
        return abs(pair.head_latency_ms / pair.base_latency_ms - 1) if pair.base_latency_ms else 0.0

    most = max(changed, key=size)
    return f"{most.model} on {most.hardware} {most.headline}"
