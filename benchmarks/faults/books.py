"""What a site's tables say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import sqlalchemy

from benchmarks.faults.site import Site
from service.states import OPEN_SWEEP_ITEM_STATES, OPEN_SWEEP_STATES, TERMINAL_JOB_STATES

OF_A_RUN = frozenset({"run"})
"""Artifacts that tell of one run: times, what the cache held."""
ENDED = tuple(sorted(str(state) for state in TERMINAL_JOB_STATES))
OPEN_SWEEP = tuple(sorted(str(state) for state in OPEN_SWEEP_STATES))
OPEN_ITEM = tuple(sorted(str(state) for state in OPEN_SWEEP_ITEM_STATES))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended: equal for every job of a kind."""

    state: str
    code: str | None
    """Of its error."""
    digests: tuple[tuple[str, str], ...]
    """Artifacts by name."""


@dataclass(frozen=True, slots=True)
class ItemOutcome:
    """What a sweep says of one of its items."""

    number: int
    state: str
    code: str | None
    figures: tuple[float | None, float | None]
    """Seconds, picojoules."""
    job: str | None
    place: tuple[str, str | None]
    """Its model and its machine."""


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """A sweep, its items, and all jobs that it ever had."""

    state: str
    items: tuple[ItemOutcome, ...]
    jobs: tuple[tuple[str, tuple[str, str | None]], ...]
    """Ids and places."""


class Books:
    """Reads a site's tables."""

    def __init__(self, site: Site) -> None:
        self._engine = sqlalchemy.create_engine(site.settings.database_url, pool_pre_ping=True)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Ask the database."""
        with self._engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sqlalchemy.text(query))]

    def ended_jobs(self) -> list[str]:
        """Jobs that have ended."""
        query = "SELECT id, state FROM job ORDER BY id"
        return [job for job, state in self.rows(query) if state in ENDED]

    def open_ones(self) -> list[str]:
        """Jobs, sweeps and items of sweeps that have not ended."""
        found = [job for job, state in self.rows("SELECT id, state FROM job ORDER BY id")
                 if state not in ENDED]  # fmt: skip
        found += [sweep for sweep, state in self.rows("SELECT id, state FROM sweep ORDER BY id")
                  if state in OPEN_SWEEP]  # fmt: skip
        query = "SELECT sweep_id, number, state FROM sweep_item ORDER BY sweep_id, number"
        found += [f"{sweep}:{n}" for sweep, n, state in self.rows(query) if state in OPEN_ITEM]
        return found

    def outcomes(self) -> dict[str, Outcome]:
        """How every job ended."""
        found: dict[str, dict[str, str]] = {}
        artifacts = ("SELECT j.job_id, a.name, a.blob_sha256 FROM artifact a"
                     " JOIN job_item j ON j.item_id = a.item_id")  # fmt: skip
        for job, name, digest in self.rows(artifacts):
            if name not in OF_A_RUN:
                found.setdefault(job, {})[name] = digest
        return {
            job: Outcome(state, code_of(error), tuple(sorted(found.get(job, {}).items())))
            for job, state, error in self.rows("SELECT id, state, error FROM job")
        }

    def sweeps(self) -> dict[str, SweepOutcome]:
        """How every sweep ended."""
        items: dict[str, list[ItemOutcome]] = {}
        query = ("SELECT sweep_id, number, state, error, latency_s, energy_pj, job_id, model_id,"
                 " hardware_id FROM sweep_item ORDER BY sweep_id, number")  # fmt: skip
        for sweep, number, state, error, latency, energy, job, model, machine in self.rows(query):
            item = ItemOutcome(number, state, code_of(error), (latency, energy), job,
                               (model, machine))  # fmt: skip
            items.setdefault(sweep, []).append(item)
        jobs: dict[str, list[tuple[str, tuple[str, str | None]]]] = {}
        query = ("SELECT id, sweep_id, model_id, hardware_id FROM job WHERE sweep_id IS NOT NULL"
                 " ORDER BY id")  # fmt: skip
        for job, sweep, model, machine in self.rows(query):
            jobs.setdefault(sweep, []).append((job, (model, machine)))
        return {
            sweep: SweepOutcome(state, tuple(items.get(sweep, ())), tuple(jobs.get(sweep, ())))
            for sweep, state in self.rows("SELECT id, state FROM sweep")
        }

    def close(self) -> None:
        self._engine.dispose()


def code_of(error: str | None) -> str | None:
    """The code of a stored problem document."""
    return None if error is None else str(json.loads(error)["code"])
