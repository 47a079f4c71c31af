"""The application: middleware, problem handlers, routes.

`create_app` opens what the routes need and starts nothing: the embedded worker, when there is one,
belongs to `service.cli.serve`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from service.api import problems
from service.api.auditing import AuditMiddleware
from service.api.bells import DeferredOutbox
from service.api.body_limit import BodyLimitMiddleware
from service.api.callers import KeyMiddleware, KeyRing, ScopeMiddleware
from service.api.deps import ApiState
from service.api.describe import describe
from service.api.explaining import Explanations
from service.api.guide import GuideFolder
from service.api.origin import OriginMiddleware
from service.api.pace import PaceMiddleware
from service.api.page_answers import Files
from service.api.parameters import no_unknown_parameters
from service.api.preflight_slots import PreflightSlots
from service.api.rates import RateMiddleware, Rates
from service.api.readiness import Readiness
from service.api.request_id import RequestIdMiddleware
from service.api.routes import (
    artifacts,
    audit,
    cache,
    calibrations,
    compare,
    errors,
    events,
    guide,
    hardware,
    hardware_pages,
    health,
    job_pages,
    jobs,
    keys,
    limits,
    links,
    models,
    pages,
    sweep_events,
    sweep_pages,
    sweeps,
    uploads,
    webhooks,
)
from service.api.schemas.problem import PROBLEM_RESPONSES, ProblemAnswer
from service.api.sessions import Signer
from service.api.spec_readers import SpecReaders
from service.api.stopping import StoppingMiddleware
from service.api.sweep_looks import SweepLooks
from service.api.tokens import Tokens
from service.api.trace_requests import TraceMiddleware
from service.api.watch import EventWatch
from service.bootstrap import Services, open_services
from service.jobs import query
from service.jobs import sweeps as sweep_jobs
from service.pages.render import STATIC
from service.settings import Settings
from worker.sandbox.held import sweep_unheld

ROUTERS = (
    jobs, events, artifacts, models, uploads, calibrations, hardware, sweeps, sweep_events,
    compare, cache, keys, limits, links, audit, webhooks, errors, health,
)  # fmt: skip
"""Asked for most first: a request is held against one route after the other."""

PAGES = (pages, job_pages, sweep_pages, hardware_pages)
"""What browsers are shown; not part of the API's description."""


def create_app(
    settings: Settings, services: Services | None = None, *, is_own: bool = False
) -> FastAPI:
    """Build the API on migrated storage.

    Args:
        settings: where everything is.
        services: shared with an embedded worker; opened from the settings when left out.
        is_own: only this process reaches it, so that nobody needs a key.
    """
    used = services or open_services(settings)
    bells = DeferredOutbox(used.outbox)
    specs = SpecReaders(settings)
    slots = PreflightSlots(settings.preflight_slots)
    signer = Signer(settings)
    # A command that opens its own data directory is alone with it.
    rates = None if is_own else Rates(settings)
    ring = KeyRing(used.database, rates, settings.guess_rate, Tokens(settings.trusted_issuers))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        del app
        sweep_unheld(settings.asked_dir)  # of one that was killed
        yield
        bells.close()
        specs.close()
        if services is None:
            used.close()

    app = FastAPI(
        title="Tilewright",
        version=health.package_version(),
        summary="Compile ONNX models for described accelerators.",
        docs_url=None,
        redoc_url=None,
        responses=PROBLEM_RESPONSES,
        lifespan=lifespan,
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.tilewright = ApiState(
        settings=settings,
        database=used.database,
        blobs=used.blobs,
        outbox=bells,
        readiness=Readiness(
            used.database, used.blobs, None if settings.embedded else used.celery, used.tracing
        ),
        preflights=slots,
        specs=specs,
        guide=GuideFolder(settings.guide_dir),
        explanations=Explanations(settings, used.blobs, slots),
        signer=signer,
        ring=ring,
        watch=EventWatch(lambda ids: query.standings(used.database, ids)),
        sweep_watch=EventWatch(lambda ids: sweep_jobs.standings(used.database, ids)),
        sweep_looks=SweepLooks(lambda name: sweep_jobs.find_sweep(used.database, name)),
    )
    for module in ROUTERS:
        app.include_router(module.router, dependencies=[Depends(no_unknown_parameters)])
    app.include_router(guide.router)  # scripts of its pages read what they like from the query
    for module in PAGES:
        app.include_router(module.router, dependencies=[Depends(no_unknown_parameters)])
    app.mount("/ui/static", Files(directory=STATIC), name="static")
    problems.install(app)
    limit = max(settings.max_json_bytes, settings.max_hardware_bytes)
    app.add_middleware(BodyLimitMiddleware, limit_bytes=limit)
    app.add_middleware(PaceMiddleware, grace_s=settings.slow_client_s)
    app.add_middleware(ScopeMiddleware)
    app.add_middleware(AuditMiddleware, database=used.database)
    if rates is not None:
        app.add_middleware(RateMiddleware, settings=settings, rates=rates)
    needs_key = settings.needs_key and not is_own
    app.add_middleware(KeyMiddleware, ring=ring, signer=signer, needs_key=needs_key)
    app.add_middleware(OriginMiddleware, names=(settings.host, *settings.allowed_hosts))
    app.add_middleware(StoppingMiddleware)
    app.add_middleware(TraceMiddleware, tracing=used.tracing)
    app.add_middleware(RequestIdMiddleware, access_log=settings.access_log)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]  # FastAPI's documented hook
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Describe the API; the problem document is not any route's model, so it is added here."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, summary=app.summary, routes=app.routes
        )
        _, schema = models_json_schema(
            [(ProblemAnswer, "serialization")], ref_template="#/components/schemas/{model}"
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(schema["$defs"])
        describe(document)
        app.openapi_schema = document
    return app.openapi_schema
