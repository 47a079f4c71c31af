"""Failures that somebody has taken on until a day; then they fail again and say whose they were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from fnmatch import fnmatchcase

from service.gate.file import Waiver
from service.gate.verdict import Check, Finding, Result


def waived(
    findings: Sequence[Finding], waivers: Sequence[Waiver], today: date
) -> Iterator[Finding]:
    """Findings with waivers taken into account, then a note for every waiver that covers none.

    A failure that a valid waiver covers is waived; one that only expired ones cover fails, and says
    who owned the last of them.
    """
    used: set[int] = set()
    for finding in findings:
        if finding.result is not Result.FAILED:
            yield finding
            continue
        covering = [k for k, waiver in enumerate(waivers) if covers(waiver, finding)]
        used.update(covering)
        valid = [waivers[k] for k in covering if waivers[k].expires >= today]
        if valid:
            last = max(valid, key=lambda waiver: waiver.expires)
            said = f"waived by {last.owner} until {last.expires.isoformat()}: {last.reason}"
            yield replace(finding, result=Result.WAIVED, message=f"{finding.message}; {said}")
        elif covering:
            gone = max((waivers[k] for k in covering), key=lambda waiver: waiver.expires)
            said = (
                f"the waiver of {gone.owner} expired on {gone.expires.isoformat()}: {gone.reason}"
            )
            yield replace(finding, message=f"{finding.message}; {said}")
        else:
            yield finding
    for k, waiver in enumerate(waivers):
        if k not in used:
            yield Finding(
                Check.WAIVER, Result.NOTED,
                f"the waiver of {waiver.owner} ({waiver.reason}) covers no failure: remove it",
                f"/waivers/{k}",
            )  # fmt: skip


def covers(waiver: Waiver, finding: Finding) -> bool:
    """Whether a waiver is about a finding: everything that it names has to fit."""
    if waiver.check is not None and waiver.check != finding.check:
        return False
    if waiver.figure is not None and waiver.figure != finding.figure:
        return False
    if waiver.cause is not None and not fnmatchcase(finding.cause or "", waiver.cause):
        return False
    if waiver.node is not None and not any(fnmatchcase(n, waiver.node) for n in finding.nodes):
        return False
    return fnmatchcase(finding.model, waiver.model) and fnmatchcase(
        finding.hardware, waiver.hardware
    )
