"""The built documentation, below /docs/guide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import RedirectResponse, Response

from service.api.deps import State
from service.api.downloads import serve_bytes
from service.errors import NotFound

router = APIRouter(include_in_schema=False)
ROOT = "/docs/guide"
HOW_TO_BUILD = (
    "In a checkout: `pip install '.[docs]'`, `sphinx-build -W docs guide`; then start the server"
    " with TILEWRIGHT_GUIDE_DIR=guide."
)


@router.api_route(ROOT, methods=["GET", "HEAD"])
async def guide_root() -> RedirectResponse:
    """Go to where the pages' relative addresses are right."""
    return RedirectResponse(f"{ROOT}/", status_code=308)


@router.api_route(ROOT + "/{path:path}", methods=["GET", "HEAD"])
def guide_file(
    request: Request, state: State, path: Annotated[str, Path(max_length=500)]
) -> Response:
    """Give a file of the site; the query is for its scripts and for caches.

    Raises:
        NotFound: no such page, or no site at all.
    """
    guide = state.guide.get()
    if guide is None:
        raise NotFound("this server has no built guide", remedy=HOW_TO_BUILD)
    file = guide.files.get(path or "index.html")
    if file is None:
        raise NotFound("the guide has no such page", actual=path[:200], remedy=f"Begin at {ROOT}/.")

    def piece(start: int, length: int) -> Iterator[bytes]:
        yield file.body[start : start + length]

    return serve_bytes(
        request,
        sha256=file.sha256,
        size=len(file.body),
        media_type=file.media_type,
        file_name=path.rpartition("/")[2] or "index.html",
        open_range=piece,
        immutable=False,
        policy=guide.policy,
    )
