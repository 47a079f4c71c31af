"""Repair what crashes leave behind.  Every worker (and the API) runs `reconcile` now and then.

All repairs are conditional updates, so any number of reconcilers may run at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from service.errors import problem
from service.jobs.cancel import settle_canceled
from service.jobs.claim import Outcome, bury, pause_s
from service.jobs.feed import feed_all
from service.log import get_logger
from service.outbox import Outbox
from service.settings import Settings
from service.states import ItemState, JobState
from service.store.blobs import BlobStore
from service.store.records import ItemRecord
from service.store.repos import catalog, items, jobs, links, results, workers
from service.store.session import Database
from service.store.strategy_sets import wanted_by_stored, why_waiting
from worker.compiler.errors import Detail

_BATCH = 100
_MOST_BATCHES = 100
"""Of garbage in one round: what is left waits for the next."""
_DAY_S = 86_400.0
_OVERDUE = "no worker took the job before its queue deadline"


@dataclass(frozen=True, slots=True)
class Repairs:
    """What one round changed."""

    lapsed: int
    promoted: int
    expired: int
    settled: int
    waiting: int
    fed: int
    rung: int


def _take_back(session: Session, item: ItemRecord, backoff_s: float) -> None:
    """End the lease of a dead or stalled worker; its fence makes its late results void."""
    owner = item.owner or ""
    results.end_attempt(session, item.id, item.fence, Outcome.LOST)
    job_id = items.job_of(session, item.id)
    job = None if job_id is None else jobs.get(session, job_id)
    if job is None or job.state is JobState.CANCELING:
        items.finish(session, item.id, owner, item.fence, ItemState.CANCELED)
        if job is not None:
            settle_canceled(session, job.id)
        return
    if item.attempts >= item.max_attempts:
        items.finish(session, item.id, owner, item.fence, ItemState.DEAD)
        bury(session, job.id, item.attempts, "its worker vanished")
        return
    delay = pause_s(backoff_s, item.attempts)
    items.give_back(session, item.id, owner, item.fence, delay_s=delay, refund=False)
    jobs.add_event(session, job.id, "crash", {"reason": "lease lost", "retry_in_s": delay})


def expire_leases(database: Database, settings: Settings) -> int:
    """Take back items whose lease or hard deadline has passed; give how many."""
    with database.write() as session:
        found = items.lapsed(session, _BATCH)
        for item in found:
            _take_back(session, item, settings.retry_backoff_s)
    return len(found)


def expire_queued(database: Database) -> int:
    """Expire jobs that no worker took before their queue deadline; give how many."""
    count = 0
    with database.read() as session:
        overdue = jobs.overdue(session, _BATCH)
    for job_id, why in overdue:
        with database.write() as session:
            if not items.cancel_waiting(session, job_id):
                continue  # a worker took it in the last moment
            count += jobs.move(
                session,
                job_id,
                JobState.EXPIRED,
                error=problem("TW-SVC-008", _OVERDUE if why is None else f"{_OVERDUE}: {why}"),
            )
    return count


def settle_cancels(database: Database) -> int:
    """Finish cancels whose worker died before confirming; give how many."""
    count = 0
    with database.read() as session:
        stranded = items.stranded_cancels(session, _BATCH)
    for job_id in stranded:
        with database.write() as session:
            items.cancel_waiting(session, job_id)
            count += settle_canceled(session, job_id)
    return count


def note_waiting(database: Database) -> int:
    """Let queued jobs say why no live worker may take them, or that one may; give how many."""
    count = 0
    with database.read() as session:
        alive = workers.offers_alive(session, workers.ALIVE_S)
        whys = {want: why_waiting(want, alive) for want in items.wants_of_ready(session)}
        due = [
            (job_id, why)
            for want, why in whys.items()
            for job_id in jobs.waiting_otherwise(session, want, why, _BATCH)
        ]
    for job_id, why in due:
        with database.write() as session:
            jobs.set_waiting(session, job_id, why)
            count += 1
    return count


def restate_wants(database: Database) -> int:
    """Let unclaimed items want the strategies of this release; give how many changed.

    For a server that starts: what an earlier release accepted would otherwise wait for versions
    that are gone.  A strategy that is not installed here is still waited for.
    """
    changed = 0
    with database.write() as session:
        for item_id, job_id, had in items.unclaimed(session):
            job = jobs.get(session, job_id)
            want = None if job is None else wanted_by_stored(job.options)
            if want is not None and want != had:
                items.want(session, item_id, want)
                payload = {"had": list[Detail](had.splitlines()),
                           "want": list[Detail](want.splitlines())}  # fmt: skip
                jobs.add_event(session, job_id, "strategies", payload)
                changed += 1
    return changed


def promote(database: Database) -> tuple[str, ...]:
    """Make items ready whose needs are all done.  Also called after every finish."""
    with database.write() as session:
        return tuple(items.promote(session))


def reconcile(database: Database, outbox: Outbox, settings: Settings) -> Repairs:
    """Run one round of all repairs, then ring for whatever is ready."""
    repairs = Repairs(
        lapsed=expire_leases(database, settings),
        promoted=len(promote(database)),
        expired=expire_queued(database),
        settled=settle_cancels(database),
        waiting=note_waiting(database),
        fed=feed_all(database, outbox, settings),
        rung=outbox.flush(),
    )
    if repairs.lapsed or repairs.expired or repairs.settled:
        get_logger().info(
            "reconciled", lapsed=repairs.lapsed, expired=repairs.expired, settled=repairs.settled
        )
    return repairs


def reset_after_boot(database: Database, identity: str) -> int:
    """Void the leases of earlier lives of `identity` and every sent bell; give how many leases.

    Only for a process that holds the exclusive lock on the data directory of that identity: no
    other life of it can be working.  Other workers on the same database keep their leases.
    The interrupted try still counts, so a job that kills the whole process cannot loop for ever.
    """
    with database.write() as session:
        found = items.leased_by(session, f"{identity}.")
        for item in found:
            _take_back(session, item, backoff_s=0.0)
        items.reset_dispatches(session)
    restate_wants(database)
    return len(found)


def reset_after_restore(database: Database) -> int:
    """Void every lease of a store that was lost: its workers work on nothing of this one.

    Their attempts do not count.  Give how many items may be claimed again.
    """
    with database.write() as session:
        found = items.leased_by(session, "")
        for item in found:
            results.end_attempt(session, item.id, item.fence, Outcome.GIVEN_BACK)
            owner = item.owner or ""
            items.give_back(session, item.id, owner, item.fence, delay_s=0.0, refund=True)
        items.reset_dispatches(session)
        workers.sweep(session, 0.0)
    return len(found)


def collect_garbage(
    database: Database, blobs: BlobStore, settings: Settings, *, grace_s: float = _DAY_S
) -> int:
    """Delete old idempotency keys, silent workers, ended links and blobs nothing refers to; give
    blobs deleted.

    The row goes first: a crash in between leaves bytes without a row, which the next store of the
    same content adopts.  The other order would leave a row that promises bytes it does not have.
    Bytes that were stored again meanwhile are young, and stay.
    """
    with database.write() as session:
        catalog.forget_old_keys(session, settings.idempotency_ttl_s)
        workers.sweep(session, _DAY_S)
        links.drop_ended(session)
    removed = 0
    for _ in range(_MOST_BATCHES):
        with database.read() as session:
            unused = results.unreferenced_blobs(session, grace_s, _BATCH)
        for digest in unused:
            with database.write() as session:
                gone = results.remove_unused_blob(session, digest, grace_s)
            if gone:
                blobs.delete(digest, older_than_s=grace_s)
                removed += 1
        if len(unused) < _BATCH:
            break
    return removed
