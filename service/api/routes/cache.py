"""The compile cache: totals, entries, pruning."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import Field

from service.api.answers import Prepared
from service.api.callers import Project
from service.api.deps import Name, State
from service.api.schemas.base import AnswerModel, RequestModel
from service.api.schemas.cache import (
    CacheEntryAnswer,
    CacheKindStats,
    CachePage,
    CacheStatsAnswer,
)
from service.jobs import query
from worker.compiler.cache import CacheKind

router = APIRouter(prefix="/v1/cache", tags=["cache"])


class PruneRequest(RequestModel):
    """What to drop."""

    unused_for_s: float = Field(ge=0, le=1e10)
    """Entries go that nobody has used for so many seconds."""


class PruneAnswer(AnswerModel):
    """How many entries were dropped."""

    dropped: int
    """Entries that were dropped."""


@router.get("/stats", response_model=CacheStatsAnswer)
def get_stats(state: State, project: Project) -> CacheStatsAnswer:
    """Get totals, all and per kind."""
    kinds = query.cache_stats(state.database, state.settings.cache_of(project))
    return CacheStatsAnswer(
        entries=sum(k.entries for k in kinds),
        size_bytes=sum(k.size_bytes for k in kinds),
        hits=sum(k.hits for k in kinds),
        kinds=[
            CacheKindStats(kind=k.kind, entries=k.entries, size_bytes=k.size_bytes, hits=k.hits)
            for k in kinds
        ],
    )


@router.get("/entries", response_model=CachePage)
def list_entries(
    state: State,
    project: Project,
    kind: CacheKind | None = None,
    job: Annotated[str | None, Query(max_length=100)] = None,
    limit: Annotated[int, Query(ge=1, le=query.MAX_PAGE)] = 50,
) -> CachePage:
    """List entries, last used first; `job` keeps those that job filled."""
    rows = query.list_cache_entries(
        state.database,
        owner=state.settings.cache_of(project),
        kind=None if kind is None else str(kind),
        job_id=job,
        limit=limit,
    )
    return CachePage(items=[CacheEntryAnswer.from_record(row) for row in rows])


@router.get("/entries/{signature}", response_model=CacheEntryAnswer)
def get_entry(signature: Name, state: State, project: Project) -> CacheEntryAnswer:
    """Get the key fields and origin of one entry."""
    return CacheEntryAnswer.from_record(
        query.get_cache_entry(state.database, signature, state.settings.cache_of(project))
    )


@router.post("/prune", response_model=PruneAnswer)
def prune(body: PruneRequest, state: State, project: Project) -> Response:
    """Drop entries that nobody has used for a while."""
    answer: Prepared[int] = Prepared(lambda dropped: PruneAnswer(dropped=dropped))
    query.prune_cache(
        state.database,
        owner=state.settings.cache_of(project),
        unused_for_s=body.unused_for_s,
        before_commit=answer,
    )
    return answer.response(200)
