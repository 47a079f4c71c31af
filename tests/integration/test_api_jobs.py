"""Jobs over HTTP: submit, replay, wait, list, cancel, clone, delete, follow, fetch."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from api_fixtures import PRESET, Serve, Served, assert_problem

from service.client import WaitTimeout
from service.client.events import parse_events


def test_job_runs_and_leaves_artifacts(serve: Serve, tmp_path: Path) -> None:
    served = serve()
    response = served.http.post(
        "/v1/jobs", json={"model": served.model()["id"], "hardware": PRESET}
    )
    assert response.status_code == 202
    job = response.json()
    assert response.headers["location"] == f"/v1/jobs/{job['id']}"
    assert int(response.headers["retry-after"]) >= 1
    assert job["state"] in {"queued", "running"}
    ended = served.ended(job["id"])
    assert (ended["state"], ended["summary"]) == ("succeeded", {"latency_cycles": 42})
    assert ended["progress"] == {"units_total": 3, "units_solved": 3, "units_cached": 0}
    files = served.client.fetch_artifacts(job["id"], tmp_path)
    assert {name: path.name for name, path in files.items()} == {
        "layers": "layers.csv",
        "report": "report.json",
    }
    assert files["layers"].read_text() == "index\n0\n"
    csv = served.http.get(f"/v1/jobs/{job['id']}/layers.csv")
    assert (csv.text, csv.headers["content-type"]) == ("index\n0\n", "text/csv; charset=utf-8")


def test_second_job_reports_cache_hits(serve: Serve) -> None:
    served = serve()
    served.ended(served.submit()["id"])
    again = served.ended(served.submit()["id"])
    assert again["progress"] == {"units_total": 3, "units_solved": 0, "units_cached": 3}
    stats = served.http.get("/v1/cache/stats").json()
    kinds = {row["kind"]: (row["entries"], row["hits"]) for row in stats["kinds"]}
    assert kinds == {"schedule": (3, 3), "reads": (1, 0)}
    assert (stats["entries"], stats["hits"]) == (4, 3)
    entries = served.http.get("/v1/cache/entries", params={"kind": "schedule"}).json()["items"]
    one = served.http.get(f"/v1/cache/entries/{entries[0]['digest']}").json()
    assert one["fields"]["kind"] == "fake"
    assert one["filled_by_job"].startswith("job_")
    dropped = served.http.post("/v1/cache/prune", json={"unused_for_s": 0}).json()
    assert dropped == {"dropped": 4}


def test_prefer_wait_holds_the_answer_until_the_end(serve: Serve) -> None:
    served = serve()
    response = served.http.post(
        "/v1/jobs",
        json={"model": served.model()["id"], "hardware": PRESET},
        headers={"Prefer": "respond-async, wait=20"},
    )
    assert response.status_code == 200
    assert response.json()["state"] == "succeeded"
    assert response.headers["preference-applied"] == "wait=20"


def test_idempotent_replay_gives_the_first_job(serve: Serve) -> None:
    served = serve(worker=False)
    body = {"model": served.model()["id"], "hardware": PRESET}
    key = {"Idempotency-Key": "one"}
    first = served.http.post("/v1/jobs", json=body, headers=key)
    again = served.http.post("/v1/jobs", json=body, headers=key)
    assert first.json()["id"] == again.json()["id"]
    assert again.headers["idempotency-replayed"] == "true"
    other = served.http.post("/v1/jobs", json={**body, "priority": 1}, headers=key)
    assert_problem(other, 422, "TW-SVC-010")
    assert len(served.http.get("/v1/jobs").json()["items"]) == 1


def test_concurrent_requests_with_one_key_make_one_job(serve: Serve) -> None:
    served = serve(worker=False)
    body = {"model": served.model()["id"], "hardware": PRESET}
    found: list[Any] = []

    def post() -> None:
        found.append(served.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k"}))

    threads = [threading.Thread(target=post) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {r.status_code for r in found} == {202}
    assert len({r.json()["id"] for r in found}) == 1


@pytest.mark.parametrize(
    ("change", "status", "code", "pointer"),
    [
        ({"model": "model_nope"}, 404, "TW-SVC-001", None),
        ({"model": 3}, 422, "TW-SVC-004", "/model"),
        ({"priority": "3"}, 422, "TW-SVC-004", "/priority"),
        ({"priority": True}, 422, "TW-SVC-004", "/priority"),
        ({"surprise": 1}, 422, "TW-SVC-004", "/surprise"),
        ({"hardware": "no-such-chip"}, 404, "TW-SPEC-003", None),
        ({"hardware": "0" * 64}, 404, "TW-SVC-001", None),
        ({"options": {"strategy": "magic"}}, 422, "TW-OPT-001", "/options/strategy"),
        ({"options": {"sed": 1}}, 422, "TW-OPT-001", "/options/sed"),
        ({"options": {"variant": "v1"}}, 422, "TW-OPT-001", "/options/variant"),
        (
            {"options": {"strategy_options": {"graphturbo": {"variant": "v4"}}}},
            422,
            "TW-OPT-001",
            "/options/strategy_options/graphturbo/variant",
        ),
    ],
)
def test_bad_jobs_are_refused_with_a_place(
    serve: Serve, change: dict[str, Any], status: int, code: str, pointer: str | None
) -> None:
    served = serve(worker=False)
    body = {"model": served.model()["id"], "hardware": PRESET, **change}
    problem = assert_problem(served.http.post("/v1/jobs", json=body), status, code)
    if pointer is not None:
        assert pointer in [finding["pointer"] for finding in problem["errors"]]
    assert served.http.get("/v1/jobs").json()["items"] == []


def test_invalid_json_and_wrong_media_type_are_problems(serve: Serve) -> None:
    http = serve(worker=False).http
    broken = http.post("/v1/jobs", content=b"{", headers={"Content-Type": "application/json"})
    assert_problem(broken, 422, "TW-SVC-004")
    text = http.post("/v1/jobs", content=b"{}", headers={"Content-Type": "text/plain"})
    assert_problem(text, 422, "TW-SVC-004")


def test_list_pages_and_filters(serve: Serve) -> None:
    served = serve(worker=False)
    ids = [served.submit(label=f"l{i % 2}")["id"] for i in range(5)]
    served.http.post(f"/v1/jobs/{ids[0]}/cancel")
    pages, cursor = [], None
    while True:
        query: dict[str, Any] = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = served.http.get("/v1/jobs", params=query).json()
        pages.append([job["id"] for job in page["items"]])
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert [len(page) for page in pages] == [2, 2, 1]
    assert [job for page in pages for job in page] == ids[::-1]
    odd = served.http.get("/v1/jobs", params={"label": "l1"}).json()["items"]
    assert [job["id"] for job in odd] == [ids[3], ids[1]]
    canceled = served.http.get("/v1/jobs", params={"state": "canceled"}).json()["items"]
    assert [job["id"] for job in canceled] == [ids[0]]
    both = served.http.get("/v1/jobs", params={"state": ["canceled", "queued"]}).json()["items"]
    assert len(both) == 5
    assert [job["id"] for job in served.client.jobs(limit=2)] == ids[::-1]
    for bad in ({"cursor": "x"}, {"limit": 0}, {"state": "happy"}):
        assert_problem(served.http.get("/v1/jobs", params=bad), 422, "TW-SVC-004")


def test_conditional_get_and_held_get(serve: Serve) -> None:
    served = serve(worker=False)
    job = served.submit()
    path = f"/v1/jobs/{job['id']}"
    first = served.http.get(path)
    etag = {"If-None-Match": first.headers["etag"]}
    unchanged = served.http.get(path, headers=etag)
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    held = served.http.get(path, headers={**etag, "Prefer": "wait=1"})
    assert held.status_code == 304
    timer = threading.Timer(0.3, cancel, (served, job["id"]))
    timer.start()
    assert held.headers["preference-applied"] == "wait=1"
    changed = served.http.get(path, headers={**etag, "Prefer": "wait=20"})
    timer.join()
    assert (changed.status_code, changed.json()["state"]) == (200, "canceled")
    assert changed.headers["etag"] != first.headers["etag"]


def cancel(served: Served, job_id: str) -> None:
    served.client.cancel(job_id)


def test_cancel_a_running_job_kills_its_process(serve: Serve) -> None:
    served = serve("sleeper")
    job = served.submit()
    for event in served.client.events(job["id"]):
        if event.type == "stage":
            break
    response = served.http.post(f"/v1/jobs/{job['id']}/cancel")
    assert (response.status_code, response.json()["state"]) == (202, "canceling")
    ended = served.ended(job["id"])
    assert (ended["state"], ended["error"]["code"]) == ("canceled", "TW-SVC-007")
    assert served.http.post(f"/v1/jobs/{job['id']}/cancel").json()["state"] == "canceled"


def test_cancel_after_success_is_a_conflict(serve: Serve) -> None:
    served = serve()
    job = served.ended(served.submit()["id"])
    response = served.http.post(f"/v1/jobs/{job['id']}/cancel")
    assert_problem(response, 409, "TW-SVC-002")


def test_clone_and_delete(serve: Serve) -> None:
    served = serve(worker=False)
    job = served.submit(label="base", options={"strategy": "naive", "symbols": {"N": 2}})
    copy = served.http.post(f"/v1/jobs/{job['id']}/clone")
    assert copy.status_code == 202
    assert copy.json()["cloned_from"] == job["id"]
    assert copy.json()["options"] == job["options"]
    assert_problem(served.http.delete(f"/v1/jobs/{job['id']}"), 409, "TW-SVC-002")
    served.client.cancel(job["id"])
    assert served.http.delete(f"/v1/jobs/{job['id']}").status_code == 204
    assert_problem(served.http.get(f"/v1/jobs/{job['id']}"), 404, "TW-SVC-001")
    assert_problem(served.http.get(f"/v1/jobs/{job['id']}/events"), 404, "TW-SVC-001")


def test_failed_job_carries_the_problem_and_keeps_artifacts(serve: Serve) -> None:
    served = serve("refuse")
    job = served.ended(served.submit()["id"])
    assert job["state"] == "failed"
    error = job["error"]
    assert (error["code"], error["fault"], error["node"]) == ("TW-MODEL-004", "user", "conv_1")
    assert error["exit_code"] == 3
    names = [a["name"] for a in served.client.artifacts(job["id"])]
    assert names == ["placement"]
    assert served.http.get(f"/v1/jobs/{job['id']}/placement").json() == {}
    assert_problem(served.http.get(f"/v1/jobs/{job['id']}/bundle"), 404, "TW-SVC-001")


def test_results_of_a_waiting_job_are_not_yet(serve: Serve) -> None:
    served = serve(worker=False)
    job = served.submit()
    for name in ("report", "layers", "layers.csv", "placement", "schedule", "trace", "bundle"):
        response = served.http.get(f"/v1/jobs/{job['id']}/{name}")
        assert_problem(response, 409, "TW-SVC-015")
        assert response.headers["retry-after"] == "1"
    graph = served.http.get(f"/v1/models/{job['model']}/graph")
    assert_problem(graph, 409, "TW-SVC-015")
    assert served.http.get(f"/v1/jobs/{job['id']}/artifacts").json() == {"items": []}


def test_logs_show_each_attempt(serve: Serve) -> None:
    served = serve("segfault", max_attempts=2)
    job = served.ended(served.submit()["id"])
    assert job["error"]["code"] == "TW-SVC-006"
    logs = served.http.get(f"/v1/jobs/{job['id']}/logs").json()
    assert [a["number"] for a in logs["attempts"]] == [1, 2]
    assert {a["outcome"] for a in logs["attempts"]} == {"crashed"}


def test_events_tell_the_whole_story_and_resume(serve: Serve) -> None:
    served = serve()
    job = served.submit()
    story = list(served.client.events(job["id"]))
    assert [int(event.id) for event in story] == list(range(1, len(story) + 1))
    states = [event.body["state"] for event in story if event.type == "state"]
    assert states == ["queued", "running", "succeeded"]
    stages = [event.body.get("stage") for event in story if event.type == "stage"]
    assert "schedule" in stages
    cut = story[2].id
    with served.http.stream(
        "GET", f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": cut}
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        rest = list(parse_events(response.iter_lines()))
    assert rest[:-1] == story[3:]
    assert (rest[-1].type, rest[-1].body) == ("end", {"state": "succeeded"})
    assert rest[-1].id == story[-1].id  # it has no number of its own
    done = served.http.get(f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": story[-1].id})
    assert (done.status_code, done.content) == (204, b"")
    bad = served.http.get(f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": "x"})
    assert_problem(bad, 422, "TW-SVC-004")


def test_event_stream_follows_a_job_that_changes_later(serve: Serve) -> None:
    served = serve(worker=False)
    job = served.submit()
    timer = threading.Timer(0.4, cancel, (served, job["id"]))
    timer.start()
    story = list(served.client.events(job["id"]))
    timer.join()
    assert [event.body["state"] for event in story] == ["queued", "canceled"]


def test_waiting_gives_up_while_the_job_goes_on(serve: Serve) -> None:
    served = serve(worker=False)
    job = served.submit()
    with pytest.raises(WaitTimeout) as caught:
        served.client.wait(job["id"], timeout_s=0.5)
    assert caught.value.exit_code == 6


def test_quota_is_a_429_with_retry_after(serve: Serve) -> None:
    served = serve(worker=False, max_active_jobs=1)
    job = served.submit()
    response = served.http.post("/v1/jobs", json={"model": job["model"], "hardware": PRESET})
    assert_problem(response, 429, "TW-SVC-011")
    assert int(response.headers["retry-after"]) > 0
