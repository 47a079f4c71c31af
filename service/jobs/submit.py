"""Accept models, hardware specs and jobs.  Each function is one transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from sqlalchemy.orm import Session

from service.errors import Conflict, IdempotencyMismatch, NotFound, QuotaExceeded
from service.outbox import Outbox
from service.settings import Settings
from service.store.ids import new_id
from service.store.records import BlobRef, CalibrationRecord, HardwareRecord, JobRecord, ModelRecord
from service.store.repos import calibrations, catalog, items, jobs, results
from service.store.session import Database
from worker.compiler.errors import Detail
from worker.compiler.options import CompileOptions

COMPILE = "compile"
"""The one kind of work item (decision 0006): a whole job in one sandboxed child."""


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A client's promise that requests with the same key are the same request."""

    scope: str
    """Who and where: API key id (or `local`) and route, for example `local POST /v1/jobs`."""
    key: str
    request_sha256: str
    """Digest of the request's body."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """What a user asks for."""

    model_id: str
    hardware_id: str
    options: CompileOptions = field(default_factory=CompileOptions)
    label: str | None = None
    priority: int = 0
    """Higher runs first."""
    owner: str = "local"
    wall_limit_s: float | None = None
    """At most the service's limit, which is also the default."""
    traceparent: str | None = None
    cloned_from: str | None = None


@dataclass(frozen=True, slots=True)
class Submission:
    """A job, and whether this call created it (False: an Idempotency-Key was replayed)."""

    job: JobRecord
    created: bool


def add_model(
    database: Database, ref: BlobRef, *, name: str, kind: str, owner: str = "local"
) -> tuple[ModelRecord, bool]:
    """Register an uploaded blob as a model (`kind` is `onnx` or `zip`).

    The owner's second upload of the same bytes gives the first record back.

    Returns:
        The model, and True when it is new.
    """
    with database.write() as session:
        results.add_blob(session, ref)
        created = catalog.add_model(
            session,
            model_id=new_id("model"),
            owner=owner,
            name=name,
            kind=kind,
            sha256=ref.sha256,
        )
        model = catalog.find_model(session, owner, ref.sha256)
    if model is None:
        raise Conflict("the model was deleted while it was being registered")
    return model, created


def add_calibration(
    database: Database, ref: BlobRef, *, name: str, owner: str = "local"
) -> tuple[CalibrationRecord, bool]:
    """Register uploaded calibration arrays; the same bytes give the first record back.

    Returns:
        The record, and True when it is new.
    """
    with database.write() as session:
        results.add_blob(session, ref)
        created = calibrations.add_calibration(session, owner=owner, name=name, sha256=ref.sha256)
        found = calibrations.find_calibration(session, owner, ref.sha256)
    if found is None:
        raise Conflict("the calibration arrays were deleted while they were being registered")
    return found, created


def hardware_id(canonical_document: Mapping[str, Detail]) -> str:
    """Give the id of a canonical hardware document: the sha256 of its sorted JSON."""
    text = json.dumps(canonical_document, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


def add_hardware(
    database: Database,
    canonical_document: Mapping[str, Detail],
    *,
    machine_digest: str,
    name: str,
    owner: str = "local",
) -> tuple[HardwareRecord, bool]:
    """Store a validated hardware spec; the caller has validated and canonicalised it.

    Returns:
        The spec, and True when it is new.
    """
    identity = hardware_id(canonical_document)
    with database.write() as session:
        created = catalog.add_hardware(
            session,
            hardware_id=identity,
            machine_digest=machine_digest,
            name=name,
            owner=owner,
            document=canonical_document,
        )
        record = catalog.get_hardware(session, identity)
    if record is None:
        raise Conflict("the hardware spec was deleted while it was being stored")
    return record, created


def submit_job(
    database: Database,
    outbox: Outbox,
    settings: Settings,
    new: NewJob,
    idempotency: IdempotencyKey | None = None,
) -> Submission:
    """Accept a job: once this returns, a kill -9 of anything does not lose it.

    Raises:
        NotFound: the model or hardware id is unknown.
        QuotaExceeded: the owner has too many unfinished jobs.
        IdempotencyMismatch: the key was used with another body.
    """
    job_id = new_id("job")

    def store(session: Session) -> JobRecord:
        if idempotency is not None:
            replayed = _take_key(session, idempotency, job_id)
            if replayed is not None:
                return replayed
        _check_references(session, new)
        _check_quota(session, new.owner, settings.max_active_jobs)
        return _insert(session, job_id, new, settings)

    job = database.write_together(store)
    if job.id != job_id:
        return Submission(job, created=False)
    outbox.flush((_item_id(job_id),))
    return Submission(job, created=True)


def _item_id(job_id: str) -> str:
    return f"{job_id}:{COMPILE}"


def _insert(session: Session, job_id: str, new: NewJob, settings: Settings) -> JobRecord:
    """The queued job, its one work item and its first event."""
    wall = min(new.wall_limit_s or settings.wall_limit_s, settings.wall_limit_s)
    job = jobs.insert(
        session,
        {
            "id": job_id,
            "owner": new.owner,
            "model_id": new.model_id,
            "hardware_id": new.hardware_id,
            "options": new.options.to_json(),
            "label": new.label,
            "priority": new.priority,
            "traceparent": new.traceparent,
            "cloned_from": new.cloned_from,
            "wall_limit_s": wall,
        },
        settings.queue_ttl_s,
    )
    items.insert(
        session,
        item_id=_item_id(job_id),
        job_id=job_id,
        kind=COMPILE,
        priority=new.priority,
        max_attempts=settings.max_attempts,
        wall_limit_s=wall,
    )
    return job


def clone_job(
    database: Database,
    outbox: Outbox,
    settings: Settings,
    job_id: str,
    *,
    owner: str = "local",
    options: CompileOptions | None = None,
    hardware_id: str | None = None,
    label: str | None = None,
    idempotency: IdempotencyKey | None = None,
) -> Submission:
    """Submit a job again, with some things changed.

    Raises:
        NotFound: the job is unknown.
    """
    with database.read() as session:
        old = jobs.get(session, job_id)
    if old is None:
        raise NotFound("no such job", actual=job_id)
    new = NewJob(
        model_id=old.model_id,
        hardware_id=hardware_id or old.hardware_id,
        options=options or CompileOptions.from_json(dict(old.options)),
        label=label if label is not None else old.label,
        priority=old.priority,
        owner=owner,
        wall_limit_s=old.wall_limit_s,
        cloned_from=old.id,
    )
    return submit_job(database, outbox, settings, new, idempotency)


def _take_key(session: Session, idempotency: IdempotencyKey, job_id: str) -> JobRecord | None:
    if catalog.remember(
        session,
        scope=idempotency.scope,
        key=idempotency.key,
        request_sha256=idempotency.request_sha256,
        resource_id=job_id,
    ):
        return None
    known = catalog.recall(session, idempotency.scope, idempotency.key)
    if known is None:
        raise Conflict("the Idempotency-Key expired during the request; send it again")
    request_sha256, resource_id = known
    if request_sha256 != idempotency.request_sha256:
        raise IdempotencyMismatch(
            "this Idempotency-Key was used with another request body",
            limit=request_sha256,
            actual=idempotency.request_sha256,
        )
    job = jobs.get(session, resource_id)
    if job is None:
        raise NotFound("the job of this Idempotency-Key was deleted", actual=resource_id)
    return job


def _check_references(session: Session, new: NewJob) -> None:
    model_owner, is_spec_known = catalog.references(session, new.model_id, new.hardware_id)
    if model_owner is None or model_owner != new.owner:
        raise NotFound("no such model", pointer="/model_id", actual=new.model_id)
    if not is_spec_known:
        raise NotFound("no such hardware spec", pointer="/hardware_id", actual=new.hardware_id)
    for option, wanted in (
        ("calibration", new.options.calibration),
        ("inputs", new.options.inputs),
    ):
        if wanted and calibrations.find_calibration(session, new.owner, wanted) is None:
            raise NotFound(
                f"no arrays with the digest that option {option} names",
                pointer=f"/options/{option}", actual=wanted,
                remedy="Upload the .npz with POST /v1/calibrations first.",
            )  # fmt: skip


def _check_quota(session: Session, owner: str, limit: int) -> None:
    active = jobs.count_active(session, owner)
    if active >= limit:
        raise QuotaExceeded(
            f"{active} jobs are unfinished; the limit is {limit}",
            limit=limit,
            actual=active,
            headers={"Retry-After": "30"},
        )
