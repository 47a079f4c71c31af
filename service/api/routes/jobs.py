"""Jobs: submit, list, look at, wait for, cancel, clone, delete."""

from __future__ import annotations

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request, Response

from service.api.answers import Prepared
from service.api.callers import Project
from service.api.deps import APPLIED, ApiState, Key, Name, State, Wait
from service.api.downloads import etag_matches
from service.api.idempotency import request_key
from service.api.schemas.job import AttemptAnswer, JobAnswer, JobLogs, JobPage, JobRequest
from service.api.specs import named_spec
from service.api.trace_requests import traceparent_of
from service.jobs import query
from service.jobs.cancel import cancel_job
from service.jobs.submit import NewJob, Submission, clone_job, submit_job
from service.states import TERMINAL_JOB_STATES, JobState
from service.store.blobs import read_bytes
from service.store.records import JobFilter, JobRecord
from worker.compiler.options import CompileOptions

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
RETRY_AFTER_S = 1
MAX_LOG_CHARS = 1 << 20


def job_etag(job: JobRecord) -> str:
    """Give the entity tag: it moves with every change that a client can see."""
    counts = f"{job.units_solved}.{job.units_cached}.{job.units_total}.{job.attempts}"
    return f'"{job.event_seq}-{job.state}-{job.stage or ""}-{counts}"'


def _headers(job: JobRecord) -> dict[str, str]:
    headers = {"ETag": job_etag(job), "Cache-Control": "no-cache"}
    if job.state not in TERMINAL_JOB_STATES:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return headers


async def _until_ended(state: ApiState, job: JobRecord, wait_s: float) -> JobRecord:
    """Wait for the job's end, at most `wait_s`."""
    if job.state in TERMINAL_JOB_STATES:
        return job
    await state.watch.ended(job.id, wait_s)
    return await to_thread.run_sync(query.get_job, state.database, job.id, job.owner)


def _accepted(submission: Submission) -> dict[str, str]:
    headers = {**_headers(submission.job), "Location": f"/v1/jobs/{submission.job.id}"}
    if not submission.created:
        headers["Idempotency-Replayed"] = "true"
    return headers


@router.post(
    "",
    status_code=202,
    response_model=JobAnswer,
    responses={200: {"description": "It has ended while it was waited for.", "model": JobAnswer}},
)
async def create_job(
    body: JobRequest, request: Request, state: State, project: Project, key: Key, wait: Wait
) -> Response:
    """Accept a compile job.

    With `Idempotency-Key` a repeated request gives the first job; `Prefer: wait=N` holds the
    answer until the job ends, at most N seconds.
    """
    answer = Prepared(JobAnswer.from_record)
    new = NewJob(
        model_id=body.model,
        hardware=await named_spec(state, body.hardware),
        options=CompileOptions.from_json(body.options),
        label=body.label,
        priority=body.priority,
        owner=project,
        wall_limit_s=body.wall_limit_s,
        traceparent=traceparent_of(request),
    )
    idempotency = request_key(key, owner=project, route="POST /v1/jobs", body=await request.body())
    submission = await to_thread.run_sync(
        submit_job, state.database, state.outbox, state.settings, new, idempotency, answer
    )
    if not wait:
        return answer.response(202, _accepted(submission))
    ended = await _until_ended(state, submission.job, wait)
    answer(ended)
    submission = Submission(ended, submission.created)
    status = 200 if ended.state in TERMINAL_JOB_STATES else 202
    return answer.response(status, {**_accepted(submission), APPLIED: f"wait={int(wait)}"})


Id = Annotated[str | None, Query(max_length=100)]
Moment = Annotated[float | None, Query(ge=0, le=1e11)]


@router.get("", response_model=JobPage)
def list_jobs(
    state: State,
    project: Project,
    states: Annotated[list[JobState] | None, Query(alias="state", max_length=len(JobState))] = None,
    label: Id = None,
    model: Id = None,
    hardware: Id = None,
    strategy: Id = None,
    since: Moment = None,
    until: Moment = None,
    sweep: Id = None,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
    limit: Annotated[int, Query(ge=1, le=query.MAX_PAGE)] = 50,
) -> JobPage:
    """List jobs, newest first; all filters must hold."""
    wanted = JobFilter(tuple(states or ()), label, model, hardware, strategy, since, until, sweep)
    page = query.list_jobs(state.database, owner=project, wanted=wanted, cursor=cursor, limit=limit)
    return JobPage(
        items=[JobAnswer.from_record(row) for row in page.rows], next_cursor=page.next_cursor
    )


@router.get("/{job_id}", response_model=JobAnswer, responses={304: {"description": "Unchanged."}})
async def get_job(
    job_id: Name,
    state: State,
    project: Project,
    wait: Wait,
    if_none_match: Annotated[str | None, Header(max_length=1000)] = None,
) -> Response:
    """Get one job; conditional by ETag.

    `Prefer: wait=N` holds the answer: with If-None-Match until the job changes, without it until
    the job ends.
    """
    job = await to_thread.run_sync(query.get_job, state.database, job_id, project)
    if wait and if_none_match is None:
        job = await _until_ended(state, job, wait)
    elif (
        wait and etag_matches(if_none_match, job_etag(job)) and job.state not in TERMINAL_JOB_STATES
    ):
        await state.watch.changed(job.id, job.event_seq, wait)
        job = await to_thread.run_sync(query.get_job, state.database, job_id, project)
    applied = {APPLIED: f"wait={int(wait)}"} if wait else {}
    if etag_matches(if_none_match, job_etag(job)):
        return Response(status_code=304, headers={"ETag": job_etag(job), **applied})
    answer = Prepared(JobAnswer.from_record)
    answer(job)
    return answer.response(200, _headers(job) | applied)


@router.delete("/{job_id}", status_code=204)
def delete_job(job_id: Name, state: State, project: Project) -> None:
    """Delete a job that has ended, with its history and artifacts."""
    query.delete_job(state.database, job_id, project)


@router.post("/{job_id}/cancel", status_code=202, response_model=JobAnswer)
def cancel(job_id: Name, state: State, project: Project) -> Response:
    """Cancel a job; doing it twice is fine, a job that ended otherwise is a 409."""
    answer = Prepared(JobAnswer.from_record)
    return answer.response(202, _headers(cancel_job(state.database, job_id, project, answer)))


@router.post("/{job_id}/clone", status_code=202, response_model=JobAnswer)
def clone(job_id: Name, request: Request, state: State, project: Project, key: Key) -> Response:
    """Submit the same model, machine and options again."""
    idempotency = request_key(
        key, owner=project, route="POST /v1/jobs/clone", body=job_id.encode("utf-8", "replace")
    )
    answer = Prepared(JobAnswer.from_record)
    submission = clone_job(
        state.database,
        state.outbox,
        state.settings,
        job_id,
        owner=project,
        traceparent=traceparent_of(request),
        idempotency=idempotency,
        before_commit=answer,
    )
    return answer.response(202, _accepted(submission))


@router.get("/{job_id}/logs", response_model=JobLogs)
def get_logs(job_id: Name, state: State, project: Project) -> JobLogs:
    """Get what each attempt's process printed."""
    query.get_job(state.database, job_id, project)
    attempts = []
    for number, attempt in enumerate(query.list_attempts(state.database, job_id), start=1):
        output = None
        if attempt.log_sha256 is not None:
            raw = read_bytes(state.blobs, attempt.log_sha256)
            output = raw.decode("utf-8", "replace")[-MAX_LOG_CHARS:]
        attempts.append(
            AttemptAnswer(
                number=number,
                worker=attempt.worker_id,
                started=attempt.started,
                ended=attempt.ended,
                outcome=attempt.outcome,
                cpu_s=attempt.cpu_s,
                max_rss_bytes=attempt.max_rss_bytes,
                output=output,
            )
        )
    return JobLogs(job=job_id, attempts=attempts)
