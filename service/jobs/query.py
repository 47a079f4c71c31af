"""Read jobs, models, specs, artifacts, cache and queue.  Read-only; `NotFound` for unknown ids.

`owner=None` means: whoever owns it.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy.orm import Session

from service.errors import Conflict, Malformed, NotFound
from service.jobs import audit
from service.keys import LOCAL
from service.states import TERMINAL_JOB_STATES, DeliveryState
from service.store.records import (
    ArtifactRecord,
    AttemptRecord,
    BlobRef,
    CacheEntryRecord,
    CacheStats,
    CalibrationRecord,
    DeliveryAttemptRecord,
    DeliveryRecord,
    Durations,
    EventRecord,
    HardwareRecord,
    JobFilter,
    JobRecord,
    ModelRecord,
    QueueStats,
    Standing,
    WebhookRecord,
    WorkerRecord,
)
from service.store.repos import (
    cache,
    calibrations,
    catalog,
    deliveries,
    jobs,
    queue_figures,
    recent,
    results,
    sweeps,
    webhooks,
    workers,
)
from service.store.session import Database
from service.text import is_carried

Row = TypeVar("Row")
MAX_PAGE = 200
EVERY_JOB = JobFilter()


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """Some rows, newest first, and the cursor of the next page (None at the end)."""

    rows: tuple[Row, ...]
    next_cursor: str | None


def cursor_of(created: float, identity: str) -> str:
    """The cursor of a place in a list, newest first."""
    text = json.dumps([created.hex(), identity])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def place_of(cursor: str | None) -> tuple[float, str] | None:
    """The place that a cursor names.

    Raises:
        Malformed: this service gave out no such cursor.
    """
    if cursor is None:
        return None
    try:
        created, identity = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        at = float.fromhex(created)
        if not (math.isfinite(at) and isinstance(identity, str) and is_carried(identity)):
            raise ValueError("not a place in a list")
        return at, identity
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise Malformed(
            "the cursor is not one this service gave out", pointer="/cursor", actual=cursor[:80]
        ) from error


def checked_limit(limit: int) -> int:
    """The length of a page, if it is a good one.

    Raises:
        Malformed: it is not.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise Malformed(
            f"limit must be from 1 to {MAX_PAGE}", pointer="/limit", limit=MAX_PAGE, actual=limit
        )
    return limit


def get_job(database: Database, job_id: str, owner: str | None = None) -> JobRecord:
    """Give one job.

    Raises:
        NotFound: it is unknown, or another owner's.
    """
    with database.read() as session:
        job = jobs.get(session, job_id)
    if job is None or (owner is not None and job.owner != owner):
        raise NotFound("no such job", actual=job_id)
    return job


def list_jobs(
    database: Database,
    *,
    owner: str | None = None,
    wanted: JobFilter = EVERY_JOB,
    cursor: str | None = None,
    limit: int = 50,
) -> Page[JobRecord]:
    """List jobs, newest first.

    Raises:
        Malformed: a bad cursor or limit.
    """
    with database.read() as session:
        rows = jobs.page(
            session,
            owner=owner,
            wanted=wanted,
            before=place_of(cursor),
            limit=checked_limit(limit) + 1,
        )
    more = cursor_of(rows[limit - 1].created, rows[limit - 1].id) if len(rows) > limit else None
    return Page(tuple(rows[:limit]), more)


def delete_job(database: Database, job_id: str, owner: str | None = None) -> None:
    """Delete a finished job with its history; blobs go when nothing refers to them any more.

    Raises:
        NotFound: it is unknown.
        Conflict: it is not finished: cancel it first.
    """
    with database.write() as session:
        job = jobs.get(session, job_id)
        if job is None or (owner is not None and job.owner != owner):
            raise NotFound("no such job", actual=job_id)
        if job.state not in TERMINAL_JOB_STATES:
            raise Conflict(
                f"a job that is {job.state} cannot be deleted",
                actual=str(job.state),
                remedy="Cancel the job and delete it when it is canceled.",
            )
        if (sweep_id := sweeps.open_sweep_of(session, job_id)) is not None:
            raise Conflict(
                f"the job is an item of sweep {sweep_id}, which has not ended", actual=sweep_id,
                remedy="Delete it when the sweep has ended, or with the sweep.",
            )  # fmt: skip
        jobs.remove(session, job_id)
        audit.record(session, audit.current(), job_id)


def list_events(
    database: Database, job_id: str, *, after_seq: int = 0, limit: int = 500
) -> tuple[EventRecord, ...]:
    """List a job's events with a number above `after_seq`, oldest first.

    Numbers are dense and grow in commit order, so `after_seq` of the last one seen resumes exactly.
    """
    with database.read() as session:
        return tuple(jobs.events(session, job_id, after_seq, limit))


def standings(database: Database, job_ids: Iterable[str]) -> dict[str, Standing]:
    """Give how each job stands that exists; one query for all who wait."""
    with database.read() as session:
        return jobs.standings(session, job_ids)


def list_artifacts(database: Database, job_id: str) -> tuple[ArtifactRecord, ...]:
    """List a job's artifacts by name; also those of a job that failed half-way."""
    with database.read() as session:
        return tuple(results.artifacts_of_job(session, job_id))


def get_artifact(database: Database, job_id: str, name: str) -> ArtifactRecord:
    """Give one artifact of a job (report, report_html, layers, trace, bundle, placement, ...).

    Raises:
        NotFound: the job has none of this name (yet).
    """
    with database.read() as session:
        found = results.artifacts_of_job(session, job_id, name)
    if not found:
        raise NotFound(f"the job has no artifact named {name!r} (yet)", actual=name)
    return found[0]


def newest_artifact_of_model(database: Database, model_id: str, name: str) -> ArtifactRecord | None:
    """Give what the model's youngest job with such an artifact left, or None."""
    with database.read() as session:
        return results.newest_of_model(session, model_id, name)


def get_blob(database: Database, sha256: str, owner: str | None = None) -> BlobRef:
    """Describe content by digest.

    Raises:
        NotFound: there is none, or nothing of the owner's refers to it.
    """
    with database.read() as session:
        ref = results.get_blob(session, sha256, owner)
    if ref is None:
        raise NotFound("no content has this digest", actual=sha256[:80])
    return ref


def list_attempts(database: Database, job_id: str) -> tuple[AttemptRecord, ...]:
    """List the tries at a job; `log_sha256` is the captured output of each."""
    with database.read() as session:
        return tuple(results.attempts_of_job(session, job_id))


def get_model(database: Database, model_id: str, owner: str | None = None) -> ModelRecord:
    """Give one model.

    Raises:
        NotFound: it is unknown, or another owner's.
    """
    with database.read() as session:
        model = catalog.get_model(session, model_id)
    if model is None or (owner is not None and model.owner != owner):
        raise NotFound("no such model", actual=model_id)
    return model


def find_model(database: Database, sha256: str, owner: str = "local") -> ModelRecord | None:
    """Give the owner's model with these bytes, or None."""
    with database.read() as session:
        return catalog.find_model(session, owner, sha256)


def list_models(
    database: Database, *, owner: str | None = None, cursor: str | None = None, limit: int = 50
) -> Page[ModelRecord]:
    """List models, newest first."""
    with database.read() as session:
        rows = catalog.list_models(
            session, owner=owner, before=place_of(cursor), limit=checked_limit(limit) + 1
        )
    more = cursor_of(rows[limit - 1].created, rows[limit - 1].id) if len(rows) > limit else None
    return Page(tuple(rows[:limit]), more)


def get_calibration(database: Database, sha256: str, owner: str) -> CalibrationRecord:
    """Give the owner's calibration arrays of this digest.

    Raises:
        NotFound: it has none.
    """
    with database.read() as session:
        found = calibrations.find_calibration(session, owner, sha256)
    if found is None:
        raise NotFound("no such calibration arrays", actual=sha256[:80])
    return found


def list_calibrations(
    database: Database, *, owner: str, cursor: str | None = None, limit: int = 50
) -> Page[CalibrationRecord]:
    """List the owner's calibration arrays, newest first."""
    with database.read() as session:
        rows = calibrations.list_calibrations(
            session, owner=owner, before=place_of(cursor), limit=checked_limit(limit) + 1
        )
    more = cursor_of(rows[limit - 1].created, rows[limit - 1].sha256) if len(rows) > limit else None
    return Page(tuple(rows[:limit]), more)


def delete_model(database: Database, model_id: str, owner: str | None = None) -> None:
    """Delete a model that no job uses.

    Raises:
        NotFound: it is unknown.
        Conflict: jobs refer to it.
    """
    with database.write() as session:
        model = catalog.get_model(session, model_id)
        if model is None or (owner is not None and model.owner != owner):
            raise NotFound("no such model", actual=model_id)
        if not catalog.remove_model(session, model_id):
            raise Conflict(
                "jobs or sweeps refer to this model", remedy="Delete its jobs and sweeps first."
            )
        audit.record(session, audit.current(), model_id)


def get_hardware(database: Database, hardware_id: str, owner: str | None = None) -> HardwareRecord:
    """Give one hardware spec.

    Raises:
        NotFound: it is unknown, or the owner has it not.
    """
    with database.read() as session:
        record = catalog.get_hardware(session, hardware_id, owner)
    if record is None:
        raise NotFound("no such hardware spec", actual=hardware_id[:80])
    return record


def list_hardware(
    database: Database, *, owner: str, cursor: str | None = None, limit: int = 50
) -> Page[HardwareRecord]:
    """List the owner's hardware specs, newest first."""
    with database.read() as session:
        rows = catalog.list_hardware(
            session, owner=owner, before=place_of(cursor), limit=checked_limit(limit) + 1
        )
    more = cursor_of(rows[limit - 1].created, rows[limit - 1].id) if len(rows) > limit else None
    return Page(tuple(rows[:limit]), more)


def cache_stats(database: Database, owner: str | None = None) -> tuple[CacheStats, ...]:
    """Give totals per cache kind."""
    with database.read() as session:
        return cache.stats(session, owner)


def get_cache_entry(database: Database, digest: str, owner: str = LOCAL) -> CacheEntryRecord:
    """Describe one cache entry of the owner's.

    Raises:
        NotFound: nothing is cached under this digest.
    """
    with database.read() as session:
        entry = cache.get(session, digest, owner)
    if entry is None:
        raise NotFound("nothing is cached under this digest", actual=digest[:80])
    return entry


def list_cache_entries(
    database: Database, *, owner: str = LOCAL, kind: str | None = None, job_id: str | None = None,
    limit: int = 50,
) -> tuple[CacheEntryRecord, ...]:  # fmt: skip
    """List the owner's cache entries, most recently used first; `job_id` keeps those the job
    filled."""
    with database.read() as session:
        found = cache.newest(
            session, owner=owner, kind=kind, limit=checked_limit(limit), job_id=job_id
        )
        return tuple(found)


def prune_cache(
    database: Database,
    *,
    unused_for_s: float,
    owner: str = LOCAL,
    limit: int = 100_000,
    before_commit: Callable[[int], None] | None = None,
) -> int:
    """Delete the owner's cache entries that nobody used for a while; give how many."""
    with database.write() as session:
        dropped = cache.prune(session, owner=owner, unused_for_s=unused_for_s, limit=limit)
        audit.record(session, audit.current(), None)
        if before_commit is not None:
            before_commit(dropped)
    return dropped


def list_webhooks(database: Database, owner: str) -> tuple[WebhookRecord, ...]:
    """List the owner's subscriptions, the oldest first."""
    with database.read() as session:
        return tuple(webhooks.listing(session, owner))


def get_webhook(database: Database, webhook_id: str, owner: str) -> WebhookRecord:
    """Give one subscription.

    Raises:
        NotFound: it is unknown, or another owner's.
    """
    with database.read() as session:
        return webhook_of(session, webhook_id, owner)


def list_deliveries(
    database: Database,
    webhook_id: str,
    *,
    owner: str,
    state: DeliveryState | None = None,
    cursor: str | None = None,
    limit: int = 50,
) -> Page[DeliveryRecord]:
    """List messages to a subscription of the owner's, newest first."""
    with database.read() as session:
        webhook_of(session, webhook_id, owner)
        rows = deliveries.page(
            session,
            webhook_id,
            state=state,
            before=place_of(cursor),
            limit=checked_limit(limit) + 1,
        )
    more = cursor_of(rows[limit - 1].created, rows[limit - 1].id) if len(rows) > limit else None
    return Page(tuple(rows[:limit]), more)


def get_delivery(
    database: Database, webhook_id: str, delivery_id: str, owner: str
) -> tuple[DeliveryRecord, tuple[DeliveryAttemptRecord, ...]]:
    """Give one message to a subscription of the owner's, and all attempts at it.

    Raises:
        NotFound: one of them is unknown, or another owner's.
    """
    with database.read() as session:
        found = delivery_of(session, webhook_id, delivery_id, owner)
        return found, tuple(deliveries.attempts(session, delivery_id))


def webhook_of(session: Session, webhook_id: str, owner: str) -> WebhookRecord:
    """The owner's subscription, in a transaction.

    Raises:
        NotFound: it is unknown, or another owner's.
    """
    found = webhooks.get(session, webhook_id)
    if found is None or found.project != owner:
        raise NotFound("no such webhook", actual=webhook_id[:80])
    return found


def delivery_of(session: Session, webhook_id: str, delivery_id: str, owner: str) -> DeliveryRecord:
    """A message to the owner's subscription, in a transaction.

    Raises:
        NotFound: one of them is unknown, or another owner's.
    """
    webhook_of(session, webhook_id, owner)
    found = deliveries.get(session, delivery_id)
    if found is None or found.webhook_id != webhook_id:
        raise NotFound("no such delivery to this webhook", actual=delivery_id[:80])
    return found


def job_durations(database: Database) -> tuple[Durations, tuple[tuple[str, Durations], ...]]:
    """How long jobs waited for a worker, and how long they ran, by their last state."""
    with database.read() as session:
        return jobs.waits(session), tuple(jobs.runs(session))


def recent_stages(database: Database) -> tuple[tuple[str, Durations], ...]:
    """How long stages took of jobs that ended lately (`service.store.repos.recent`), by stage."""
    with database.read() as session:
        return tuple(recent.stage_durations(session))


def recent_units(database: Database) -> tuple[int, int]:
    """Units of jobs that ended lately: those that the cache had, and all."""
    with database.read() as session:
        return recent.cached_units(session)


def list_workers(database: Database) -> tuple[WorkerRecord, ...]:
    """List worker processes, most recent beat first."""
    with database.read() as session:
        return tuple(workers.listing(session))


def queue_stats(database: Database, *, alive_within_s: float = workers.ALIVE_S) -> QueueStats:
    """Give what `/readyz` and `/metrics` show; a worker is alive if it beat recently."""
    with database.read() as session:
        outcomes = results.count_attempts(session)
        return QueueStats(
            jobs_by_state=jobs.count_by_state(session),
            items_by_state=queue_figures.count_by_state(session),
            oldest_ready_s=queue_figures.oldest_ready_s(session),
            quiet_s=results.quiet_s(session),
            workers_alive=workers.count_alive(session, alive_within_s),
            attempts_total=sum(count for _, count in outcomes),
            attempts_by_outcome=outcomes,
        )
