"""Rows of the list of jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from service.states import TERMINAL_JOB_STATES
from service.store.records import JobRecord


@dataclass(frozen=True, slots=True)
class JobRow:
    """What the list shows of a job."""

    job: JobRecord
    model: str
    hardware: str
    strategy: str
    took_s: float | None
    """From its start to its end, or until now."""
    latency_s: float | None
    energy_pj: float | None
    bound_by: str
    done_pct: float | None
    """Of the units that need a schedule; None until they are counted."""

    @property
    def is_moving(self) -> bool:
        """Whether it has not ended."""
        return self.job.state not in TERMINAL_JOB_STATES


def rows_of(
    jobs: Iterable[JobRecord],
    model_name: Callable[[str], str],
    machine_name: Callable[[str], str],
    now: float,
) -> list[JobRow]:
    """The rows; names by id, `now` in seconds since the epoch."""
    return [_row(job, model_name(job.model_id), machine_name(job.hardware_id), now) for job in jobs]


def _row(job: JobRecord, model: str, machine: str, now: float) -> JobRow:
    summary = job.summary or {}
    latency, energy = summary.get("latency_s"), summary.get("energy_pj")
    return JobRow(
        job=job,
        model=model,
        hardware=machine,
        strategy=str(job.options.get("strategy", "auto")),
        took_s=None if job.started is None else (job.finished or now) - job.started,
        latency_s=latency if isinstance(latency, int | float) else None,
        energy_pj=energy if isinstance(energy, int | float) else None,
        bound_by=str(summary.get("bound_by") or ""),
        done_pct=(
            100.0 * (job.units_solved + job.units_cached) / job.units_total
            if job.units_total
            else None
        ),
    )
