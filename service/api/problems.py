"""Exceptions become RFC 9457 problem documents: the only shape of an error response.

Every document has a code of the error catalogue, who is at fault, whether trying again makes sense,
the stage, all findings with JSON pointers, and what to do.  Unknown exceptions are logged with the
request id and answered as TW-INT-001 without their text: it may hold paths or data.
"""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from service.api.request_id import HEADER as REQUEST_ID_HEADER
from service.api.request_id import request_id_of
from service.errors import ServiceError, problem
from service.log import get_logger
from service.text import carried
from worker.compiler.errors import DISK_FULL, NO_ROOM, CompilerError, Detail, Finding

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 2
MAX_SHOWN_CHARS = 200
"""Rejected values are echoed up to this length."""

log = get_logger()


def problem_response(
    request: Request, document: Mapping[str, Detail], headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Answer with one problem document; transient ones carry Retry-After."""
    status = document["status"]
    assert isinstance(status, int)
    sent = {REQUEST_ID_HEADER: request_id_of(request), **(headers or {})}
    if document["retryable"]:
        sent.setdefault("Retry-After", str(RETRY_AFTER_S))
    body = {**document, "instance": request.url.path, "request_id": request_id_of(request)}
    # A refused request is echoed, and it may hold what no answer can carry.
    return JSONResponse(carried(body), status_code=status, headers=sent, media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Register the handlers; the order of registration does not matter, types are looked up."""
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(CompilerError, _compiler_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _disconnected)
    for kind in (OperationalError, InterfaceError, PoolTimeout):
        app.add_exception_handler(kind, _database_down)
    app.add_exception_handler(OSError, _system_fault)
    app.add_exception_handler(Exception, _unexpected)


def _service_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ServiceError)
    return problem_response(request, error.to_problem(), error.headers)


def _compiler_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, CompilerError)
    return problem_response(request, error.to_problem())


def _validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    broken = [entry for entry in error.errors() if entry.get("type") == "json_invalid"]
    if broken:
        return problem_response(request, problem("TW-SVC-004", _syntax_text(broken[0])))
    findings = tuple(_finding(entry) for entry in error.errors())
    places = ", ".join(sorted({f.pointer or "" for f in findings}))
    document = problem(
        "TW-SVC-004", f"the request does not match the schema at {places}", findings=findings
    )
    return problem_response(request, document)


def _syntax_text(entry: Mapping[str, object]) -> str:
    """Say where a body stops being JSON; the framework gives an offset, which is no pointer."""
    location, context = entry.get("loc"), entry.get("ctx")
    offset = location[-1] if isinstance(location, tuple) and location else "?"
    reason = context.get("error") if isinstance(context, dict) else None
    return f"the body is not JSON: {reason or 'syntax error'} at character {offset}"


def _finding(entry: Mapping[str, object]) -> Finding:
    location = entry.get("loc")
    parts = [str(part) for part in location] if isinstance(location, tuple) else []
    where = parts[0] if parts else "body"
    tail = "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts[1:])
    pointer = tail if where == "body" else f"{where}:{tail.removeprefix('/')}"
    context = entry.get("ctx")
    allowed = context.get("expected") if isinstance(context, dict) else None
    return Finding(
        "TW-SVC-004",
        str(entry.get("msg", "invalid")),
        pointer,
        None,
        str(allowed) if allowed is not None else None,
        repr(entry.get("input"))[:MAX_SHOWN_CHARS],
    )


def _http_error(request: Request, error: Exception) -> JSONResponse:
    """Translate the framework's own refusals: no route, wrong method, unreadable body."""
    assert isinstance(error, HTTPException)
    status = error.status_code
    match status:
        case 404:
            document = problem("TW-SVC-001", f"there is no resource {request.url.path}")
        case 405:
            document = problem(
                "TW-SVC-013", f"{request.method} is not a method of {request.url.path}"
            )
        case 413:
            document = problem("TW-SVC-003", str(error.detail))
        case _ if status >= 500:
            document = problem("TW-INT-001", "the request could not be served")
        case _:
            document = problem("TW-SVC-004", str(error.detail))
    return problem_response(request, {**document, "status": status}, error.headers)


def _disconnected(request: Request, error: Exception) -> JSONResponse:
    """Nobody reads this answer: it exists so that the server logs no traceback."""
    del error
    return problem_response(request, problem("TW-SVC-012", "the client went away"))


def _system_fault(request: Request, error: Exception) -> JSONResponse:
    """A full disk passes; whatever else the system says is a fault of ours."""
    assert isinstance(error, OSError)
    if error.errno not in NO_ROOM:
        return _unexpected(request, error)
    log.warning("disk full", error=error.strerror, request_id=request_id_of(request))
    return problem_response(request, problem(DISK_FULL, "no room is left on the server's disk"))


def _database_down(request: Request, error: Exception) -> JSONResponse:
    log.warning("database unavailable", error=str(error), request_id=request_id_of(request))
    return problem_response(
        request, problem("TW-SVC-005", "the database cannot serve this request right now")
    )


def _unexpected(request: Request, error: Exception) -> JSONResponse:
    log.error(
        "unhandled exception",
        request_id=request_id_of(request),
        path=request.url.path,
        exc_info=error,
    )
    return problem_response(
        request, problem("TW-INT-001", "internal error; report it with the request_id")
    )
