"""Stored results: by digest for ever, by job and name for as long as the job exists."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request, Response

from service.api.callers import Project, Sender
from service.api.deps import ApiState, Name, State
from service.api.downloads import serve_bytes
from service.api.routes.models import NotYet
from service.api.schemas.job import ArtifactAnswer, ArtifactList
from service.errors import NotFound
from service.jobs import query
from service.states import TERMINAL_JOB_STATES
from service.store.blobs import read_bytes
from service.store.records import ArtifactRecord
from worker.report.run import is_apart, run_of_old, with_outcomes

router = APIRouter(prefix="/v1", tags=["artifacts"])

_FILE: dict[int | str, dict[str, Any]] = {
    200: {"description": "The bytes.", "content": {"application/octet-stream": {}}},
    206: {"description": "The requested range."},
    304: {"description": "The client's copy is current."},
}


def find_artifact(state: ApiState, project: str, job_id: str, name: str) -> ArtifactRecord:
    """Give a job's artifact, or say why there is none.

    Raises:
        NotFound: unknown job, or it ended without this artifact.
        NotYet: a stage that runs later writes it.
    """
    job = query.get_job(state.database, job_id, project)
    try:
        return query.get_artifact(state.database, job_id, name)
    except NotFound:
        if job.state not in TERMINAL_JOB_STATES:
            raise NotYet(
                f"the job is {job.state} (stage {job.stage}) and has no {name} yet",
                actual=str(job.state),
                headers={"Retry-After": "1"},
            ) from None
        why = f": it {job.state}" if job.error is None else f": it {job.state} with an error"
        raise NotFound(
            f"the job has no {name}{why}",
            actual=name,
            remedy=f"GET /v1/jobs/{job_id} shows its error; /artifacts what there is.",
        ) from None


def _serve(request: Request, state: ApiState, artifact: ArtifactRecord) -> Response:
    return serve_bytes(
        request,
        sha256=artifact.sha256,
        size=artifact.size_bytes,
        media_type=artifact.media_type,
        file_name=artifact.file_name,
        open_range=lambda start, length: state.blobs.open_range(artifact.sha256, start, length),
        immutable=False,
    )


@router.get("/jobs/{job_id}/artifacts", response_model=ArtifactList)
def list_artifacts(job_id: Name, state: State, project: Project) -> ArtifactList:
    """List what the job has produced; a failed job keeps what its finished stages wrote."""
    query.get_job(state.database, job_id, project)
    rows = query.list_artifacts(state.database, job_id)
    return ArtifactList(items=[ArtifactAnswer.from_record(row) for row in rows])


@router.head("/artifacts/{sha256}", include_in_schema=False)
@router.get("/artifacts/{sha256}", response_class=Response, responses=_FILE)
def get_blob(sha256: Name, request: Request, state: State, caller: Sender) -> Response:
    """Get stored bytes by digest: strong ETag, ranges, cacheable for ever.

    With a key, only what a model, array or job of its project refers to.
    """
    owner = None if caller.key_id is None else caller.project
    ref = query.get_blob(state.database, sha256, owner)
    return serve_bytes(
        request,
        sha256=ref.sha256,
        size=ref.size_bytes,
        media_type=ref.media_type,
        file_name=ref.sha256,
        open_range=lambda start, length: state.blobs.open_range(ref.sha256, start, length),
    )


@router.head("/jobs/{job_id}/bundle", include_in_schema=False)
@router.get("/jobs/{job_id}/bundle", response_class=Response, responses=_FILE)
def get_bundle(job_id: Name, request: Request, state: State, project: Project) -> Response:
    """Get the bundle (`*.twb`)."""
    return _serve(request, state, find_artifact(state, project, job_id, "bundle"))


@router.get("/jobs/{job_id}/report", response_class=Response, responses=_FILE)
def get_report(job_id: Name, request: Request, state: State, project: Project) -> Response:
    """Get report.json, or the offline page when HTML is asked for first."""
    accept = request.headers.get("accept", "")
    name = "report_html" if accept.split(",")[0].strip() == "text/html" else "report"
    response = _serve(request, state, find_artifact(state, project, job_id, name))
    response.headers["Vary"] = "Accept"
    return response


@router.get("/jobs/{job_id}/run")
def get_run(job_id: Name, state: State, project: Project) -> dict[str, Any]:
    """Get what the run was like: cache look-ups and seconds of the stages."""
    return {"job": job_id, **_run(state, project, job_id, _report(state, project, job_id))}


@router.get("/jobs/{job_id}/layers.csv", response_class=Response, responses=_FILE)
def get_layers_csv(job_id: Name, request: Request, state: State, project: Project) -> Response:
    """Get layers.csv."""
    return _serve(request, state, find_artifact(state, project, job_id, "layers"))


@router.get("/jobs/{job_id}/placement", response_class=Response, responses=_FILE)
def get_placement(job_id: Name, request: Request, state: State, project: Project) -> Response:
    """Get where every node runs and why."""
    return _serve(request, state, find_artifact(state, project, job_id, "placement"))


@router.get("/jobs/{job_id}/schedule", response_class=Response, responses=_FILE)
def get_schedule(job_id: Name, request: Request, state: State, project: Project) -> Response:
    """Get the schedule trees."""
    return _serve(request, state, find_artifact(state, project, job_id, "schedule"))


@router.get("/jobs/{job_id}/trace", response_class=Response, responses=_FILE)
def get_trace(job_id: Name, request: Request, state: State, project: Project) -> Response:
    """Get the Perfetto trace, gzipped."""
    return _serve(request, state, find_artifact(state, project, job_id, "trace"))


def _report(state: ApiState, project: str, job_id: str) -> dict[str, Any]:
    return _document(state, project, job_id, "report")


def _document(state: ApiState, project: str, job_id: str, name: str) -> dict[str, Any]:
    """A JSON artifact.  The job's own process wrote it, so it may be anything.

    Raises:
        NotFound: as `find_artifact`; or it is no JSON object.
    """
    artifact = find_artifact(state, project, job_id, name)
    try:
        document = json.loads(read_bytes(state.blobs, artifact.sha256))
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise NotFound(
            f"the job's {name} is no JSON object",
            actual=name,
            remedy=f"GET /v1/jobs/{job_id}/artifacts/{name} gives it as it is.",
        )
    return document


def _run(state: ApiState, project: str, job_id: str, report: dict[str, Any]) -> dict[str, Any]:
    """What run.json holds, or the report of a release that had none."""
    return _document(state, project, job_id, "run") if is_apart(report) else run_of_old(report)


@router.get("/jobs/{job_id}/layers")
def get_layers(job_id: Name, state: State, project: Project) -> dict[str, Any]:
    """Get the layer rows of the report, with the cache outcome of each kernel."""
    report = _report(state, project, job_id)
    run = _run(state, project, job_id, report)
    return {"job": job_id, "items": with_outcomes(report.get("layers"), run)}


@router.get("/jobs/{job_id}/cache")
def get_cache(job_id: Name, state: State, project: Project) -> dict[str, Any]:
    """Get the job's cache look-ups: hits, misses, and each key."""
    cache = _run(state, project, job_id, _report(state, project, job_id)).get("cache")
    return {"job": job_id, **(cache if isinstance(cache, dict) else {})}
