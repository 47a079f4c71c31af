"""Links to a job's page: make, list, revoke.  Who has one needs no key."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from service.api.answers import Prepared
from service.api.callers import Project
from service.api.deps import ApiState, Name, State
from service.api.schemas.link import LinkAnswer, LinkList, NewLinkAnswer
from service.jobs import links
from service.store.records import LinkRecord

router = APIRouter(prefix="/v1", tags=["links"])
SHARED = "share"
"""What links are signed for."""
DAYS = 7
MOST_DAYS = 90
_DAY_S = 86400.0


def path_of(state: ApiState, link: LinkRecord) -> str:
    """Where a link leads: its id, when it ends, and the proof that this server made it."""
    return f"/ui/shared/{state.signer.sign(SHARED, link.id, link.expires - link.created)}"


@router.post("/jobs/{job_id}/links", status_code=201, response_model=NewLinkAnswer)
def create_link(
    job_id: Name,
    state: State,
    project: Project,
    days: Annotated[int, Query(ge=1, le=MOST_DAYS)] = DAYS,
) -> Response:
    """Make a link to the job's page for whoever has it, read only.  It is told in this answer."""
    answer: Prepared[LinkRecord] = Prepared(
        lambda made: NewLinkAnswer(
            **LinkAnswer.from_record(made).model_dump(), path=path_of(state, made)
        )
    )
    made = links.create_link(state.database, job_id, project, days * _DAY_S, answer)
    return answer.response(201, {"Location": f"/v1/links/{made.id}", "Cache-Control": "no-store"})


@router.get("/jobs/{job_id}/links", response_model=LinkList)
def list_job_links(job_id: Name, state: State, project: Project) -> LinkList:
    """List the job's links that have not ended."""
    found = links.list_links(state.database, project, job_id)
    return LinkList(items=[LinkAnswer.from_record(row) for row in found])


@router.get("/links", response_model=LinkList)
def list_links(state: State, project: Project) -> LinkList:
    """List the project's links that have not ended."""
    found = links.list_links(state.database, project)
    return LinkList(items=[LinkAnswer.from_record(row) for row in found])


@router.delete("/links/{link_id}", status_code=204)
def revoke_link(link_id: Name, state: State, project: Project) -> None:
    """End a link: whoever follows it from now on is told what one that has ended tells."""
    links.revoke_link(state.database, link_id, project)
