"""Sweeps and their items.

Whoever changes items or jobs of a sweep holds its row first (`lock`): sweep, then items of work,
then jobs.  Workers never take the sweep's row, so nobody waits in a circle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import and_, case, delete, exists, func, literal, or_, select, update
from sqlalchemy import insert as insert_into
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement

from service.states import (
    OPEN_SWEEP_ITEM_STATES,
    OPEN_SWEEP_STATES,
    RESUMED_SWEEP_ITEM_STATES,
    TERMINAL_JOB_STATES,
    JobState,
    SweepItemState,
    SweepState,
    sweep_sources,
)
from service.store.records import Standing, SweepItemRecord, SweepRecord
from service.store.repos.rows import affected, few_lengths
from service.store.stored_options import lift, seal
from service.store.tables import (
    ItemRow,
    JobItemRow,
    JobRow,
    ModelRow,
    SweepItemRow,
    SweepRow,
    db_now,
)

_OPEN = [str(state) for state in OPEN_SWEEP_STATES]
_ENDED_JOB = sorted(map(str, TERMINAL_JOB_STATES))


def _record(row: SweepRow) -> SweepRecord:
    return SweepRecord(
        id=row.id,
        owner=row.owner,
        label=row.label,
        fields=tuple(row.fields),
        options=lift(row.options),
        priority=row.priority,
        wall_limit_s=row.wall_limit_s,
        traceparent=row.traceparent,
        state=SweepState(row.state),
        items_total=row.items_total,
        created=row.created,
        finished=row.finished,
        cancel_requested=row.cancel_requested,
        event_seq=row.event_seq,
        explore=row.explore,
    )


def insert(session: Session, values: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert a running sweep and its items: `number`, `model_id`, `hardware_id`, `hardware_name`,
    `values`, `on_chip_bytes`, `state`, `error`, and `part` where they have one."""
    connection = session.connection()
    fixed = {"state": str(SweepState.RUNNING), "items_total": len(rows), "finished": None,
             "cancel_requested": None, "event_seq": len(rows)}  # fmt: skip
    stored = {"explore": None, **values, **fixed, "options": seal(values["options"])}
    connection.execute(insert_into(SweepRow).values(created=db_now()), stored)
    _insert_items(session, values["id"], 1, rows)


_EMPTY = {"job_id": None, "latency_s": None, "energy_pj": None, "seconds": None, "part": None,
          "estimates": None}  # fmt: skip


def _insert_items(
    session: Session, sweep_id: str, seq: int, rows: Sequence[Mapping[str, Any]]
) -> None:
    """`seq` is that of the first."""
    stored = [{"sweep_id": sweep_id, **_EMPTY, "seq": seq + k, **row} for k, row in enumerate(rows)]
    session.connection().execute(insert_into(SweepItemRow), stored)


def append(session: Session, sweep_id: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add items to a sweep, with the numbers that follow; `rows` as `insert` has them, and with
    `estimates`."""
    before = _count(session, sweep_id, len(rows))
    query = (
        update(SweepRow)
        .where(SweepRow.id == sweep_id)
        .values(items_total=SweepRow.items_total + len(rows))
        .returning(SweepRow.items_total)
    )
    first = int(session.scalar(query) or 0) - len(rows)
    numbered = [{"number": first + k, **row} for k, row in enumerate(rows)]
    _insert_items(session, sweep_id, before + 1, numbered)


def get(session: Session, sweep_id: str) -> SweepRecord | None:
    """Give one sweep, or None."""
    row = session.get(SweepRow, sweep_id, populate_existing=True)
    return None if row is None else _record(row)


def lock(session: Session, sweep_id: str, *, wait: bool = True) -> SweepRecord | None:
    """Give one sweep and hold it until the end of the transaction; None: there is none, or
    somebody else holds it and `wait` is False."""
    query = select(SweepRow).where(SweepRow.id == sweep_id)
    if session.get_bind().dialect.name != "sqlite":
        query = query.with_for_update(skip_locked=not wait)
    row = session.scalar(query.execution_options(populate_existing=True))
    return None if row is None else _record(row)


def page(
    session: Session, *, owner: str | None, states: Collection[SweepState], label: str | None,
    before: tuple[float, str] | None, limit: int,
) -> list[SweepRecord]:  # fmt: skip
    """List sweeps, newest first, strictly older than `before` (created, id)."""
    query = select(SweepRow)
    if owner is not None:
        query = query.where(SweepRow.owner == owner)
    if states:
        query = query.where(SweepRow.state.in_(sorted(map(str, states))))
    if label is not None:
        query = query.where(SweepRow.label == label)
    if before is not None:
        created, sweep_id = before
        query = query.where(
            or_(
                SweepRow.created < created,
                and_(SweepRow.created == created, SweepRow.id < sweep_id),
            )
        )
    query = query.order_by(SweepRow.created.desc(), SweepRow.id.desc()).limit(limit)
    return [_record(row) for row in session.scalars(query)]


def open_ids(session: Session) -> list[str]:
    """Sweeps that somebody still has to work on, the oldest first."""
    query = (
        select(SweepRow.id).where(SweepRow.state.in_(_OPEN)).order_by(SweepRow.created, SweepRow.id)
    )
    return list(session.scalars(query))


def count_open(session: Session, owner: str) -> int:
    """Sweeps of a project that have not ended."""
    query = (
        select(func.count())
        .select_from(SweepRow)
        .where(SweepRow.owner == owner, SweepRow.state.in_(_OPEN))
    )
    return int(session.scalar(query) or 0)


def items(session: Session, sweep_id: str) -> list[SweepItemRecord]:
    """All items of a sweep in order.  Cost: linear in them; options and summaries stay unread."""
    running = case((JobRow.state == str(JobState.RUNNING), db_now() - JobRow.started), else_=None)
    query = (
        select(SweepItemRow, ModelRow.name, JobRow.state, running)
        .outerjoin(ModelRow, ModelRow.id == SweepItemRow.model_id)
        .outerjoin(JobRow, JobRow.id == SweepItemRow.job_id)
        .where(SweepItemRow.sweep_id == sweep_id)
        .order_by(SweepItemRow.number)
    )
    return [
        SweepItemRecord(
            number=row.number,
            model_id=row.model_id,
            model_name=model_name,
            hardware_id=row.hardware_id,
            hardware_name=row.hardware_name,
            values=tuple(row.values),
            on_chip_bytes=row.on_chip_bytes,
            state=SweepItemState(row.state),
            job_id=row.job_id,
            job_state=None if job_state is None else JobState(job_state),
            error=row.error,
            latency_s=row.latency_s,
            energy_pj=row.energy_pj,
            seconds=row.seconds,
            seq=row.seq,
            running_s=running_s,
            part=row.part,
            estimates=tuple(row.estimates or ()),
        )
        for row, model_name, job_state, running_s in session.execute(query)
    ]


def item_job(session: Session, sweep_id: str, number: int) -> tuple[str, str | None] | None:
    """Owner of a sweep and the job of one of its items, or None where there is no such item."""
    query = (
        select(SweepRow.owner, SweepItemRow.job_id)
        .join(SweepItemRow, SweepItemRow.sweep_id == SweepRow.id)
        .where(SweepRow.id == sweep_id, SweepItemRow.number == number)
    )
    row = session.execute(query).one_or_none()
    return None if row is None else (row[0], row[1])


def counts(session: Session, sweep_ids: Iterable[str]) -> dict[str, dict[SweepItemState, int]]:
    """How many items of each sweep are in each state; states without items are left out."""
    query = (
        select(SweepItemRow.sweep_id, SweepItemRow.state, func.count())
        .where(SweepItemRow.sweep_id.in_(few_lengths(sweep_ids)))
        .group_by(SweepItemRow.sweep_id, SweepItemRow.state)
    )
    found: dict[str, dict[SweepItemState, int]] = {}
    for sweep_id, state, count in session.execute(query):
        found.setdefault(sweep_id, {})[SweepItemState(state)] = count
    return found


def ended(
    session: Session, sweep_id: str, limit: int
) -> list[tuple[int, str | None, float | None, Any, Any, Any]]:
    """Active items whose job has ended or is gone: number, the job's state (None: it is gone), how
    long it ran, its summary, its error, the item's part."""
    query = (
        select(
            SweepItemRow.number, JobRow.state, JobRow.finished - JobRow.started, JobRow.summary,
            JobRow.error, SweepItemRow.part,
        )
        .outerjoin(JobRow, JobRow.id == SweepItemRow.job_id)
        .where(
            SweepItemRow.sweep_id == sweep_id,
            SweepItemRow.state == str(SweepItemState.ACTIVE),
            or_(JobRow.id.is_(None), JobRow.state.in_(_ENDED_JOB)),
        )
        .order_by(SweepItemRow.number)
        .limit(limit)
    )  # fmt: skip
    return [
        (number, state, seconds, summary, error, part)
        for number, state, seconds, summary, error, part in session.execute(query)
    ]


def result_of(session: Session, sweep_id: str, number: int) -> Any:
    """What the job of an item has left beside its summary; None: nothing."""
    query = (
        select(ItemRow.result)
        .join(JobItemRow, JobItemRow.item_id == ItemRow.id)
        .join(SweepItemRow, SweepItemRow.job_id == JobItemRow.job_id)
        .where(SweepItemRow.sweep_id == sweep_id, SweepItemRow.number == number)
    )
    return session.scalar(query)


def models_without_winners(session: Session, sweep_id: str) -> list[str]:
    """Models whose parts have all succeeded, and of which no other item is there, in the order of
    their items."""
    is_open = case((SweepItemRow.state == str(SweepItemState.SUCCEEDED), 0), else_=1)
    is_machine = case((SweepItemRow.part.is_(None), 1), else_=0)
    query = (
        select(SweepItemRow.model_id)
        .where(SweepItemRow.sweep_id == sweep_id)
        .group_by(SweepItemRow.model_id)
        .having(func.sum(is_open) + func.sum(is_machine) == 0)
        .order_by(func.min(SweepItemRow.number))
    )
    return list(session.scalars(query))


def estimates_of(session: Session, sweep_id: str, model_id: str) -> list[Mapping[str, Any]]:
    """Estimates of all machines of a model, part by part."""
    query = (
        select(SweepItemRow.estimates)
        .where(
            SweepItemRow.sweep_id == sweep_id, SweepItemRow.model_id == model_id,
            SweepItemRow.part.is_not(None),
        )
        .order_by(SweepItemRow.number)
    )  # fmt: skip
    found: list[Mapping[str, Any]] = []
    for rows in session.scalars(query):
        found += rows if isinstance(rows, list) else ()
    return found


def set_item(session: Session, sweep_id: str, number: int, **values: Any) -> None:
    """Change one item."""
    where = (SweepItemRow.sweep_id == sweep_id, SweepItemRow.number == number)
    seq = _count(session, sweep_id, 1) + 1
    affected(session, update(SweepItemRow).where(*where).values(seq=seq, **values))


def _count(session: Session, sweep_id: str, changes: int) -> int:
    """Number the next changes of a sweep; give the number before the first of them.

    The UPDATE holds the sweep's row, so numbers are in the order of commits: who has seen number N
    has seen all up to N.
    """
    query = (
        update(SweepRow)
        .where(SweepRow.id == sweep_id)
        .values(event_seq=SweepRow.event_seq + changes)
        .returning(SweepRow.event_seq)
    )
    return int(session.scalar(query) or 0) - changes


def _set_items(
    session: Session, sweep: SweepRecord, states: Iterable[SweepItemState], **values: Any
) -> int:
    """Change all items in these states, each with a number of its own; give how many."""
    before = _count(session, sweep.id, sweep.items_total)
    return affected(
        session,
        update(SweepItemRow)
        .where(
            SweepItemRow.sweep_id == sweep.id,
            SweepItemRow.state.in_([str(state) for state in states]),
        )
        .values(seq=SweepItemRow.number + (before + 1), **values),
    )


def standings(session: Session, sweep_ids: Iterable[str]) -> dict[str, Standing]:
    """Give how each sweep stands that exists."""
    query = select(SweepRow.id, SweepRow.event_seq, SweepRow.state)
    found = session.execute(query.where(SweepRow.id.in_(few_lengths(sweep_ids))))
    return {
        row.id: Standing(row.event_seq, SweepState(row.state) not in OPEN_SWEEP_STATES)
        for row in found
    }


def queued(session: Session, sweep_id: str) -> int:
    """Jobs of the sweep that no worker has taken."""
    query = (
        select(func.count())
        .select_from(JobRow)
        .where(JobRow.sweep_id == sweep_id, JobRow.state == str(JobState.QUEUED))
    )
    return int(session.scalar(query) or 0)


def pending(
    session: Session, sweep_id: str, limit: int
) -> list[tuple[int, str, str, Mapping[str, Any] | None]]:
    """The first items without a job: number, model, hardware, part."""
    query = (
        select(
            SweepItemRow.number, SweepItemRow.model_id, SweepItemRow.hardware_id, SweepItemRow.part
        )
        .where(
            SweepItemRow.sweep_id == sweep_id,
            SweepItemRow.state == str(SweepItemState.PENDING),
        )
        .order_by(SweepItemRow.number)
        .limit(limit)
    )
    return [
        (number, model, str(hardware), part if isinstance(part, dict) else None)
        for number, model, hardware, part in session.execute(query)
    ]


def active_jobs(session: Session, sweep_id: str) -> list[str]:
    """Jobs of active items that have not ended and were not asked to."""
    query = (
        select(JobRow.id)
        .join(SweepItemRow, SweepItemRow.job_id == JobRow.id)
        .where(
            SweepItemRow.sweep_id == sweep_id,
            SweepItemRow.state == str(SweepItemState.ACTIVE),
            JobRow.state.in_((str(JobState.QUEUED), str(JobState.RUNNING))),
        )
        .order_by(SweepItemRow.number)
    )
    return list(session.scalars(query))


def cancel_pending(session: Session, sweep: SweepRecord, error: Mapping[str, Any]) -> int:
    """Cancel items that have no job."""
    canceled = {"state": str(SweepItemState.CANCELED), "error": dict(error)}
    return _set_items(session, sweep, (SweepItemState.PENDING,), **canceled)


def renew_items(session: Session, sweep: SweepRecord) -> int:
    """Let items that ended without a result have a job again; give how many."""
    pending = {"state": str(SweepItemState.PENDING), "job_id": None, "error": None}
    return _set_items(session, sweep, RESUMED_SWEEP_ITEM_STATES, **pending)


def move(session: Session, sweep_id: str, target: SweepState) -> bool:
    """Move a sweep to `target` if the table of moves allows it now; False: nothing changed."""
    values: dict[str, Any] = {
        "state": str(target), "finished": db_now(), "event_seq": SweepRow.event_seq + 1,
    }  # fmt: skip
    if target in OPEN_SWEEP_STATES:
        values["finished"] = None
        values["cancel_requested"] = db_now() if target is SweepState.CANCELING else None
    sources = [str(state) for state in sweep_sources(target)]
    where = (SweepRow.id == sweep_id, SweepRow.state.in_(sources))
    return affected(session, update(SweepRow).where(*where).values(**values)) == 1


def jobs_of(session: Session, sweep_id: str, limit: int) -> list[str]:
    """Some jobs of a sweep, those of earlier tries too."""
    query = select(JobRow.id).where(JobRow.sweep_id == sweep_id).order_by(JobRow.id).limit(limit)
    return list(session.scalars(query))


def remove(session: Session, sweep_id: str) -> None:
    """Delete a sweep and its items, not their jobs."""
    affected(session, delete(SweepRow).where(SweepRow.id == sweep_id))


def open_sweep_of(session: Session, job_id: str) -> str | None:
    """The sweep that has not ended and has this job, or None."""
    query = (
        select(SweepRow.id)
        .join(JobRow, JobRow.sweep_id == SweepRow.id)
        .where(JobRow.id == job_id, SweepRow.state.in_(_OPEN))
    )
    return session.scalar(query)


def needs_model() -> ColumnElement[bool]:
    """A condition on models: an item that waits, or may be resumed, is of it."""
    kept = [*OPEN_SWEEP_ITEM_STATES, *RESUMED_SWEEP_ITEM_STATES]
    return exists(
        select(literal(1)).where(
            SweepItemRow.model_id == ModelRow.id, SweepItemRow.state.in_(sorted(map(str, kept)))
        )
    )


def ended_before(session: Session, older_than_s: float, limit: int) -> list[str]:
    """Sweeps that ended so long ago."""
    query = (
        select(SweepRow.id)
        .where(SweepRow.state.not_in(_OPEN), SweepRow.finished < db_now() - older_than_s)
        .order_by(SweepRow.finished, SweepRow.id)
        .limit(limit)
    )
    return list(session.scalars(query))
