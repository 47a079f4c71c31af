"""Worker processes and their heartbeats."""

from __future__ import annotations

from sqlalchemy import Double, bindparam, delete, func, select, update
from sqlalchemy.orm import Session

from service.store.records import WorkerRecord
from service.store.repos.rows import affected, upsert
from service.store.tables import WorkerRow, db_now

ALIVE_S = 60.0
"""A worker that beat no longer ago than this is alive."""


def register(
    session: Session,
    *,
    worker_id: str,
    host: str,
    pid: int,
    slots: int,
    version: str,
    sandbox_tier: str,
    strategies: str,
) -> None:
    """Announce a worker process."""
    upsert(
        session,
        WorkerRow,
        ["id"],
        [
            {
                "id": worker_id,
                "host": host,
                "pid": pid,
                "slots": slots,
                "version": version,
                "sandbox_tier": sandbox_tier,
                "strategies": strategies,
            }
        ],
        "started",
        "beat",
    )


def beat(session: Session, worker_id: str) -> bool:
    """Say that the worker is alive; False when its row was swept away."""
    return (
        affected(session, update(WorkerRow).where(WorkerRow.id == worker_id).values(beat=db_now()))
        == 1
    )


def remove(session: Session, worker_id: str) -> None:
    """Sign a worker off."""
    affected(session, delete(WorkerRow).where(WorkerRow.id == worker_id))


def sweep(session: Session, silent_for_s: float) -> int:
    """Forget workers that have been silent for long."""
    return affected(session, delete(WorkerRow).where(WorkerRow.beat < db_now() - silent_for_s))


def listing(session: Session) -> list[WorkerRecord]:
    """List known workers, most recent beat first."""
    query = select(WorkerRow, db_now()).order_by(WorkerRow.beat.desc(), WorkerRow.id)
    return [
        WorkerRecord(
            id=row.id,
            host=row.host,
            pid=row.pid,
            slots=row.slots,
            version=row.version,
            sandbox_tier=row.sandbox_tier,
            strategies=row.strategies,
            started=row.started,
            beat=row.beat,
            age_s=max(0.0, now - row.beat),
        )
        for row, now in session.execute(query)
    ]


def count_alive(session: Session, within_s: float) -> int:
    """Count workers that beat within the last `within_s` seconds."""
    return (
        session.scalar(
            select(func.count()).select_from(WorkerRow).where(WorkerRow.beat >= db_now() - within_s)
        )
        or 0
    )


_SLOTS = select(func.sum(WorkerRow.slots)).where(
    WorkerRow.beat >= db_now() - bindparam("within_s", type_=Double)
)


def slots_alive(session: Session, within_s: float) -> int:
    """How many jobs run at the same time on workers that beat so recently."""
    return int(session.connection().scalar(_SLOTS, {"within_s": within_s}) or 0)


_OFFERS = (
    select(WorkerRow.strategies)
    .where(WorkerRow.beat >= db_now() - bindparam("within_s", type_=Double))
    .order_by(WorkerRow.strategies)
)


def offers_alive(session: Session, within_s: float) -> list[str]:
    """The strategies of each worker that beat within the last `within_s` seconds, sorted."""
    return list(session.connection().scalars(_OFFERS, {"within_s": within_s}))
