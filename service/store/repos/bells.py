"""Bells that nobody heard: items that are ready although a worker is free for them."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import String, and_, bindparam, exists, literal, select
from sqlalchemy.orm import Session, aliased

from service.states import ItemState
from service.store.repos.items import is_ripe
from service.store.tables import ItemRow

_MOST = 50
_OTHER = aliased(ItemRow)
_WORKS = exists(
    select(literal(1)).where(
        _OTHER.owner == bindparam("worker", type_=String),
        _OTHER.state == str(ItemState.LEASED),
    )
)
_UNHEARD = (
    select(ItemRow.id)
    .where(
        and_(
            is_ripe(),
            ItemRow.dispatched_at.is_not(None),
            ItemRow.strategies.in_(bindparam("served", expanding=True)),
            ~_WORKS,
        )
    )
    .order_by(ItemRow.priority.desc(), ItemRow.created, ItemRow.id)
    .limit(_MOST)
)


def unheard(session: Session, worker_id: str, served: Collection[str]) -> frozenset[str]:
    """Ids of the first items that may be claimed now, want one of `served`, and were rung for;
    none while the worker has an item.  Cost: a look for each of at most fifty."""
    asked = {"worker": worker_id, "served": list(served)}
    return frozenset(session.connection().scalars(_UNHEARD, asked))
