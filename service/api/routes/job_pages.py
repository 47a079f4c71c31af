"""The page of a job and its pieces, for whoever may see the job and for whoever has a link to it.

Everything that the page asks for lies below its own address, so that a link that is shared reaches
one job and nothing else.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import HTMLResponse, Response

from service.api.callers import Project, Sender
from service.api.deps import ApiState, State
from service.api.downloads import serve_bytes
from service.api.page_answers import PageRoute, page
from service.api.routes.links import DAYS, SHARED, path_of
from service.errors import NotFound
from service.jobs import links, query
from service.pages.graph import graph_view
from service.pages.jobs import rows_of
from service.pages.layer import layer_view, nest_view, what_if_view
from service.pages.render import HEADERS
from service.pages.report import Layer, Report, layers_of, report_of, table_of
from service.states import TERMINAL_JOB_STATES
from service.store.blobs import read_bytes
from service.store.records import ArtifactRecord, JobRecord
from worker.report.cause_bars import FAMILIES, cause_bar, family
from worker.report.mesh_map import mesh_map
from worker.report.plots import energy_bars
from worker.report.what_if import costs

router = APIRouter(include_in_schema=False, route_class=PageRoute)


@dataclass(frozen=True, slots=True)
class Shown:
    """A job that the request may see."""

    job: JobRecord
    base: str
    """Where its page is."""
    shared_until: int | None
    """When the link ends that led here, in seconds since the epoch; None: it is no link."""


async def shown_job(request: Request, state: State, caller: Sender) -> Shown:
    """The job of the address.

    Raises:
        NotFound: there is none, it is another project's, or the link has ended.
    """
    place = request.path_params
    if "token" in place:
        return await to_thread.run_sync(_followed, state, str(place["token"]))
    job_id = str(place["job_id"])
    job = await to_thread.run_sync(query.get_job, state.database, job_id, caller.project)
    return Shown(job, f"/ui/jobs/{job.id}", None)


def _followed(state: ApiState, token: str) -> Shown:
    """What a link shows.  One that was revoked is answered as one that has ended."""
    signed = state.signer.read(SHARED, token)
    link = None if signed is None else links.followed(state.database, signed[0])
    if signed is None or link is None:
        raise NotFound(
            "this link has ended, or was never one", remedy="Ask whoever sent it for a new one."
        )
    job = query.get_job(state.database, link.job_id, link.owner)
    return Shown(job, f"/ui/shared/{token}", signed[1])


Seen = Annotated[Shown, Depends(shown_job)]
Row = Annotated[int, Path(ge=0, le=10_000_000)]


def _artifacts(state: ApiState, seen: Shown) -> dict[str, ArtifactRecord]:
    return {row.name: row for row in query.list_artifacts(state.database, seen.job.id)}


def _report(state: ApiState, seen: Shown) -> Report | str:
    """The job's report, or why there is none to show.

    Raises:
        NotFound: the job has none (yet).
    """
    stored = query.get_artifact(state.database, seen.job.id, "report")
    try:
        document = json.loads(read_bytes(state.blobs, stored.sha256))
    except (ValueError, RecursionError):
        return "its report is no JSON"
    return report_of(document)


def _layer(state: ApiState, seen: Shown, row: int) -> tuple[Report, Layer]:
    report = _report(state, seen)
    layers = [] if isinstance(report, str) else layers_of(report)
    if isinstance(report, str) or row >= len(layers):
        raise NotFound(f"the job has no layer {row}", limit=len(layers), actual=row)
    return report, layers[row]


@router.get("/ui/shared/{token}")
@router.get("/ui/jobs/{job_id}")
def show_job(request: Request, state: State, seen: Seen) -> HTMLResponse:
    """The whole page: while the job runs, how far it is; then what came out."""
    job, owner = seen.job, seen.job.owner
    [row] = rows_of(
        [job],
        lambda model_id: query.get_model(state.database, model_id, owner).name,
        lambda hardware_id: query.get_hardware(state.database, hardware_id, owner).name,
        time.time(),
    )
    artifacts = _artifacts(state, seen)
    report: Report | str | None = None
    if "report" in artifacts:
        report = _report(state, seen)
    shown: dict[str, Any] = {}
    if isinstance(report, Report):
        causes = [(cause.cause, cause.cycles) for cause in report.summary.causes]
        layers = layers_of(report)
        shown = {
            "causes": causes,
            "bar": cause_bar(causes, report.summary.latency_cycles, "Cycles by cause"),
            "costs": costs(
                causes,
                report.summary.latency_cycles,
                [(layer.name, layer.causes) for layer in layers],
            ),
            "sentences": FAMILIES,
            "family": family,
            "top": sorted(layers, key=lambda layer: (-layer.cycles, layer.row))[:5],
            "num_layers": len(layers),
            "energy": energy_bars([(e.item, e.pj, e.low_pj, e.high_pj) for e in report.energy]),
            "meshes": [mesh_map(load) for load in report.mesh],
        }
    return page(
        request, "job.html", row=row, job=job, base=seen.base, shared_until=seen.shared_until,
        artifacts=artifacts, report=None if isinstance(report, str) else report,
        why_not=report if isinstance(report, str) else None,
        is_over=job.state in TERMINAL_JOB_STATES, **shown,
    )  # fmt: skip


@router.get("/ui/shared/{token}/layers")
@router.get("/ui/jobs/{job_id}/layers")
def get_table(state: State, seen: Seen) -> Response:
    """The rows of the layer table, for the script that draws it."""
    report = _report(state, seen)
    table = {"rows": [], "causes": []} if isinstance(report, str) else table_of(report)
    body = json.dumps(table, separators=(",", ":"))
    return Response(body, media_type="application/json", headers=dict(HEADERS))


@router.get("/ui/shared/{token}/graph")
@router.get("/ui/jobs/{job_id}/graph")
def get_graph(state: State, seen: Seen) -> Response:
    """Boxes and edges with their places, for the script that draws them.

    Raises:
        NotFound: the job has no report or no graph (yet), or one that cannot be drawn.
    """
    report = _report(state, seen)
    stored = query.get_artifact(state.database, seen.job.id, "graph")
    try:
        document = json.loads(read_bytes(state.blobs, stored.sha256))
    except (ValueError, RecursionError):
        document = None
    why = "its graph is no JSON" if document is None else report
    found = why if isinstance(why, str) else graph_view(document, layers_of(why))
    if isinstance(found, str):
        raise NotFound(f"the job's graph cannot be drawn: {found}")
    body = json.dumps(found, separators=(",", ":"))
    return Response(body, media_type="application/json", headers=dict(HEADERS))


@router.get("/ui/shared/{token}/layers/{row}")
@router.get("/ui/jobs/{job_id}/layers/{row}")
def show_layer(request: Request, state: State, seen: Seen, row: Row) -> HTMLResponse:
    """Why a layer takes what it takes: a piece of the page."""
    report, layer = _layer(state, seen, row)
    return page(request, "layer.html", base=seen.base, **layer_view(report, layer))


@router.get("/ui/shared/{token}/layers/{row}/nest")
@router.get("/ui/jobs/{job_id}/layers/{row}/nest")
def show_nest(request: Request, state: State, seen: Seen, row: Row) -> HTMLResponse:
    """The loop nest of a layer's kernel, as `tilewright explain layer` gives it."""
    found = _explained(state, seen, row, asks=False)
    return page(request, "nest.html", **nest_view(found))


@router.get("/ui/shared/{token}/layers/{row}/help")
@router.get("/ui/jobs/{job_id}/layers/{row}/help")
def show_help(request: Request, state: State, seen: Seen, row: Row) -> HTMLResponse:
    """What twice of each resource would bring: its strategy searches again."""
    found = _explained(state, seen, row, asks=True)
    return page(request, "help.html", **what_if_view(found))


def _explained(state: ApiState, seen: Shown, row: int, *, asks: bool) -> dict[str, Any]:
    _, layer = _layer(state, seen, row)
    if layer.index is None:
        raise NotFound("the report does not say which kernel this layer is of", actual=row)
    bundle = query.get_artifact(state.database, seen.job.id, "bundle")
    return state.explanations.of(bundle, layer.index, asks=asks)


@router.get("/ui/shared/{token}/trace")
@router.get("/ui/jobs/{job_id}/trace")
def get_trace(request: Request, state: State, seen: Seen) -> Response:
    """The timeline as the worker of the page reads it: the Perfetto trace, gzipped."""
    stored = query.get_artifact(state.database, seen.job.id, "trace")
    return serve_bytes(
        request,
        sha256=stored.sha256,
        size=stored.size_bytes,
        media_type=stored.media_type,
        file_name=stored.file_name,
        open_range=lambda start, length: state.blobs.open_range(stored.sha256, start, length),
        immutable=False,
    )


@router.post("/ui/jobs/{job_id}/links")
def share(request: Request, state: State, seen: Seen, project: Project) -> HTMLResponse:
    """A link to this page that whoever has it may open, for a week; and those that there are."""
    told: list[str] = []
    links.create_link(
        state.database, seen.job.id, project, DAYS * 86400.0,
        lambda made: told.append(f"{str(request.base_url).rstrip('/')}{path_of(state, made)}"),
    )  # fmt: skip
    return _links(request, state, seen, project, told[0])


@router.post("/ui/jobs/{job_id}/links/{link_id}/revoke")
def unshare(
    request: Request, state: State, seen: Seen, project: Project, link_id: str
) -> HTMLResponse:
    """End a link; those that are left."""
    links.revoke_link(state.database, link_id, project)
    return _links(request, state, seen, project, None)


def _links(
    request: Request, state: ApiState, seen: Shown, project: str, told: str | None
) -> HTMLResponse:
    found = links.list_links(state.database, project, seen.job.id)
    live = [link for link in found if link.revoked is None]
    return page(request, "link.html", link=told, links=live, base=seen.base)
