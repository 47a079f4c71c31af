"""Jobs, their progress, events and artifacts."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, JsonValue

from service.api.schemas.base import AnswerModel, RequestModel
from service.states import TERMINAL_JOB_STATES, JobState
from service.store.records import ArtifactRecord, JobRecord
from service.text import shown

Document = dict[Annotated[str, Field(max_length=200)], JsonValue]


class JobRequest(RequestModel):
    """A compile job: a stored model, a machine, options."""

    model: str = Field(min_length=1, max_length=100)
    """Id of an uploaded model."""
    hardware: Annotated[str, Field(max_length=200)] | Annotated[Document, Field(max_length=100)]
    """Id of a stored spec, name of a preset, `{"preset": NAME}`, or a whole spec document."""
    options: Document = Field(default_factory=dict, max_length=100)
    """Compile options; see `tilewright compile --help` and the answer's `options`."""
    label: str | None = Field(default=None, min_length=1, max_length=100)
    """A name to find the job by; several jobs may have the same."""
    priority: int = Field(default=0, ge=-100, le=100)
    """Higher runs first."""
    wall_limit_s: float | None = Field(default=None, gt=0)
    """Longest run in seconds; at most, and by default, the service's limit."""


class ProgressAnswer(AnswerModel):
    """Schedule units of the model; the total is 0 until the partition stage has counted them."""

    units_total: int
    """Units of the model that need a schedule."""
    units_solved: int
    """Those that were computed by this job."""
    units_cached: int
    """Those that were found in the cache."""


class JobAnswer(AnswerModel):
    """One job."""

    id: str
    """The job's id, part of its address."""
    state: JobState
    """Where it stands; succeeded, failed, canceled, timed_out and expired are final."""
    stage: str | None
    """The stage that runs now, or ran last; null before the first."""
    waiting: str | None
    """Why no worker takes a queued job (a strategy that none of them has, or no worker at all)."""
    progress: ProgressAnswer
    """How far the schedule stage is."""
    model: str
    """Id of the model."""
    hardware: str
    """Id of the hardware spec."""
    options: dict[str, JsonValue]
    """All compile options."""
    label: str | None
    """Name that the submitter gave it."""
    priority: int
    """Higher runs first."""
    wall_limit_s: float
    """Longest run in seconds."""
    attempts: int
    """How often a worker has taken it."""
    cloned_from: str | None
    """Id of the job it repeats."""
    sweep: str | None
    """Id of the sweep that it is an item of."""
    created: float
    """When it was accepted, in seconds since the epoch."""
    started: float | None
    """When a worker first took it, in seconds since the epoch."""
    finished: float | None
    """When it ended, in seconds since the epoch."""
    cancel_requested: float | None
    """When somebody asked for its cancel, in seconds since the epoch."""
    error: dict[str, JsonValue] | None
    """A problem document when the job did not succeed."""
    summary: dict[str, JsonValue] | None
    """The head of its report, once it has succeeded."""
    bundle_sha256: str | None
    """Digest of the bundle, once it has succeeded."""
    links: dict[str, str]
    """Addresses of what belongs to the job, by name."""

    @classmethod
    def from_record(cls, record: JobRecord) -> Self:
        """Build the answer."""
        root = f"/v1/jobs/{record.id}"
        links = {"self": root, "events": f"{root}/events", "artifacts": f"{root}/artifacts"}
        if record.state not in TERMINAL_JOB_STATES:
            links["cancel"] = f"{root}/cancel"
        if record.bundle_digest is not None:
            links |= {"bundle": f"{root}/bundle", "report": f"{root}/report", "run": f"{root}/run"}
        return cls(
            id=record.id,
            state=record.state,
            stage=record.stage,
            waiting=record.waiting,
            progress=ProgressAnswer(
                units_total=record.units_total,
                units_solved=record.units_solved,
                units_cached=record.units_cached,
            ),
            model=record.model_id,
            hardware=record.hardware_id,
            options=shown(record.options),
            label=record.label,
            priority=record.priority,
            wall_limit_s=record.wall_limit_s,
            attempts=record.attempts,
            cloned_from=record.cloned_from,
            sweep=record.sweep_id,
            created=record.created,
            started=record.started,
            finished=record.finished,
            cancel_requested=record.cancel_requested,
            error=None if record.error is None else shown(record.error),
            summary=None if record.summary is None else shown(record.summary),
            bundle_sha256=record.bundle_digest,
            links=links,
        )


class JobPage(AnswerModel):
    """One page of jobs, newest first."""

    items: list[JobAnswer]
    """Jobs of the page."""
    next_cursor: str | None = None
    """Give it as `cursor` for the next page; null on the last one."""


class ArtifactAnswer(AnswerModel):
    """One named result of a job."""

    name: str
    """Name of the result, such as `report` or `bundle`."""
    file_name: str
    """Name to store it under."""
    sha256: str
    """Digest of the bytes, in hexadecimal."""
    size_bytes: int
    """Size in bytes."""
    media_type: str
    """Media type of the bytes."""
    created: float
    """When it was stored, in seconds since the epoch."""
    url: str
    """Address that gives the bytes for ever."""

    @classmethod
    def from_record(cls, record: ArtifactRecord) -> Self:
        """Build the answer."""
        return cls(
            name=record.name,
            file_name=record.file_name,
            sha256=record.sha256,
            size_bytes=record.size_bytes,
            media_type=record.media_type,
            created=record.created,
            url=f"/v1/artifacts/{record.sha256}",
        )


class ArtifactList(AnswerModel):
    """What a job has produced so far, by name."""

    items: list[ArtifactAnswer]
    """The results."""


class AttemptAnswer(AnswerModel):
    """One try of a worker at the job."""

    number: int
    """1 for the first."""
    worker: str
    """Id of the worker."""
    started: float
    """When it began, in seconds since the epoch."""
    ended: float | None
    """When it ended, in seconds since the epoch; null while it runs."""
    outcome: str | None
    """How it ended; null while it runs."""
    cpu_s: float | None
    """CPU seconds of its processes."""
    max_rss_bytes: int | None
    """Most memory of its processes."""
    output: str | None
    """What the stage process printed, cut at the server's limit; null while it runs."""


class JobLogs(AnswerModel):
    """All attempts of a job, first to last."""

    job: str
    """Id of the job."""
    attempts: list[AttemptAnswer]
    """The attempts."""
