"""What is old enough to go.  Each statement takes a limited number of rows, the oldest first."""

from __future__ import annotations

from sqlalchemy import Text, delete, exists, func, literal, or_, select, type_coerce
from sqlalchemy.orm import Session

from service.states import TERMINAL_JOB_STATES, DeliveryState
from service.store.repos.rows import affected
from service.store.repos.sweeps import needs_model
from service.store.tables import (
    CacheEntryRow,
    CalibrationRow,
    DeliveryRow,
    JobRow,
    ModelRow,
    SweepRow,
    db_now,
)

_ENDED = sorted(map(str, TERMINAL_JOB_STATES))


def ended_jobs(session: Session, older_than_s: float, limit: int) -> list[str]:
    """Jobs that ended so long ago, but those of a sweep: they go with it."""
    in_sweep = exists(select(literal(1)).where(SweepRow.id == JobRow.sweep_id))
    query = (
        select(JobRow.id)
        .where(JobRow.state.in_(_ENDED), JobRow.finished < db_now() - older_than_s, ~in_sweep)
        .order_by(JobRow.finished, JobRow.id)
        .limit(limit)
    )
    return list(session.scalars(query))


def drop_ended_deliveries(session: Session, older_than_s: float, limit: int) -> int:
    """Delete messages to subscriptions that ended so long ago; give how many."""
    old = (
        select(DeliveryRow.id)
        .where(
            DeliveryRow.state != str(DeliveryState.PENDING),
            DeliveryRow.finished < db_now() - older_than_s,
        )
        .order_by(DeliveryRow.finished, DeliveryRow.id)
        .limit(limit)
    )
    # Asked again: it may have been replayed in between.
    ended = DeliveryRow.state != str(DeliveryState.PENDING)
    return affected(session, delete(DeliveryRow).where(DeliveryRow.id.in_(old), ended))


def drop_unused_models(session: Session, older_than_s: float, limit: int) -> int:
    """Delete models that are so old and that no job or sweep needs; give how many."""
    used = or_(exists(select(literal(1)).where(JobRow.model_id == ModelRow.id)), needs_model())
    old = (
        select(ModelRow.id)
        .where(ModelRow.created < db_now() - older_than_s, ~used)
        .order_by(ModelRow.created, ModelRow.id)
        .limit(limit)
    )
    return affected(session, delete(ModelRow).where(ModelRow.id.in_(old), ~used))


def drop_unused_arrays(session: Session, older_than_s: float, limit: int) -> int:
    """The same of arrays.  Cost: a look at the options of the owner's jobs and sweeps for
    each."""
    found = type_coerce(JobRow.options, Text).contains(CalibrationRow.blob_sha256)
    swept = type_coerce(SweepRow.options, Text).contains(CalibrationRow.blob_sha256)
    used = or_(
        exists(select(literal(1)).where(JobRow.owner == CalibrationRow.owner, found)),
        exists(select(literal(1)).where(SweepRow.owner == CalibrationRow.owner, swept)),
    )
    old = (
        select(CalibrationRow.owner, CalibrationRow.blob_sha256)
        .where(CalibrationRow.created < db_now() - older_than_s, ~used)
        .order_by(CalibrationRow.created, CalibrationRow.owner, CalibrationRow.blob_sha256)
        .limit(limit)
    )
    dropped = 0
    for owner, sha256 in session.execute(old).all():
        dropped += affected(
            session,
            delete(CalibrationRow).where(
                CalibrationRow.owner == owner, CalibrationRow.blob_sha256 == sha256
            ),
        )
    return dropped


def drop_stale_entries(session: Session, unused_for_s: float, limit: int) -> int:
    """Delete cache entries of any project that nobody used for so long; give how many."""
    old = (
        select(CacheEntryRow.digest)
        .where(CacheEntryRow.last_used < db_now() - unused_for_s)
        .order_by(CacheEntryRow.last_used, CacheEntryRow.digest)
        .limit(limit)
    )
    return affected(session, delete(CacheEntryRow).where(CacheEntryRow.digest.in_(old)))


def drop_entries_beyond(session: Session, size_bytes: int, limit: int) -> int:
    """Delete cache entries until the rest has so many bytes, those first that were used longest
    ago; give how many.  Cost: a walk over all entries by age."""
    newest_first = (CacheEntryRow.last_used.desc(), CacheEntryRow.digest)
    total = func.sum(CacheEntryRow.size_bytes).over(order_by=newest_first, rows=(None, 0))
    summed = select(CacheEntryRow.digest, CacheEntryRow.last_used, total.label("total")).subquery()
    beyond = (
        select(summed.c.digest)
        .where(summed.c.total > size_bytes)
        .order_by(summed.c.last_used, summed.c.digest)
        .limit(limit)
    )
    return affected(session, delete(CacheEntryRow).where(CacheEntryRow.digest.in_(beyond)))
