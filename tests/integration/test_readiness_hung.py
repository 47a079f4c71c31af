"""`/readyz` while a real PostgreSQL, a real Redis hang: answered within 2 s, naming who it is.

A process that is stopped keeps its connections open and answers nothing, unlike one that is gone.
"""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest
from api_fixtures import Serve, assert_problem

from benchmarks.faults.servers import OwnPostgres, OwnRedis, Server
from service.store.session import migrate

PROMISED_S = 2.0
TRIES = 3
"""The promise is of an idle machine: the best of so many counts, a hang lasts ten times as long."""


def _asked(url: str) -> tuple[float, httpx.Response]:
    began = time.monotonic()
    response = httpx.get(f"{url}/readyz", timeout=60)
    return time.monotonic() - began, response


def _pointers(response: httpx.Response) -> list[str]:
    problem = assert_problem(response, 503, "TW-SVC-005")
    return [finding["pointer"] for finding in problem["errors"]]


def _not_named(url: str, pointer: str) -> None:
    """Soon, for good: on a busy machine one that answers may be late for a single question."""
    deadline = time.monotonic() + 40
    while pointer in _pointers(_asked(url)[1]):
        assert time.monotonic() < deadline, "it answers, and readiness does not say so"
        time.sleep(0.2)


def _hang(server: Server, url: str, pointer: str) -> None:
    """Readiness names it while it hangs, in time, and not before or after."""
    _not_named(url, pointer)
    server.freeze()
    try:
        answers = [_asked(url) for _ in range(TRIES)]
    finally:
        server.thaw()
    assert min(seconds for seconds, _ in answers) < PROMISED_S
    assert all(pointer in _pointers(response) for _, response in answers)
    _not_named(url, pointer)


def test_a_database_that_hangs(serve: Serve, own_postgres: OwnPostgres) -> None:
    migrate(own_postgres.url.replace("postgresql://", "postgresql+psycopg://"))
    served = serve(worker=False, database_url=own_postgres.url)
    _hang(own_postgres, served.url, "/database")


def test_a_broker_that_hangs(serve: Serve, tmp_path: Path) -> None:
    broker = OwnRedis(tmp_path)
    if not (broker.installed and broker.start()):
        pytest.skip("no Redis server program that this test could start and stop")
    try:
        served = serve(worker=False, broker_url=broker.url)
        _hang(broker, served.url, "/broker")
    finally:
        broker.stop()
