"""What was run, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.faults.site import Plan


@dataclass(slots=True)
class Result:
    """What came of one plan."""

    plan: Plan
    disk: str = ""
    jobs: int = 0
    """Accepted, those of sweeps and their resumes among them."""
    met: int = 0
    """Of these, how many were there while something was broken, after a worker had taken them."""
    again: int = 0
    """Of these, how many had more than one attempt."""
    sweeps: Counter[str] = field(default_factory=Counter)
    """By what their users did with them and how they ended."""
    items: int = 0
    jobless: int = 0
    """Items that were canceled in their sweeps before they were jobs; `jobs` are without them."""
    uploads: int = 0
    seconds: float = 0.0
    states: Counter[str] = field(default_factory=Counter)
    attempts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    tried_again: Counter[str] = field(default_factory=Counter)
    ended_alone: Counter[str] = field(default_factory=Counter)
    told: int = 0
    """Messages that a webhook got."""
    aged: tuple[str, ...] = ()
    """What `doctor --fix` cleared away."""
    breaches: list[str] = field(default_factory=list)
    reason: str = ""
    """Why it did not run."""


def table(results: Sequence[Result]) -> str:
    """A paragraph for each plan."""
    lines = []
    for one in results:
        if one.reason:
            lines.append(f"{one.plan.name}: not run: {one.reason}")
            continue
        verdict = f"{len(one.breaches)} BREACHES" if one.breaches else "no breach"
        lines += [
            f"{one.plan.name}: {one.plan.database}, {one.plan.broker}, {one.plan.store}: {verdict}",
            f"  jobs           {one.jobs} in {one.seconds:.0f} s; {one.met} met a fault,"
            f" {one.again} had several attempts",
            f"  ended          {_listed(one.states)}",
            f"  sweeps         {one.sweeps.total()} of {one.items} items ({one.jobless} canceled"
            f" before they were jobs): {_listed(one.sweeps)}",
            f"  uploads        {one.uploads} files in chunks",
            f"  attempts       {_listed(one.attempts)}",
            f"  faults         {one.faults.total()}: {_listed(one.faults)}",
            f"  webhook        {one.told} messages",
            f"  full disk      {one.disk}",
            f"  asked again    {_listed(one.tried_again)}",
            f"  ended alone    {_listed(one.ended_alone)}",
            f"  a day later    {'; '.join(one.aged) or 'nothing to clear away'}",
            *(f"  BREACH         {text}" for text in one.breaches),
        ]
    return "\n".join(lines) + "\n"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
