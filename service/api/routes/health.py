"""The service about itself: version, liveness, readiness, metrics, a plain page of its routes."""

from __future__ import annotations

import platform
from html import escape
from importlib.metadata import PackageNotFoundError, version

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, Response

from service.api.deps import State
from service.api.metrics import render_metrics
from service.api.schemas.service import HealthAnswer, ReadinessAnswer, VersionAnswer

router = APIRouter(tags=["service"])


def package_version() -> str:
    """Give the version of the installed package."""
    try:
        return version("tilewright")
    except PackageNotFoundError:
        return "0+source"


@router.get("/v1/version", response_model=VersionAnswer)
async def get_version(state: State) -> VersionAnswer:
    """Get what runs here."""
    return VersionAnswer(
        version=package_version(),
        api="v1",
        python=platform.python_version(),
        embedded=state.settings.embedded,
    )


@router.get("/v1/healthz", response_model=HealthAnswer)
@router.get("/healthz", response_model=HealthAnswer, include_in_schema=False)
async def healthz() -> HealthAnswer:
    """Answer while the process lives; asks nothing else, and waits for no thread."""
    return HealthAnswer(status="ok")


@router.get("/v1/readyz", response_model=ReadinessAnswer)
@router.get("/readyz", response_model=ReadinessAnswer, include_in_schema=False)
async def readyz(state: State) -> ReadinessAnswer:
    """Say whether jobs are accepted and worked on; a 503 problem lists what fails."""
    # Not on the pool of threads: requests that wait for the same database may hold all of it.
    facts = await state.readiness.check()
    return ReadinessAnswer(ready=True, checks={"embedded": state.settings.embedded, **facts})


@router.get("/v1/metrics", response_class=PlainTextResponse)
@router.get("/metrics", response_class=PlainTextResponse, include_in_schema=False)
def metrics(state: State) -> Response:
    """Get metrics in the Prometheus text format, from the database's totals."""
    body, media_type = render_metrics(state.database)
    return Response(body, media_type=media_type)


@router.get("/docs", response_class=HTMLResponse, include_in_schema=False)
def docs(request: Request) -> HTMLResponse:
    """Show the routes as a plain page; it loads nothing from anywhere."""
    rows = []
    for path, methods in request.app.openapi()["paths"].items():
        for method, operation in methods.items():
            text = operation.get("description") or operation.get("summary") or ""
            rows.append(
                f"<tr><td><code>{escape(method.upper())}</code></td><td><code>{escape(path)}"
                f"</code></td><td>{escape(text)}</td></tr>"
            )
    return HTMLResponse(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Tilewright API</title>"
        "<style>body{font:15px/1.5 sans-serif;margin:2em;max-width:70em}"
        "td{padding:.3em .8em;vertical-align:top;border-top:1px solid #ddd}</style>"
        '<h1>Tilewright API</h1><p>Machine-readable: <a href="/openapi.json">/openapi.json</a>;'
        ' explained: <a href="/docs/guide/">the guide</a></p>'
        f"<table>{''.join(rows)}</table></html>"
    )
