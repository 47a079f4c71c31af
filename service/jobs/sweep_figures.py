"""What the items of a sweep say together: how far it is, how long it takes, which are best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from service.states import (
    OPEN_SWEEP_ITEM_STATES,
    JobState,
    SweepItemState,
    SweepState,
)
from service.store.records import SweepItemRecord

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


def eta_s(state: SweepState, items: Sequence[SweepItemRecord]) -> float | None:
    """Seconds until the sweep ends, from what its finished items took on a worker.

    An item is taken to need what those of its model needed on average (of any model, before one of
    its own has ended), and as many to run at a time as now.  Waiting for other jobs is left out.
    None: it does not run, or none has succeeded.
    """
    took: dict[str, list[float]] = {}
    for item in items:
        if item.state is SweepItemState.SUCCEEDED and item.seconds is not None:
            took.setdefault(item.model_id, []).append(item.seconds)
    if state is not SweepState.RUNNING or not took:
        return None
    every = [seconds for found in took.values() for seconds in found]
    mean = sum(every) / len(every)
    means = {model: sum(found) / len(found) for model, found in took.items()}
    left, running = 0.0, 0
    for item in items:
        if item.state in OPEN_SWEEP_ITEM_STATES:
            left += max(0.0, means.get(item.model_id, mean) - (item.running_s or 0.0))
            running += item.running_s is not None
    return left / max(1, running)


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
