"""A real API on a real socket, with an embedded worker that runs fake payloads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn
from service_fixtures import migrate_quickly

from service.api.app import create_app
from service.bootstrap import Services, open_services
from service.client import Client
from service.log import configure
from service.settings import Settings
from worker.runner.main import EmbeddedWorker

PRESET = "kapla-16x16"


def onnx_bytes(filler: bytes = b"fake model") -> bytes:
    """What begins like an ONNX file and is none: an IR version, and a description to the end."""
    size, count = b"", len(filler)
    while count > 0x7F:
        size, count = size + bytes((count & 0x7F | 0x80,)), count >> 7
    return b"\x08\x08\x32" + size + bytes((count,)) + filler


@dataclass(frozen=True, slots=True)
class Served:
    """One running service."""

    url: str
    settings: Settings
    services: Services
    http: httpx.Client
    client: Client

    def model(self, body: bytes | None = None, name: str = "fake") -> dict[str, Any]:
        """Upload a model's bytes."""
        content = onnx_bytes() if body is None else body
        response = self.http.post("/v1/models", params={"name": name}, content=content)
        assert response.status_code in {200, 201}, response.text
        return dict(response.json())

    def submit(self, **changes: Any) -> dict[str, Any]:
        """Submit a job on the fake model."""
        body = {"model": self.model()["id"], "hardware": PRESET, **changes}
        response = self.http.post("/v1/jobs", json=body)
        assert response.status_code == 202, response.text
        return dict(response.json())

    def ended(self, job_id: str, timeout_s: float = 30.0) -> dict[str, Any]:
        """Wait for the end of a job."""
        return self.client.wait(job_id, timeout_s=timeout_s)


def assert_problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Check that a refusal is a complete problem document."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["code"] == code, body
    assert body["status"] == status
    assert body["fault"] in {"user", "service", "transient"}
    assert isinstance(body["retryable"], bool)
    assert body["stage"]
    assert body["hints"]
    assert isinstance(body["errors"], list)
    assert body["request_id"] == response.headers["x-request-id"]
    return dict(body)


Serve = Callable[..., Served]


@pytest.fixture
def serve(make_settings: Callable[..., Settings]) -> Iterator[Serve]:
    """Start services; `worker=False` leaves jobs in the queue."""
    # Its log lines would mix with the output of commands that a test runs in this process.
    configure("ERROR", "console")
    with ExitStack() as stack:

        def start(runner: str = "quick", *, worker: bool = True, **changes: Any) -> Served:
            settings = make_settings(runner, **changes)
            migrate_quickly(settings.database_url)
            services = open_services(settings)
            stack.callback(services.close)
            if worker:
                stack.enter_context(EmbeddedWorker(services))
            app = create_app(settings, services)
            config = uvicorn.Config(
                app, host="127.0.0.1", port=0, log_config=None, timeout_graceful_shutdown=1
            )
            server = uvicorn.Server(config)
            thread = threading.Thread(target=server.run, daemon=True)
            thread.start()

            def stop() -> None:
                server.should_exit = True
                thread.join(10)

            stack.callback(stop)
            deadline = time.monotonic() + 20
            while not server.started:
                assert time.monotonic() < deadline, "the API did not start"
                time.sleep(0.01)
            port = server.servers[0].sockets[0].getsockname()[1]
            url = f"http://127.0.0.1:{port}"
            http = stack.enter_context(httpx.Client(base_url=url, timeout=30))
            client = stack.enter_context(Client(url))
            return Served(url, settings, services, http, client)

        yield start
