"""Answers are built before the commit: a failure to answer stores nothing, whatever the route."""

from __future__ import annotations

import re
import time
from io import BytesIO
from typing import Any

import fastapi.routing
import httpx
import numpy as np
import pytest
from api_fixtures import PRESET, Serve, Served, assert_problem, onnx_bytes
from fastapi.routing import APIRoute
from sqlalchemy import update

import service.api.answers
import service.api.routes.uploads
from service.api.app import ROUTERS
from service.jobs.audit import list_audit
from service.jobs.keys import create_key
from service.keys import Scope
from service.store.records import AuditFilter, AuditRecord
from service.store.tables import Base, DeliveryRow

CHANGING = {
    f"{method} {route.path}": route
    for module in ROUTERS
    for route in module.router.routes
    if isinstance(route, APIRoute)
    for method in sorted(route.methods & {"POST", "PUT", "DELETE"})
}
SPEC = {"inherits": PRESET, "name": "mine"}


def stored(served: Served) -> dict[str, list[str]]:
    """Every row of every table, and the files of unfinished uploads; that a request failed is
    in the audit log, so that is left out."""
    with served.services.database.read() as session:
        rows = {
            table.name: sorted(map(repr, session.execute(table.select())))
            for table in Base.metadata.sorted_tables
            if table.name != "audit"
        }
    # When a bell rang for an item is written later, by a thread of its own.
    rows["work_item"] = [row.split(",")[0] for row in rows["work_item"]]
    folder = served.services.blobs.spool_dir / "uploads"
    rows["files"] = sorted(p.name for p in folder.iterdir()) if folder.exists() else []
    return rows


def arrays() -> bytes:
    stream = BytesIO()
    np.savez(stream, x=np.zeros(3, np.float32))
    return stream.getvalue()


def requests(served: Served) -> dict[str, dict[str, Any]]:
    """One good request for every route that changes something and answers."""
    http = served.http
    job = served.submit()
    upload = http.post("/v1/uploads", json={"name": "u"}).headers["location"]
    http.patch(upload, content=onnx_bytes(b"another"), headers={"Upload-Offset": "0"})
    asked = {"models": [job["model"]], "hardware": [PRESET], "label": "first"}
    sweep = http.post("/v1/sweeps", json=asked).json()["id"]
    ended = http.post("/v1/sweeps", json=asked).json()["id"]
    http.post(f"/v1/sweeps/{ended}/cancel")
    hook = http.post("/v1/webhooks", json={"url": "https://example.com/x"}).json()["id"]
    message = http.post(f"/v1/webhooks/{hook}/ping").json()["id"]
    with served.services.database.write() as session:
        session.execute(update(DeliveryRow).values(state="given_up"))
    spare, _ = create_key(
        served.services.database, project="p", name="spare", scopes=[Scope.READ, Scope.WRITE]
    )
    place, key = (
        {"job_id": job["id"], "upload_id": upload.rsplit("/", 1)[1], "webhook_id": hook,
         "delivery_id": message, "project_name": "p", "sweep_id": sweep, "key_id": spare.id},
        {"Idempotency-Key": "edge"},
    )  # fmt: skip
    made: dict[str, dict[str, Any]] = {
        "POST /v1/models": {"content": onnx_bytes(b"new"), "headers": key},
        "POST /v1/uploads": {"json": {"name": "v"}},
        "PUT /v1/uploads/{upload_id}": {"headers": key},
        "POST /v1/calibrations": {"content": arrays()},
        "POST /v1/hardware": {"json": SPEC, "headers": key},
        "POST /v1/hardware/lint": {"json": SPEC},
        "POST /v1/jobs": {"json": {"model": job["model"], "hardware": SPEC}, "headers": key},
        "POST /v1/jobs/{job_id}/cancel": {},
        "POST /v1/jobs/{job_id}/clone": {"headers": key},
        "POST /v1/jobs/{job_id}/links": {},
        "POST /v1/sweeps": {
            "json": {"models": [job["model"]], "base": PRESET, "vary": ["clock_hz=x2,x3"]},
            "headers": key,
        },
        "POST /v1/sweeps/{sweep_id}/cancel": {},
        "POST /v1/sweeps/{sweep_id}/resume": {"url": f"/v1/sweeps/{ended}/resume"},
        "POST /v1/keys": {"json": {"name": "ci", "scopes": ["read"]}, "headers": key},
        "PUT /v1/keys/{key_id}/role": {"json": {"role": "reader"}},
        "PUT /v1/limits/{project_name}": {"json": {"max_active_jobs": 7}},
        "POST /v1/cache/prune": {"json": {"unused_for_s": 0}},
        "POST /v1/webhooks": {"json": {"url": "https://example.com/y"}, "headers": key},
        "POST /v1/webhooks/{webhook_id}/rotate": {"headers": key},
        "POST /v1/webhooks/{webhook_id}/enable": {},
        "POST /v1/webhooks/{webhook_id}/ping": {"headers": key},
        "POST /v1/webhooks/{webhook_id}/deliveries/{delivery_id}/replay": {"headers": key},
    }
    return {name: {"url": name.split()[1].format(**place), **made[name]} for name in made}


def test_every_route_answers_before_it_commits(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> bytes:
        raise RuntimeError("this answer cannot be built")

    served = serve(worker=False)
    wanted = requests(served)
    answering = {name for name, route in CHANGING.items() if route.status_code != 204}
    assert set(wanted) == answering, "a route that changes something needs a request here"
    before = stored(served)
    with monkeypatch.context() as patch:
        # Everywhere an answer is serialised: ours, and the framework's, which is after the commit.
        patch.setattr(service.api.answers, "encoded", fail)
        patch.setattr(service.api.routes.uploads, "encoded", fail)
        patch.setattr(fastapi.routing, "serialize_response", fail)
        for name, request in wanted.items():
            # The server ends the connection of a request that broke: each has its own.
            sent = {**request, "url": served.url + request["url"]}
            response = httpx.request(name.split()[0], **sent, timeout=30)
            assert_problem(response, 500, "TW-INT-001")
            assert stored(served) == before, name
    for name, request in wanted.items():  # the same requests are good
        response = served.http.request(name.split()[0], **request)
        assert response.status_code in {200, 201, 202}, (name, response.text)
    after = stored(served)
    for table in (
        "model", "hw_spec", "job", "calibration", "idempotency", "api_key", "project_limit",
        "webhook", "sweep", "sweep_item", "share_link",
    ):  # fmt: skip
        assert len(after[table]) > len(before[table]), table


def test_every_change_is_audited_in_its_transaction(serve: Serve) -> None:
    """One row for each, `done` where a transaction made the change, with the id of what changed."""
    served = serve(worker=False, require_key=True)
    record, text = create_key(
        served.services.database, project="p", name="auditor", scopes=list(Scope)
    )
    served.http.headers["Authorization"] = f"Bearer {text}"
    wanted = requests(served)
    job, model = served.submit()["id"], served.model(onnx_bytes(b"unused"))["id"]
    served.http.post(f"/v1/jobs/{job}/cancel")
    upload = served.http.post("/v1/uploads", json={"name": "w"}).json()["id"]
    hook = served.http.post("/v1/webhooks", json={"url": "https://example.com/z"}).json()["id"]
    asked = {"models": [served.model()["id"]], "hardware": [PRESET]}
    sweep = served.http.post("/v1/sweeps", json=asked).json()["id"]
    served.http.post(f"/v1/sweeps/{sweep}/cancel")
    spare, _ = create_key(served.services.database, project="p", name="x", scopes=[Scope.READ])
    link = served.http.post(f"/v1/jobs/{served.submit()['id']}/links").json()["id"]
    ends = {
        "DELETE /v1/links/{link_id}": link,
        "DELETE /v1/jobs/{job_id}": job, "DELETE /v1/models/{model_id}": model,
        "DELETE /v1/uploads/{upload_id}": upload, "DELETE /v1/keys/{key_id}": spare.id,
        "DELETE /v1/webhooks/{webhook_id}": hook,
        "DELETE /v1/sweeps/{sweep_id}": sweep,
    }  # fmt: skip
    for name, subject in ends.items():
        path = name.split()[1]
        wanted[name] = {"url": f"{path[: path.index('{')]}{subject}"}
    assert set(wanted) == set(CHANGING)
    of_files = {
        "POST /v1/uploads", "DELETE /v1/uploads/{upload_id}",
    }  # fmt: skip
    for name, request in wanted.items():
        wanted_id = re.sub("[^a-zA-Z]+", "-", name)
        headers = {**request.get("headers", {}), "X-Request-ID": wanted_id}
        response = served.http.request(name.split()[0], **{**request, "headers": headers})
        assert response.is_success, (name, response.text)
        rows = of_request(served, wanted_id, 0 if name == "POST /v1/hardware/lint" else 1)
        if name == "POST /v1/hardware/lint":
            assert rows == []
            continue
        [row] = rows
        assert (row.route, row.project, row.key_id, row.who) == (name, "p", record.id, "auditor")
        assert row.outcome == ("answered" if name in of_files else "done"), name
        if name in ends:
            assert row.subject == ends[name]
        elif name not in of_files | {"POST /v1/cache/prune"}:
            document = response.json()
            named = [document[key] for key in ("id", "sha256", "project") if key in document]
            assert row.subject == named[0], name


def of_request(served: Served, request_id: str, count: int) -> list[AuditRecord]:
    """Rows of one request; the last of them is written when its answer is out."""
    deadline = time.monotonic() + 10
    while True:
        rows, _ = list_audit(served.services.database, AuditFilter(), cursor=None, limit=200)
        found = [row for row in rows if row.request_id == request_id]
        if len(found) >= count or time.monotonic() > deadline:
            return found
        time.sleep(0.01)


def test_a_route_without_an_answer_has_none_to_build() -> None:
    silent = [route for route in CHANGING.values() if route.status_code == 204]
    assert len(silent) == 7
    assert all(route.response_field is None for route in silent)
