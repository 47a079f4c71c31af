"""The pages over HTTP: who may open them, what they let a browser load, and what they refuse."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_fixtures import Serve, Served, assert_problem
from page_payloads import HOSTILE, LAYERS
from starlette.routing import Route

from service.api import callers
from service.api.app import PAGES
from service.api.sessions import COOKIE, Signer
from service.jobs import keys
from service.keys import Scope
from service.settings import Settings

HTML = {"Accept": "text/html,application/xhtml+xml"}
READER = (Scope.READ, Scope.WRITE)
PLACES = sorted(
    (method, route.path)
    for module in PAGES
    for route in module.router.routes
    if isinstance(route, Route)
    for method in route.methods or ()
)


def key_of(served: Served, project: str, *scopes: Scope) -> tuple[str, str]:
    record, text = keys.create_key(
        served.services.database, project=project, name="of a test", scopes=scopes or READER
    )
    return record.id, text


@contextmanager
def logged_in(served: Served, text: str) -> Iterator[httpx.Client]:
    """A browser that has shown a key."""
    with httpx.Client(base_url=served.url, headers=HTML, timeout=30) as browser:
        answer = browser.post("/ui/login", data={"key": text}, headers={"Origin": served.url})
        assert answer.status_code == 303, answer.text
        yield browser


def a_job(served: Served, http: httpx.Client) -> str:
    """A job of the project of `http`, when it has ended."""
    model = http.post("/v1/models", params={"name": "many"}, content=b"\x08\x08\x32\x01a").json()
    body = {"model": model["id"], "hardware": "kapla-16x16"}
    job = http.post("/v1/jobs", json=body).json()["id"]
    deadline = time.monotonic() + 60
    while http.get(f"/v1/jobs/{job}").json()["state"] != "succeeded":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return str(job)


@pytest.fixture
def guarded(serve: Serve) -> Iterator[Served]:
    yield serve("page_payloads:many_layers", require_key=True)


def test_browsers_are_brought_to_the_pages(serve: Serve) -> None:
    served = serve(worker=False)
    assert served.http.get("/", headers=HTML).headers["location"] == "/ui/"
    assert served.http.get("/ui", headers=HTML).headers["location"] == "/ui/"
    assert_problem(served.http.get("/"), 404, "TW-SVC-001")
    assert "No jobs yet" in served.http.get("/ui/", headers=HTML).text


def test_without_a_key_a_page_asks_for_one(guarded: Served) -> None:
    """And a piece of a page, which nobody can answer a question in, is refused."""
    for method, path in PLACES:
        if path.startswith("/ui/shared/") or path in callers.ENTRANCE:
            continue
        filled = re.sub(r"\{\w+\}", "1", path)
        answer = guarded.http.request(method, filled, headers=HTML)
        if method == "GET":
            assert answer.status_code == 303, path
            assert answer.headers["location"].startswith("/ui/login?next=/ui")
        else:
            assert_problem(answer, 401, "TW-SVC-019")
        assert_problem(guarded.http.request(method, filled), 401, "TW-SVC-019")
    assert guarded.http.get("/ui/static/style.css").status_code == 200


def test_a_key_is_shown_once(guarded: Served) -> None:
    _, text = key_of(guarded, "a")
    with httpx.Client(base_url=guarded.url, headers=HTML) as browser:
        page = browser.get("/ui/login", params={"next": "/ui/new"}).text
        assert 'name="next" value="/ui/new"' in page
        wrong = browser.post("/ui/login", data={"key": "tw_x"}, headers={"Origin": guarded.url})
        assert wrong.status_code == 401
        assert "TW-SVC-019" in wrong.text
        assert not browser.cookies
        sent = {"key": text, "next": "/ui/new"}
        right = browser.post("/ui/login", data=sent, headers={"Origin": guarded.url})
        assert (right.status_code, right.headers["location"]) == (303, "/ui/new")
        cookie = SimpleCookie(right.headers["set-cookie"])[COOKIE]
        assert cookie["httponly"] is True
        assert cookie["samesite"].lower() == "strict"
        assert cookie["path"] == "/"
        assert text not in right.headers["set-cookie"]
        assert text.partition(".")[2] not in cookie.value
        assert browser.get("/ui/new").status_code == 200
        assert browser.get("/v1/jobs").json()["items"] == []
        browser.post("/ui/logout", headers={"Origin": guarded.url})
        assert browser.get("/ui/new").status_code == 303


@pytest.mark.parametrize(
    "target",
    ["//evil.example", "https://evil.example/", "/v1/jobs", "/ui/\\evil", "", "/ui/\r\nX: y"],
)
def test_logging_in_leads_nowhere_else(serve: Serve, target: str) -> None:
    served = serve(worker=False, require_key=True)
    sent = {"key": key_of(served, "a")[1], "next": target}
    answer = served.http.post("/ui/login", data=sent)
    assert answer.headers["location"] == "/ui/"


def test_a_key_that_may_not_read_opens_nothing(guarded: Served) -> None:
    answer = guarded.http.post("/ui/login", data={"key": key_of(guarded, "a", Scope.METRICS)[1]})
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_a_session_ends_with_its_key(guarded: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "KNOWN_S", 0.0)
    key_id, text = key_of(guarded, "a")
    with logged_in(guarded, text) as browser:
        assert browser.get("/ui/").status_code == 200
        keys.revoke_key(guarded.services.database, key_id)
        assert browser.get("/ui/").status_code == 303


def test_a_session_has_the_scopes_of_its_key(guarded: Served) -> None:
    with logged_in(guarded, key_of(guarded, "a", Scope.READ)[1]) as browser:
        refused = browser.delete("/v1/jobs/job_x", headers={"Origin": guarded.url})
        assert_problem(refused, 403, "TW-SVC-020")


def test_a_session_changes_nothing_from_elsewhere(guarded: Served) -> None:
    """A browser says where a request comes from; with a session, saying nothing is not enough."""
    port = guarded.url.rpartition(":")[2]
    with logged_in(guarded, key_of(guarded, "a")[1]) as browser:
        for headers in (
            {}, {"Origin": "http://evil.example"}, {"Origin": "null"},
            {"Origin": f"http://127.0.0.1:{int(port) + 1}"}, {"Sec-Fetch-Site": "same-site"},
        ):  # fmt: skip
            refused = browser.post("/v1/uploads", json={"name": "x"}, headers=headers)
            assert_problem(refused, 403, "TW-SVC-016")
        own = browser.post("/v1/uploads", json={"name": "x"}, headers={"Origin": guarded.url})
        assert own.status_code == 201
        fetched = {"Sec-Fetch-Site": "same-origin"}
        assert browser.post("/v1/uploads", json={"name": "y"}, headers=fetched).status_code == 201


@pytest.mark.parametrize("change", ["name", "until", "mac", "purpose"])
def test_a_session_cannot_be_made_up(guarded: Served, change: str) -> None:
    _, text = key_of(guarded, "a")
    prefix = text[3:].partition(".")[0]
    signer = Signer(guarded.settings)
    good = signer.sign("session", prefix, 60)
    name, until, mac = good.split(".")
    changed = {
        "name": f"{name[:-1]}{'2' if name[-1] != '2' else '3'}.{until}.{mac}",
        "until": f"{name}.{int(until) + 1}.{mac}",
        "mac": f"{name}.{until}.{mac[:-1]}{'0' if mac[-1] != '0' else '1'}",
        "purpose": signer.sign("share", prefix, 60),
    }[change]
    for value, status in ((good, 200), (changed, 303)):
        answer = guarded.http.get("/ui/", headers={**HTML, "Cookie": f"{COOKIE}={value}"})
        assert answer.status_code == status


def test_what_was_signed_ends(tmp_path: Path) -> None:
    signer = Signer(Settings(data_dir=tmp_path, session_secret="x"))
    assert signer.read("a", signer.sign("a", "n.a.me", 60)) is not None
    assert signer.read("a", signer.sign("a", "name", 0)) is None
    for broken in ("", ".", "..", "name", "a.b.c", "a.99999999999999999.c", "a.²2.c"):
        assert signer.read("a", broken) is None
    other = Signer(Settings(data_dir=tmp_path, session_secret="y"))
    assert other.read("a", signer.sign("a", "name", 60)) is None


def test_servers_on_one_data_directory_know_each_others_sessions(tmp_path: Path) -> None:
    first, second = (Signer(Settings(data_dir=tmp_path)) for _ in range(2))
    assert second.read("a", first.sign("a", "name", 60)) is not None
    assert (tmp_path / "session-secret").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["session-secret"]


def test_a_page_of_another_project_is_not_there(guarded: Served) -> None:
    """Every page of a job, by every method that it has."""
    with (
        logged_in(guarded, key_of(guarded, "a")[1]) as own,
        logged_in(guarded, key_of(guarded, "b")[1]) as other,
    ):
        own.headers["Origin"] = other.headers["Origin"] = guarded.url
        job = a_job(guarded, own)
        document = {"schema_version": 1, "inherits": "kapla-16x16", "name": "many-secrets"}
        chip = own.post("/v1/hardware", json=document).json()["id"]
        model = own.get(f"/v1/jobs/{job}").json()["model"]
        asked = {"models": [model], "hardware": [chip], "label": "many"}
        sweep = own.post("/v1/sweeps", json=asked).json()["id"]
        with_ids = [(m, p) for m, p in PLACES if "{" in p and "{token}" not in p]
        assert len(with_ids) > 9
        for method, path in with_ids:
            filled = path.replace("{job_id}", job).replace("{row}", "0")
            filled = filled.replace("{sweep_id}", sweep).replace("{name}", chip)
            answer = other.request(method, filled)
            assert answer.status_code == 404, (method, path)
            assert "many" not in answer.text
        for path in (f"/ui/sweeps/{sweep}", f"/ui/hardware/{chip}"):
            assert own.get(path).status_code == 200
        for path in ("/ui/sweeps", "/ui/sweeps/new", "/ui/hardware", "/ui/new", "/ui/compare"):
            for given in ({}, {"base": job, "head": job}, {"base": f"{sweep}:0", "head": job},
                          {"model": model, "hardware": chip, "from": chip}):  # fmt: skip
                text = other.get(path, params=given).text
                told = [
                    one
                    for one in (job, sweep, chip, model)
                    if one in text and not any(one in value for value in given.values())
                ]
                assert not told, (path, given)
                assert document["name"] not in text, (path, given)
        assert job not in other.get("/ui/").text
        assert job not in other.get("/ui/compare").text
        assert job in own.get("/ui/").text


def test_a_link_shows_one_job_until_it_ends(guarded: Served) -> None:
    with logged_in(guarded, key_of(guarded, "a")[1]) as own:
        own.headers["Origin"] = guarded.url
        job = a_job(guarded, own)
        told = own.post(f"/ui/jobs/{job}/links").text
    link = re.search(r'value="([^"]*)"', told)
    assert link
    page = httpx.get(link[1], headers=HTML)
    assert page.status_code == 200
    assert "many" in page.text
    assert "/v1/" not in page.text, "what a link shows must not ask for more than it reaches"
    rows = httpx.get(f"{link[1]}/layers").json()["rows"]
    assert len(rows) == LAYERS
    assert httpx.get(f"{link[1]}/layers/3", headers=HTML).status_code == 200
    assert httpx.get(f"{link[1]}/trace").status_code == 200
    base, _, token = link[1].rpartition("/")
    name, until, mac = token.split(".")
    late = Signer(guarded.settings).sign("share", name, 0)
    unknown = Signer(guarded.settings).sign("share", job, 60)  # well signed, and of no link
    for wrong in (f"{name}x.{until}.{mac}", f"{name}.{int(until) + 9}.{mac}", late, unknown, "x"):
        assert httpx.get(f"{base}/{wrong}", headers=HTML).status_code == 404
    for method in ("POST", "DELETE", "PUT"):
        assert httpx.request(method, link[1]).status_code in {401, 405}


def test_pages_let_a_browser_load_nothing_else(guarded: Served) -> None:
    """No inline script or style, nothing of another origin, in no page and no piece."""
    with logged_in(guarded, key_of(guarded, "a")[1]) as own:
        own.headers["Origin"] = guarded.url
        job = a_job(guarded, own)
        link = re.search(r'value="([^"]*)"', own.post(f"/ui/jobs/{job}/links").text)
        assert link
        for place in (
            "/ui/", "/ui/new", "/ui/compare", "/ui/login", f"/ui/jobs/{job}", "/ui/jobs/none",
            f"/ui/jobs/{job}/layers/5", link[1],
        ):  # fmt: skip
            answer = own.get(place)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'self'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"
            text = answer.text
            inline = r"<script(?![^>]*\bsrc=)|<style|<[^>]*\s(style|on[a-z]+)="
            assert not re.search(inline, text), place
            loaded = re.findall(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="([^"]*)"', text)
            assert all(target.startswith("/ui/static/") for target in loaded), place
            for target in loaded:
                assert own.get(target).status_code == 200, target


def test_files_of_pages_load_nothing_from_elsewhere() -> None:
    """Nor name another origin, save for a namespace."""
    folder = Path(__file__, "../../../service/pages/static").resolve()
    files = sorted(folder.iterdir())
    assert {path.suffix for path in files} == {".css", ".js", ".svg"}
    for path in files:
        found = set(re.findall(r"https?://[^\s\"')]+", path.read_text()))
        assert found <= {"http://www.w3.org/2000/svg"}, path.name
        assert "eval(" not in path.read_text()


def test_what_jobs_say_is_shown_and_not_obeyed(guarded: Served) -> None:
    with logged_in(guarded, key_of(guarded, "a")[1]) as own:
        own.headers["Origin"] = guarded.url
        job = a_job(guarded, own)
        page = own.get(f"/ui/jobs/{job}").text
        assert HOSTILE not in page
        assert "&lt;img" in page
        assert HOSTILE not in own.get(f"/ui/jobs/{job}/layers/{LAYERS - 1}").text
        refused = own.get(f"/ui/jobs/{job}/layers/{LAYERS}", headers={"Accept": "*/*"})
        assert_problem(refused, 404, "TW-SVC-001")


def test_a_report_of_another_shape_is_no_fault(serve: Serve) -> None:
    served = serve("quick")
    job = served.ended(served.submit()["id"])
    page = served.http.get(f"/ui/jobs/{job['id']}", headers=HTML)
    assert page.status_code == 200
    assert "has another shape" in page.text


def test_jobs_are_filtered(serve: Serve) -> None:
    served = serve(worker=False)
    ids = {label: served.submit(label=label)["id"] for label in ("red", "blue")}
    shown: dict[str, Any] = {"label": "red", "state": "queued", "model": "", "strategy": "auto"}
    page = served.http.get("/ui/", params=shown, headers=HTML).text
    assert ids["red"] in page
    assert ids["blue"] not in page
    none = served.http.get("/ui/", params={"label": "green"}, headers=HTML).text
    assert "No job is like that" in none
    piece = served.http.get("/ui/", headers={"Tilewright-Piece": "jobs"}).text
    assert "<html" not in piece
    assert 'data-moving="1"' in piece
    assert served.http.get("/ui/", params={"state": "asleep"}, headers=HTML).status_code == 422
    assert served.http.get("/ui/", params={"lable": "x"}, headers=HTML).status_code == 422
