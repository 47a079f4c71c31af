"""What the items of a sweep say together: how far it is, how long it takes, which are best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from service.jobs.exploring import Explore
from service.states import (
    OPEN_SWEEP_ITEM_STATES,
    JobState,
    SweepItemState,
    SweepState,
)
from service.store.records import SweepItemRecord, SweepRecord

COSTS = ("latency_s", "energy_pj", "on_chip_bytes")
"""What the front compares, less being better."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a sweep is."""

    total: int
    pending: int
    """Items without a job."""
    queued: int
    running: int
    succeeded: int
    failed: int
    """Ended without a result, and not canceled: timed out, expired and refused ones too."""
    canceled: int


def progress(items: Iterable[SweepItemRecord]) -> Progress:
    """Count items, active ones by the state of their job.  What is between two states is queued."""
    found = Counter(_place(item) for item in items)
    return Progress(
        total=found.total(),
        pending=found["pending"],
        queued=found["queued"],
        running=found["running"],
        succeeded=found["succeeded"],
        failed=found["failed"],
        canceled=found["canceled"],
    )


def _place(item: SweepItemRecord) -> str:
    match item.state:
        case SweepItemState.ACTIVE:
            is_taken = item.job_state not in (None, JobState.QUEUED)
            return "running" if is_taken else "queued"
        case SweepItemState.PENDING | SweepItemState.SUCCEEDED | SweepItemState.CANCELED:
            return str(item.state)
        case _:
            return "failed"


def eta_s(record: SweepRecord, items: Sequence[SweepItemRecord]) -> float | None:
    """Seconds until the sweep ends, from what its finished items took on a worker.

    An item is taken to need what those of its model and kind (parts that are estimated, machines)
    needed on average (any, before one of its own has ended), and as many to run at a time as now.
    So are the winners that are compiled once all of a model is estimated, as many as were asked
    for.  Waiting for other jobs is left out.
    None: it does not run, or none has succeeded.
    """
    took: dict[tuple[str, bool], list[float]] = {}
    for item in items:
        if item.state is SweepItemState.SUCCEEDED and item.seconds is not None:
            took.setdefault(_kind(item), []).append(item.seconds)
    if record.state is not SweepState.RUNNING or not took:
        return None
    every = [seconds for found in took.values() for seconds in found]
    mean = sum(every) / len(every)
    means = {kind: sum(found) / len(found) for kind, found in took.items()}
    left, running = 0.0, 0
    for item in items:
        if item.state in OPEN_SWEEP_ITEM_STATES:
            left += max(0.0, means.get(_kind(item), mean) - (item.running_s or 0.0))
            running += item.running_s is not None
    explore = Explore.of(record)
    if explore is not None:
        chosen = {item.model_id for item in items if item.part is None}
        for model in dict.fromkeys(item.model_id for item in items):
            if model not in chosen:
                left += min(explore.winners, explore.machines) * means.get((model, True), mean)
    return left / max(1, running)


def _kind(item: SweepItemRecord) -> tuple[str, bool]:
    return item.model_id, item.part is None


@dataclass(frozen=True, slots=True)
class Fronts:
    """The best of a sweep so far, of all models."""

    items: frozenset[int]
    """Numbers of machines that were simulated."""
    estimates: frozenset[tuple[int, int]] = frozenset()
    """Machines that were estimated: number of their part, place in it."""


def fronts(record: SweepRecord, items: Sequence[SweepItemRecord]) -> Fronts:
    """The fronts of a sweep.  Cost: with thousands of estimates some tenths of a second."""
    explore = Explore.of(record)
    if explore is None:
        return Fronts(on_front(items))
    return Fronts(on_front(items), _estimated_front(items, explore.costs))


def _estimated_front(
    items: Iterable[SweepItemRecord], costs: Sequence[str]
) -> frozenset[tuple[int, int]]:
    from worker.explore.winners import marked

    rows: dict[str, list[dict[str, Any]]] = {}
    for item in items:
        if item.part is not None:
            rows.setdefault(item.model_id, []).extend(
                {**row, "at": (item.number, place)} for place, row in enumerate(item.estimates)
            )
    found: set[tuple[int, int]] = set()
    for own in rows.values():
        own.sort(key=lambda row: row["choice"])
        found |= {row["at"] for row in marked(own, costs) if row["is_on_front"]}
    return frozenset(found)


def on_front(items: Sequence[SweepItemRecord]) -> frozenset[int]:
    """Numbers of the items, among those of their model, that no other is better than in all of
    `COSTS`."""
    from worker.explore.front import front  # imports numpy

    rows: dict[str, list[tuple[int, tuple[float, ...]]]] = {}
    for item in items:
        costs = (item.latency_s, item.energy_pj, item.on_chip_bytes)
        known = tuple(cost for cost in costs if cost is not None)
        if item.state is SweepItemState.SUCCEEDED and len(known) == len(costs):
            rows.setdefault(item.model_id, []).append((item.number, known))
    return frozenset(
        found[k][0] for found in rows.values() for k in front([costs for _, costs in found])
    )
