"""`Prefer: wait` (RFC 7240): the forms it has, and what the answers say."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from api_fixtures import PRESET, Serve, Served
from httpx import Headers

from service.api.watch import EventWatch
from service.jobs import query
from service.store.records import JobRecord, Standing
from service.store.session import Database


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
    if applied is None:
        assert seconds < 5.0  # a busy machine's answer, and nobody waited for the job
    else:
        assert seconds >= 0.9


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


def watched(find: Callable[[float], dict[str, Standing]]) -> EventWatch:
    """A watch that looks often; `find` says how things stand so many seconds later."""
    began = time.monotonic()
    return EventWatch(lambda _: find(time.monotonic() - began), poll_s=0.02)


def test_who_waits_for_the_end_is_not_woken_by_what_happens_before() -> None:
    def find(seconds: float) -> dict[str, Standing]:
        return {"a": Standing(int(seconds / 0.05), is_over=seconds > 0.5)}

    async def main() -> tuple[list[float], list[bool]]:
        watch = watched(find)
        began = time.monotonic()

        async def stop(waiting: Awaitable[bool]) -> tuple[float, bool]:
            has_come = await waiting
            return time.monotonic() - began, has_come

        found = await asyncio.gather(
            stop(watch.changed("a", 1, 5)), stop(watch.ended("a", 5)), stop(watch.ended("a", 0.2)),
            stop(watch.ended("gone", 5)),
        )  # fmt: skip
        return [one[0] for one in found], [one[1] for one in found]

    (changed, ended, _late, gone), has_come = asyncio.run(main())
    assert has_come == [True, True, False, True]
    assert changed < 0.4 and gone < 0.4
    assert ended > 0.5


def test_a_wait_for_the_end_reads_it_twice(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """However much happens meanwhile: most clients wait like this, for every job."""
    gate = tmp_path / "gates" / "closed"
    gate.touch()
    served = serve("figured")
    reads: list[str] = []
    get_job = query.get_job

    def counting(database: Database, job_id: str, owner: str | None = None) -> JobRecord:
        reads.append(job_id)
        return get_job(database, job_id, owner)

    job = str(served.submit()["id"])
    monkeypatch.setattr("service.jobs.query.get_job", counting)
    timer = threading.Timer(0.8, gate.unlink)
    timer.start()
    done = served.client.wait(job)
    timer.join()
    assert done["state"] == "succeeded"
    assert reads == [job] * 3  # before and after it was held, and the worker, for its line of log
    assert len(list(served.client.events(job))) > 4


def test_sweeps_are_waited_for(serve: Serve, tmp_path: Path) -> None:
    gate = tmp_path / "gates" / f"closed-{16 * 1024}"
    served = serve("figured", workers=1)
    gate.touch()
    model = served.model()["id"]
    body = {"models": [model], "base": PRESET,
            "vary": ["/levels/GBUF/capacity_bytes=8KiB,16KiB"]}  # fmt: skip
    path = f"/v1/sweeps/{served.http.post('/v1/sweeps', json=body).json()['id']}"
    deadline = time.monotonic() + 60.0
    while not (first := served.http.get(path)).json()["progress"]["succeeded"]:
        assert time.monotonic() < deadline, first.text
        time.sleep(0.05)
    cut = served.http.get(path, headers={"Prefer": "wait=1"})
    assert cut.headers["preference-applied"] == "wait=1"
    assert (cut.json()["state"], cut.json()["progress"]["succeeded"]) == ("running", 1)
    timer = threading.Timer(0.5, gate.unlink)
    timer.start()
    began = time.monotonic()
    etag = {"If-None-Match": cut.headers["etag"]}
    moved = served.http.get(path, headers={"Prefer": "wait=30", **etag})
    done = served.http.get(path, headers={"Prefer": "wait=30"})
    timer.join()
    assert (moved.status_code, done.json()["state"]) == (200, "succeeded")
    assert 0.4 < time.monotonic() - began < 25
