"""What projects may use: one's own to look at, anybody's to set with the scope `admin`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Path, Response

from service.api.answers import Prepared
from service.api.callers import Project
from service.api.deps import State
from service.api.schemas.limits import LimitsAnswer, LimitsRequest
from service.jobs import quotas
from service.keys import PROJECT

router = APIRouter(prefix="/v1/limits", tags=["keys"])
Named = Annotated[str, Path(pattern=f"^{PROJECT.pattern}$", max_length=63)]


@router.get("", response_model=LimitsAnswer)
def get_own_limits(state: State, project: Project) -> LimitsAnswer:
    """Get what one's own project may use, and does."""
    return LimitsAnswer.from_usage(quotas.usage(state.database, state.settings, project))


@router.get("/{project_name}", response_model=LimitsAnswer)
def get_limits(project_name: Named, state: State) -> LimitsAnswer:
    """Get what any project may use, and does; one that nobody knows uses nothing."""
    return LimitsAnswer.from_usage(quotas.usage(state.database, state.settings, project_name))


@router.put("/{project_name}", response_model=LimitsAnswer)
def set_limits(project_name: Named, body: LimitsRequest, state: State) -> Response:
    """Set a project's limits, all of them; servers that have just seen a key go on for some
    seconds with the rate that it had."""
    answer = Prepared(LimitsAnswer.from_usage)
    own, settings = body.to_record(), state.settings
    # What it uses is no part of the change, and takes a while to sum up: asked for before.
    before = quotas.usage(state.database, settings, project_name)
    after = replace(
        before, own=own,
        rate=settings.project_rate if own.rate is None else own.rate,
        max_active_jobs=quotas.most_jobs(own, settings),
        max_bytes=quotas.most_bytes(own, settings),
    )  # fmt: skip
    quotas.set_limits(state.database, project_name, own, lambda: answer(after))
    return answer.response(200)
