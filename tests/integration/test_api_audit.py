"""The audit log: what is in it, what is not, who may read it, how it ends."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from api_fixtures import PRESET, Serve, Served, assert_problem, onnx_bytes
from sqlalchemy import update
from typer.testing import CliRunner

import service.api.auditing
from service.cli.main import app
from service.jobs import audit, retention
from service.jobs.keys import create_key
from service.keys import Scope
from service.store.records import AuditFilter, AuditRecord, Outcome
from service.store.tables import AuditRow


def rows(served: Served, **wanted: Any) -> tuple[AuditRecord, ...]:
    return audit.list_audit(
        served.services.database, AuditFilter(**wanted), cursor=None, limit=200
    )[0]


def awaited(served: Served, count: int, **wanted: Any) -> tuple[AuditRecord, ...]:
    """What no transaction recorded is written when the answer is out."""
    deadline = time.monotonic() + 10
    while len(found := rows(served, **wanted)) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(found) == count, found
    return found


def headers(served: Served, project: str, *scopes: Scope) -> dict[str, str]:
    _, text = create_key(
        served.services.database, project=project, name=f"of {project}",
        scopes=scopes or (Scope.READ, Scope.WRITE),
    )  # fmt: skip
    return {"Authorization": f"Bearer {text}"}


def test_what_was_refused_is_there_too(serve: Serve) -> None:
    """By a route, by no route, and for want of a scope; reading leaves nothing."""
    served = serve(worker=False, require_key=True)
    mine, admin = headers(served, "a"), headers(served, "ops", Scope.ADMIN)
    assert served.http.get("/v1/jobs", headers=mine).status_code == 200
    assert served.http.get("/v1/keys", headers=admin).status_code == 200
    assert served.http.delete("/v1/jobs/job_none", headers=mine).status_code == 404
    assert served.http.post("/v1/nothing", headers=mine).status_code == 404
    assert served.http.post("/v1/jobs", json={}, headers=mine).status_code == 422
    assert served.http.post("/v1/jobs", json={}, headers=admin).status_code == 403
    assert served.http.get("/v1/audit", headers=mine).status_code == 403
    # Whoever has no key is nobody: strangers cannot fill the log.
    assert served.http.post("/v1/jobs", json={}).status_code == 401
    found = sorted(awaited(served, 5), key=lambda row: (row.route, row.status or 0))
    assert [(r.project, r.route, r.subject, r.outcome, r.status) for r in found] == [
        ("a", "DELETE /v1/jobs/{job_id}", "job_none", "refused", 404),
        ("a", "GET /v1/audit", None, "refused", 403),
        ("ops", "POST /v1/jobs", None, "refused", 403),
        ("a", "POST /v1/jobs", None, "refused", 422),
        ("a", "POST /v1/nothing", None, "refused", 404),
    ]
    assert all(abs(row.time - time.time()) < 60 for row in found)


def test_what_is_rolled_back_is_not_done(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    import service.api.answers

    def fail(*_: object) -> bytes:
        raise RuntimeError("this answer cannot be built")

    served = serve(worker=False, require_key=True)
    mine = headers(served, "a")
    monkeypatch.setattr(service.api.answers, "encoded", fail)
    answer = served.http.post("/v1/models", content=onnx_bytes(), headers=mine)
    assert_problem(answer, 500, "TW-INT-001")
    [row] = awaited(served, 1)
    assert (row.outcome, row.status) == ("failed", 500)


def test_a_repeat_changes_nothing(serve: Serve) -> None:
    served = serve(worker=False, require_key=True)
    sent = headers(served, "a")
    model = served.http.post("/v1/models", content=onnx_bytes(), headers=sent).json()["id"]
    body, key = {"model": model, "hardware": PRESET}, {**sent, "Idempotency-Key": "k"}
    first, second = (served.http.post("/v1/jobs", json=body, headers=key) for _ in range(2))
    assert first.json()["id"] == second.json()["id"]
    found = awaited(served, 2, route="POST /v1/jobs")
    assert [(row.outcome, row.subject) for row in found] == [
        ("answered", None), ("done", first.json()["id"]),
    ]  # fmt: skip


def test_jobs_that_share_a_transaction_have_each_their_own_row(serve: Serve) -> None:
    """On SQLite one thread commits what others bring: the row names who asked, not who commits."""
    from concurrent.futures import ThreadPoolExecutor

    import httpx

    served = serve(worker=False, require_key=True)
    sent = [headers(served, f"p{number}") for number in range(8)]

    def submit(given: dict[str, str]) -> list[str]:
        with httpx.Client(base_url=served.url, headers=given, timeout=60) as http:
            model = http.post("/v1/models", content=onnx_bytes()).json()["id"]
            body = {"model": model, "hardware": PRESET}
            return [http.post("/v1/jobs", json=body).json()["id"] for _ in range(10)]

    with ThreadPoolExecutor(len(sent)) as pool:
        made = list(pool.map(submit, sent))
    for number, jobs in enumerate(made):
        found = rows(served, project=f"p{number}", route="POST /v1/jobs")
        assert sorted(row.subject or "" for row in found) == sorted(jobs)


def test_a_row_that_cannot_be_written_is_a_line(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlalchemy.exc import OperationalError

    lines: list[dict[str, Any]] = []

    class Log:
        def error(self, event: str, **fields: Any) -> None:
            lines.append(fields)

    def fail(*_: object) -> None:
        raise OperationalError("INSERT", {}, Exception("the disk is full"))

    served = serve(worker=False, require_key=True)
    monkeypatch.setattr(service.api.auditing, "record_end", fail)
    monkeypatch.setattr(service.api.auditing, "get_logger", Log)
    answer = served.http.delete("/v1/jobs/job_none", headers=headers(served, "a"))
    assert answer.status_code == 404
    deadline = time.monotonic() + 10
    while not lines and time.monotonic() < deadline:
        time.sleep(0.01)
    [line] = lines
    assert (line["project"], line["route"]) == ("a", "DELETE /v1/jobs/{job_id}")
    assert (line["subject"], line["status"]) == ("job_none", 404)


@pytest.fixture
def filled(serve: Serve) -> Iterator[Served]:
    """Seven models of two projects, one job that is unknown."""
    served = serve(worker=False, require_key=True)
    for project, count in (("a", 4), ("b", 3)):
        sent = headers(served, project)
        for number in range(count):
            body = onnx_bytes(f"{project}{number}".encode())
            assert served.http.post("/v1/models", content=body, headers=sent).status_code == 201
    served.http.delete("/v1/jobs/job_x", headers=sent)
    awaited(served, 8)
    served.http.headers.update(headers(served, "ops", Scope.ADMIN))
    yield served


def test_pages_and_filters(filled: Served) -> None:
    def page(**params: Any) -> dict[str, Any]:
        answer = filled.http.get("/v1/audit", params=params)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    seen: list[int] = []
    cursor: dict[str, str] = {}
    while True:
        got = page(limit=3, **cursor)
        seen += [row["id"] for row in got["items"]]
        if got["next_cursor"] is None:
            break
        cursor = {"cursor": got["next_cursor"]}
    assert len(seen) == 8
    assert seen == sorted(seen, reverse=True)
    every = page()["items"]
    key = every[-1]["key"]
    for params, count in (
        ({"project": "a"}, 4), ({"project": "b"}, 4), ({"key": key}, 4), ({"outcome": "done"}, 7),
        ({"outcome": "refused", "project": "a"}, 0), ({"subject": "job_x"}, 1),
        ({"route": "DELETE /v1/jobs/{job_id}"}, 1), ({"since": every[2]["time"]}, 3),
        ({"until": every[2]["time"]}, 5), ({"project": "nobody"}, 0),
    ):  # fmt: skip
        assert len(page(**params)["items"]) == count, params
    for wrong in ({"cursor": "x"}, {"cursor": "-1"}, {"outcome": "lost"}, {"limit": 0}, {"who": 1}):
        assert_problem(filled.http.get("/v1/audit", params=wrong), 422, "TW-SVC-004")


def test_the_command_line_shows_it(filled: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_KEY", filled.http.headers["Authorization"].split()[1])
    given = ["keys", "audit", "--server", filled.url]
    shown = CliRunner().invoke(app, [*given, "--project", "b", "--outcome", "refused"])
    assert shown.exit_code == 0, shown.output
    title, row = shown.stdout.splitlines()
    assert title.split("\t")[1:3] == ["project", "who"]
    assert {"b", "of b", "DELETE /v1/jobs/{job_id}", "job_x", "404"} <= set(row.split("\t"))
    asked = CliRunner().invoke(app, [*given, "--limit", "7", "--json"])
    assert len(json.loads(asked.stdout)["items"]) == 7


def test_old_rows_go_when_settings_say_so(filled: Served) -> None:
    database = filled.services.database
    with database.write() as session:
        session.execute(
            update(AuditRow).where(AuditRow.owner == "a").values(ts=AuditRow.ts - 7200.0)
        )
    assert retention.retire(database, filled.settings).audit_rows == 0
    kept = filled.settings.model_copy(update={"keep_audit_s": 3600.0})
    assert retention.retire(database, kept).audit_rows == 4
    assert {row.project for row in rows(filled)} == {"b"}
    assert {row.outcome for row in rows(filled)} == {Outcome.DONE, Outcome.REFUSED}
