"""What must hold after the last fault: read in the database and the store, and on the machine.

Each rule gives breaches in words.  Outcomes are compared with those of a run that nobody disturbed.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import sqlalchemy

from benchmarks.faults.load import Accepted
from benchmarks.faults.site import Site
from service.errors import ServiceError
from service.states import TERMINAL_JOB_STATES
from service.store.blobs import read_bytes
from service.store.open_blobs import open_blob_store

OF_A_RUN = frozenset({"run"})
"""Artifacts that tell of one run: times, what the cache held."""
GAVE_UP = "TW-SVC-006"
SETTLE_S = 30.0
_ENDED = tuple(sorted(str(state) for state in TERMINAL_JOB_STATES))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended: equal for every job of a kind."""

    state: str
    code: str | None
    """Of its error."""
    digests: tuple[tuple[str, str], ...]
    """Artifacts by name."""


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
        return [job for job, state in self.rows(query) if state in _ENDED]

    def open_jobs(self) -> list[str]:
        """Jobs that have not ended."""
        query = "SELECT id, state FROM job ORDER BY id"
        return [job for job, state in self.rows(query) if state not in _ENDED]

    def outcomes(self) -> dict[str, Outcome]:
        """How every job ended."""
        found: dict[str, dict[str, str]] = {}
        artifacts = ("SELECT j.job_id, a.name, a.blob_sha256 FROM artifact a"
                     " JOIN job_item j ON j.item_id = a.item_id")  # fmt: skip
        for job, name, digest in self.rows(artifacts):
            if name not in OF_A_RUN:
                found.setdefault(job, {})[name] = digest
        codes = {job: code_of(error) for job, error in self.rows("SELECT id, error FROM job")}
        return {
            job: Outcome(state, codes[job], tuple(sorted(found.get(job, {}).items())))
            for job, state in self.rows("SELECT id, state FROM job")
        }

    def close(self) -> None:
        self._engine.dispose()


def code_of(error: str | None) -> str | None:
    """The code of a stored problem document."""
    return None if error is None else str(json.loads(error)["code"])


def audit(
    site: Site, books: Books, accepted: Sequence[Accepted], usual: Mapping[str, Outcome]
) -> list[str]:
    """Everything that must hold while the service still runs, all jobs having ended."""
    return [
        *_lost_or_doubled(books, accepted),
        *_outcomes(books, accepted, usual),
        *_events(books),
        *_attempts(books),
        *_content(site, books),
        *_settled(site, books),
    ]


def _lost_or_doubled(books: Books, accepted: Sequence[Accepted]) -> Iterable[str]:
    known = {job for (job,) in books.rows("SELECT id FROM job")}
    told = Counter(job.id for job in accepted)
    yield from (f"{job} was accepted and is lost" for job in sorted(set(told) - known))
    yield from (f"{job} is there and nobody was told" for job in sorted(known - set(told)))
    yield from (f"{job} answers {count} submits" for job, count in told.items() if count > 1)


def _outcomes(
    books: Books, accepted: Sequence[Accepted], usual: Mapping[str, Outcome]
) -> Iterable[str]:
    found = books.outcomes()
    for job in accepted:
        ended = found.get(job.id)
        if ended is None or (job.is_canceled and ended.state == "canceled"):
            continue
        expected = usual[job.kind]
        if ended.code == GAVE_UP and expected.code != GAVE_UP:
            yield f"{job.id} ({job.kind}) was given up"
        elif (ended.state, ended.code) != (expected.state, expected.code):
            yield f"{job.id} ({job.kind}) ended {ended.state} {ended.code}, not {expected.state}"
        elif ended.digests != expected.digests:
            differing = {name for name, _ in set(ended.digests) ^ set(expected.digests)}
            yield f"{job.id} ({job.kind}) has other bytes: {', '.join(sorted(differing))}"


def _events(books: Books) -> Iterable[str]:
    """Events are numbered without gaps, and the end comes once, at the end."""
    last: dict[str, int] = {}
    ends: Counter[str] = Counter()
    for job, seq, kind, payload in books.rows(
        "SELECT job_id, seq, type, payload FROM event ORDER BY job_id, seq"
    ):
        if seq != last.get(job, 0) + 1:
            yield f"{job}: event {seq} follows event {last.get(job, 0)}"
        last[job] = seq
        document = json.loads(payload) if isinstance(payload, str) else payload
        ends[job] += kind == "state" and document.get("state") in _ENDED
    yield from (f"{job} has ended {count} times" for job, count in ends.items() if count != 1)


def _attempts(books: Books) -> Iterable[str]:
    query = ("SELECT item_id, count(*) FROM attempt WHERE outcome = 'succeeded'"
             " GROUP BY item_id HAVING count(*) > 1")  # fmt: skip
    yield from (f"{item} succeeded {count} times" for item, count in books.rows(query))
    for (item,) in books.rows("SELECT item_id FROM attempt WHERE outcome IS NULL"):
        yield f"{item} has an attempt that never ended"
    query = ("SELECT a.item_id, a.name FROM artifact a JOIN work_item w ON w.id = a.item_id"
             " WHERE w.state = 'done' AND a.fence <> w.fence")  # fmt: skip
    yield from (f"{item} keeps {name} of another attempt" for item, name in books.rows(query))


def _content(site: Site, books: Books) -> Iterable[str]:
    """Whatever a row refers to is in the store, whole."""
    blobs = open_blob_store(site.settings)
    query = ("SELECT blob_sha256 FROM artifact UNION SELECT blob_sha256 FROM model UNION"
             " SELECT blob_sha256 FROM cache_entry WHERE blob_sha256 IS NOT NULL UNION"
             " SELECT log_sha256 FROM attempt WHERE log_sha256 IS NOT NULL")  # fmt: skip
    for (digest,) in books.rows(query):
        try:
            if sha256(read_bytes(blobs, digest)).hexdigest() != digest:
                yield f"content {digest} is damaged"
        except ServiceError as error:
            yield f"content {digest}: {error.message}"


def _settled(site: Site, books: Books) -> Iterable[str]:
    """Nothing is leased or waits, and nobody keeps a folder or a process of an attempt."""
    deadline = time.monotonic() + SETTLE_S
    while (found := _unsettled(site, books)) and time.monotonic() < deadline:
        time.sleep(0.5)
    yield from found


def _unsettled(site: Site, books: Books) -> list[str]:
    query = ("SELECT id, state FROM work_item WHERE state IN ('leased', 'ready', 'blocked')"
             " OR owner IS NOT NULL OR lease_until IS NOT NULL")  # fmt: skip
    found = [f"{item} is {state}" for item, state in books.rows(query)]
    found += [f"folder {path.name} is left" for path in (site.data_dir / "work").glob("*")]
    work = str(site.data_dir / "work")
    return found + [f"process is left: {words}" for words in site.leftovers() if work in words]


def after_the_end(site: Site, stubborn: Iterable[str]) -> list[str]:
    """What must hold when the service was asked to end and has ended."""
    return [
        *(f"{name} did not end when it was asked to" for name in stubborn),
        *(f"process is left: {words}" for words in site.leftovers()),
        *(f"folder {path.name} is left" for path in (site.data_dir / "work").glob("*")),
        *(f"file {path.name} is left" for path in (site.data_dir / "blobs").rglob("*.part")),
    ]
