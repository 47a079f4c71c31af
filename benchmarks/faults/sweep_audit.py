"""What must hold of sweeps after the last fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from benchmarks.faults.audit import Told, differences
from benchmarks.faults.books import OPEN_ITEM, Books, Outcome, SweepOutcome
from benchmarks.faults.load import Accepted, Answer
from benchmarks.faults.usual import Usual

_HAS_RESULT = "succeeded"
_CANCELED = "canceled"


def audit_sweeps(books: Books, told: Told, usual: Usual) -> list[str]:
    """Each ended once, with its undisturbed results where nobody canceled it."""
    outcomes, found = books.outcomes(), books.sweeps()
    return [
        breach
        for one in told.sweeps
        if one.id in found
        for breach in (
            *_ends(one, found[one.id], usual.sweeps[one.kind]),
            *_items(one, found[one.id], usual, outcomes),
            *_tries(one, found[one.id], outcomes),
        )
    ]


def _may_be_cut(sweep: Accepted) -> bool:
    """Whether items may have ended canceled."""
    return sweep.cancel in (Answer.YES, Answer.NONE) and not sweep.is_resumed


def _ends(sweep: Accepted, ended: SweepOutcome, expected: SweepOutcome) -> Iterable[str]:
    """The sweep's own state, which follows from its items'."""
    if len(ended.items) != len(expected.items):
        yield f"{sweep.id} has {len(ended.items)} items, not {len(expected.items)}"
    states = {item.state for item in ended.items}
    allowed = {"succeeded"} if states == {_HAS_RESULT} else {"failed", _CANCELED}
    if not _may_be_cut(sweep):
        allowed = {expected.state}
    elif sweep.cancel is Answer.YES and states != {_HAS_RESULT}:
        allowed = {_CANCELED}
    if ended.state not in allowed:
        yield f"{sweep.id} ({sweep.kind}) ended {ended.state}, not {' or '.join(sorted(allowed))}"


def _items(
    sweep: Accepted, ended: SweepOutcome, usual: Usual, outcomes: Mapping[str, Outcome]
) -> Iterable[str]:
    expected = {item.number: item for item in usual.sweeps[sweep.kind].items}
    for item in ended.items:
        name, usually = f"{sweep.id}:{item.number}", expected.get(item.number)
        job = None if item.job is None else outcomes.get(item.job)
        if usually is None or item.state in OPEN_ITEM:
            yield f"{name} is {item.state}"
            continue
        if item.job is not None and (job is None or job.state != item.state):
            yield f"{name} is {item.state}, its job {'lost' if job is None else job.state}"
        if item.state == _CANCELED and _may_be_cut(sweep):
            continue
        if (item.state, item.code, item.figures) != (usually.state, usually.code, usually.figures):
            yield (f"{name} ({sweep.kind}) is {item.state} {item.code} {item.figures}, not"
                   f" {usually.state} {usually.code} {usually.figures}")  # fmt: skip
        if (job is None) != (usually.job is None):
            yield f"{name} has {'no' if job is None else 'a'} job"
        elif job is not None:
            yield from differences(
                name, sweep.kind, job, usual.jobs_of_sweeps[sweep.kind][item.number]
            )


def _tries(sweep: Accepted, ended: SweepOutcome, outcomes: Mapping[str, Outcome]) -> Iterable[str]:
    """An item has one job, or one more with each resume that found it without a result."""
    mine = {item.job for item in ended.items}
    tries = Counter(place for _, place in ended.jobs)
    for item in ended.items:
        if tries[item.place] > 1 and not sweep.is_resumed:
            yield f"{sweep.id}:{item.number} has {tries[item.place]} jobs, and nobody resumed it"
    for job, _ in ended.jobs:
        if job not in mine and outcomes[job].state == _HAS_RESULT:
            yield f"{sweep.id} ran again what {job} had done"
