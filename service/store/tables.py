"""The tables.  Times are seconds since the epoch by the database's clock; JSON is sorted text.

Only `service.store.repos` reads or writes them.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    desc,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction
from sqlalchemy.types import TypeDecorator

JsonValue = Any  # the JSON edge: documents are checked where they enter


class JsonText(TypeDecorator[JsonValue]):
    """JSON as text with sorted keys, the same bytes on every database."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: JsonValue, dialect: Dialect) -> str | None:
        del dialect
        return None if value is None else json.dumps(value, sort_keys=True, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: Dialect) -> JsonValue:
        del dialect
        return None if value is None else json.loads(value)


class db_now(GenericFunction[float]):  # noqa: N801  # reads as SQL where it is used
    """The database's clock, in seconds since the epoch."""

    type = Double()
    inherit_cache = True


@compiles(db_now, "sqlite")
def _sqlite_now(element: db_now, compiler: SQLCompiler, **kw: Any) -> str:
    # unixepoch('now','subsec') is NULL before SQLite 3.42: a NULL lease would never expire.
    del element, compiler, kw
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(db_now, "postgresql")
def _postgres_now(element: db_now, compiler: SQLCompiler, **kw: Any) -> str:
    # clock_timestamp, not now(): a transaction that waited for a lock must see the time it is.
    del element, compiler, kw
    return "(extract(epoch from clock_timestamp())::double precision)"


class Base(DeclarativeBase):
    """Declarative base with a naming convention: batch migrations need every constraint named."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        float: Double(),
        str: String(),
        int: BigInteger(),
        bytes: LargeBinary(),
    }


class BlobRow(Base):
    __tablename__ = "blob"
    sha256: Mapped[str] = mapped_column(primary_key=True)
    size_bytes: Mapped[int]
    media_type: Mapped[str]
    created: Mapped[float]
    verified_at: Mapped[float | None]


class UploadRow(Base):
    __tablename__ = "upload"
    id: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str]
    name: Mapped[str]
    expected_sha256: Mapped[str | None]
    size_limit_bytes: Mapped[int]
    received_bytes: Mapped[int]
    state: Mapped[str]
    created: Mapped[float]
    expires: Mapped[float]


class ModelRow(Base):
    __tablename__ = "model"
    __table_args__ = (UniqueConstraint("owner", "blob_sha256"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str]
    name: Mapped[str]
    kind: Mapped[str]
    blob_sha256: Mapped[str] = mapped_column(ForeignKey("blob.sha256"))
    summary: Mapped[JsonValue | None] = mapped_column(JsonText)
    created: Mapped[float]


class CalibrationRow(Base):
    __tablename__ = "calibration"
    owner: Mapped[str] = mapped_column(primary_key=True)
    blob_sha256: Mapped[str] = mapped_column(
        ForeignKey("blob.sha256"), primary_key=True, index=True
    )
    name: Mapped[str]
    created: Mapped[float]


class HardwareRow(Base):
    __tablename__ = "hw_spec"
    id: Mapped[str] = mapped_column(primary_key=True)
    machine_digest: Mapped[str] = mapped_column(index=True)
    name: Mapped[str]
    owner: Mapped[str]
    document: Mapped[JsonValue] = mapped_column(JsonText)
    created: Mapped[float]


class HardwareOwnerRow(Base):
    """A further project that has a spec: `HardwareRow.owner` is the first."""

    __tablename__ = "hw_owner"
    owner: Mapped[str] = mapped_column(primary_key=True)
    hardware_id: Mapped[str] = mapped_column(ForeignKey("hw_spec.id"), primary_key=True, index=True)
    created: Mapped[float]


class JobRow(Base):
    __tablename__ = "job"
    __table_args__ = (
        Index(None, "owner", "created"),
        Index(None, "owner", "state"),
        Index(None, "state", "created"),
        Index(None, "label", "created"),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str]
    model_id: Mapped[str] = mapped_column(ForeignKey("model.id"))
    hardware_id: Mapped[str] = mapped_column(ForeignKey("hw_spec.id"))
    options: Mapped[JsonValue] = mapped_column(JsonText)
    label: Mapped[str | None]
    priority: Mapped[int] = mapped_column(Integer)
    state: Mapped[str]
    stage: Mapped[str | None]
    units_solved: Mapped[int]
    units_cached: Mapped[int]
    units_total: Mapped[int]
    waiting: Mapped[str | None]
    error: Mapped[JsonValue | None] = mapped_column(JsonText)
    summary: Mapped[JsonValue | None] = mapped_column(JsonText)
    bundle_digest: Mapped[str | None]
    traceparent: Mapped[str | None]
    cloned_from: Mapped[str | None]
    wall_limit_s: Mapped[float]
    queue_deadline: Mapped[float]
    created: Mapped[float]
    started: Mapped[float | None]
    finished: Mapped[float | None]
    cancel_requested: Mapped[float | None]
    event_seq: Mapped[int]
    sweep_id: Mapped[str | None] = mapped_column(index=True)
    """No foreign key: the table would have to be made anew to give it one."""


class SweepRow(Base):
    __tablename__ = "sweep"
    __table_args__ = (Index(None, "owner", "created"), Index(None, "state", "created"))
    id: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str]
    label: Mapped[str | None]
    fields: Mapped[JsonValue] = mapped_column(JsonText)
    options: Mapped[JsonValue] = mapped_column(JsonText)
    priority: Mapped[int] = mapped_column(Integer)
    wall_limit_s: Mapped[float | None]
    traceparent: Mapped[str | None]
    state: Mapped[str]
    items_total: Mapped[int] = mapped_column(Integer)
    created: Mapped[float]
    finished: Mapped[float | None]
    cancel_requested: Mapped[float | None]
    event_seq: Mapped[int] = mapped_column(server_default="0")
    """Number of its last change, or of an item's."""
    explore: Mapped[JsonValue | None] = mapped_column(JsonText)
    """What is estimated before machines are compiled; null: nothing is."""


class SweepItemRow(Base):
    """One model on one machine, or on a part of those that are estimated: what its job came to.

    No foreign keys but to the sweep: a release before this one may delete what it refers to.
    """

    __tablename__ = "sweep_item"
    __table_args__ = (
        Index(None, "sweep_id", "state"),
        Index(None, "model_id"),
        Index(None, "job_id"),
    )
    sweep_id: Mapped[str] = mapped_column(
        ForeignKey("sweep.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    model_id: Mapped[str]
    hardware_id: Mapped[str | None]
    hardware_name: Mapped[str]
    values: Mapped[JsonValue] = mapped_column(JsonText)
    on_chip_bytes: Mapped[int | None]
    state: Mapped[str]
    job_id: Mapped[str | None]
    error: Mapped[JsonValue | None] = mapped_column(JsonText)
    latency_s: Mapped[float | None]
    energy_pj: Mapped[float | None]
    seconds: Mapped[float | None]
    seq: Mapped[int] = mapped_column(server_default="0")
    """What its sweep's `event_seq` was when it changed last."""
    part: Mapped[JsonValue | None] = mapped_column(JsonText)
    estimates: Mapped[JsonValue | None] = mapped_column(JsonText)


class ItemRow(Base):
    __tablename__ = "work_item"
    __table_args__ = (
        CheckConstraint(
            "state <> 'leased' OR (lease_until IS NOT NULL AND owner IS NOT NULL)",
            name="leased_has_lease",
        ),
        Index(None, "state", "lease_until"),
        Index(None, "state", "dispatched_at"),
        Index("ix_work_item_queue", "state", desc("priority"), "created", "id"),
        Index(None, "state", "strategies"),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    state: Mapped[str]
    priority: Mapped[int] = mapped_column(Integer)
    payload: Mapped[JsonValue] = mapped_column(JsonText)
    strategies: Mapped[str] = mapped_column(server_default="")
    owner: Mapped[str | None]
    fence: Mapped[int]
    lease_until: Mapped[float | None]
    attempts: Mapped[int]
    max_attempts: Mapped[int]
    wall_limit_s: Mapped[float]
    not_before: Mapped[float]
    hard_deadline: Mapped[float | None]
    dispatched_at: Mapped[float | None]
    dispatches: Mapped[int]
    result: Mapped[JsonValue | None] = mapped_column(JsonText)
    error: Mapped[JsonValue | None] = mapped_column(JsonText)
    created: Mapped[float]
    finished: Mapped[float | None]


class DependencyRow(Base):
    __tablename__ = "dep"
    item_id: Mapped[str] = mapped_column(
        ForeignKey("work_item.id", ondelete="CASCADE"), primary_key=True
    )
    needs_id: Mapped[str] = mapped_column(
        ForeignKey("work_item.id", ondelete="CASCADE"), primary_key=True, index=True
    )


class JobItemRow(Base):
    __tablename__ = "job_item"
    job_id: Mapped[str] = mapped_column(ForeignKey("job.id", ondelete="CASCADE"), primary_key=True)
    item_id: Mapped[str] = mapped_column(
        ForeignKey("work_item.id", ondelete="CASCADE"), primary_key=True, index=True
    )
    role: Mapped[str]


class AttemptRow(Base):
    __tablename__ = "attempt"
    item_id: Mapped[str] = mapped_column(
        ForeignKey("work_item.id", ondelete="CASCADE"), primary_key=True
    )
    fence: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    worker_id: Mapped[str]
    started: Mapped[float]
    ended: Mapped[float | None]
    outcome: Mapped[str | None]
    cpu_s: Mapped[float | None]
    max_rss_bytes: Mapped[int | None]
    log_sha256: Mapped[str | None] = mapped_column(ForeignKey("blob.sha256"))


class ArtifactRow(Base):
    __tablename__ = "artifact"
    item_id: Mapped[str] = mapped_column(
        ForeignKey("work_item.id", ondelete="CASCADE"), primary_key=True
    )
    name: Mapped[str] = mapped_column(primary_key=True)
    file_name: Mapped[str]
    blob_sha256: Mapped[str] = mapped_column(ForeignKey("blob.sha256"), index=True)
    fence: Mapped[int]
    created: Mapped[float]


class EventRow(Base):
    __tablename__ = "event"
    __table_args__ = (UniqueConstraint("job_id", "seq"),)
    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
    )
    job_id: Mapped[str] = mapped_column(ForeignKey("job.id", ondelete="CASCADE"))
    seq: Mapped[int]
    ts: Mapped[float]
    type: Mapped[str]
    payload: Mapped[JsonValue] = mapped_column(JsonText)


class IdempotencyRow(Base):
    __tablename__ = "idempotency"
    scope: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    request_sha256: Mapped[str]
    resource_id: Mapped[str]
    created: Mapped[float] = mapped_column(index=True)


class ApiKeyRow(Base):
    __tablename__ = "api_key"
    id: Mapped[str] = mapped_column(primary_key=True)
    prefix: Mapped[str] = mapped_column(unique=True)
    secret_sha256: Mapped[str]
    owner: Mapped[str]
    name: Mapped[str] = mapped_column(server_default="")
    scopes: Mapped[JsonValue] = mapped_column(JsonText)
    created: Mapped[float]
    expires: Mapped[float | None]
    revoked: Mapped[float | None]
    last_used: Mapped[float | None]
    rate: Mapped[str | None]


class LinkRow(Base):
    """A link to a job's page that somebody has; what it says is signed, not stored."""

    __tablename__ = "share_link"
    __table_args__ = (
        Index(None, "job_id"),
        Index(None, "owner", "created"),
        Index(None, "expires"),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str]
    job_id: Mapped[str] = mapped_column(ForeignKey("job.id", ondelete="CASCADE"))
    created: Mapped[float]
    expires: Mapped[float]
    revoked: Mapped[float | None]


class ProjectLimitRow(Base):
    """What a project may use instead of what settings say; null: as settings say."""

    __tablename__ = "project_limit"
    owner: Mapped[str] = mapped_column(primary_key=True)
    rate: Mapped[str | None]
    max_active_jobs: Mapped[int | None]
    max_bytes: Mapped[int | None]
    changed: Mapped[float]


class AuditRow(Base):
    __tablename__ = "audit"
    __table_args__ = (Index(None, "ts"), Index(None, "owner", "id"))
    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
    )
    ts: Mapped[float]
    owner: Mapped[str]
    key_id: Mapped[str | None]
    who: Mapped[str]
    route: Mapped[str]
    subject: Mapped[str | None]
    outcome: Mapped[str]
    status: Mapped[int | None]
    request_id: Mapped[str]


class WebhookRow(Base):
    __tablename__ = "webhook"
    __table_args__ = (Index(None, "owner", "created"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str]
    name: Mapped[str]
    url: Mapped[str]
    events: Mapped[JsonValue] = mapped_column(JsonText)
    secret: Mapped[str]
    """As `service.sealing` seals it; so is the one before it."""
    former_secret: Mapped[str | None]
    former_until: Mapped[float | None]
    created: Mapped[float]
    failing_since: Mapped[float | None]
    disabled: Mapped[float | None]
    disabled_why: Mapped[str | None]


class DeliveryRow(Base):
    """The outbox: written in the transaction that ends the job."""

    __tablename__ = "webhook_delivery"
    __table_args__ = (
        Index(None, "state", "not_before"),
        Index(None, "state", "lease_until"),
        Index(None, "webhook_id", "created"),
        Index(None, "webhook_id", "state", "not_before"),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhook.id", ondelete="CASCADE"))
    job_id: Mapped[str | None] = mapped_column(index=True)
    """No foreign key: a message outlives the deletion of its job."""
    type: Mapped[str]
    body: Mapped[str] = mapped_column(Text)
    """The very text that is signed, the same in every attempt."""
    state: Mapped[str]
    attempts: Mapped[int]
    tries: Mapped[int]
    """Attempts since it was made or replayed: the pause before the next follows from it."""
    not_before: Mapped[float]
    since: Mapped[float]
    """When it was made or replayed: it is given up some span later."""
    fence: Mapped[int]
    lease_until: Mapped[float | None]
    created: Mapped[float]
    finished: Mapped[float | None]


class DeliveryAttemptRow(Base):
    __tablename__ = "webhook_attempt"
    delivery_id: Mapped[str] = mapped_column(
        ForeignKey("webhook_delivery.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    started: Mapped[float]
    duration_s: Mapped[float | None]
    status: Mapped[int | None] = mapped_column(Integer)
    error: Mapped[str | None]


class WorkerRow(Base):
    __tablename__ = "worker"
    id: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str]
    pid: Mapped[int]
    slots: Mapped[int]
    version: Mapped[str]
    sandbox_tier: Mapped[str]
    strategies: Mapped[str] = mapped_column(server_default="")
    helps: Mapped[str | None] = mapped_column(index=True, unique=True)  # a job
    started: Mapped[float]
    beat: Mapped[float] = mapped_column(index=True)


class CacheEntryRow(Base):
    __tablename__ = "cache_entry"
    __table_args__ = (
        CheckConstraint("(value IS NULL) <> (blob_sha256 IS NULL)", name="one_place"),
        Index(None, "kind", "last_used"),
        Index(None, "owner", "last_used"),
    )
    digest: Mapped[str] = mapped_column(primary_key=True)
    """`DIGEST`, of another project than `local` `DIGEST@PROJECT`."""
    owner: Mapped[str] = mapped_column(server_default="local")
    kind: Mapped[str]
    fields: Mapped[JsonValue] = mapped_column(JsonText)
    value: Mapped[bytes | None]
    blob_sha256: Mapped[str | None] = mapped_column(ForeignKey("blob.sha256"), index=True)
    size_bytes: Mapped[int]
    filled_by_job: Mapped[str | None]
    created: Mapped[float]
    last_used: Mapped[float]
    hits: Mapped[int]
