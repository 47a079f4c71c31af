"""Sweeps: what is asked for, how far they are, what came out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, JsonValue

from service.api.schemas.base import AnswerModel, RequestModel
from service.api.schemas.job import Document
from service.jobs.exploring import FIGURES, MOST_WINNERS, Cost, Explore
from service.jobs.sweep_figures import Fronts, eta_s, fronts, progress
from service.jobs.sweeps import Sweep, SweepCounts
from service.states import OPEN_SWEEP_STATES, JobState, SweepItemState, SweepState
from service.store.records import SweepItemRecord
from service.text import shown

Spec = Annotated[str, Field(max_length=200)] | Annotated[Document, Field(max_length=100)]
SHOWN_FAILURES = 20
"""Of a sweep's items; its results have all."""


class ExploreRequest(RequestModel):
    """Estimate every machine of the range first, and compile the best."""

    costs: list[Annotated[Cost, Field(strict=False)]] = Field(
        default_factory=lambda: list(Cost), min_length=1, max_length=len(Cost)
    )
    """What the front of estimates compares, less being better."""
    winners: int = Field(default=3, ge=0, le=MOST_WINNERS)
    """How many machines of each model's front are compiled and simulated."""


class SweepRequest(RequestModel):
    """Models on machines: every model on every machine is an item, an ordinary job; or, with
    `explore`, the machines are estimated in parts, and the best are such items."""

    models: list[Annotated[str, Field(min_length=1, max_length=100)]] = Field(
        min_length=1, max_length=1000
    )
    """Uploaded models, by their ids or the digests of their bytes."""
    hardware: list[Spec] = Field(default_factory=list, max_length=1000)
    """Machines as they are, each named as a job names its own: an id, a preset or a document."""
    base: Spec | None = None
    """A machine of which `vary` makes others."""
    vary: list[Annotated[str, Field(min_length=1, max_length=2000)]] = Field(
        default_factory=list, max_length=20
    )
    """Fields of `base` and their values, as `tilewright explore` takes them:
    `/levels/SRAM/capacity_bytes=64KiB,128KiB` or `SRAM.capacity_bytes=x0.5,x2`; every combination
    is a machine."""
    explore: ExploreRequest | None = None
    """Estimate the machines of `base` and `vary` first; without `hardware`."""
    options: Document = Field(default_factory=dict, max_length=100)
    """Compile options of every item, as a job has them."""
    label: str | None = Field(default=None, min_length=1, max_length=100)
    """A name to find the sweep by; several sweeps may have the same."""
    priority: int = Field(default=0, ge=-100, le=100)
    """Of every item: higher runs first."""
    wall_limit_s: float | None = Field(default=None, gt=0)
    """Longest run of an item in seconds; at most, and by default, the service's limit."""


class SweepProgress(AnswerModel):
    """Items by where they are; they sum to the total."""

    total: int
    """Models times machines; where machines are estimated first, parts of them, and winners as
    they are found."""
    pending: int
    """Items without a job: only a few have one that waits."""
    queued: int
    """Items whose job waits for a worker."""
    running: int
    """Items that a worker has."""
    succeeded: int
    """Items with results."""
    failed: int
    """Items that ended without a result and were not canceled."""
    canceled: int
    """Items that were canceled; resuming the sweep runs them."""


class EstimateAnswer(AnswerModel):
    """What a model was estimated to take on a machine: kernels of its program for the base, tiled
    anew."""

    values: list[JsonValue]
    """What the sweep's `fields` are in this machine."""
    latency_s: float | None
    """Predicted latency; null, as all figures: it has none."""
    energy_pj: float | None
    """Predicted energy."""
    on_chip_bytes: int | None
    """Capacity of all of the machine's memories but the outermost, all instances."""
    area_mm2: float | None
    """Proxy of its area: bit cells and multipliers."""
    off_chip_bytes_per_s: float | None
    """Bandwidth of its outermost memory."""
    cycles: int | None
    """Predicted cycles of the whole program."""
    gap: float | None
    """By how much of `cycles` tiles could be better, as predictions go."""
    is_on_front: bool
    """No other machine that was estimated for the model so far is as good in all that is compared,
    and better in one."""
    why: str | None
    """Why it has no figures."""

    @classmethod
    def of(cls, row: Mapping[str, Any], *, is_on_front: bool) -> Self:
        """Build the answer."""
        figures = {name: row.get(name) for name in FIGURES}
        values = list(row["values"])
        return cls(values=values, is_on_front=is_on_front, why=row.get("why"), **figures)


class SweepPart(AnswerModel):
    """Which machines of the range an item estimates."""

    first: int
    """Number of the first; those whose tiles are the same follow each other."""
    count: int
    """How many."""


class SweepItemAnswer(AnswerModel):
    """One model on one machine; or on those of a part that is estimated."""

    number: int
    """From 0; `SWEEP:NUMBER` names the item where two runs are compared."""
    state: str
    """pending, queued, running, canceling, succeeded, failed, canceled, timed_out, expired, or
    refused: the document that a range gave is no machine."""
    job: str | None
    """Id of its job, with all that a job has; null while it has none."""
    model: str
    """Id of the model."""
    model_name: str | None
    """The model's name; null when it was deleted."""
    hardware: str | None
    """Id of the hardware spec; null where there is none, because it was refused."""
    hardware_name: str
    """Name that the spec gives itself."""
    values: list[JsonValue]
    """What the sweep's `fields` are in this machine; empty where it was listed as it is."""
    latency_s: float | None
    """Simulated latency, once it has succeeded."""
    energy_pj: float | None
    """Simulated energy, once it has succeeded."""
    on_chip_bytes: int | None
    """Capacity of all of the machine's memories but the outermost, all instances."""
    seconds: float | None
    """From the first worker that took its job to its end."""
    is_on_front: bool
    """No other item of the same model, of those that have results, is as good in latency, energy
    and on-chip bytes and better in one."""
    error: dict[str, JsonValue] | None
    """Why it has no result: code, detail, place; the job's own `error` says all."""
    part: SweepPart | None
    """The machines that it estimates; null: it is one machine."""
    estimates: list[EstimateAnswer]
    """Of the machines of its part, once it has succeeded."""
    estimate: EstimateAnswer | None
    """What was estimated of this machine, where it was chosen for it."""

    @classmethod
    def from_record(cls, record: SweepItemRecord, found: Fronts) -> Self:
        """Build the answer."""
        state = str(record.state)
        if record.state is SweepItemState.ACTIVE:
            state = str(record.job_state or JobState.QUEUED)
        return cls(
            number=record.number,
            state=state,
            job=record.job_id,
            model=record.model_id,
            model_name=record.model_name,
            hardware=record.hardware_id,
            hardware_name=record.hardware_name,
            values=list(record.values),
            latency_s=record.latency_s,
            energy_pj=record.energy_pj,
            on_chip_bytes=record.on_chip_bytes,
            seconds=record.seconds,
            is_on_front=record.number in found.items,
            error=None if record.error is None else shown(record.error),
            part=None if record.part is None else SweepPart.model_validate(record.part),
            estimates=[
                EstimateAnswer.of(row, is_on_front=(record.number, place) in found.estimates)
                for place, row in enumerate(record.estimates)
                if record.part is not None
            ],
            estimate=EstimateAnswer.of(record.estimates[0], is_on_front=True)
            if record.part is None and record.estimates
            else None,
        )


class SweepProgressEvent(AnswerModel):
    """How far a sweep is, as its event stream tells it."""

    state: SweepState
    """Where it stands."""
    progress: SweepProgress
    """Items by where they are."""
    eta_s: float | None
    """Seconds until it ends; null: not known, or it does not run."""
    front: list[int]
    """Numbers of the best items so far, of all models."""
    estimated_front: list[tuple[int, int]]
    """The best estimates so far, of all models: number of an item, place among its estimates."""

    @classmethod
    def of(cls, sweep: Sweep, found: Fronts) -> Self:
        """Build the body of the event."""
        return cls(
            state=sweep.record.state,
            progress=SweepProgress.model_validate(progress(sweep.items), from_attributes=True),
            eta_s=eta_s(sweep.record, sweep.items),
            front=sorted(found.items),
            estimated_front=sorted(found.estimates),
        )


class ExploreAnswer(AnswerModel):
    """What a sweep estimates first."""

    base: str
    """Id of the hardware spec that is varied."""
    vary: list[str]
    """Its fields and their values, as they were asked for."""
    costs: list[Cost]
    """What the front of estimates compares."""
    winners: int
    """Machines of each model's front that are compiled."""
    machines: int
    """Machines of the range; each is estimated for every model."""
    estimated: int
    """Models times machines that are estimated so far."""
    without_figures: int
    """Of these, where the document is no machine or the model does not fit."""

    @classmethod
    def of(cls, sweep: Sweep) -> Self | None:
        """Build the answer; None: it estimates nothing."""
        found = Explore.of(sweep.record)
        if found is None:
            return None
        rows = [row for item in sweep.items if item.part is not None for row in item.estimates]
        return cls(
            base=found.base,
            vary=list(found.vary),
            costs=[Cost(cost) for cost in found.costs],
            winners=found.winners,
            machines=found.machines,
            estimated=len(rows),
            without_figures=sum("why" in row for row in rows),
        )


class SweepAnswer(AnswerModel):
    """One sweep."""

    id: str
    """The sweep's id, part of its address."""
    state: SweepState
    """Where it stands; succeeded, failed and canceled are ends, and the last two may be resumed."""
    label: str | None
    """Name that the submitter gave it."""
    fields: list[str]
    """What is varied; the `values` of items are of these."""
    explore: ExploreAnswer | None
    """What is estimated first; null: every item is a machine."""
    options: dict[str, JsonValue]
    """All compile options."""
    priority: int
    """Of every item: higher runs first."""
    wall_limit_s: float | None
    """Longest run of an item in seconds; null: the service's limit."""
    created: float
    """When it was accepted, in seconds since the epoch."""
    finished: float | None
    """When it ended, in seconds since the epoch."""
    cancel_requested: float | None
    """When somebody asked for its cancel, in seconds since the epoch."""
    progress: SweepProgress
    """How far it is."""
    eta_s: float | None
    """Seconds until it ends, by what its finished items took, if as many run at a time as now;
    null: not known, or it does not run."""
    front: list[SweepItemAnswer]
    """The best items so far, by model and latency."""
    failures: list[SweepItemAnswer]
    """The first twenty items that ended without a result and were not canceled."""
    links: dict[str, str]
    """Addresses of what belongs to the sweep, by name."""

    @classmethod
    def from_sweep(cls, sweep: Sweep) -> Self:
        """Build the answer."""
        record, items = sweep.record, sweep.items
        root = f"/v1/sweeps/{record.id}"
        links = {"self": root, "results": f"{root}/results", "csv": f"{root}/results.csv",
                 "events": f"{root}/events", "jobs": f"/v1/jobs?sweep={record.id}"}  # fmt: skip
        if record.state is SweepState.RUNNING:
            links["cancel"] = f"{root}/cancel"
        if record.state in (SweepState.FAILED, SweepState.CANCELED):
            links["resume"] = f"{root}/resume"
        found = fronts(record, items)
        best = sorted(
            (item for item in items if item.number in found.items),
            key=lambda item: (item.model_id, item.latency_s or 0.0, item.number),
        )
        failed = [item for item in items if item.state in FAILURES][:SHOWN_FAILURES]
        return cls(
            id=record.id,
            state=record.state,
            label=record.label,
            fields=list(record.fields),
            explore=ExploreAnswer.of(sweep),
            options=shown(record.options),
            priority=record.priority,
            wall_limit_s=record.wall_limit_s,
            created=record.created,
            finished=record.finished,
            cancel_requested=record.cancel_requested,
            progress=SweepProgress.model_validate(progress(items), from_attributes=True),
            eta_s=eta_s(record, items),
            front=[SweepItemAnswer.from_record(item, found) for item in best],
            failures=[SweepItemAnswer.from_record(item, found) for item in failed],
            links=links,
        )


FAILURES = frozenset(
    {
        SweepItemState.FAILED,
        SweepItemState.TIMED_OUT,
        SweepItemState.EXPIRED,
        SweepItemState.REFUSED,
    }
)


class SweepResults(AnswerModel):
    """All items of a sweep, with the figures of those that have succeeded so far."""

    id: str
    """Id of the sweep."""
    state: SweepState
    """Where the sweep stands."""
    fields: list[str]
    """What is varied; the `values` of items are of these."""
    items: list[SweepItemAnswer]
    """By number."""

    @classmethod
    def from_sweep(cls, sweep: Sweep) -> Self:
        """Build the answer."""
        found = fronts(sweep.record, sweep.items)
        return cls(
            id=sweep.record.id,
            state=sweep.record.state,
            fields=list(sweep.record.fields),
            items=[SweepItemAnswer.from_record(item, found) for item in sweep.items],
        )


class SweepSummary(AnswerModel):
    """A sweep in a list."""

    id: str
    """The sweep's id, part of its address."""
    state: SweepState
    """Where it stands."""
    label: str | None
    """Name that the submitter gave it."""
    items_total: int
    """Models times machines; or parts that are estimated, and winners."""
    items_ended: int
    """Items that have ended, in whatever way."""
    items_succeeded: int
    """Items with results."""
    created: float
    """When it was accepted, in seconds since the epoch."""
    finished: float | None
    """When it ended, in seconds since the epoch."""

    @classmethod
    def from_counts(cls, found: SweepCounts) -> Self:
        """Build the answer."""
        record, counts = found.record, found.counts
        open_ = counts.get(SweepItemState.PENDING, 0) + counts.get(SweepItemState.ACTIVE, 0)
        return cls(
            id=record.id,
            state=record.state,
            label=record.label,
            items_total=record.items_total,
            items_ended=record.items_total - open_,
            items_succeeded=counts.get(SweepItemState.SUCCEEDED, 0),
            created=record.created,
            finished=record.finished,
        )


class SweepPage(AnswerModel):
    """One page of sweeps, newest first."""

    items: list[SweepSummary]
    """Sweeps of the page."""
    next_cursor: str | None = None
    """Give it as `cursor` for the next page; null on the last one."""


def is_open(state: SweepState) -> bool:
    """Whether a client may expect the sweep to change by itself."""
    return state in OPEN_SWEEP_STATES
