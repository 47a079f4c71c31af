"""What the store hands out: frozen values, detached from any session.

Times are seconds since the epoch, by the database's clock.  `document`-like fields are parsed JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from service.keys import Scope
from service.states import (
    DeliveryState,
    EventType,
    ItemState,
    JobState,
    SweepItemState,
    SweepState,
)
from worker.compiler.errors import Detail

Document = Mapping[str, Detail]


@dataclass(frozen=True, slots=True)
class BlobRef:
    """Content in the blob store."""

    sha256: str
    size_bytes: int
    media_type: str


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """An uploaded model."""

    id: str
    owner: str
    name: str
    kind: str
    """`onnx` or `zip`."""
    sha256: str
    size_bytes: int
    created: float
    summary: Document | None


@dataclass(frozen=True, slots=True)
class CalibrationRecord:
    """Uploaded calibration arrays; their digest is their id."""

    sha256: str
    owner: str
    name: str
    size_bytes: int
    created: float


@dataclass(frozen=True, slots=True)
class HardwareRecord:
    """A stored hardware spec."""

    id: str
    """sha256 of the canonical document."""
    machine_digest: str
    """Digest of the machine it describes; ignores names."""
    name: str
    owner: str
    document: Document
    created: float


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job as users see it."""

    id: str
    owner: str
    model_id: str
    hardware_id: str
    options: Document
    label: str | None
    priority: int
    state: JobState
    stage: str | None
    """The stage that runs now, or ran last."""
    units_solved: int
    units_cached: int
    units_total: int
    waiting: str | None
    """Why no worker takes a queued job; None where one can."""
    error: Document | None
    """Problem document of a job that did not succeed."""
    summary: Document | None
    bundle_digest: str | None
    traceparent: str | None
    cloned_from: str | None
    wall_limit_s: float
    created: float
    started: float | None
    finished: float | None
    cancel_requested: float | None
    event_seq: int
    """Number of the job's latest event; grows with every change."""
    attempts: int
    """How often a worker has taken the job."""
    sweep_id: str | None = None
    """The sweep whose item it is."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What somebody who waits for a job or a sweep looks at."""

    event_seq: int
    """Number of its latest event."""
    is_over: bool


@dataclass(frozen=True, slots=True)
class SweepRecord:
    """Many models on many machines, as one thing."""

    id: str
    owner: str
    label: str | None
    fields: tuple[str, ...]
    """Names of what is varied: an item's `values` are of these."""
    options: Document
    priority: int
    wall_limit_s: float | None
    traceparent: str | None
    state: SweepState
    items_total: int
    created: float
    finished: float | None
    cancel_requested: float | None
    event_seq: int
    """Number of its last change, or of an item's."""
    explore: Document | None
    """What is estimated first (`service.jobs.exploring.Explore`); None: all items are machines."""


@dataclass(frozen=True, slots=True)
class SweepItemRecord:
    """One model on one machine, or a part of the machines that are estimated for it."""

    number: int
    """From 0, in the order in which items get their jobs."""
    model_id: str
    model_name: str | None
    """None where the model has been deleted."""
    hardware_id: str | None
    """None where the document of the point is no machine."""
    hardware_name: str
    values: tuple[Detail, ...]
    on_chip_bytes: int | None
    state: SweepItemState
    job_id: str | None
    job_state: JobState | None
    """None where it has no job, or its job was deleted."""
    error: Document | None
    latency_s: float | None
    energy_pj: float | None
    seconds: float | None
    """From the first worker that took its job to its end."""
    running_s: float | None
    """How long its job has run, where it runs now."""
    seq: int
    """Number of its last change; all changes of a sweep are counted together."""
    part: Document | None
    """`first` and `count` of the machines that its job estimates; None: it is one machine."""
    estimates: tuple[Document, ...]
    """Of the machines of its part, once it has succeeded; of a winner its own."""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs of a list; what is empty or None filters nothing."""

    states: tuple[JobState, ...] = ()
    label: str | None = None
    model: str | None = None
    hardware: str | None = None
    strategy: str | None = None
    """That was asked for, not the one that won."""
    since: float | None = None
    until: float | None = None
    """Accepted at `since` or later, and before `until`."""
    sweep: str | None = None


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One entry of a job's history."""

    job_id: str
    seq: int
    ts: float
    type: str
    """state, stage, units, artifact, waiting, strategies, crash, retry or help."""
    payload: Document


@dataclass(frozen=True, slots=True)
class ArtifactRecord:
    """One named result of a job."""

    job_id: str
    name: str
    file_name: str
    sha256: str
    size_bytes: int
    media_type: str
    created: float


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One try of a worker at a job."""

    item_id: str
    fence: int
    worker_id: str
    started: float
    ended: float | None
    outcome: str | None
    cpu_s: float | None
    max_rss_bytes: int | None
    log_sha256: str | None
    """Blob with the captured output."""


@dataclass(frozen=True, slots=True)
class ItemRecord:
    """A unit of work."""

    id: str
    kind: str
    state: ItemState
    owner: str | None
    fence: int
    attempts: int
    max_attempts: int
    lease_until: float | None
    not_before: float
    hard_deadline: float | None
    dispatched_at: float | None
    dispatches: int
    payload: Document
    """What is done beside the job's compile: `part` of a range of machines, or nothing."""


@dataclass(frozen=True, slots=True)
class CacheEntryRecord:
    """One cached sub-graph result, without its bytes."""

    digest: str
    kind: str
    fields: tuple[tuple[str, str], ...]
    size_bytes: int
    filled_by_job: str | None
    created: float
    last_used: float
    hits: int


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An API key without its secret."""

    id: str
    prefix: str
    """What its text begins with."""
    secret_sha256: str
    """Digest of the whole text."""
    project: str
    name: str
    scopes: tuple[Scope, ...]
    created: float
    expires: float | None
    revoked: float | None
    last_used: float | None
    is_live: bool
    """Neither revoked nor past its end, by the database's clock when it was read."""
    rate: str | None = None
    """Of this key, in place of the one that settings give every key."""


@dataclass(frozen=True, slots=True)
class LinkRecord:
    """A link to a job's page that was shared."""

    id: str
    owner: str
    job_id: str
    created: float
    expires: float
    revoked: float | None


@dataclass(frozen=True, slots=True)
class ProjectLimits:
    """What a project may use; None: what settings say."""

    rate: str | None = None
    max_active_jobs: int | None = None
    max_bytes: int | None = None


class Outcome(StrEnum):
    """What became of an audited request."""

    DONE = "done"
    """What it asked for was stored, in the same transaction as this row."""
    ANSWERED = "answered"
    """It was answered well, and either repeated an earlier one or changed files only."""
    REFUSED = "refused"
    """With a status of 400 to 499."""
    FAILED = "failed"
    """With a status of 500 or more, or by a connection that ended."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One row of the audit log."""

    id: int
    time: float
    project: str
    key_id: str | None
    who: str
    route: str
    subject: str | None
    outcome: str
    status: int | None
    request_id: str


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which rows of the audit log; all that are not None must hold."""

    project: str | None = None
    key: str | None = None
    route: str | None = None
    subject: str | None = None
    outcome: Outcome | None = None
    since: float | None = None
    until: float | None = None


@dataclass(frozen=True, slots=True)
class WebhookRecord:
    """A subscription.  Its secrets are sealed: `service.sealing` opens them."""

    id: str
    project: str
    name: str
    url: str
    events: tuple[EventType, ...]
    secret: str
    former_secret: str | None
    """The one before, while receivers may still know no other; None when its time has passed."""
    former_until: float | None
    created: float
    failing_since: float | None
    """Since when no attempt has succeeded; None after one that did."""
    disabled: float | None
    disabled_why: str | None


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """One message to one subscription."""

    id: str
    webhook_id: str
    job_id: str | None
    type: str
    body: str
    state: DeliveryState
    attempts: int
    tries: int
    not_before: float
    since: float
    """When it was made or replayed."""
    is_leased: bool
    """It is being sent now, or its sender died moments ago."""
    created: float
    finished: float | None


@dataclass(frozen=True, slots=True)
class DeliveryAttemptRecord:
    """One try to deliver; without duration it is going on, or its process died in it."""

    number: int
    started: float
    duration_s: float | None
    status: int | None
    """What the receiver answered; None: it did not."""
    error: str | None


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Totals of one cache kind."""

    kind: str
    entries: int
    size_bytes: int
    hits: int


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker process, alive or not."""

    id: str
    host: str
    pid: int
    slots: int
    version: str
    sandbox_tier: str
    strategies: str
    """See `service.store.strategy_sets`."""
    started: float
    beat: float
    age_s: float
    """Seconds since the last beat, by the database's clock."""


@dataclass(frozen=True, slots=True)
class Durations:
    """How long something took, of many."""

    counts: tuple[tuple[float, int], ...]
    """(seconds, how many took at most so long), the last of them inf."""
    total_s: float


@dataclass(frozen=True, slots=True)
class QueueStats:
    """What `/readyz` and `/metrics` report about the queue."""

    jobs_by_state: tuple[tuple[str, int], ...]
    items_by_state: tuple[tuple[str, int], ...]
    oldest_ready_s: float
    """Age of the longest-waiting ready item, 0 when none waits."""
    quiet_s: float | None
    """Since an attempt last began or ended; None before the first."""
    workers_alive: int
    attempts_total: int
    attempts_by_outcome: tuple[tuple[str, int], ...]
