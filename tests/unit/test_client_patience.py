"""Waiting for a job outlasts a server that is away for minutes, and no other failure."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import httpx
import pytest

from service.client import Client
from service.client import client as waiting
from service.client import transport as sending
from service.client.errors import ServerUnreachable, WaitTimeout


class Clock:
    """Time that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    replaced = SimpleNamespace(monotonic=made.monotonic, sleep=made.sleep)
    monkeypatch.setattr(waiting, "time", replaced)
    monkeypatch.setattr(sending, "time", replaced)
    return made


def client(clock: Clock, *, away_from: float, back_at: float) -> Client:
    """A server that goes away, and whose job has ended when it is back."""

    def answer(request: httpx.Request) -> httpx.Response:
        if away_from <= clock.now < back_at:
            raise httpx.ConnectError("refused", request=request)
        state = "succeeded" if clock.now >= back_at else "running"
        return httpx.Response(200, json={"id": "job_1", "state": state})

    http = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://localhost")
    return Client("http://localhost", http=http)


def test_waiting_outlasts_minutes_without_a_server(clock: Clock) -> None:
    assert client(clock, away_from=1, back_at=500).wait("job_1")["state"] == "succeeded"
    assert 500 <= clock.now < 520


def test_a_server_that_stays_away_is_told(clock: Clock) -> None:
    with pytest.raises(ServerUnreachable):
        client(clock, away_from=1, back_at=1e9).wait("job_1")
    assert 600 < clock.now < 620


def test_a_server_that_never_answered_is_told_at_once(clock: Clock) -> None:
    with pytest.raises(ServerUnreachable):
        client(clock, away_from=0, back_at=1e9).wait("job_1")
    assert clock.now < 10


def test_the_users_own_limit_holds_meanwhile(clock: Clock) -> None:
    with pytest.raises(WaitTimeout):
        client(clock, away_from=1, back_at=1e9).wait("job_1", timeout_s=60)
    assert 60 <= clock.now < 75


def test_a_client_waits_as_long_as_it_is_told(clock: Clock) -> None:
    """But no more than a minute at a time, and what is no number of seconds it ignores."""
    asked = iter(["7", "100000", "Wed, 21 Oct 2026 07:28:00 GMT"])
    moments: list[float] = []

    def answer(request: httpx.Request) -> httpx.Response:
        moments.append(clock.now)
        value = next(asked, None)
        if value is None:
            return httpx.Response(200, json={"items": []})
        document = {"code": "TW-SVC-021", "status": 429, "retryable": True}
        return httpx.Response(429, json=document, headers={"Retry-After": value})

    http = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://localhost")
    with Client("http://localhost", http=http) as client:
        assert client.get("/v1/jobs") == {"items": []}
    pauses = [later - sooner for sooner, later in pairwise(moments)]
    assert pauses[:2] == [7, 60]
    assert pauses[2] < 2
