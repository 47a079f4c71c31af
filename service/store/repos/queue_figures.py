"""How long the queue is, and how old."""

from __future__ import annotations

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from service.states import ItemState
from service.store.repos.items import is_ripe
from service.store.tables import ItemRow, JobItemRow, JobRow, db_now


def count_by_state(session: Session) -> tuple[tuple[str, int], ...]:
    """Count items per state."""
    query = select(ItemRow.state, func.count()).group_by(ItemRow.state).order_by(ItemRow.state)
    return tuple((state, count) for state, count in session.execute(query))


def count_pressing(session: Session) -> int:
    """Count items that workers have or could have: leased and ready ones."""
    states = (str(ItemState.LEASED), str(ItemState.READY))
    query = select(func.count()).select_from(ItemRow).where(ItemRow.state.in_(states))
    return int(session.scalar(query) or 0)


def oldest_ready_s(session: Session) -> float:
    """Give the age of the longest-waiting ready item, 0 when none waits.

    What no live worker may take does not count: it waits for a worker, not for a bell.
    """
    ready_at = case(
        (ItemRow.not_before > ItemRow.created, ItemRow.not_before), else_=ItemRow.created
    )
    oldest = session.scalar(
        select(func.min(ready_at))
        .join(JobItemRow, JobItemRow.item_id == ItemRow.id)
        .join(JobRow, JobRow.id == JobItemRow.job_id)
        .where(is_ripe(), JobRow.waiting.is_(None))
    )
    now = session.scalar(select(db_now()))
    return 0.0 if oldest is None or now is None else max(0.0, now - oldest)
