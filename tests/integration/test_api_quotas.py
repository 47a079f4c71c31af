"""Quotas of a project: what counts, where it is held, and limits of its own."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_fixtures import PRESET, Serve, Served, assert_problem, onnx_bytes
from typer.testing import CliRunner

from service.cli.main import app
from service.errors import QuotaExceeded
from service.jobs import quotas, submit
from service.jobs.keys import create_key
from service.keys import Scope
from service.settings import Settings
from service.store.records import BlobRef, ProjectLimits
from service.store.session import Database

SIZE = len(onnx_bytes(b"x" * 1000))


def as_project(served: Served, project: str, *scopes: Scope) -> httpx.Client:
    _, text = create_key(
        served.services.database, project=project, name=project,
        scopes=scopes or (Scope.READ, Scope.WRITE),
    )  # fmt: skip
    sent = {"Authorization": f"Bearer {text}"}
    return httpx.Client(base_url=served.url, headers=sent, timeout=30)


def upload(http: httpx.Client, letter: str, **params: Any) -> httpx.Response:
    """A model of SIZE bytes."""
    content = onnx_bytes(letter.encode() * 1000)
    return http.post("/v1/models", content=content, params=params)


def kept(http: httpx.Client) -> int:
    return int(http.get("/v1/limits").json()["kept_bytes"])


def test_bytes_are_counted_once_and_bounded(serve: Serve) -> None:
    """Refused before the body comes where its size is known, in the transaction where it is not."""
    served = serve(worker=False, require_key=True, max_project_bytes=2 * SIZE + 10)
    with as_project(served, "a") as http, as_project(served, "b") as other:
        for letter in "ab":
            assert upload(http, letter).status_code == 201
        assert upload(http, "a").status_code in {200, 429}
        assert kept(http) == 2 * SIZE
        problem = assert_problem(upload(http, "c"), 429, "TW-SVC-011")
        assert (problem["limit"], problem["actual"]) == (2 * SIZE + 10, 3 * SIZE)
        assert "jobs rm" in problem["hints"][0]
        chunked = http.post("/v1/models", content=iter([onnx_bytes(b"c" * 1000)]))
        problem = assert_problem(chunked, 429, "TW-SVC-011")
        assert (problem["limit"], problem["actual"]) == (2 * SIZE + 10, 3 * SIZE)
        started = http.post("/v1/uploads", json={"name": "c", "size_bytes": SIZE})
        assert_problem(started, 429, "TW-SVC-011")
        assert kept(http) == 2 * SIZE
        # Another project has its own quota, for the same content too.
        assert upload(other, "a").status_code == 201
        assert kept(other) == SIZE
        model = http.get("/v1/models").json()["items"][0]["id"]
        assert http.delete(f"/v1/models/{model}").status_code == 204
        assert upload(http, "c").status_code == 201


def test_what_a_project_has_may_come_again(serve: Serve) -> None:
    import hashlib

    served = serve(worker=False, require_key=True, max_project_bytes=SIZE + 10)
    with as_project(served, "a") as http:
        assert upload(http, "a").status_code == 201
        digest = hashlib.sha256(onnx_bytes(b"a" * 1000)).hexdigest()
        assert upload(http, "a", digest=f"sha256:{digest}").status_code == 200


def test_unfinished_uploads_count(serve: Serve) -> None:
    served = serve(worker=False, require_key=True, max_project_bytes=SIZE + 10)
    with as_project(served, "a") as http, as_project(served, "b") as other:
        place = http.post("/v1/uploads", json={"name": "u", "size_bytes": SIZE}).headers["location"]
        body, first = onnx_bytes(b"u" * 1000), {"Upload-Offset": "0"}
        assert http.patch(place, content=body, headers=first).status_code == 200
        again = http.post("/v1/uploads", json={"name": "v", "size_bytes": SIZE})
        assert_problem(again, 429, "TW-SVC-011")
        assert other.post("/v1/uploads", json={"name": "v", "size_bytes": SIZE}).is_success
        assert http.put(place).status_code == 201
        assert kept(http) == SIZE


def test_results_count_and_end_submits(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "SUMMED_S", 0.0)
    served = serve(require_key=True, max_project_bytes=SIZE + 1)
    with as_project(served, "a") as http:
        model = upload(http, "a").json()["id"]
        body = {"model": model, "hardware": PRESET}
        job = http.post("/v1/jobs", json=body).json()["id"]
        deadline = time.monotonic() + 120
        while http.get(f"/v1/jobs/{job}").json()["state"] not in {"succeeded", "failed"}:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        files = http.get(f"/v1/jobs/{job}/artifacts").json()["items"]
        sizes = {row["sha256"]: row["size_bytes"] for row in files}
        assert sum(sizes.values()) > 0
        assert kept(http) >= SIZE + sum(sizes.values())
        problem = assert_problem(http.post("/v1/jobs", json=body), 429, "TW-SVC-011")
        assert problem["actual"] == kept(http)
        assert http.delete(f"/v1/jobs/{job}").status_code == 204
        assert kept(http) == SIZE
        assert http.post("/v1/jobs", json=body).status_code == 202


def test_a_project_may_have_limits_of_its_own(serve: Serve) -> None:
    served = serve(worker=False, require_key=True, max_active_jobs=1, max_project_bytes=10)
    with as_project(served, "a") as http, as_project(served, "ops", Scope.ADMIN) as admin:
        assert_problem(upload(http, "a"), 429, "TW-SVC-011")
        own = {"max_active_jobs": 2, "max_bytes": 0, "rate": "1000/minute"}
        answer = admin.put("/v1/limits/a", json=own)
        assert answer.status_code == 200
        assert answer.json() == admin.get("/v1/limits/a").json()
        assert answer.json()["own"] == own
        model = upload(http, "a").json()["id"]
        body = {"model": model, "hardware": PRESET}
        codes = [http.post("/v1/jobs", json=body).status_code for _ in range(3)]
        assert codes == [202, 202, 429]
        mine = http.get("/v1/limits").json()
        assert (mine["active_jobs"], mine["max_active_jobs"]) == (2, 2)
        assert mine["rate"] == "1000/minute"
        # All of them are set: what is left out follows the settings again.
        assert admin.put("/v1/limits/a", json={}).json()["max_active_jobs"] == 1
        for wrong in ({"rate": "1/week"}, {"max_bytes": -1}, {"max_jobs": 1}):
            assert_problem(admin.put("/v1/limits/a", json=wrong), 422, "TW-SVC-004")
        assert_problem(admin.put("/v1/limits/A%20b", json={}), 422, "TW-SVC-004")
        assert_problem(http.get("/v1/limits/b"), 403, "TW-SVC-020")


def test_every_database_counts_alike(database_url: str, tmp_path: Path) -> None:
    """Content that two rows name once, another project's not at all."""
    database = Database(database_url)
    settings = Settings(data_dir=tmp_path, max_project_bytes=5)
    blobs = [BlobRef(letter * 64, 3, "application/zip") for letter in "abc"]
    submit.add_model(database, blobs[0], name="m", kind="zip", owner="p", settings=settings)
    submit.add_calibration(database, blobs[0], name="m", owner="p", settings=settings)
    submit.add_model(database, blobs[1], name="m", kind="zip", owner="q", settings=settings)
    with pytest.raises(QuotaExceeded) as refused:
        submit.add_model(database, blobs[2], name="m", kind="zip", owner="p", settings=settings)
    assert (refused.value.limit, refused.value.actual) == (5, 6)
    own = ProjectLimits("5/day", 7, 6)
    for given in (ProjectLimits(None, 1, 1), own):
        quotas.set_limits(database, "p", given, lambda: None)
    submit.add_model(database, blobs[2], name="m", kind="zip", owner="p", settings=settings)
    found = quotas.usage(database, settings, "p")
    assert (found.own, found.rate, found.max_active_jobs) == (own, "5/day", 7)
    assert (found.kept_bytes, found.max_bytes) == (6, 6)
    database.close()


def test_a_projects_rate_holds_for_its_keys(serve: Serve) -> None:
    served = serve(worker=False, require_key=True, project_rate="1000/hour")
    with as_project(served, "ops", Scope.ADMIN) as admin:
        admin.put("/v1/limits/a", json={"rate": "2/hour"})
    with as_project(served, "a") as http:
        codes = [http.get("/v1/jobs").status_code for _ in range(3)]
        assert codes == [200, 200, 429]


def test_the_command_line_sets_and_shows(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve(worker=False, require_key=True)
    with as_project(served, "ops", *Scope) as admin:
        monkeypatch.setenv("TILEWRIGHT_KEY", admin.headers["Authorization"].split()[1])

    def ran(*words: str) -> str:
        result = CliRunner().invoke(app, ["keys", "limits", *words, "--server", served.url])
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "unfinished jobs\t0\t1000" in ran()
    ran("a", "--max-jobs", "3")
    assert json.loads(ran("a", "--max-bytes", "9", "--json"))["own"] == {
        "rate": None, "max_active_jobs": 3, "max_bytes": 9,
    }  # fmt: skip
    assert json.loads(ran("a", "--reset", "--rate", "1/day", "--json"))["own"] == {
        "rate": "1/day", "max_active_jobs": None, "max_bytes": None,
    }  # fmt: skip
    refused = CliRunner().invoke(app, ["keys", "limits", "--max-jobs", "3"])
    assert refused.exit_code == 2
