"""The edge: whose requests a server on loopback takes, and what a slow client can hold."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from api_fixtures import Serve, assert_problem, onnx_bytes
from starlette.routing import Route

from service.api.app import PAGES
from service.api.readiness import ANSWER_S
from service.errors import NotFound
from service.hosts import host_name, is_loopback
from service.jobs import query


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost:80", "localhost"),
        ("LocalHost.", "localhost"),
        ("[::1]:8080", "::1"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1.evil.example:8080", "127.0.0.1.evil.example"),
        ("", ""),
        ("[::1", "::1"),
    ],
)
def test_the_name_of_a_host_header(host: str, name: str) -> None:
    assert host_name(host) == name


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.1", "::1", "LOCALHOST"])
def test_loopback_is_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "api"])
def test_what_others_reach_is_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_a_foreign_name_is_refused(serve: Serve) -> None:
    http = serve(worker=False, allowed_hosts=("api", "Other.Example")).http
    for host in (
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:8080",
        "10.1.1.1",
    ):
        for path in ("/healthz", "/v1/jobs"):
            problem = assert_problem(http.get(path, headers={"Host": host}), 403, "TW-SVC-016")
            assert problem["pointer"] == "header:Host"
    for host in ("localhost", "LOCALHOST:99", "[::1]:80", "127.0.0.1", "api:8080", "other.example"):
        assert http.get("/healthz", headers={"Host": host}).status_code == 200, host


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Origin", "http://evil.example"),
        ("Origin", "null"),
        ("Origin", "http://localhost:1"),
        ("Origin", "http://[broken"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
    ],
)
def test_a_foreign_page_changes_nothing(serve: Serve, name: str, value: str) -> None:
    served = serve(worker=False)
    job = served.submit()["id"]
    sent = {name: value}
    for response in (
        served.http.post("/v1/models", content=onnx_bytes(), headers=sent),
        served.http.post(f"/v1/jobs/{job}/cancel", headers=sent),
        served.http.delete(f"/v1/jobs/{job}", headers=sent),
        served.http.post("/v1/hardware", content=b"{}", headers=sent),
    ):
        assert assert_problem(response, 403, "TW-SVC-016")["pointer"] == f"header:{name}"
    assert served.http.get(f"/v1/jobs/{job}", headers=sent).json()["state"] == "queued"


def test_no_route_is_reached_from_elsewhere(serve: Serve) -> None:
    """Of the API's own description and of the pages: a page of another origin changes nothing, and
    a name that somebody else gave to this address reaches nothing."""
    served = serve(worker=False)
    paths = served.http.get("/openapi.json").json()["paths"]
    found = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    found += [
        (method, route.path) for module in PAGES for route in module.router.routes
        if isinstance(route, Route) for method in route.methods or ()
    ]  # fmt: skip
    assert len(found) > 80
    foreign = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    for method, path in found:
        filled = re.sub(r"\{\w+\}", "1", path)
        named = served.http.request(method, filled, headers={"Host": "evil.example"})
        assert assert_problem(named, 403, "TW-SVC-016")["pointer"] == "header:Host", path
        if method not in {"GET", "HEAD"}:
            for name, value in foreign.items():
                answer = served.http.request(method, filled, headers={name: value})
                problem = assert_problem(answer, 403, "TW-SVC-016")
                assert problem["pointer"] == f"header:{name}", (method, path)


def test_the_servers_own_page_may(serve: Serve) -> None:
    served = serve(worker=False)
    sent = {"Origin": served.url, "Sec-Fetch-Site": "same-origin"}
    assert served.http.post("/v1/models", content=onnx_bytes(), headers=sent).status_code == 201


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded"])
def test_what_any_form_can_send_is_no_request(serve: Serve, media: str) -> None:
    served = serve(worker=False)
    body = json.dumps({"model": served.model()["id"], "hardware": "kapla-16x16"}).encode()
    sent = {"Content-Type": media}
    assert served.http.post("/v1/jobs", content=body, headers=sent).status_code in {415, 422}
    assert served.http.get("/v1/jobs").json()["items"] == []
    for path, what in (
        ("/v1/models", onnx_bytes()),
        ("/v1/hardware", b"{}"),
        ("/v1/hardware/lint", b"{}"),
    ):
        assert_problem(served.http.post(path, content=what, headers=sent), 415, "TW-SVC-013")


def raw(url: str, *pieces: bytes) -> tuple[bytes, float]:
    """Send bytes, then nothing: what came back until the server closed, and after how long."""
    parts = urlsplit(url)
    assert parts.hostname and parts.port
    with socket.create_connection((parts.hostname, parts.port), timeout=15) as connection:
        started = time.monotonic()
        for piece in pieces:
            connection.sendall(piece)
        answer = b""
        while more := connection.recv(65536):
            answer += more
    return answer, time.monotonic() - started


@pytest.mark.parametrize("route", ["POST /v1/models", "POST /v1/jobs", "POST /v1/hardware"])
def test_half_a_body_is_given_up(serve: Serve, route: str) -> None:
    served = serve(worker=False, slow_client_s=0.5)
    media = "application/octet-stream" if "models" in route else "application/json"
    head = (
        f"{route} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {media}\r\nContent-Length: 9\r\n\r\n"
    )
    answer, seconds = raw(served.url, head.encode(), b"\x08" if "models" in route else b"{")
    assert answer.startswith(b"HTTP/1.1 408 "), answer
    assert b"application/problem+json" in answer
    assert 0.4 < seconds < 5
    assert not [p for p in served.services.blobs.spool_dir.rglob("*") if p.is_file()]


def test_a_long_wait_for_a_job_is_no_slow_body(serve: Serve) -> None:
    served = serve(worker=False, slow_client_s=0.3)
    job = served.submit()["id"]
    assert served.http.get(f"/v1/jobs/{job}", headers={"Prefer": "wait=1"}).status_code == 200


def test_half_a_head_is_given_up(tmp_path: Path) -> None:
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("TILEWRIGHT_")},
        "TILEWRIGHT_DATA_DIR": str(tmp_path),
        "TILEWRIGHT_SLOW_CLIENT_S": "0.5",
    }
    server = subprocess.Popen(
        [sys.executable, "-m", "service.cli.main", "serve", "--port", "0"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout
        url = server.stdout.readline().strip()
        whole = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for pieces in ((), (b"GET /healthz HTTP/1.1\r\nHo",), (whole, b"GET /hea")):
            answer, seconds = raw(url, *pieces)
            assert 0.4 < seconds < 5, pieces
            assert answer.count(b"HTTP/1.1 200") == pieces.count(whole)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=20)
        assert server.stdout
        server.stdout.close()


def test_readiness_does_not_wait_for_who_hangs(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ANSWER_S <= 1, "of the 2 s that are promised"
    released = threading.Event()
    asked: list[int] = []

    def hang(*_: object) -> None:
        asked.append(1)
        released.wait(30)
        raise OSError("late")

    silent = socket.create_server(("127.0.0.1", 0))  # takes connections and says nothing
    served = serve(worker=False, broker_url=f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
    monkeypatch.setattr(query, "queue_stats", hang)
    monkeypatch.setattr(served.services.blobs, "head", hang, raising=True)
    try:
        for _ in range(2):
            started = time.monotonic()
            problem = assert_problem(served.http.get("/readyz"), 503, "TW-SVC-005")
            # Idle it takes ANSWER_S; here other tests want the processors too. Hanging takes 30 s.
            assert time.monotonic() - started < 5
            pointers = [finding["pointer"] for finding in problem["errors"]]
            assert pointers == ["/database", "/blobs", "/broker"]
        assert len(asked) == 2, "who hangs is not asked again"
        assert served.http.get("/healthz").status_code == 200
    finally:
        released.set()
        silent.close()


def test_it_says_that_it_lives_while_every_thread_is_taken(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prober that hears nothing kills the process, and with it what the threads are at."""
    released = threading.Event()
    asked = threading.Semaphore(0)

    def hang(*_: object) -> None:
        asked.release()
        released.wait(30)
        raise NotFound("no such job", actual="x")

    served = serve(worker=False)
    monkeypatch.setattr(query, "get_job", hang)
    askers = [
        threading.Thread(target=httpx.get, args=(f"{served.url}/v1/jobs/x",), daemon=True)
        for _ in range(60)
    ]
    try:
        for asker in askers:
            asker.start()
        for _ in range(40):  # as many threads as there are
            assert asked.acquire(timeout=20)
        started = time.monotonic()
        for path in ("/healthz", "/v1/version"):
            assert served.http.get(path).status_code == 200
        assert time.monotonic() - started < 5  # the threads are taken for longer
    finally:
        released.set()
        for asker in askers:
            asker.join(30)


def test_readiness_names_a_broker_that_is_gone(serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    served = serve(worker=False, broker_url=f"redis://127.0.0.1:{port}/0")
    problem = assert_problem(served.http.get("/readyz"), 503, "TW-SVC-005")
    assert "/broker" in [finding["pointer"] for finding in problem["errors"]]


def test_the_command_tells_its_version() -> None:
    from typer.testing import CliRunner

    from service.api.routes.health import package_version
    from service.cli.main import app

    told = CliRunner().invoke(app, ["--version"])
    assert (told.exit_code, told.output.strip()) == (0, package_version())
    assert "--install-completion" in CliRunner().invoke(app, ["--help"]).output
