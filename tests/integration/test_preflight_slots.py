"""A storm of preflights is refused beyond its slots, and nothing else waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from api_fixtures import Serve, assert_problem

from service.api import payloads
from service.api.preflight_slots import PreflightSlots
from service.errors import Unavailable


def test_slots_are_given_back_whatever_happens() -> None:
    slots = PreflightSlots(1)
    with pytest.raises(ZeroDivisionError), slots.taken():
        raise ZeroDivisionError
    with slots.taken(), pytest.raises(Unavailable) as refused, slots.taken():
        pass
    assert (refused.value.status, refused.value.limit) == (503, 1)
    with slots.taken():
        pass


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Preflights that hang until it is set: as hostile as a payload can be."""
    opened = threading.Event()

    def hangs(*_: object, **__: object) -> dict[str, object]:
        opened.wait(30)
        return {"problems": []}

    monkeypatch.setattr(payloads, "ask", hangs)
    yield opened
    opened.set()


def test_a_storm_of_preflights_freezes_nothing(serve: Serve, gate: threading.Event) -> None:
    served = serve(worker=True, preflight_slots=2)
    job = served.submit()
    path = f"/v1/models/{job['model']}/preflight"
    answers: list[tuple[int, float]] = []

    def ask() -> None:
        began = time.monotonic()
        response = served.http.get(path, params={"hardware": job["hardware"]}, timeout=60)
        answers.append((response.status_code, time.monotonic() - began))

    askers = [threading.Thread(target=ask) for _ in range(60)]
    for asker in askers:
        asker.start()
    deadline = time.monotonic() + 20
    while len(answers) < 58 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [status for status, _ in answers] == [503] * 58
    refused = served.http.get(path, params={"hardware": job["hardware"]})
    problem = assert_problem(refused, 503, "TW-SVC-005")
    assert int(refused.headers["retry-after"]) > 0
    assert (problem["limit"], problem["retryable"]) == (2, True)
    began = time.monotonic()
    assert served.http.get("/healthz").status_code == 200
    assert time.monotonic() - began < 5  # preflights hold their slots for longer
    assert served.ended(job["id"])["state"] == "succeeded"
    gate.set()
    for asker in askers:
        asker.join(30)
    assert sorted(status for status, _ in answers) == [200] * 2 + [503] * 58
