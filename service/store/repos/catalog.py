"""What users bring: models, hardware specs, idempotency keys, API keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import and_, bindparam, delete, exists, literal, or_, select, update
from sqlalchemy.orm import Session

from service.store.records import HardwareRecord, ModelRecord
from service.store.repos.rows import affected, insert_all_or_ignore, insert_or_ignore
from service.store.repos.sweeps import needs_model
from service.store.tables import (
    BlobRow,
    HardwareOwnerRow,
    HardwareRow,
    IdempotencyRow,
    JobRow,
    ModelRow,
    db_now,
)
from worker.compiler.errors import Detail


def _model(row: ModelRow, blob: BlobRow) -> ModelRecord:
    return ModelRecord(
        id=row.id,
        owner=row.owner,
        name=row.name,
        kind=row.kind,
        sha256=row.blob_sha256,
        size_bytes=blob.size_bytes,
        created=row.created,
        summary=row.summary,
    )


def add_model(
    session: Session, *, model_id: str, owner: str, name: str, kind: str, sha256: str
) -> bool:
    """Insert a model unless the owner already has these bytes; True when inserted."""
    return insert_or_ignore(
        session,
        ModelRow,
        {
            "id": model_id,
            "owner": owner,
            "name": name,
            "kind": kind,
            "blob_sha256": sha256,
            "created": db_now(),
        },
    )


def get_model(session: Session, model_id: str) -> ModelRecord | None:
    """Give one model, or None."""
    query = (
        select(ModelRow, BlobRow)
        .join(BlobRow, BlobRow.sha256 == ModelRow.blob_sha256)
        .where(ModelRow.id == model_id)
    )
    row = session.execute(query).one_or_none()
    return None if row is None else _model(*row)


def find_model(session: Session, owner: str, sha256: str) -> ModelRecord | None:
    """Give the owner's model with these bytes, or None."""
    query = (
        select(ModelRow, BlobRow)
        .join(BlobRow, BlobRow.sha256 == ModelRow.blob_sha256)
        .where(ModelRow.owner == owner, ModelRow.blob_sha256 == sha256)
    )
    row = session.execute(query).one_or_none()
    return None if row is None else _model(*row)


def list_models(
    session: Session, *, owner: str | None, before: tuple[float, str] | None, limit: int
) -> list[ModelRecord]:
    """List models, newest first."""
    query = select(ModelRow, BlobRow).join(BlobRow, BlobRow.sha256 == ModelRow.blob_sha256)
    if owner is not None:
        query = query.where(ModelRow.owner == owner)
    if before is not None:
        created, model_id = before
        query = query.where(
            or_(
                ModelRow.created < created,
                and_(ModelRow.created == created, ModelRow.id < model_id),
            )
        )
    query = query.order_by(ModelRow.created.desc(), ModelRow.id.desc()).limit(limit)
    return [_model(*row) for row in session.execute(query)]


def set_model_summary(session: Session, model_id: str, summary: Mapping[str, Detail]) -> None:
    """Store what the first job learnt about a model."""
    affected(session, update(ModelRow).where(ModelRow.id == model_id).values(summary=dict(summary)))


def remove_model(session: Session, model_id: str) -> bool:
    """Delete a model that no job or sweep needs; False when one does or it is unknown."""
    used = or_(exists(select(literal(1)).where(JobRow.model_id == ModelRow.id)), needs_model())
    return affected(session, delete(ModelRow).where(ModelRow.id == model_id, ~used)) == 1


def _hardware(row: HardwareRow) -> HardwareRecord:
    return HardwareRecord(
        id=row.id,
        machine_digest=row.machine_digest,
        name=row.name,
        owner=row.owner,
        document=row.document,
        created=row.created,
    )


def add_hardware(
    session: Session,
    *,
    hardware_id: str,
    machine_digest: str,
    name: str,
    owner: str,
    document: Mapping[str, Detail],
) -> bool:
    """Give a project a spec, unless it has its canonical document; True when it had not.

    What several projects have is stored once.
    """
    is_first = insert_or_ignore(
        session,
        HardwareRow,
        {
            "id": hardware_id,
            "machine_digest": machine_digest,
            "name": name,
            "owner": owner,
            "document": dict(document),
            "created": db_now(),
        },
    )
    if is_first:
        return True
    if has_hardware(session, hardware_id, owner):
        return False
    return insert_or_ignore(
        session,
        HardwareOwnerRow,
        {"owner": owner, "hardware_id": hardware_id, "created": db_now()},
    )


def add_all_hardware(session: Session, owner: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Give a project many specs (`id`, `machine_digest`, `name`, `document`), as `add_hardware`
    does one."""
    insert_all_or_ignore(session, HardwareRow, [{**row, "owner": owner} for row in rows], "created")
    others: list[str] = []
    for at in range(0, len(rows), _AT_ONCE):
        ids = [row["id"] for row in rows[at : at + _AT_ONCE]]
        query = select(HardwareRow.id).where(HardwareRow.id.in_(ids), HardwareRow.owner != owner)
        others += session.scalars(query)
    also = [{"owner": owner, "hardware_id": hardware_id} for hardware_id in others]
    insert_all_or_ignore(session, HardwareOwnerRow, also, "created")


_AT_ONCE = 500
"""Ids of one query."""


def get_hardware(
    session: Session, hardware_id: str, owner: str | None = None
) -> HardwareRecord | None:
    """Give one spec, of a project where one is named, or None."""
    row = session.get(HardwareRow, hardware_id)
    if row is None or (owner is not None and not has_hardware(session, hardware_id, owner)):
        return None
    return _hardware(row)


_HAS_ALSO = exists(
    select(literal(1)).where(
        HardwareOwnerRow.hardware_id == HardwareRow.id,
        HardwareOwnerRow.owner == bindparam("owner"),
    )
)
_IS_OWN = or_(HardwareRow.owner == bindparam("owner"), _HAS_ALSO)
_HAS_HARDWARE = select(HardwareRow.id).where(HardwareRow.id == bindparam("hardware_id"), _IS_OWN)


def has_hardware(session: Session, hardware_id: str, owner: str) -> bool:
    """Tell whether a project has a spec, without reading its document."""
    found = session.connection().execute(
        _HAS_HARDWARE, {"hardware_id": hardware_id, "owner": owner}
    )  # fmt: skip
    return found.first() is not None


_REFERENCES = select(
    select(ModelRow.owner).where(ModelRow.id == bindparam("model_id")).scalar_subquery(),
    exists(_HAS_HARDWARE),
)


def references(
    session: Session, model_id: str, hardware_id: str, owner: str
) -> tuple[str | None, bool]:
    """What a new job refers to: the model's owner (None: no such model), has `owner` the spec."""
    row = session.connection().execute(
        _REFERENCES, {"model_id": model_id, "hardware_id": hardware_id, "owner": owner}
    ).one()  # fmt: skip
    return row[0], bool(row[1])


def list_hardware(
    session: Session, *, owner: str, before: tuple[float, str] | None, limit: int
) -> list[HardwareRecord]:
    """List a project's specs, newest first."""
    query = select(HardwareRow).where(_IS_OWN)
    if before is not None:
        created, hardware_id = before
        query = query.where(
            or_(
                HardwareRow.created < created,
                and_(HardwareRow.created == created, HardwareRow.id < hardware_id),
            )
        )
    query = query.order_by(HardwareRow.created.desc(), HardwareRow.id.desc()).limit(limit)
    return [_hardware(row) for row in session.scalars(query, {"owner": owner})]


def remember(
    session: Session, *, scope: str, key: str, request_sha256: str, resource_id: str
) -> bool:
    """Take an idempotency key; False when it is taken.

    On PostgreSQL the insert waits for a concurrent transaction with the same key, so that two
    requests in flight cannot both win.
    """
    return insert_or_ignore(
        session,
        IdempotencyRow,
        {
            "scope": scope,
            "key": key,
            "request_sha256": request_sha256,
            "resource_id": resource_id,
            "created": db_now(),
        },
    )


def recall(session: Session, scope: str, key: str) -> tuple[str, str] | None:
    """Give (request digest, resource id) of a key, or None."""
    query = select(IdempotencyRow.request_sha256, IdempotencyRow.resource_id).where(
        IdempotencyRow.scope == scope, IdempotencyRow.key == key
    )
    row = session.execute(query).one_or_none()
    return None if row is None else (row[0], row[1])


def forget_old_keys(session: Session, older_than_s: float) -> int:
    """Drop idempotency keys past their time."""
    return affected(
        session, delete(IdempotencyRow).where(IdempotencyRow.created < db_now() - older_than_s)
    )
