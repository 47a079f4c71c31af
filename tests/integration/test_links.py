"""Links that are shared: who has one, who can end it, and what is told of one that has ended."""

from __future__ import annotations

import json

import httpx
import pytest
from api_fixtures import Serve, Served, assert_problem
from sqlalchemy import update
from typer.testing import CliRunner

from service.cli.main import app
from service.jobs import links
from service.jobs.keys import create_key
from service.jobs.reconcile import collect_garbage
from service.keys import SCOPES_OF, Role
from service.store.tables import LinkRow, db_now


def bearer(served: Served, project: str, role: Role = Role.DEVELOPER) -> dict[str, str]:
    scopes = sorted(SCOPES_OF[role])
    text = create_key(served.services.database, project=project, name=role, scopes=scopes)[1]
    return {"Authorization": f"Bearer {text}"}


def expire(served: Served, link: str) -> None:
    with served.services.database.write() as session:
        session.execute(
            update(LinkRow).where(LinkRow.id == link).values(expires=db_now() - 1)
        )  # fmt: skip


@pytest.fixture
def shared(serve: Serve) -> tuple[Served, str]:
    """A server with keys, and a job of the project `a`."""
    served = serve(worker=False, require_key=True)
    served.http.headers.update(bearer(served, "a"))
    return served, str(served.submit()["id"])


def test_revoked_expired_and_never_made_are_answered_alike(shared: tuple[Served, str]) -> None:
    served, job = shared
    made = [served.http.post(f"/v1/jobs/{job}/links").json() for _ in range(3)]
    live, revoked, expired = made
    for link in made:
        assert link["expires"] - link["created"] == pytest.approx(7 * 86400)
        assert httpx.get(served.url + link["path"]).status_code == 200
    assert served.http.delete(f"/v1/links/{revoked['id']}").status_code == 204
    assert served.http.delete(f"/v1/links/{revoked['id']}").status_code == 204  # twice is fine
    expire(served, expired["id"])
    told = []
    for path in (revoked["path"], expired["path"], "/ui/shared/never"):
        for piece in ("", "/layers", "/layers/0", "/trace"):
            answer = httpx.get(served.url + path + piece)
            problem = assert_problem(answer, 404, "TW-SVC-001")
            told.append({k: v for k, v in problem.items() if k not in {"request_id", "instance"}})
    assert all(one == told[0] for one in told)
    assert httpx.get(served.url + live["path"]).status_code == 200
    rows = served.http.get("/v1/links").json()["items"]
    assert {row["id"]: row["revoked"] is None for row in rows} == {
        live["id"]: True, revoked["id"]: False,
    }  # fmt: skip
    assert rows == served.http.get(f"/v1/jobs/{job}/links").json()["items"]
    assert not any("path" in row for row in rows), "a link is told once"
    assert_problem(served.http.delete(f"/v1/links/{expired['id']}"), 404, "TW-SVC-001")
    collect_garbage(served.services.database, served.services.blobs, served.settings)
    with served.services.database.read() as session:
        assert {row.id for row in session.query(LinkRow)} == {live["id"], revoked["id"]}


def test_only_who_may_write_in_its_project_shares_a_job(shared: tuple[Served, str]) -> None:
    served, job = shared
    link = served.http.post(f"/v1/jobs/{job}/links", params={"days": 90}).json()
    reader, other = bearer(served, "a", Role.READER), bearer(served, "b")
    for method, path in (("POST", f"/v1/jobs/{job}/links"), ("DELETE", f"/v1/links/{link['id']}")):
        refused = served.http.request(method, path, headers=reader)
        assert assert_problem(refused, 403, "TW-SVC-020")["limit"] == "write"
        assert_problem(served.http.request(method, path, headers=other), 404, "TW-SVC-001")
    assert served.http.get("/v1/links", headers=other).json()["items"] == []
    assert len(served.http.get("/v1/links", headers=reader).json()["items"]) == 1
    for days in (0, 91, "x"):
        wrong = served.http.post(f"/v1/jobs/{job}/links", params={"days": days})
        assert_problem(wrong, 422, "TW-SVC-004")
    assert httpx.get(served.url + link["path"]).status_code == 200


def test_a_link_goes_with_its_job(shared: tuple[Served, str]) -> None:
    served, job = shared
    link = served.http.post(f"/v1/jobs/{job}/links").json()
    served.http.post(f"/v1/jobs/{job}/cancel")
    assert served.http.delete(f"/v1/jobs/{job}").status_code == 204
    assert_problem(httpx.get(served.url + link["path"]), 404, "TW-SVC-001")
    assert served.http.get("/v1/links").json()["items"] == []


def test_links_of_one_job_are_bounded(
    shared: tuple[Served, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served, job = shared
    monkeypatch.setattr(links, "MOST", 2)
    for status in (201, 201, 429):
        assert served.http.post(f"/v1/jobs/{job}/links").status_code == status


def test_the_command_line_shares(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    served = serve(worker=False)
    job = str(served.submit()["id"])

    def run(*words: str) -> str:
        done = CliRunner().invoke(app, ["links", *words, "--server", served.url])
        assert done.exit_code == 0, done.output
        return done.stdout

    url = run("create", job, "--days", "2").strip()
    assert url.startswith(f"{served.url}/ui/shared/link_")
    assert httpx.get(url).status_code == 200
    [row] = json.loads(run("ls", job, "--json"))["items"]
    assert "live" in run("ls")
    run("revoke", row["id"])
    assert httpx.get(url).status_code == 404
    assert "revoked" in run("ls", job)


def test_a_page_lists_and_revokes(shared: tuple[Served, str]) -> None:
    served, job = shared
    told = served.http.post(f"/ui/jobs/{job}/links").text
    [row] = served.http.get("/v1/links").json()["items"]
    assert f'data-post="/ui/jobs/{job}/links/{row["id"]}/revoke"' in told
    other = bearer(served, "b")
    place = f"/ui/jobs/{job}/links/{row['id']}/revoke"
    assert served.http.post(place, headers=other).status_code == 404
    assert "No link leads to this page" in served.http.post(place).text
    [row] = served.http.get("/v1/links").json()["items"]
    assert row["revoked"] is not None
