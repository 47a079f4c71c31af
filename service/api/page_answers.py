"""Answers to browsers: pages and fragments with their headers, refusals as pages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from fastapi.routing import APIRoute
from starlette.staticfiles import StaticFiles

from service.errors import ServiceError, problem
from service.pages.render import HEADERS, render
from worker.compiler.descriptors import AUTO, strategies
from worker.compiler.errors import CompilerError
from worker.compiler.options import Effort, Objective, PartitionChoice, Precision, VerifyMode


def page(request: Request, template: str, /, status: int = 200, **values: Any) -> HTMLResponse:
    """A whole page, or a fragment where the template is one."""
    caller = getattr(request.state, "caller", None)
    body = render(template, key_id=caller and caller.key_id, path=request.url.path, **values)
    return HTMLResponse(body, status, headers=dict(HEADERS))


_FILE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked for by ETag: scripts and server are of one release
}


class Files(StaticFiles):
    """What pages load: scripts, the style, the icon."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(_FILE_HEADERS)
        return response


def option_values() -> dict[str, Any]:
    """What the selects of compile options offer, by name."""
    return {
        "strategies": [AUTO, *strategies()], "objectives": [*Objective], "efforts": [*Effort],
        "precisions": [*Precision], "partitions": [*PartitionChoice], "verify": [*VerifyMode],
    }  # fmt: skip


class PageRoute(APIRoute):
    """Shows what it refuses to whoever opens a page; scripts get the problem document."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def shown(request: Request) -> Response:
            try:
                return await handler(request)
            except (ServiceError, CompilerError, RequestValidationError) as error:
                if "text/html" not in request.headers.get("accept", ""):
                    raise
                found = (
                    problem("TW-SVC-004", "the address does not match any page")
                    if isinstance(error, RequestValidationError)
                    else error.to_problem()
                )
                status = found["status"]
                assert isinstance(status, int)
                return page(request, "problem.html", status=status, problem=found)

        return shown
