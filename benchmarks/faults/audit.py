"""What must hold of jobs and uploads after the last fault: read in the database and the store.

Each rule gives breaches in words.  Outcomes are compared with those of a run that nobody disturbed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from benchmarks.faults.books import ENDED, Books, Outcome
from benchmarks.faults.load import Accepted, Answer
from benchmarks.faults.site import Site
from benchmarks.faults.usual import Usual
from service.errors import ServiceError
from service.store.blobs import read_bytes
from service.store.open_blobs import open_blob_store

GAVE_UP = "TW-SVC-006"


@dataclass(frozen=True, slots=True)
class Told:
    """What users were told that the service has."""

    jobs: Sequence[Accepted] = ()
    sweeps: Sequence[Accepted] = ()
    models: Mapping[str, str] = field(default_factory=dict)
    """Ids and digests of the models that were each uploaded by one."""


def audit(site: Site, books: Books, told: Told, usual: Usual) -> list[str]:
    """Everything that must hold of jobs and uploads, all jobs having ended."""
    return [
        *_lost_or_doubled(books, told),
        *_outcomes(books, told, usual),
        *_events(books),
        *_attempts(books),
        *_uploads(books, told),
        *_content(site, books),
    ]


def _lost_or_doubled(books: Books, told: Told) -> Iterable[str]:
    for what, accepted, query in (
        ("job", told.jobs, "SELECT id FROM job WHERE sweep_id IS NULL"),
        ("sweep", told.sweeps, "SELECT id FROM sweep"),
    ):
        known = {one for (one,) in books.rows(query)}
        heard = Counter(one.id for one in accepted)
        lost, silent = sorted(set(heard) - known), sorted(known - set(heard))
        yield from (f"{what} {one} was accepted and is lost" for one in lost)
        yield from (f"{what} {one} is there and nobody was told" for one in silent)
        yield from (f"{one} answers {count} submits" for one, count in heard.items() if count > 1)
    nobodys = ("SELECT j.id FROM job j LEFT JOIN sweep s ON s.id = j.sweep_id"
               " WHERE j.sweep_id IS NOT NULL AND s.id IS NULL")  # fmt: skip
    yield from (f"{job} is of a sweep that is lost" for (job,) in books.rows(nobodys))


def _outcomes(books: Books, told: Told, usual: Usual) -> Iterable[str]:
    found = books.outcomes()
    for job in told.jobs:
        ended = found.get(job.id)
        if ended is None:
            continue
        if job.cancel is Answer.YES and ended.state != "canceled":
            yield f"{job.id} ended {ended.state}; its user was told that it is canceled"
        elif ended.state != "canceled" or job.cancel not in (Answer.YES, Answer.NONE):
            yield from differences(job.id, job.kind, ended, usual.jobs[job.kind])


def differences(name: str, kind: str, ended: Outcome, expected: Outcome) -> Iterable[str]:
    """What is not as in the undisturbed run."""
    if ended.code == GAVE_UP and expected.code != GAVE_UP:
        yield f"{name} ({kind}) was given up"
    elif (ended.state, ended.code) != (expected.state, expected.code):
        yield f"{name} ({kind}) ended {ended.state} {ended.code}, not {expected.state}"
    elif ended.digests != expected.digests:
        differing = {one for one, _ in set(ended.digests) ^ set(expected.digests)}
        yield f"{name} ({kind}) has other bytes: {', '.join(sorted(differing))}"


def _events(books: Books) -> Iterable[str]:
    """Events are numbered without gaps, and the end comes once, at the end."""
    last: dict[str, int] = {}
    ends: Counter[str] = Counter()
    is_end: dict[str, bool] = {}
    for job, seq, kind, payload in books.rows(
        "SELECT job_id, seq, type, payload FROM event ORDER BY job_id, seq"
    ):
        if seq != last.get(job, 0) + 1:
            yield f"{job}: event {seq} follows event {last.get(job, 0)}"
        last[job] = seq
        document = json.loads(payload) if isinstance(payload, str) else payload
        is_end[job] = kind == "state" and document.get("state") in ENDED
        ends[job] += is_end[job]
    for (job,) in books.rows("SELECT id FROM job ORDER BY id"):
        if ends[job] != 1:
            yield f"{job} has ended {ends[job]} times"
        elif not is_end[job]:
            yield f"{job} has events after its end"


def _attempts(books: Books) -> Iterable[str]:
    query = ("SELECT item_id, count(*) FROM attempt WHERE outcome = 'succeeded'"
             " GROUP BY item_id HAVING count(*) > 1")  # fmt: skip
    yield from (f"{item} succeeded {count} times" for item, count in books.rows(query))
    for (item,) in books.rows("SELECT item_id FROM attempt WHERE outcome IS NULL"):
        yield f"{item} has an attempt that never ended"
    query = ("SELECT a.item_id, a.name FROM artifact a JOIN work_item w ON w.id = a.item_id"
             " WHERE w.state = 'done' AND a.fence <> w.fence")  # fmt: skip
    yield from (f"{item} keeps {name} of another attempt" for item, name in books.rows(query))
    query = "SELECT job_id, count(*) FROM job_item GROUP BY job_id HAVING count(*) > 1"
    yield from (f"{job} has {count} items of work" for job, count in books.rows(query))


def _uploads(books: Books, told: Told) -> Iterable[str]:
    """What was uploaded is there once, under the digest of what was sent."""
    known = dict(books.rows("SELECT id, blob_sha256 FROM model"))
    for model, digest in told.models.items():
        if known.get(model) != digest:
            yield f"{model} was uploaded as {digest} and is {known.get(model, 'lost')}"
    twice = Counter(known.values())
    yield from (f"{digest} is {count} models" for digest, count in twice.items() if count > 1)


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
