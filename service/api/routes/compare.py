"""Two jobs, set against each other."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any, BinaryIO

from fastapi import APIRouter, Query, Request, Response

from service.api.answers import encoded
from service.api.callers import Project
from service.api.deps import ApiState, State
from service.api.downloads import etag_matches
from service.api.routes.health import package_version
from service.api.schemas.compare import ComparisonAnswer
from service.compare import Comparison, Run, compare, read_run
from service.compare.jobs import is_item, refuse_state, unknown_job
from service.compare.markdown import markdown
from service.compare.page import page
from service.compare.reading import FILES, ranged
from service.errors import NotFound
from service.jobs import query
from service.jobs.sweeps import job_of_item
from service.states import JobState
from service.store.blobs import read_bytes
from service.store.records import ArtifactRecord, JobFilter, JobRecord

router = APIRouter(prefix="/v1", tags=["compare"])

JSON, MARKDOWN, HTML = "application/json", "text/markdown", "text/html"
_READ = (*FILES, "bundle")
"""Artifacts that are compared: the answer is the same as long as these are."""
_PAGE_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'"
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "What differs; as text when that is asked for first.",
        "content": {MARKDOWN: {}, HTML: {}},
    },
    304: {"description": "The client's copy is current."},
}
Side = Annotated[str, Query(min_length=1, max_length=200, examples=["main"])]


@dataclass(frozen=True, slots=True)
class StoredSide:
    """One side before it is read."""

    name: str
    job: JobRecord
    artifacts: dict[str, ArtifactRecord]


@router.get("/compare", response_model=ComparisonAnswer, responses=_ANSWERS)
def get_comparison(
    base: Side, head: Side, request: Request, state: State, project: Project
) -> Response:
    """Compare two jobs: figures, layers, causes, and what went in or was decided otherwise.

    JSON, or Markdown or a page when Accept asks for that first; conditional by ETag.
    """
    accept = request.headers.get("accept", "").split(",")[0].partition(";")[0].strip()
    media_type = accept if accept in (MARKDOWN, HTML) else JSON
    sides = [stored_side(state, project, name) for name in (base, head)]
    headers = {
        "ETag": _etag(sides, media_type), "Cache-Control": "no-cache", "Vary": "Accept",
        "X-Content-Type-Options": "nosniff", "Content-Security-Policy": _PAGE_POLICY,
    }  # fmt: skip
    if etag_matches(request.headers.get("if-none-match"), headers["ETag"]):
        return Response(status_code=304, headers=headers)
    found = comparison(state, sides)
    match media_type:
        case "text/markdown":
            body = markdown(found, is_whole=True).encode()
        case "text/html":
            body = page(found).encode()
        case _:
            body = encoded(ComparisonAnswer.of(found))
    return Response(body, headers=headers, media_type=media_type)


def comparison(state: ApiState, sides: list[StoredSide]) -> Comparison:
    """What differs between two sides, base and head."""
    return compare(*(_read(state, side) for side in sides))


def stored_side(state: ApiState, project: str, name: str) -> StoredSide:
    """A job by its id or as an item of a sweep, else the youngest that succeeded under this label.

    Raises:
        InputError: TW-SVC-001, there is none; TW-CMP-002, it has not succeeded.
    """
    try:
        job_id = job_of_item(state.database, name, project) if is_item(name) else name
        job = query.get_job(state.database, job_id, project)
    except NotFound:
        wanted = JobFilter(states=(JobState.SUCCEEDED,), label=name)
        page_of_label = query.list_jobs(state.database, owner=project, wanted=wanted, limit=1)
        if not page_of_label.rows:
            raise unknown_job(name) from None
        (job,) = page_of_label.rows
    refuse_state(name, str(job.state))
    stored = query.list_artifacts(state.database, job.id)
    return StoredSide(name, job, {row.name: row for row in stored if row.name in _READ})


def _etag(sides: list[StoredSide], media_type: str) -> str:
    """A tag of everything that the answer is made of, without making it."""
    digest = sha256(f"{package_version()}\n{media_type}\n".encode())
    for side in sides:
        digest.update(f"{side.name!r}\n".encode())
        for name, row in sorted(side.artifacts.items()):
            digest.update(f"{name} {row.sha256}\n".encode())
    return f'"{digest.hexdigest()}"'


def _read(state: ApiState, side: StoredSide) -> Run:
    """Read one side: whole documents, and of the bundle the members that are compared."""

    def artifact(name: str) -> bytes | None:
        row = side.artifacts.get(name)
        return None if row is None else read_bytes(state.blobs, row.sha256)

    def bundle() -> BinaryIO | None:
        row = side.artifacts.get("bundle")
        if row is None:
            return None

        def fetch(start: int, length: int) -> bytes:
            return b"".join(state.blobs.open_range(row.sha256, start, length))

        return ranged(row.size_bytes, fetch)

    return read_run(side.name, artifact, bundle)
