"""Arrays (.npz) named like a model's inputs, for calibration and verification: upload, list."""

from __future__ import annotations

from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response

from service.api.answers import Prepared
from service.api.callers import Project
from service.api.deps import Name, State
from service.api.ingest import receive_arrays
from service.api.schemas.calibration import CalibrationAnswer, CalibrationPage
from service.jobs import query, submit

router = APIRouter(prefix="/v1/calibrations", tags=["calibrations"])

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            "application/zip": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


@router.post(
    "",
    status_code=201,
    response_model=CalibrationAnswer,
    openapi_extra=_BODY,
    responses={
        200: {"model": CalibrationAnswer, "description": "These bytes were uploaded before."}
    },
)
async def create_calibration(
    request: Request,
    state: State,
    project: Project,
    name: Annotated[str, Query(min_length=1, max_length=200)] = "calibration",
    digest: Annotated[str | None, Query(max_length=80)] = None,
) -> Response:
    """Upload an .npz whose arrays are named like the model's inputs.

    `options.calibration` of a job names samples, one per leading index; `options.inputs` names
    one set of inputs, on which the job is verified.
    Whether the arrays fit a model is checked by the job that uses them.
    """
    ref = await receive_arrays(request, state, digest, project)
    answer = Prepared(CalibrationAnswer.from_record)
    found, created = await to_thread.run_sync(
        lambda: submit.add_calibration(
            state.database, ref, name=name, owner=project, settings=state.settings,
            before_commit=answer,
        )
    )  # fmt: skip
    place = {"Location": f"/v1/calibrations/{found.sha256}"}
    return answer.response(201 if created else 200, place)


@router.get("", response_model=CalibrationPage)
def list_calibrations(
    state: State,
    project: Project,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
    limit: Annotated[int, Query(ge=1, le=query.MAX_PAGE)] = 50,
) -> CalibrationPage:
    """List calibration arrays, newest first."""
    page = query.list_calibrations(state.database, owner=project, cursor=cursor, limit=limit)
    return CalibrationPage(
        items=[CalibrationAnswer.from_record(row) for row in page.rows],
        next_cursor=page.next_cursor,
    )


@router.get("/{sha256}", response_model=CalibrationAnswer)
def get_calibration(sha256: Name, state: State, project: Project) -> CalibrationAnswer:
    """Get one set of calibration arrays."""
    return CalibrationAnswer.from_record(query.get_calibration(state.database, sha256, project))
