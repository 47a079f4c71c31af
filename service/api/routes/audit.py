"""The audit log: all of it for the scope `admin`, of `keys` what concerns its own project."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from service.api.callers import Sender
from service.api.deps import State
from service.api.schemas.audit import AuditAnswer, AuditPage
from service.jobs import query
from service.jobs.audit import list_audit
from service.keys import Scope
from service.store.records import AuditFilter, Outcome

router = APIRouter(prefix="/v1/audit", tags=["keys"])
Id = Annotated[str | None, Query(max_length=200)]
Moment = Annotated[float | None, Query(ge=0, le=1e11)]


@router.get("", response_model=AuditPage)
def get_audit(
    state: State,
    sender: Sender,
    project: Id = None,
    key: Id = None,
    route: Id = None,
    subject: Id = None,
    outcome: Outcome | None = None,
    since: Moment = None,
    until: Moment = None,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
    limit: Annotated[int, Query(ge=1, le=query.MAX_PAGE)] = 50,
) -> AuditPage:
    """List who changed what, the youngest first; all filters must hold.  With the scope `keys`, in
    one's own project: any other has no rows."""
    if not sender.may(Scope.ADMIN):
        if project not in (None, sender.project):
            return AuditPage(items=[], next_cursor=None)
        project = sender.project
    wanted = AuditFilter(project, key, route, subject, outcome, since, until)
    rows, following = list_audit(state.database, wanted, cursor=cursor, limit=limit)
    return AuditPage(items=[AuditAnswer.from_record(row) for row in rows], next_cursor=following)
