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
    priority: int = Field(default=0, ge=-100, le=100)
    """Higher runs first."""
    wall_limit_s: float | None = Field(default=None, gt=0)


class ProgressAnswer(AnswerModel):
    """Schedule units of the model; the total is 0 until the partition stage has counted them."""

    units_total: int
    units_solved: int
    units_cached: int


class JobAnswer(AnswerModel):
    """One job."""

    id: str
    state: JobState
    stage: str | None
    waiting: str | None
    """Why no worker takes a queued job (a strategy that none of them has, or no worker at all)."""
    progress: ProgressAnswer
    model: str
    hardware: str
    options: dict[str, JsonValue]
    label: str | None
    priority: int
    wall_limit_s: float
    attempts: int
    cloned_from: str | None
    created: float
    started: float | None
    finished: float | None
    cancel_requested: float | None
    error: dict[str, JsonValue] | None
    """A problem document when the job did not succeed."""
    summary: dict[str, JsonValue] | None
    bundle_sha256: str | None
    links: dict[str, str]

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
    next_cursor: str | None = None


class ArtifactAnswer(AnswerModel):
    """One named result of a job."""

    name: str
    file_name: str
    sha256: str
    size_bytes: int
    media_type: str
    created: float
    url: str

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


class AttemptAnswer(AnswerModel):
    """One try of a worker at the job."""

    number: int
    worker: str
    started: float
    ended: float | None
    outcome: str | None
    cpu_s: float | None
    max_rss_bytes: int | None
    output: str | None
    """What the stage process printed, cut at the server's limit; null while it runs."""


class JobLogs(AnswerModel):
    """All attempts of a job, first to last."""

    job: str
    attempts: list[AttemptAnswer]
