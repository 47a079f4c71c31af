"""Work items: claim, renew, finish, expire, dispatch.

Every statement that changes a leased item carries owner and fence: a worker that stalled past its
lease cannot change anything any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from sqlalchemy import (
    Double,
    Integer,
    Select,
    and_,
    bindparam,
    case,
    exists,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy import insert as insert_into
from sqlalchemy.orm import Session, aliased
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.elements import ColumnElement

from service.states import ItemState, item_sources
from service.store.records import ItemRecord
from service.store.repos.rows import affected, few_lengths
from service.store.tables import DependencyRow, ItemRow, JobItemRow, JobRow, db_now


def _record(row: ItemRow) -> ItemRecord:
    return ItemRecord(
        id=row.id,
        kind=row.kind,
        state=ItemState(row.state),
        owner=row.owner,
        fence=row.fence,
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        lease_until=row.lease_until,
        not_before=row.not_before,
        hard_deadline=row.hard_deadline,
        dispatched_at=row.dispatched_at,
        dispatches=row.dispatches,
        payload=row.payload,
    )


_INSERT_ITEM = insert_into(ItemRow).values(
    fence=0, attempts=0, not_before=0.0, dispatches=0, created=db_now()
)
_INSERT_JOB_ITEM = insert_into(JobItemRow).values(role="main")


def insert(
    session: Session,
    *,
    item_id: str,
    job_id: str,
    kind: str,
    priority: int,
    max_attempts: int,
    wall_limit_s: float,
    strategies: str = "",
    payload: Mapping[str, Any] = MappingProxyType({}),
    needs: Iterable[str] = (),
) -> None:
    """Insert an item of a job: ready, or blocked while it needs others.

    `payload` is what is done beside the compile (`ItemRecord`).
    `strategies` are those that its worker must have (`service.store.strategy_sets`).
    """
    required = sorted(needs)
    connection = session.connection()
    connection.execute(
        _INSERT_ITEM,
        {
            "id": item_id,
            "kind": kind,
            "state": str(ItemState.BLOCKED if required else ItemState.READY),
            "priority": priority,
            "max_attempts": max_attempts,
            "wall_limit_s": wall_limit_s,
            "strategies": strategies,
            "payload": dict(payload),
        },
    )
    connection.execute(_INSERT_JOB_ITEM, {"job_id": job_id, "item_id": item_id})
    session.add_all(DependencyRow(item_id=item_id, needs_id=need) for need in required)
    session.flush()


def get(session: Session, item_id: str) -> ItemRecord | None:
    """Give one item, or None."""
    row = session.get(ItemRow, item_id)
    return None if row is None else _record(row)


def of_job(session: Session, job_id: str) -> list[ItemRecord]:
    """List a job's items."""
    query = (
        select(ItemRow)
        .join(JobItemRow, JobItemRow.item_id == ItemRow.id)
        .where(JobItemRow.job_id == job_id)
        .order_by(ItemRow.created, ItemRow.id)
    )
    return [_record(row) for row in session.scalars(query)]


def job_of(session: Session, item_id: str) -> str | None:
    """Give the job an item works for."""
    return session.scalar(select(JobItemRow.job_id).where(JobItemRow.item_id == item_id))


def is_ripe() -> ColumnElement[bool]:
    """That an item may be claimed now."""
    return and_(ItemRow.state == str(ItemState.READY), ItemRow.not_before <= db_now())


_IS_SERVED = ItemRow.strategies.in_(bindparam("served", expanding=True))
_IN_ORDER = (ItemRow.priority.desc(), ItemRow.created, ItemRow.id)


def _wants() -> Select[tuple[str]]:
    """From one set to the next greater one, each found by the index: DISTINCT reads every row."""
    is_ready = ItemRow.state == str(ItemState.READY)
    found = select(func.min(ItemRow.strategies).label("wanted")).where(is_ready)
    found_so_far = found.cte("found", recursive=True)
    following = (
        select(func.min(ItemRow.strategies))
        .where(is_ready, ItemRow.strategies > found_so_far.c.wanted)
        .scalar_subquery()
    )
    all_found = found_so_far.union_all(select(following).where(found_so_far.c.wanted.is_not(None)))
    wanted = all_found.c.wanted
    return select(wanted).where(wanted.is_not(None)).order_by(wanted)


_WANTS = _wants()


def wants_of_ready(session: Session) -> list[str]:
    """The sets of strategies that ready items want, each once, sorted.  Cost: a look for each."""
    return list(session.connection().scalars(_WANTS))


def unclaimed(session: Session) -> list[tuple[str, str, str]]:
    """Items that no worker has: id, job and the strategies they want."""
    query = (
        select(ItemRow.id, JobItemRow.job_id, ItemRow.strategies)
        .join(JobItemRow, JobItemRow.item_id == ItemRow.id)
        .where(ItemRow.state.in_((str(ItemState.READY), str(ItemState.BLOCKED))))
        .order_by(ItemRow.id)
    )
    return [(item_id, job_id, had) for item_id, job_id, had in session.execute(query)]


def want(session: Session, item_id: str, strategies: str) -> None:
    """Let an item that no worker has want other strategies."""
    affected(
        session,
        update(ItemRow)
        .where(ItemRow.id == item_id, ItemRow.state != str(ItemState.LEASED))
        .values(strategies=strategies),
    )


def pass_on(session: Session, served: Collection[str]) -> None:
    """Let the reconciler ring again, soon, for ready items whose wants are not among `served`.

    Their bell was heard by a worker that may not take them.
    """
    affected(
        session,
        update(ItemRow)
        .where(is_ripe(), ItemRow.dispatched_at.is_not(None), ItemRow.strategies.not_in(served))
        .values(dispatched_at=None),
    )


def claim(
    session: Session,
    owner: str,
    ttl_s: float,
    grace_s: float,
    served: Collection[str],
    item_id: str | None = None,
) -> ItemRecord | None:
    """Lease the ready item of highest priority (or exactly `item_id`) that wants one of `served`.

    One UPDATE whose WHERE repeats the condition decides between concurrent claimers.
    """
    asked = {"new_owner": owner, "ttl_s": ttl_s, "grace_s": grace_s, "served": list(served)}
    if item_id is not None:
        asked["only"] = item_id
    is_sqlite = session.get_bind().dialect.name == "sqlite"
    statement = _claim(is_narrow=item_id is not None, skips_locked=not is_sqlite)
    claimed = session.connection().scalar(statement, asked)
    return None if claimed is None else get(session, claimed)


@cache
def _claim(*, is_narrow: bool, skips_locked: bool) -> Executable:
    choice = select(ItemRow.id).where(is_ripe(), _IS_SERVED)
    if is_narrow:
        choice = choice.where(ItemRow.id == bindparam("only"))
    choice = choice.order_by(*_IN_ORDER).limit(1)
    if skips_locked:
        choice = choice.with_for_update(skip_locked=True)
    deadline = db_now() + ItemRow.wall_limit_s + bindparam("grace_s", type_=Double)
    return (
        update(ItemRow)
        .where(ItemRow.id == choice.scalar_subquery(), ItemRow.state == str(ItemState.READY))
        .values(
            state=str(ItemState.LEASED),
            owner=bindparam("new_owner"),
            fence=ItemRow.fence + 1,
            attempts=ItemRow.attempts + 1,
            lease_until=db_now() + bindparam("ttl_s", type_=Double),
            hard_deadline=deadline,
            error=None,
        )
        .returning(ItemRow.id)
    )


def _held(item_id: str, owner: str, fence: int) -> ColumnElement[bool]:
    return and_(
        ItemRow.id == item_id,
        ItemRow.owner == owner,
        ItemRow.fence == fence,
        ItemRow.state == str(ItemState.LEASED),
    )


def renew(session: Session, item_id: str, owner: str, fence: int, ttl_s: float) -> bool:
    """Extend a lease, never past the item's hard deadline; False when it is lost.

    A lease that has run out but was not yet taken away may still be renewed: nobody else has
    started, so no work is done twice.
    """
    wanted = db_now() + ttl_s
    capped = case((ItemRow.hard_deadline < wanted, ItemRow.hard_deadline), else_=wanted)
    return (
        affected(
            session,
            update(ItemRow)
            .where(_held(item_id, owner, fence), ItemRow.hard_deadline > db_now())
            .values(lease_until=capped),
        )
        == 1
    )


def hold(session: Session, item_id: str, owner: str, fence: int) -> bool:
    """Check the lease and lock its row until the end of the transaction."""
    query = select(ItemRow.id).where(_held(item_id, owner, fence))
    if session.get_bind().dialect.name != "sqlite":
        query = query.with_for_update()
    return session.scalar(query) is not None


def finish(
    session: Session,
    item_id: str,
    owner: str,
    fence: int,
    target: ItemState,
    *,
    result: Mapping[str, Any] | None = None,
    error: Mapping[str, Any] | None = None,
) -> bool:
    """End a lease in a final state; False when the lease is lost (results must be discarded)."""
    if ItemState.LEASED not in item_sources(target):
        raise ValueError(f"a leased item cannot become {target}")
    return (
        affected(
            session,
            update(ItemRow)
            .where(_held(item_id, owner, fence))
            .values(
                state=str(target),
                owner=None,
                lease_until=None,
                finished=db_now(),
                result=None if result is None else dict(result),
                error=None if error is None else dict(error),
            ),
        )
        == 1
    )


def give_back(
    session: Session, item_id: str, owner: str, fence: int, *, delay_s: float, refund: bool
) -> bool:
    """Return a leased item to the queue; `refund` takes the attempt off its account."""
    return (
        affected(
            session,
            update(ItemRow)
            .where(_held(item_id, owner, fence))
            .values(
                state=str(ItemState.READY),
                owner=None,
                lease_until=None,
                not_before=db_now() + delay_s,
                dispatched_at=None,
                attempts=ItemRow.attempts - (1 if refund else 0),
            ),
        )
        == 1
    )


def cancel_waiting(session: Session, job_id: str) -> int:
    """Cancel a job's items that no worker holds."""
    items = select(JobItemRow.item_id).where(JobItemRow.job_id == job_id)
    waiting = [
        str(state) for state in item_sources(ItemState.CANCELED) if state is not ItemState.LEASED
    ]
    return affected(
        session,
        update(ItemRow)
        .where(ItemRow.id.in_(items), ItemRow.state.in_(waiting))
        .values(state=str(ItemState.CANCELED), finished=db_now(), dispatched_at=None),
    )


def lapsed(session: Session, limit: int) -> list[ItemRecord]:
    """List leased items whose lease or hard deadline has passed, locking them on PostgreSQL."""
    query = (
        select(ItemRow)
        .where(
            ItemRow.state == str(ItemState.LEASED),
            or_(ItemRow.lease_until < db_now(), ItemRow.hard_deadline < db_now()),
        )
        .order_by(ItemRow.id)
        .limit(limit)
    )
    if session.get_bind().dialect.name != "sqlite":
        query = query.with_for_update(skip_locked=True)
    return [_record(row) for row in session.scalars(query)]


def leased_by(session: Session, owner_prefix: str) -> list[ItemRecord]:
    """List items leased to owners whose name starts with `owner_prefix`."""
    query = (
        select(ItemRow)
        .where(
            ItemRow.state == str(ItemState.LEASED),
            ItemRow.owner.startswith(owner_prefix, autoescape=True),
        )
        .order_by(ItemRow.id)
    )
    return [_record(row) for row in session.scalars(query)]


def reset_dispatches(session: Session) -> int:
    """Forget every sent doorbell: the in-memory queue of an earlier life is gone."""
    return affected(
        session,
        update(ItemRow)
        .where(ItemRow.state == str(ItemState.READY), ItemRow.dispatched_at.is_not(None))
        .values(dispatched_at=None),
    )


def promote(session: Session) -> list[str]:
    """Move blocked items whose needs are all done to ready; give their ids.

    Runs in its own transaction after a finish: two finishers of the last two needs do not see each
    other's uncommitted work, so promoting inside the finish could wake nobody.
    """
    return sorted(session.connection().scalars(_PROMOTE))


_NEED = aliased(ItemRow)
_UNMET = exists(
    select(literal(1))
    .select_from(DependencyRow)
    .join(_NEED, _NEED.id == DependencyRow.needs_id)
    .where(DependencyRow.item_id == ItemRow.id, _NEED.state != str(ItemState.DONE))
)
_PROMOTE = (
    update(ItemRow)
    .where(ItemRow.state == str(ItemState.BLOCKED), ~_UNMET)
    .values(state=str(ItemState.READY), dispatched_at=None)
    .returning(ItemRow.id)
)


# Built once: each submit asks for these, and building costs more than running.
# An expression, so that SQLite finds a few items by their ids, not all ready ones by state.
_IS_READY_BY_ID = and_(
    ItemRow.id.in_(bindparam("ids", expanding=True)),
    func.coalesce(ItemRow.state, "") == str(ItemState.READY),
)
_FRONT = (
    select(ItemRow.id)
    .where(is_ripe(), _IS_SERVED)
    .order_by(*_IN_ORDER)
    .limit(bindparam("most", type_=Integer))
)
_FRONT_OF = (
    select(ItemRow.id)
    .where(_IS_READY_BY_ID, ItemRow.not_before <= db_now(), _IS_SERVED)
    .order_by(*_IN_ORDER)
    .limit(bindparam("most", type_=Integer))
)
_MARK = (
    update(ItemRow)
    .where(
        _IS_READY_BY_ID,
        or_(
            ItemRow.dispatched_at.is_(None),
            ItemRow.dispatched_at < db_now() - bindparam("older_than_s", type_=Double),
        ),
    )
    .values(dispatched_at=db_now(), dispatches=ItemRow.dispatches + 1)
    .returning(ItemRow.id)
)


def mark_dispatched(
    session: Session,
    *,
    older_than_s: float,
    limit: int,
    served: Collection[str],
    item_ids: tuple[str, ...] | None = None,
) -> list[str]:
    """Mark ready items that want one of `served` as dispatched; their ids in the order to ring.

    Only the first `limit` items by priority are looked at, so a long queue never floods the broker;
    the condition on `dispatched_at` keeps several reconcilers from ringing twice.
    """
    connection = session.connection()
    asked = {"served": list(served), "most": limit}
    if item_ids is None:
        ordered = list(connection.scalars(_FRONT, asked))
    else:
        ordered = list(connection.scalars(_FRONT_OF, {**asked, "ids": few_lengths(item_ids)}))
    if not ordered:
        return []
    marked = set(
        connection.scalars(_MARK, {"ids": few_lengths(ordered), "older_than_s": older_than_s})
    )
    return [item_id for item_id in ordered if item_id in marked]


_RUNG = select(func.count()).select_from(
    select(literal(1))
    .select_from(ItemRow)
    .where(
        ItemRow.state == str(ItemState.READY),
        ItemRow.dispatched_at > db_now() - bindparam("within_s", type_=Double),
    )
    .limit(bindparam("most", type_=Integer))
    .subquery()
)


def is_rung(session: Session, within_s: float, count: int) -> bool:
    """Whether so many ready items were dispatched lately.  Cost: a look for each of so many."""
    return session.connection().scalar(_RUNG, {"within_s": within_s, "most": count}) == count


def unmark_dispatched(session: Session, item_ids: Iterable[str]) -> None:
    """Undo `mark_dispatched` for bells that could not be rung."""
    affected(
        session, update(ItemRow).where(ItemRow.id.in_(list(item_ids))).values(dispatched_at=None)
    )


def stranded_cancels(session: Session, limit: int) -> list[str]:
    """List jobs that are canceling although no worker holds any of their items."""
    held = exists(
        select(literal(1))
        .select_from(JobItemRow)
        .join(ItemRow, ItemRow.id == JobItemRow.item_id)
        .where(JobItemRow.job_id == JobRow.id, ItemRow.state == str(ItemState.LEASED))
    )
    return list(
        session.scalars(
            select(JobRow.id)
            .where(JobRow.state == "canceling", ~held)
            .order_by(JobRow.id)
            .limit(limit)
        )
    )
