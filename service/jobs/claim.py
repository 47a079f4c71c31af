"""The worker's side of the protocol: claim, heartbeat, progress, finish.

claim -> (renew | progress | artifact)* -> succeed | fail | retry | canceled | give_back
Every step carries owner and fence.  `LeaseLost` means: throw everything away, somebody else has it.
Blobs are stored before the transaction that mentions them, so a crash in between leaves only a
blob that nobody refers to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from service.errors import LeaseLost, problem
from service.jobs.cancel import settle_canceled
from service.log import get_logger
from service.states import ItemState, JobState
from service.store.records import BlobRef, HardwareRecord, JobRecord, ModelRecord
from service.store.repos import bells, catalog, items, jobs, results
from service.store.session import Asker, Database
from service.store.strategy_sets import is_served, offered
from worker.compiler.errors import Detail

HARD_GRACE_S = 60.0
"""How long after its wall limit an item may still be leased, whatever its worker says."""


class Outcome(StrEnum):
    """How an attempt ended, as recorded in its account."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    CANCELED = "canceled"
    LOST = "lost"
    """Its lease ran out."""
    GIVEN_BACK = "given_back"
    """The worker was asked to stop."""
    POSTPONED = "postponed"
    """Store, database or disk failed it; it does not count as an attempt."""


LONGEST_PAUSE_S = 60.0
"""Between two attempts at an item."""


def pause_s(first_s: float, tries: int) -> float:
    """The pause after so many tries: it doubles with each, up to a minute."""
    return min(first_s * 2.0 ** min(tries - 1, 32), LONGEST_PAUSE_S)


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to work on an item, and everything needed to do so."""

    item_id: str
    owner: str
    fence: int
    attempts: int
    max_attempts: int
    job: JobRecord
    model: ModelRecord
    hardware: HardwareRecord
    part: Mapping[str, Detail] | None = None
    """Machines like `hardware` that are estimated with the program (`worker.explore.part`)."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What an attempt consumed."""

    cpu_s: float | None = None
    max_rss_bytes: int | None = None
    log: BlobRef | None = None


def claim(
    database: Database,
    owner: str,
    ttl_s: float,
    item_id: str | None = None,
    offer: str | None = None,
) -> Claim | None:
    """Take the ready item of highest priority (or exactly `item_id`); None when there is none.

    Only items whose strategies are in `offer` (by default: all that are installed here) count.
    """
    offer = offered() if offer is None else offer
    with database.write() as session:
        served = [want for want in items.wants_of_ready(session) if is_served(want, offer)]
        item = items.claim(session, owner, ttl_s, HARD_GRACE_S, served, item_id)
        if item is None:
            items.pass_on(session, served)
            return None
        job_id = items.job_of(session, item.id)
        job = None if job_id is None else jobs.get(session, job_id)
        if job is None:
            items.finish(session, item.id, owner, item.fence, ItemState.CANCELED)
            return None
        results.start_attempt(session, item.id, item.fence, owner)
        jobs.set_waiting(session, job.id, None)
        jobs.move(session, job.id, JobState.RUNNING)
        if item.attempts > 1:
            jobs.add_event(session, job.id, "retry", {"attempt": item.attempts})
        model = catalog.get_model(session, job.model_id)
        hardware = catalog.get_hardware(session, job.hardware_id)
        fresh = jobs.get(session, job.id)
        if model is None or hardware is None or fresh is None:
            raise LeaseLost(item.id, item.fence)  # foreign keys forbid it; roll back if not
        return Claim(
            item_id=item.id,
            owner=owner,
            fence=item.fence,
            attempts=item.attempts,
            max_attempts=item.max_attempts,
            job=fresh,
            model=model,
            hardware=hardware,
            part=_part_of(item.payload),
        )


def _part_of(payload: Mapping[str, Detail]) -> Mapping[str, Detail] | None:
    part = payload.get("part")
    return part if isinstance(part, Mapping) else None


def unheard(database: Database, owner: str) -> frozenset[str]:
    """Items that are ready, were rung for, and are for `owner`, who has none: the first of them."""
    offer = offered()
    with database.read() as session:
        served = [want for want in items.wants_of_ready(session) if is_served(want, offer)]
        return bells.unheard(session, owner, served) if served else frozenset()


def renew(database: Database, held: Claim, ttl_s: float) -> bool:
    """Extend the lease; False when it is lost."""
    with database.write() as session:
        return items.renew(session, held.item_id, held.owner, held.fence, ttl_s)


def is_canceling(asker: Asker, held: Claim) -> bool:
    """Tell whether the user asked to cancel.  Takes no write lock: it is asked often."""
    state = asker.ask(lambda session: jobs.state(session, held.job.id))
    return state is None or state is JobState.CANCELING


def _hold(session: Session, held: Claim) -> None:
    if not items.hold(session, held.item_id, held.owner, held.fence):
        raise LeaseLost(held.item_id, held.fence)


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage that started or finished."""

    name: str
    state: str


@dataclass(frozen=True, slots=True)
class Units:
    """How many schedule units there are, are solved and were cached."""

    solved: int
    cached: int
    total: int


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file of a finished stage; it stays even if a later stage fails."""

    name: str
    file_name: str
    ref: BlobRef


Progress: TypeAlias = Stage | Units | Artifact


def record(database: Database, held: Claim, found: Sequence[tuple[Progress, float]]) -> None:
    """Record what a running item has come to: (progress, seconds ago), one or more, in order.

    One transaction, which leaves an event of each and the job at the last stage and counts.

    Raises:
        LeaseLost: the item is somebody else's now.
    """
    events: list[tuple[str, Mapping[str, Detail], float]] = []
    stage: Stage | None = None
    units: Units | None = None
    artifacts: list[tuple[str, str, BlobRef]] = []
    with database.write() as session:
        _hold(session, held)
        for progress, age_s in found:
            match progress:
                case Stage(name, state):
                    stage = progress
                    events.append(("stage", {"stage": name, "state": state}, age_s))
                case Units(solved, cached, total):
                    units = progress
                    counts = {"solved": solved, "cached": cached, "total": total}
                    events.append(("units", counts, age_s))
                case Artifact(name, file_name, ref):
                    artifacts.append((name, file_name, ref))
                    events.append(("artifact", {"name": name, "sha256": ref.sha256}, age_s))
        results.put_artifacts(session, artifacts, item_id=held.item_id, fence=held.fence)
        if stage is not None:
            jobs.set_stage(session, held.job.id, stage.name)
        if units is not None:
            jobs.set_units(session, held.job.id, units.solved, units.cached, units.total)
        jobs.add_events(session, held.job.id, events)


def _end(
    session: Session, held: Claim, target: ItemState, outcome: Outcome, usage: Usage,
    result: Mapping[str, Detail] | None = None,
) -> None:  # fmt: skip
    if not items.finish(session, held.item_id, held.owner, held.fence, target, result=result):
        raise LeaseLost(held.item_id, held.fence)
    results.end_attempt(
        session,
        held.item_id,
        held.fence,
        outcome,
        cpu_s=usage.cpu_s,
        max_rss_bytes=usage.max_rss_bytes,
        log=usage.log,
    )


def succeed(
    database: Database,
    held: Claim,
    *,
    artifacts: tuple[tuple[str, str, BlobRef], ...],
    bundle_digest: str,
    summary: Mapping[str, Detail],
    usage: Usage,
    result: Mapping[str, Detail] | None = None,
) -> None:
    """Publish the result: one transaction flips item and job and names all artifacts.

    A job that is canceling ends canceled: its user was told so.  `result` stays with the item of
    work: what was done beside the compile.

    Raises:
        LeaseLost: nothing was published.
    """
    with database.write() as session:
        _end(session, held, ItemState.DONE, Outcome.SUCCEEDED, usage, result)
        results.put_artifacts(session, artifacts, item_id=held.item_id, fence=held.fence)
        results.drop_stale_artifacts(session, held.item_id, held.fence)
        moved = jobs.move(
            session,
            held.job.id,
            JobState.SUCCEEDED,
            summary=summary,
            bundle_digest=bundle_digest,
        )
        if not moved:
            settle_canceled(session, held.job.id)


def fail(
    database: Database,
    held: Claim,
    error: Mapping[str, Detail],
    usage: Usage,
    *,
    timed_out: bool = False,
) -> None:
    """End the job with a problem: a typed refusal is never retried.

    Raises:
        LeaseLost: nothing was changed.
    """
    outcome = Outcome.TIMED_OUT if timed_out else Outcome.FAILED
    with database.write() as session:
        _end(session, held, ItemState.FAILED, outcome, usage)
        target = JobState.TIMED_OUT if timed_out else JobState.FAILED
        if not jobs.move(session, held.job.id, target, error=error):
            settle_canceled(session, held.job.id)


def retry(database: Database, held: Claim, reason: str, usage: Usage, *, backoff_s: float) -> bool:
    """Account for a crash: back to the queue, or failed for good when attempts are used up.

    Returns:
        True when it will be tried again.

    Raises:
        LeaseLost: nothing was changed.
    """
    with database.write() as session:
        if held.attempts >= held.max_attempts:
            _end(session, held, ItemState.DEAD, Outcome.CRASHED, usage)
            bury(session, held.job.id, held.attempts, reason)
            return False
        results.end_attempt(
            session,
            held.item_id,
            held.fence,
            Outcome.CRASHED,
            cpu_s=usage.cpu_s,
            max_rss_bytes=usage.max_rss_bytes,
            log=usage.log,
        )
        delay = pause_s(backoff_s, held.attempts)
        if not items.give_back(
            session, held.item_id, held.owner, held.fence, delay_s=delay, refund=False
        ):
            raise LeaseLost(held.item_id, held.fence)
        jobs.add_event(session, held.job.id, "crash", {"reason": reason, "retry_in_s": delay})
        return True


def postpone(
    database: Database, held: Claim, reason: str, *, backoff_s: float, patience_s: float
) -> bool:
    """Give back an item that a fault of the machinery ended, without counting the attempt.

    The pause doubles with every such return.  When the first attempt is longer than `patience_s`
    ago, nothing is postponed: the attempt counts as a crash.

    Returns:
        True when it will be tried again.

    Raises:
        LeaseLost: nothing was changed.
    """
    with database.write() as session:
        if results.first_attempt_age_s(session, held.item_id) <= patience_s:
            results.end_attempt(session, held.item_id, held.fence, Outcome.POSTPONED)
            delay = pause_s(backoff_s, held.fence - held.attempts + 1)
            if not items.give_back(
                session, held.item_id, held.owner, held.fence, delay_s=delay, refund=True
            ):
                raise LeaseLost(held.item_id, held.fence)
            jobs.add_event(
                session, held.job.id, "postponed", {"reason": reason, "retry_in_s": delay}
            )
            return True
    return retry(database, held, reason, Usage(), backoff_s=backoff_s)


def bury(session: Session, job_id: str, attempts: int, reason: str) -> None:
    """Fail a job whose attempts are used up."""
    error = problem(
        "TW-SVC-006",
        f"the worker gave up after {attempts} attempts; the last one ended so: {reason}",
        limit=attempts,
        actual=attempts,
    )
    if not jobs.move(session, job_id, JobState.FAILED, error=error):
        settle_canceled(session, job_id)


def canceled(database: Database, held: Claim, usage: Usage) -> None:
    """Confirm that the work of a canceling job has been killed.

    Raises:
        LeaseLost: nothing was changed.
    """
    with database.write() as session:
        _end(session, held, ItemState.CANCELED, Outcome.CANCELED, usage)
        settle_canceled(session, held.job.id)


def give_back(database: Database, held: Claim) -> None:
    """Return an unfinished item because this worker stops; does not count as an attempt.

    Raises:
        LeaseLost: nothing was changed.
    """
    with database.write() as session:
        results.end_attempt(session, held.item_id, held.fence, Outcome.GIVEN_BACK)
        if not items.give_back(
            session, held.item_id, held.owner, held.fence, delay_s=0.0, refund=True
        ):
            raise LeaseLost(held.item_id, held.fence)


class Heartbeat:
    """Renews a lease in a thread and watches for a cancel; stops for sure when its block ends.

    `on_stop` is called once, from the thread, when the work must be killed: the lease is lost or
    the user cancels.  A heartbeat that outlived its work would keep a dead item leased for ever, so
    it ends in `__exit__`, and the database never extends a lease past the item's hard deadline.
    """

    def __init__(
        self,
        database: Database,
        held: Claim,
        *,
        ttl_s: float,
        beat_s: float,
        watch_s: float,
        on_stop: Callable[[], None],
    ) -> None:
        self._database = database
        self._held = held
        self._ttl_s = ttl_s
        self._beat_s = beat_s
        self._watch_s = watch_s
        self._on_stop = on_stop
        self._done = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"heartbeat-{held.item_id}", daemon=True
        )
        self.lost = False
        self.canceling = False

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        with closing(self._database.asker()) as asker:
            self._watch(asker)

    def _watch(self, asker: Asker) -> None:
        renewed = time.monotonic()
        stopped = False
        while not self._done.wait(min(self._watch_s, self._beat_s)):
            try:
                if not self.canceling and is_canceling(asker, self._held):
                    self.canceling = True
                if time.monotonic() - renewed >= self._beat_s:
                    if not renew(self._database, self._held, self._ttl_s):
                        self.lost = True
                    renewed = time.monotonic()
            except DBAPIError as error:
                # The database may be restarting.  Without a renewal the lease runs out there, so
                # after one lifetime this worker must assume that somebody else has the item.
                get_logger().warning("heartbeat failed", error=str(error.orig))
                if time.monotonic() - renewed > self._ttl_s:
                    self.lost = True
            if (self.lost or self.canceling) and not stopped:
                stopped = True
                self._on_stop()
            if self.lost:
                return
