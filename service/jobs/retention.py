"""Delete what settings say is old: ended jobs and sweeps, unused models and arrays, cache entries,
audit rows, messages to webhooks.

Rows go here; bytes that nothing refers to any more go with the garbage, a day later
(`service.jobs.reconcile.collect_garbage`).  Any number of processes may do it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from service.jobs.sweeps import remove_some
from service.log import get_logger
from service.settings import Settings
from service.states import OPEN_SWEEP_STATES
from service.store.repos import audit, jobs, retention, sweeps
from service.store.session import Database

_BATCH = 100
"""Rows of one transaction."""
MOST_BATCHES = 100
"""Transactions of one round for each kind: what is left waits for the next."""


@dataclass(frozen=True, slots=True)
class Retired:
    """What one round deleted."""

    jobs: int = 0
    models: int = 0
    arrays: int = 0
    cache_entries: int = 0
    audit_rows: int = 0
    deliveries: int = 0
    sweeps: int = 0


def retire(database: Database, settings: Settings) -> Retired:
    """Delete what is older than settings allow; each that is 0 keeps all of its kind."""
    kept_s, unused_s = settings.keep_jobs_s, settings.keep_unused_s
    stale_s, most_bytes = settings.keep_cache_s, settings.max_cache_bytes
    audit_s = settings.keep_audit_s
    done = Retired(
        jobs=_all(database, lambda s: _ended(s, kept_s)) if kept_s else 0,
        models=_all(database, lambda s: retention.drop_unused_models(s, unused_s, _BATCH))
        if unused_s else 0,
        arrays=_all(database, lambda s: retention.drop_unused_arrays(s, unused_s, _BATCH))
        if unused_s else 0,
        cache_entries=(
            _all(database, lambda s: retention.drop_stale_entries(s, stale_s, _BATCH))
            if stale_s else 0
        )
        + (
            _all(database, lambda s: retention.drop_entries_beyond(s, most_bytes, _BATCH))
            if most_bytes else 0
        ),
        audit_rows=_all(database, lambda s: audit.drop_old(s, audit_s, _BATCH)) if audit_s else 0,
        deliveries=_all(
            database,
            lambda s: retention.drop_ended_deliveries(s, settings.keep_deliveries_s, _BATCH),
        ) if settings.keep_deliveries_s else 0,
        sweeps=_ended_sweeps(database, kept_s) if kept_s else 0,
    )  # fmt: skip
    if done != Retired():
        get_logger().info(
            "retired", jobs=done.jobs, models=done.models, arrays=done.arrays,
            cache_entries=done.cache_entries, audit_rows=done.audit_rows,
            deliveries=done.deliveries, sweeps=done.sweeps,
        )  # fmt: skip
    return done


def _ended(session: Session, older_than_s: float) -> int:
    found = retention.ended_jobs(session, older_than_s, _BATCH)
    for job_id in found:
        jobs.remove(session, job_id)
    return len(found)


def _ended_sweeps(database: Database, older_than_s: float) -> int:
    """Sweeps with their jobs, a batch of them in each transaction."""
    gone = 0
    for _ in range(MOST_BATCHES):
        with database.write() as session:
            found = sweeps.ended_before(session, older_than_s, 1)
            held = sweeps.lock(session, found[0]) if found else None
            if held is None:
                break
            if held.state not in OPEN_SWEEP_STATES:  # else it was resumed meanwhile
                gone += remove_some(session, held.id)
    return gone


def _all(database: Database, step: Callable[[Session], int]) -> int:
    """Batch after batch, each a transaction of its own, so that nobody waits long."""
    total = 0
    for _ in range(MOST_BATCHES):
        with database.write() as session:
            dropped = step(session)
        total += dropped
        if dropped < _BATCH:
            break
    return total
