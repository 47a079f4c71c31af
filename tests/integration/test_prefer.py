"""`Prefer: wait` (RFC 7240): the forms it has, and what the answers say."""

from __future__ import annotations

import threading
import time

import pytest
from api_fixtures import PRESET, Serve, Served
from httpx import Headers


def get(served: Served, job: str, *prefer: str) -> tuple[str | None, float]:
    """(what was applied, seconds it took)."""
    headers = Headers([("Prefer", value) for value in prefer], encoding="latin-1")
    started = time.monotonic()
    answer = served.http.get(f"/v1/jobs/{job}", headers=headers)
    assert answer.status_code == 200
    assert answer.json()["state"] == "queued"
    return answer.headers.get("Preference-Applied"), time.monotonic() - started


@pytest.mark.parametrize(
    ("prefer", "applied"),
    [
        (["wait=1"], "wait=1"), (["WAIT = 1"], "wait=1"), (['wait="1"'], "wait=1"),
        (["respond-async, wait=1"], "wait=1"), (["respond-async", "wait=1"], "wait=1"),
        (["wait=1; foo=bar"], "wait=1"), (["wait=1, wait=9"], "wait=1"),
        (["handling=lenient;wait=9, wait=1"], "wait=1"),
        (["wait=0"], None), (["wait"], None), (["wait=-1"], None), (["wait=1.5"], None),
        (["wait=x"], None), (["wait=\u00b2"], None),
        (["return=minimal"], None), ([""], None), ([], None),
    ],
)  # fmt: skip
def test_the_forms_of_the_header(serve: Serve, prefer: list[str], applied: str | None) -> None:
    served = serve(worker=False)
    found, seconds = get(served, served.submit()["id"], *prefer)
    assert found == applied
    assert (seconds >= 0.9) is (applied is not None)


def test_a_submit_answers_202_when_the_time_is_up_and_200_at_the_end(serve: Serve) -> None:
    served = serve(worker=False)
    body = {"model": served.model()["id"], "hardware": PRESET}
    late = served.http.post("/v1/jobs", json=body, headers={"Prefer": "wait=1"})
    assert (late.status_code, late.json()["state"]) == (202, "queued")
    assert late.headers["preference-applied"] == "wait=1"
    assert int(late.headers["retry-after"]) > 0

    def cancel_both() -> None:
        for job in list(served.client.jobs(state="queued")):
            served.client.cancel(str(job["id"]))

    timer = threading.Timer(0.5, cancel_both)
    timer.start()
    key = {"Idempotency-Key": "one"}
    done = served.http.post("/v1/jobs", json=body, headers={"Prefer": "wait=20", **key})
    timer.join()
    assert (done.status_code, done.json()["state"]) == (200, "canceled")
    assert done.headers["location"] == f"/v1/jobs/{done.json()['id']}"
    again = served.http.post("/v1/jobs", json=body, headers={"Prefer": "wait=20", **key})
    assert (again.status_code, again.json()["id"]) == (200, done.json()["id"])
    assert again.headers["idempotency-replayed"] == "true"


def test_no_wait_is_longer_than_a_minute(serve: Serve) -> None:
    served = serve(worker=False)
    job = served.submit()["id"]
    served.client.cancel(job)
    answer = served.http.get(f"/v1/jobs/{job}", headers={"Prefer": "wait=999999999"})
    assert answer.headers["preference-applied"] == "wait=60"
