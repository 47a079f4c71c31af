"""API keys: who may do what, and what one project learns of another."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from api_fixtures import PRESET, Serve, Served, assert_problem, onnx_bytes
from document_commands import commands
from keyed import as_project, key_of, sent
from typer.testing import CliRunner

from service.api import callers
from service.api.callers import scope_of
from service.cli.main import app
from service.cli.serve import FIRST_KEY
from service.client import Client
from service.client.errors import ApiError
from service.jobs import keys, query
from service.keys import SCOPES_OF, Role, Scope, digest_of, is_same, new_key, prefix_of
from service.settings import Settings
from service.store.session import Database, migrate

FREE = {"/v1/healthz", "/v1/readyz", "/v1/version", "/v1/errors", "/v1/errors/{code}"}


def operations(served: Served) -> list[tuple[str, str]]:
    paths = served.http.get("/openapi.json").json()["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


def test_a_key_is_told_by_its_form() -> None:
    prefix, text = new_key()
    assert prefix_of(text) == prefix
    assert is_same(digest_of(text), text)
    assert not is_same(digest_of(text), new_key()[1])
    assert len({new_key()[1] for _ in range(100)}) == 100
    for broken in ("", "tw_", text[:-1], text + "x", text.replace("tw_", "tv_"), f" {text}"):
        assert prefix_of(broken) is None


def test_without_a_key_nothing_is_said(serve: Serve) -> None:
    """Of every route of the API's own description but those that say nothing of anybody's work."""
    served = serve(worker=False, require_key=True)
    found = operations(served)
    assert {path for _, path in found} >= FREE
    for method, path in found:
        response = served.http.request(method, path)
        if path in FREE:
            assert response.status_code not in {401, 403}, path
            continue
        assert_problem(response, 401, "TW-SVC-019")
        assert response.headers["www-authenticate"].startswith("Bearer")
    for path in ("/metrics", "/v1/nothing", "/v2/jobs"):
        assert_problem(served.http.get(path), 401, "TW-SVC-019")
    assert served.http.get("/docs").status_code == 200


@pytest.mark.parametrize(("host", "asks"), [("127.0.0.1", False), ("0.0.0.0", True), ("", True)])
def test_whoever_listens_beyond_loopback_asks(serve: Serve, host: str, asks: bool) -> None:
    served = serve(worker=False, host=host)
    assert served.settings.needs_key is asks
    assert served.http.get("/v1/jobs").status_code == (401 if asks else 200)


def test_a_wrong_key_is_refused_on_loopback_too(serve: Serve) -> None:
    """And nobody learns from the refusal whether a prefix is known."""
    served = serve(worker=False)
    text = key_of(served, "a")[1]
    assert served.http.get("/v1/jobs", headers=sent(text)).status_code == 200
    other = text[:-4] + ("AAAA" if not text.endswith("AAAA") else "BBBB")
    answers = [
        assert_problem(served.http.get("/v1/jobs", headers=sent(wrong)), 401, "TW-SVC-019")
        for wrong in (other, new_key()[1], "x", "tw_.")
    ]
    assert len({answer["detail"] for answer in answers}) == 1
    for value in ("Basic YTpi", text):
        bare = served.http.get("/v1/jobs", headers={"Authorization": value})
        assert "Bearer" in assert_problem(bare, 401, "TW-SVC-019")["detail"]
        assert text[:16] not in bare.text


def test_a_key_ends(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "KNOWN_S", 0.0)
    served = serve(worker=False, require_key=True)
    key_id, text = key_of(served, "a")
    assert served.http.get("/v1/jobs", headers=sent(text)).status_code == 200
    keys.revoke_key(served.services.database, key_id)
    refused = assert_problem(served.http.get("/v1/jobs", headers=sent(text)), 401, "TW-SVC-019")
    assert "was revoked" in refused["detail"]
    _, short = key_of(served, "a", lasts_s=0.0)
    refused = assert_problem(served.http.get("/v1/jobs", headers=sent(short)), 401, "TW-SVC-019")
    assert "has expired" in refused["detail"]


def test_a_revoked_key_is_known_no_longer_than_said(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "KNOWN_S", 0.5)
    served = serve(worker=False, require_key=True)
    key_id, text = key_of(served, "a")
    assert served.http.get("/v1/jobs", headers=sent(text)).status_code == 200
    keys.revoke_key(served.services.database, key_id)
    deadline = time.monotonic() + 10
    while served.http.get("/v1/jobs", headers=sent(text)).status_code != 401:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("scope", list(Scope))
def test_a_key_does_what_its_scopes_allow(serve: Serve, scope: Scope) -> None:
    """Every operation needs exactly one scope; with any other it is refused by name.  `admin`
    includes `keys`."""
    allowed = {None, scope} | ({Scope.KEYS} if scope is Scope.ADMIN else set())
    served = serve(worker=False, require_key=True)
    with as_project(served, "a", scope) as http:
        for method, path in operations(served):
            needed = scope_of(method, path)
            response = http.request(method, path)
            if needed in allowed:
                assert response.status_code not in {401, 403}, (method, path)
            else:
                problem = assert_problem(response, 403, "TW-SVC-020")
                assert problem["limit"] == str(needed)
                assert str(needed) in problem["detail"]


def test_what_stores_something_needs_write(serve: Serve) -> None:
    for method, path in operations(serve(worker=False)):
        if method != "GET" and path != "/v1/hardware/lint":
            wanted = {"keys": Scope.KEYS, "limits": Scope.ADMIN}.get(
                path.split("/")[2], Scope.WRITE
            )
            assert scope_of(method, path) is wanted, (method, path)


@dataclass(frozen=True)
class Things:
    """What a project has, by the name of the path's parameter."""

    ids: dict[str, str]
    arrays: str
    artifact: str

    def path(self, path: str) -> str:
        filled = path
        for name, value in self.ids.items():
            filled = filled.replace(f"{{{name}}}", value)
        digest = self.arrays if "calibrations" in path else self.artifact
        return filled.replace("{sha256}", digest)


def things(served: Served, http: httpx.Client, name: str) -> Things:
    """One of everything, made by a project."""
    model = http.post("/v1/models", content=onnx_bytes(name.encode())).json()["id"]
    document = {"schema_version": 1, "inherits": PRESET, "name": f"chip-of-{name}"}
    hardware = http.post("/v1/hardware", json=document).json()["id"]
    stream = BytesIO()
    np.savez(stream, x=np.arange(len(name), dtype=np.float32))
    arrays = http.post("/v1/calibrations", content=stream.getvalue()).json()["sha256"]
    upload = http.post("/v1/uploads", json={"name": name}).json()["id"]
    job = http.post("/v1/jobs", json={"model": model, "hardware": hardware}).json()["id"]
    deadline = time.monotonic() + 120  # the first job of a checkout compiles its loops
    while (found := http.get(f"/v1/jobs/{job}").json())["state"] not in {"succeeded", "failed"}:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert found["state"] == "succeeded", found
    artifact = http.get(f"/v1/jobs/{job}/artifacts").json()["items"][0]["sha256"]
    entry = http.get("/v1/cache/entries").json()["items"][0]["digest"]
    asked = {"models": [model], "hardware": [hardware]}
    sweep = http.post("/v1/sweeps", json=asked).json()["id"]
    while http.get(f"/v1/sweeps/{sweep}").json()["state"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    hook = http.post("/v1/webhooks", json={"url": f"https://{name}.example.com/"}).json()["id"]
    message = http.post(f"/v1/webhooks/{hook}/ping").json()["id"]
    link = http.post(f"/v1/jobs/{job}/links").json()["id"]
    return Things(
        {"model_id": model, "hardware_id": hardware, "upload_id": upload, "job_id": job,
         "signature": entry, "webhook_id": hook, "delivery_id": message, "sweep_id": sweep,
         "link_id": link},
        arrays, artifact,
    )  # fmt: skip


def questions(served: Served, path: str, values: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Each parameter of a query with each value, and those that must be there with it."""
    operation = served.http.get("/openapi.json").json()["paths"][path]["get"]
    found = [one for one in operation.get("parameters", ()) if one["in"] == "query"]
    for parameter in found:
        needed = {one["name"] for one in found if one["required"]} | {parameter["name"]}
        yield from (dict.fromkeys(needed, value) for value in values)


def test_another_projects_things_are_not_there(serve: Serve) -> None:
    """Every route with an id, from the API's own description: 404 for others, who may do all that
    is done in a project, and so after it everything is still there."""
    served = serve(require_key=True)
    lead = SCOPES_OF[Role.LEAD]
    with as_project(served, "a") as own, as_project(served, "b", *lead) as other:
        mine = things(served, own, "first")
        mine.ids["key_id"] = key_of(served, "a", Scope.READ)[0]
        with_ids = [
            (method, path) for method, path in operations(served)
            if "{" in path and path not in FREE and scope_of(method, path) is not Scope.ADMIN
        ]  # fmt: skip
        assert len(with_ids) > 20
        for method, path in with_ids:
            extra: dict[str, Any] = {}
            if method == "PATCH":
                extra = {"headers": {"Upload-Offset": "0"}, "content": b"x"}
            if path.endswith("/preflight"):
                extra = {"params": {"hardware": PRESET}}
            if path.endswith("/role"):
                extra = {"json": {"role": "reader"}}
            assert_problem(other.request(method, mine.path(path), **extra), 404, "TW-SVC-001")
        for method, path in with_ids:
            if method == "GET" and not path.endswith(("/preflight", "/graph", "/events")):
                answer = own.get(mine.path(path))
                assert answer.status_code in {200, 404}, (path, answer.text)
                if answer.status_code == 404:  # the toy payload leaves fewer files than a job
                    assert "the job has no" in answer.json()["detail"], path
        known = (*mine.ids.values(), mine.arrays, mine.artifact)
        asked = 0
        for method, path in operations(served):
            if path == "/v1/audit":  # what was asked for in vain above stands there as it was asked
                rows = other.get(path, params={"limit": 200}).json()["items"]
                assert {row["project"] for row in rows} == {"b"}
            elif method == "GET" and "{" not in path and path not in FREE | {"/v1/metrics"}:
                text = other.get(path).text
                assert not [value for value in known if value in text], path
                for given in questions(served, path, known):
                    asked += 1
                    answer = other.get(path, params=given)
                    others = [value for value in known if value not in given.values()]
                    assert not [value for value in others if value in answer.text], (path, given)
                    assert path != "/v1/compare" or answer.status_code == 404, given
        assert asked > 100
        base = {"base": f"{mine.ids['sweep_id']}:0", "head": mine.ids["job_id"]}
        assert_problem(other.get("/v1/compare", params=base), 404, "TW-SVC-001")
        found = {given["job"]: own.get("/v1/cache/entries", params=given).text
                 for given in ({"job": mine.ids["job_id"]},)}  # fmt: skip
        assert mine.ids["signature"] in found[mine.ids["job_id"]], "the same question finds it"


def test_a_job_names_only_what_its_project_has(serve: Serve) -> None:
    served = serve(require_key=True)
    with as_project(served, "a") as own, as_project(served, "b") as other:
        mine, theirs = things(served, own, "first"), things(served, other, "second")
        given = [
            {"model": mine.ids["model_id"], "hardware": PRESET},
            {"model": theirs.ids["model_id"], "hardware": mine.ids["hardware_id"]},
            {"model": theirs.ids["model_id"], "hardware": PRESET,
             "options": {"inputs": mine.arrays}},
        ]  # fmt: skip
        for body in given:
            assert_problem(other.post("/v1/jobs", json=body), 404, "TW-SVC-001")
            swept = {"models": [theirs.ids["model_id"], body["model"]],
                     "options": body.get("options", {})}  # fmt: skip
            for machines in ({"hardware": [PRESET, body["hardware"]]},
                             {"base": body["hardware"], "vary": ["clock_hz=x1,x2"]}):  # fmt: skip
                refused = other.post("/v1/sweeps", json={**swept, **machines})
                assert_problem(refused, 404, "TW-SVC-001")
        preflight = f"/v1/models/{theirs.ids['model_id']}/preflight"
        asked = other.get(preflight, params={"hardware": mine.ids["hardware_id"]})
        assert_problem(asked, 404, "TW-SVC-001")


def test_equal_things_are_stored_once_and_belong_to_both(serve: Serve) -> None:
    served = serve(require_key=True)
    with as_project(served, "a") as own, as_project(served, "b") as other:
        document = {"schema_version": 1, "inherits": PRESET, "name": "shared-chip"}
        made = [http.post("/v1/hardware", json=document) for http in (own, other, other)]
        assert [answer.status_code for answer in made] == [201, 201, 200]
        assert len({answer.json()["id"] for answer in made}) == 1
        for http in (own, other):
            [row] = http.get("/v1/hardware").json()["items"]
            assert row["id"] == made[0].json()["id"]
            assert http.get(f"/v1/hardware/{row['id']}").status_code == 200
        key = {"Idempotency-Key": "the same"}
        models = [
            http.post("/v1/models", content=onnx_bytes(), headers=key).json()["id"]
            for http in (own, other)
        ]
        assert models[0] != models[1]


@pytest.mark.parametrize("share", [False, True])
def test_projects_share_a_cache_when_told(serve: Serve, share: bool) -> None:
    served = serve(require_key=True, share_cache=share)
    with as_project(served, "a") as own, as_project(served, "b") as other:
        things(served, own, "same")
        filled = query.cache_stats(served.services.database)
        mine = things(served, other, "same")
        after = query.cache_stats(served.services.database)
        if share:
            assert sum(row.entries for row in after) == sum(row.entries for row in filled)
            assert sum(row.hits for row in after) > sum(row.hits for row in filled)
        else:
            assert sum(row.entries for row in after) == 2 * sum(row.entries for row in filled)
        entry = other.get(f"/v1/cache/entries/{mine.ids['signature']}").json()
        assert entry["digest"] == mine.ids["signature"]
        assert other.get("/v1/cache/stats").json()["entries"] == sum(r.entries for r in filled)
        assert other.post("/v1/cache/prune", json={"unused_for_s": 0}).json()["dropped"] > 0
        left = own.get("/v1/cache/stats").json()["entries"]
        assert left == (0 if share else sum(row.entries for row in filled))


def test_keys_over_http(serve: Serve) -> None:
    served = serve(worker=False, require_key=True)
    with as_project(served, "ops", Scope.ADMIN) as http:
        body = {"name": "ci", "scopes": ["read", "write"], "project": "vision", "days": 30}
        twice = {"Idempotency-Key": "k"}
        made = http.post("/v1/keys", json=body, headers=twice)
        assert made.status_code == 201
        assert made.headers["cache-control"] == "no-store"
        repeat = assert_problem(http.post("/v1/keys", json=body, headers=twice), 409, "TW-SVC-002")
        assert "told once" in repeat["detail"]
        document = made.json()
        assert document["live"]
        assert document["key"].startswith(document["prefix"] + ".")
        assert document["expires"] == pytest.approx(document["created"] + 30 * 86400)
        listed = {row["id"]: row for row in http.get("/v1/keys").json()["items"]}
        row = listed[document["id"]]
        assert row == {name: value for name, value in document.items() if name != "key"}
        assert document["key"].partition(".")[2] not in http.get("/v1/keys").text
        assert served.http.get("/v1/jobs", headers=sent(document["key"])).status_code == 200
        used = {row["id"]: row for row in http.get("/v1/keys").json()["items"]}[document["id"]]
        assert used["last_used"] >= used["created"]
        assert http.delete(f"/v1/keys/{document['id']}").status_code == 204
        assert http.delete(f"/v1/keys/{document['id']}").status_code == 204
        assert_problem(http.delete("/v1/keys/key_none"), 404, "TW-SVC-001")
        for name, value in (
            ("scopes", []), ("scopes", ["all"]), ("project", "../x"), ("project", ""),
            ("days", 0), ("name", ""),
        ):  # fmt: skip
            wrong = http.post("/v1/keys", json={**body, name: value})
            assert name in json.dumps(assert_problem(wrong, 422, "TW-SVC-004")["errors"])


def test_a_database_that_is_away_is_no_refusal(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlalchemy.exc import OperationalError

    def fail(*_: object) -> None:
        raise OperationalError("SELECT", {}, Exception("gone"))

    served = serve(worker=False, require_key=True)
    text = key_of(served, "a")[1]
    monkeypatch.setattr(callers, "recognised", fail)
    problem = assert_problem(served.http.get("/v1/jobs", headers=sent(text)), 503, "TW-SVC-005")
    assert problem["retryable"]


def test_clients_send_the_key_of_the_environment(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(worker=False, require_key=True)
    monkeypatch.delenv("TILEWRIGHT_KEY", raising=False)
    with Client(served.url) as client, pytest.raises(ApiError) as refused:
        client.get("/v1/jobs")
    assert refused.value.code == "TW-SVC-019"
    monkeypatch.setenv("TILEWRIGHT_KEY", key_of(served, "a", *Scope)[1])
    with Client(served.url) as client:
        assert client.get("/v1/jobs")["items"] == []
    runner = CliRunner()
    given = ["--server", served.url]
    made = runner.invoke(app, ["keys", "create", "ci", "--project", "b", "--days", "3", *given])
    assert made.exit_code == 0, made.output
    with Client(served.url, key=made.stdout.strip()) as client:
        assert client.get("/v1/jobs")["items"] == []
        with pytest.raises(ApiError):
            client.get("/v1/keys")
    rows = json.loads(runner.invoke(app, ["keys", "ls", "--json", *given]).stdout)["items"]
    [row] = [row for row in rows if row["name"] == "ci"]
    assert (row["project"], row["scopes"]) == ("b", ["read", "write"])
    assert runner.invoke(app, ["keys", "revoke", row["id"], *given]).exit_code == 0
    assert row["role"] == "developer"
    lower = runner.invoke(app, ["keys", "role", row["id"], "reader", *given])
    assert lower.exit_code == 3, lower.output  # it is revoked
    both = ["keys", "create", "y", "--role", "reader", "--scope", "read", *given]
    assert runner.invoke(app, both).exit_code == 2
    made = runner.invoke(app, ["keys", "create", "y", "--role", "operator", "--json", *given])
    key = json.loads(made.stdout)
    lower = runner.invoke(app, ["keys", "role", key["id"], "reader", "--json", *given])
    assert json.loads(lower.stdout)["scopes"] == ["read"]
    shown = runner.invoke(app, ["keys", "ls", *given]).stdout
    assert "revoked" in next(line for line in shown.splitlines() if row["id"] in line)


def test_the_data_directory_needs_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the environment is that of a server that others reach."""
    monkeypatch.setenv("TILEWRIGHT_HOST", "0.0.0.0")
    monkeypatch.setenv("TILEWRIGHT_KEY", new_key()[1])
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path))
    made = CliRunner().invoke(app, ["keys", "create", "x", "--scope", "metrics", "--json"])
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["scopes"] == ["metrics"]


def test_the_page_on_keys_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands run, and it says what each scope is for."""
    page = Path(__file__, "../../../docs/keys.md").resolve().read_text()
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path))
    settings = Settings(data_dir=tmp_path)
    migrate(settings.database_url)
    database = Database(settings.database_url)
    assert keys.first_key(database, lambda _: None)
    lines = [command.line for command in commands(page)]
    assert lines[0].startswith("docker compose exec api cat ")  # the composed server's own
    assert len(lines) == 7
    for line in lines[1:]:
        program, *words = shlex.split(line)
        assert program == "tilewright"
        ran = CliRunner().invoke(app, words)
        assert ran.exit_code == 0, ran.output
    assert re.findall(r"^\| `(\w+)` \| `[a-z`, ]+` \|", page, re.MULTILINE) == list(Role)
    states = {row.name: row.is_live for row in keys.list_keys(database)}
    assert states == {"ci": True, "board": True, "first": False}
    database.close()
    named = re.findall(r"^\| `(\w+)` \|(?! `[a-z`, ]+` \|$)", page, re.MULTILINE)
    assert [name for name in named if name.islower()] == list(Scope)
    told = {name.removeprefix("TILEWRIGHT_").lower() for name in named if name.isupper()}
    ours = {"key_rate", "project_rate", "guess_rate", "rate_store_url"}
    assert told == {*ours, "max_active_jobs", "max_project_bytes"}
    assert told <= set(Settings.model_fields)


def test_the_first_key_is_made_once(database_url: str) -> None:
    database = Database(database_url)

    def fail(_: str) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        keys.first_key(database, fail)
    assert keys.list_keys(database) == ()
    kept: list[str] = []
    assert keys.first_key(database, kept.append)
    found = keys.recognised(database, kept[0])
    assert found is not None
    assert set(found[0].scopes) == set(Scope)
    keys.revoke_key(database, found[0].id)
    assert not keys.first_key(database, kept.append)
    assert len(kept) == 1
    database.close()


def test_a_server_that_needs_keys_writes_the_first(tmp_path: Path) -> None:
    """Once: started again it says nothing of it."""
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("TILEWRIGHT_")},
        "TILEWRIGHT_DATA_DIR": str(tmp_path),
    }
    path = tmp_path / FIRST_KEY
    said = []
    for _ in range(2):
        server = subprocess.Popen(
            [sys.executable, "-m", "service.cli.main", "serve", "--port", "0", "--require-key"],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert server.stdout
            url = server.stdout.readline().strip()
            assert httpx.get(f"{url}/v1/keys").status_code == 401
            rows = httpx.get(f"{url}/v1/keys", headers=sent(path.read_text().strip())).json()
            assert [row["name"] for row in rows["items"]] == ["first"]
        finally:
            server.terminate()
            said.append(server.communicate(timeout=30)[1])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [str(path) in text for text in said] == [True, False]
