"""Accept models, hardware specs and jobs.  Each function is one transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from sqlalchemy.orm import Session

from service.errors import Conflict, IdempotencyMismatch, NotFound
from service.jobs import audit, quotas
from service.outbox import Outbox
from service.settings import Settings
from service.store.ids import new_id
from service.store.records import BlobRef, CalibrationRecord, HardwareRecord, JobRecord, ModelRecord
from service.store.repos import calibrations, catalog, items, jobs, results
from service.store.session import Database
from service.store.strategy_sets import wanted
from worker.compiler.errors import Detail
from worker.compiler.options import CompileOptions, require_unlinked

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


def hardware_id(canonical_document: Mapping[str, Detail]) -> str:
    """Give the id of a canonical hardware document: the sha256 of its sorted JSON."""
    text = json.dumps(canonical_document, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class NewSpec:
    """A hardware spec that was validated and resolved."""

    document: Mapping[str, Detail]
    """Canonical: its inheritance is resolved."""
    machine_digest: str
    name: str
    id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", hardware_id(self.document))


@dataclass(frozen=True, slots=True)
class NewJob:
    """What a user asks for."""

    model_id: str
    hardware: str | NewSpec
    """Id of a stored spec, or one that is stored with the job."""
    options: CompileOptions = field(default_factory=CompileOptions)
    label: str | None = None
    priority: int = 0
    """Higher runs first."""
    owner: str = "local"
    wall_limit_s: float | None = None
    """At most the service's limit, which is also the default."""
    traceparent: str | None = None
    cloned_from: str | None = None
    sweep_id: str | None = None
    part: Mapping[str, Detail] | None = None
    """Machines of a sweep that its program's kernels are estimated on, too."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A job, and whether this call created it (False: an Idempotency-Key was replayed)."""

    job: JobRecord
    created: bool


def _nothing(record: object) -> None:
    """Stands in for an answer that nobody wants."""
    del record


def add_model(
    database: Database,
    ref: BlobRef,
    *,
    name: str,
    kind: str,
    owner: str = "local",
    settings: Settings | None = None,
    idempotency: IdempotencyKey | None = None,
    before_commit: Callable[[ModelRecord], None] = _nothing,
) -> tuple[ModelRecord, bool]:
    """Register an uploaded blob as a model (`kind` is `onnx` or `zip`).

    The owner's second upload of the same bytes gives the first record back.  With `settings` the
    owner's quota holds.  What `before_commit` raises stores nothing.

    Returns:
        The model, and True when it is new.

    Raises:
        IdempotencyMismatch: the key was used with other content.
        QuotaExceeded: the owner would keep too many bytes.
    """
    with database.write() as session:
        results.add_blobs(session, [ref])
        created = catalog.add_model(
            session,
            model_id=new_id("model"),
            owner=owner,
            name=name,
            kind=kind,
            sha256=ref.sha256,
        )
        model = catalog.find_model(session, owner, ref.sha256)
        if created and settings is not None:
            quotas.check_stored(session, settings, owner)
        if model is None:
            raise Conflict("the model was deleted while it was being registered")
        _bind_key(session, idempotency, model.id)
        audit.record(session, audit.current(), model.id)
        before_commit(model)
    return model, created


def add_calibration(
    database: Database,
    ref: BlobRef,
    *,
    name: str,
    owner: str = "local",
    settings: Settings | None = None,
    before_commit: Callable[[CalibrationRecord], None] = _nothing,
) -> tuple[CalibrationRecord, bool]:
    """Register uploaded arrays; the same bytes give the first record back.

    Returns:
        The record, and True when it is new.

    Raises:
        QuotaExceeded: with `settings`: the owner would keep too many bytes.
    """
    with database.write() as session:
        results.add_blobs(session, [ref])
        created = calibrations.add_calibration(session, owner=owner, name=name, sha256=ref.sha256)
        found = calibrations.find_calibration(session, owner, ref.sha256)
        if created and settings is not None:
            quotas.check_stored(session, settings, owner)
        if found is None:
            raise Conflict("the arrays were deleted while they were being registered")
        audit.record(session, audit.current(), found.sha256)
        before_commit(found)
    return found, created


def add_hardware(
    database: Database,
    spec: NewSpec,
    *,
    owner: str = "local",
    idempotency: IdempotencyKey | None = None,
    before_commit: Callable[[HardwareRecord], None] = _nothing,
) -> tuple[HardwareRecord, bool]:
    """Store a hardware spec; the same document is stored once.

    Returns:
        The spec, and True when it is new.

    Raises:
        IdempotencyMismatch: the key was used with another body.
    """
    with database.write() as session:
        created = _store_spec(session, spec, owner)
        record = catalog.get_hardware(session, spec.id)
        if record is None:
            raise Conflict("the hardware spec was deleted while it was being stored")
        _bind_key(session, idempotency, record.id)
        audit.record(session, audit.current(), record.id)
        before_commit(record)
    return record, created


def _store_spec(session: Session, spec: NewSpec, owner: str) -> bool:
    """Insert a spec unless it is known; True when inserted."""
    return not catalog.has_hardware(session, spec.id, owner) and catalog.add_hardware(
        session,
        hardware_id=spec.id,
        machine_digest=spec.machine_digest,
        name=spec.name,
        owner=owner,
        document=spec.document,
    )


def _bind_key(session: Session, idempotency: IdempotencyKey | None, resource_id: str) -> None:
    """Bind a key to what its first request made.

    Raises:
        IdempotencyMismatch: it was used with another body.
    """
    if idempotency is None or catalog.remember(
        session,
        scope=idempotency.scope,
        key=idempotency.key,
        request_sha256=idempotency.request_sha256,
        resource_id=resource_id,
    ):
        return
    known = catalog.recall(session, idempotency.scope, idempotency.key)
    if known is not None and known[0] != idempotency.request_sha256:
        raise _other_body(known[0], idempotency)


def _other_body(known: str, idempotency: IdempotencyKey) -> IdempotencyMismatch:
    return IdempotencyMismatch(
        "this Idempotency-Key was used with another request body",
        limit=known,
        actual=idempotency.request_sha256,
    )


def submit_job(
    database: Database,
    outbox: Outbox,
    settings: Settings,
    new: NewJob,
    idempotency: IdempotencyKey | None = None,
    before_commit: Callable[[JobRecord], None] = _nothing,
) -> Submission:
    """Accept a job: once this returns, a kill -9 of anything does not lose it.

    Raises:
        NotFound: the model or hardware id is unknown.
        QuotaExceeded: the owner has too many unfinished jobs, or keeps too many bytes.
        IdempotencyMismatch: the key was used with another body.
    """
    job_id, act = new_id("job"), audit.current()

    def store(session: Session) -> JobRecord:
        if idempotency is not None:
            replayed = _take_key(session, idempotency, job_id)
            if replayed is not None:
                before_commit(replayed)
                return replayed
        _check_references(session, new)
        quotas.check_submit(session, database, settings, new.owner)
        made = insert_job(session, job_id, new, settings)
        audit.record(session, act, job_id)
        before_commit(made)
        return made

    job = database.write_together(store)
    if job.id != job_id:
        return Submission(job, created=False)
    outbox.flush((item_of(job_id),))
    return Submission(job, created=True)


def _spec_id(new: NewJob) -> str:
    return new.hardware if isinstance(new.hardware, str) else new.hardware.id


def item_of(job_id: str) -> str:
    """Id of a job's one work item."""
    return f"{job_id}:{COMPILE}"


def insert_job(session: Session, job_id: str, new: NewJob, settings: Settings) -> JobRecord:
    """Insert a queued job, its one work item and its first event; nothing is checked."""
    wall = min(new.wall_limit_s or settings.wall_limit_s, settings.wall_limit_s)
    job = jobs.insert(
        session,
        {
            "id": job_id,
            "owner": new.owner,
            "model_id": new.model_id,
            "hardware_id": _spec_id(new),
            "options": new.options.to_json(),
            "label": new.label,
            "priority": new.priority,
            "traceparent": new.traceparent,
            "cloned_from": new.cloned_from,
            "sweep_id": new.sweep_id,
            "wall_limit_s": wall,
        },
        settings.queue_ttl_s,
    )
    items.insert(
        session,
        item_id=item_of(job_id),
        job_id=job_id,
        kind=COMPILE,
        priority=new.priority,
        max_attempts=settings.max_attempts,
        wall_limit_s=wall,
        strategies=wanted(new.options),
        payload={} if new.part is None else {"part": dict(new.part)},
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
    traceparent: str | None = None,
    idempotency: IdempotencyKey | None = None,
    before_commit: Callable[[JobRecord], None] = _nothing,
) -> Submission:
    """Submit a job again, with some things changed.

    Raises:
        NotFound: the job is unknown, or another owner's.
    """
    with database.read() as session:
        old = jobs.get(session, job_id)
    if old is None or old.owner != owner:
        raise NotFound("no such job", actual=job_id)
    new = NewJob(
        model_id=old.model_id,
        hardware=hardware_id or old.hardware_id,
        options=options or CompileOptions.from_json(dict(old.options)),
        label=label if label is not None else old.label,
        priority=old.priority,
        owner=owner,
        wall_limit_s=old.wall_limit_s,
        traceparent=traceparent,
        cloned_from=old.id,
    )
    return submit_job(database, outbox, settings, new, idempotency, before_commit)


def first_made(
    session: Session, idempotency: IdempotencyKey | None, resource_id: str
) -> str | None:
    """What the first request with a key made; None: this is the first, or has no key.

    Raises:
        IdempotencyMismatch: the key was used with another body.
        Conflict: it ran out this moment.
    """
    if idempotency is None or catalog.remember(
        session,
        scope=idempotency.scope,
        key=idempotency.key,
        request_sha256=idempotency.request_sha256,
        resource_id=resource_id,
    ):
        return None
    known = catalog.recall(session, idempotency.scope, idempotency.key)
    if known is None:
        raise Conflict("the Idempotency-Key expired during the request; send it again")
    request_sha256, made = known
    if request_sha256 != idempotency.request_sha256:
        raise _other_body(request_sha256, idempotency)
    return made


def _take_key(session: Session, idempotency: IdempotencyKey, job_id: str) -> JobRecord | None:
    resource_id = first_made(session, idempotency, job_id)
    if resource_id is None:
        return None
    job = jobs.get(session, resource_id)
    if job is None:
        raise NotFound("the job of this Idempotency-Key was deleted", actual=resource_id)
    return job


def _check_references(session: Session, new: NewJob) -> None:
    """Check that the owner has what a job names; a spec that comes with it is stored."""
    model_owner, is_spec_known = catalog.references(session, new.model_id, _spec_id(new), new.owner)
    if model_owner is None or model_owner != new.owner:
        raise NotFound("no such model", pointer="/model_id", actual=new.model_id)
    if not is_spec_known and isinstance(new.hardware, NewSpec):
        _store_spec(session, new.hardware, new.owner)
    elif not is_spec_known:
        raise NotFound("no such hardware spec", pointer="/hardware_id", actual=_spec_id(new))
    check_arrays(session, new.options, new.owner)


def check_arrays(session: Session, options: CompileOptions, owner: str) -> None:
    """Check that a project has the arrays that options name, and that they name nothing else.

    Raises:
        NotFound: it has not.
        OptionError: TW-LINK-008, they name a kernel library.
    """
    require_unlinked(options)
    for option, digest in (("calibration", options.calibration), ("inputs", options.inputs)):
        if digest and calibrations.find_calibration(session, owner, digest) is None:
            raise NotFound(
                f"no arrays with the digest that option {option} names",
                pointer=f"/options/{option}", actual=digest,
                remedy="Upload the .npz with POST /v1/calibrations first.",
            )  # fmt: skip
