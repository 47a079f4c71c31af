"""Give the items of sweeps jobs, a few at a time, and take up what became of them.

Called after every job of a sweep, by every reconciler, and by who submits: whoever is killed, the
next goes on.  Only a few jobs of a sweep wait at any time, so whatever is submitted beside it waits
for these few and no more, and sweeps take turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from sqlalchemy.orm import Session

from service.errors import Conflict, NotFound, problem
from service.jobs import quotas
from service.jobs.cancel import cancel_in
from service.jobs.exploring import (
    Explore,
    add_winners,
    estimates_in,
    is_figure,
    machines_of,
    owes_winners,
    part_options,
)
from service.jobs.submit import NewJob, insert_job, item_of
from service.log import get_logger
from service.outbox import Outbox
from service.settings import Settings
from service.states import (
    OPEN_SWEEP_ITEM_STATES,
    OPEN_SWEEP_STATES,
    SweepItemState,
    SweepState,
)
from service.store.ids import new_id
from service.store.records import SweepRecord
from service.store.repos import catalog, deliveries, queue_figures, sweeps, workers
from service.store.session import Database
from worker.compiler.errors import CompilerError, Detail
from worker.compiler.options import CompileOptions

_BATCH = 50
"""Items of one transaction."""
_MOST_BATCHES = 20
_KEPT = (
    "code", "title", "detail", "fault", "stage", "node", "pointer", "limit", "actual", "hints",
    "exit_code",
)  # fmt: skip
"""What an item keeps of its job's problem: the findings stay with the job."""


def feed_all(database: Database, outbox: Outbox, settings: Settings) -> int:
    """Feed every sweep that has not ended; give how many jobs were made."""
    with database.read() as session:
        found = sweeps.open_ids(session)
    return sum(feed(database, outbox, settings, sweep_id, wait=False) for sweep_id in found)


def feed(
    database: Database, outbox: Outbox, settings: Settings, sweep_id: str, *, wait: bool = True
) -> int:
    """Bring one sweep up to date: its ended jobs, its cancel, new jobs; give how many were made.

    Several transactions, each of which leaves it whole.  Without `wait` nothing is done while
    another process does it.
    """
    total = 0
    for _ in range(_MOST_BATCHES):
        with database.write() as session:
            sweep = sweeps.lock(session, sweep_id, wait=wait)
            if sweep is None or sweep.state not in OPEN_SWEEP_STATES:
                return total
            settled = _settle(session, sweep)
            if sweep.state is SweepState.RUNNING:
                add_winners(session, sweep)
            canceled: list[str] = []
            made: list[str] = []
            if sweep.state is SweepState.CANCELING:
                canceled = sweeps.active_jobs(session, sweep_id)
            else:
                made = _make_jobs(session, database, sweep, settings)
            _end(session, sweep)
        for job_id in canceled:
            _cancel(database, job_id)
        if made:
            outbox.flush(tuple(map(item_of, made)))
        total += len(made)
        if not canceled and settled < _BATCH and len(made) < _BATCH:
            break
    return total


def _cancel(database: Database, job_id: str) -> None:
    """Cancel one job of a sweep; whose doing that is the sweep's cancel has said."""
    with suppress(NotFound, Conflict), database.write() as session:  # it ended meanwhile
        cancel_in(session, job_id)


def _settle(session: Session, sweep: SweepRecord) -> int:
    """Copy to items what their ended jobs came to; give how many."""
    found = sweeps.ended(session, sweep.id, _BATCH)
    is_explored = any(part is not None for *_, part in found)
    machines = machines_of(session, sweep) if is_explored else ()
    for number, state, seconds, summary, error, part in found:
        values: dict[str, Any] = {"seconds": seconds}
        if state is None:  # deleted before anybody looked
            again = sweep.state is SweepState.RUNNING
            target = SweepItemState.PENDING if again else SweepItemState.CANCELED
            values["job_id"] = None
        else:
            target = SweepItemState(state)
        if isinstance(error, Mapping):
            values["error"] = {name: error[name] for name in _KEPT if error.get(name) is not None}
        if part is not None:
            if target is SweepItemState.SUCCEEDED:
                result = sweeps.result_of(session, sweep.id, number)
                own = machines[part["first"] : part["first"] + part["count"]]
                values["estimates"] = estimates_in(result, own)
                if values["estimates"] is None:
                    target, values["error"] = SweepItemState.FAILED, _no_estimates()
        elif isinstance(summary, Mapping):
            values |= {name: _figure(summary.get(name)) for name in ("latency_s", "energy_pj")}
        sweeps.set_item(session, sweep.id, number, state=str(target), **values)
    return len(found)


def _no_estimates() -> dict[str, Detail]:
    found = problem(
        "TW-SVC-015", "the job of this part has left no estimates",
        remedy="A worker of an earlier release knows none: resume the sweep when it is gone.",
    )  # fmt: skip
    return {name: found[name] for name in _KEPT if found.get(name) is not None}


def _figure(value: object) -> float | None:
    """A figure of a summary.  The job's own process wrote it, so it may be anything."""
    return float(value) if is_figure(value) else None


def _make_jobs(
    session: Session, database: Database, sweep: SweepRecord, settings: Settings
) -> list[str]:
    """Jobs for the next items: as many as workers are idle, or a few that wait."""
    idle = workers.slots_alive(session, workers.ALIVE_S) - queue_figures.count_pressing(session)
    room = max(settings.sweep_ahead - sweeps.queued(session, sweep.id), idle)
    room = min(room, quotas.room_for_jobs(session, database, settings, sweep.owner), _BATCH)
    if room <= 0:
        return []
    made: list[str] = []
    explore = Explore.of(sweep)
    vary = list[Detail](() if explore is None else explore.vary)
    try:
        options = CompileOptions.from_json(dict(sweep.options))
    except CompilerError as refusal:  # of a release that knew other options
        for number, *_ in sweeps.pending(session, sweep.id, _BATCH):
            _refuse(session, sweep.id, number, refusal.to_problem())
        return made
    for number, model_id, hardware_id, part in sweeps.pending(session, sweep.id, room):
        owner, has_spec = catalog.references(session, model_id, hardware_id, sweep.owner)
        if owner != sweep.owner or not has_spec:
            what = "hardware spec" if owner == sweep.owner else "model"
            gone = problem("TW-SVC-001", f"the item's {what} was deleted")
            _refuse(session, sweep.id, number, gone)
            continue
        job_id = new_id("job")
        own = options if part is None else part_options(options)
        new = NewJob(
            model_id, hardware_id, own, priority=sweep.priority, owner=sweep.owner,
            wall_limit_s=sweep.wall_limit_s, traceparent=sweep.traceparent, sweep_id=sweep.id,
            part=None if part is None else {"vary": vary, **part},
        )  # fmt: skip
        insert_job(session, job_id, new, settings)
        sweeps.set_item(session, sweep.id, number, state=str(SweepItemState.ACTIVE), job_id=job_id)
        made.append(job_id)
    return made


def _refuse(session: Session, sweep_id: str, number: int, error: Mapping[str, Detail]) -> None:
    state = str(SweepItemState.FAILED)
    sweeps.set_item(session, sweep_id, number, state=state, error=dict(error))


def _end(session: Session, sweep: SweepRecord) -> None:
    """End the sweep when no item is left that waits or runs."""
    counts = sweeps.counts(session, [sweep.id]).get(sweep.id, {})
    if any(counts.get(state) for state in OPEN_SWEEP_ITEM_STATES):
        return
    target = SweepState.SUCCEEDED
    if set(counts) != {SweepItemState.SUCCEEDED} or (
        sweep.state is SweepState.CANCELING and owes_winners(session, sweep)
    ):
        is_canceling = sweep.state is SweepState.CANCELING
        target = SweepState.CANCELED if is_canceling else SweepState.FAILED
    if sweeps.move(session, sweep.id, target):
        deliveries.announce_sweep(session, sweep.id)
        get_logger().info(
            "sweep ended", sweep=sweep.id, project=sweep.owner, state=str(target),
            **{str(state): count for state, count in sorted(counts.items())},
        )  # fmt: skip
