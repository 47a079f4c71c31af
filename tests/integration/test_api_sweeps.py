"""Sweeps over HTTP: items, results, front, cancel, resume, refusals."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from api_fixtures import PRESET, Serve, Served, assert_problem, onnx_bytes

from service.jobs.keys import create_key
from service.keys import Scope

KIB = 1024
FIELD = "/levels/GBUF/capacity_bytes"


def sizes(*kib: int) -> list[str]:
    return [f"{FIELD}={','.join(f'{k}KiB' for k in kib)}"]


def sweep_body(served: Served, kib: tuple[int, ...], **changes: Any) -> dict[str, Any]:
    model = served.model()["id"]
    return {"models": [model], "base": PRESET, "vary": sizes(*kib), **changes}


def post(served: Served, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    response = served.http.post("/v1/sweeps", json=body, headers=headers)
    assert response.status_code == 202, response.text
    assert response.headers["location"] == f"/v1/sweeps/{response.json()['id']}"
    return dict(response.json())


def until(
    served: Served, sweep_id: str, holds: Callable[[dict[str, Any]], bool], timeout_s: float = 60.0
) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    while not holds(found := served.http.get(f"/v1/sweeps/{sweep_id}").json()):
        assert time.monotonic() < deadline, (found["progress"], found["failures"])
        time.sleep(0.02)
    return dict(found)


def ended(served: Served, sweep_id: str) -> dict[str, Any]:
    return until(served, sweep_id, lambda s: s["state"] in {"succeeded", "failed", "canceled"})


def results(served: Served, sweep_id: str) -> list[dict[str, Any]]:
    found = served.http.get(f"/v1/sweeps/{sweep_id}/results").json()
    return list(found["items"])


@pytest.fixture
def gates(tmp_path: Path) -> Path:
    return tmp_path / "gates"


def test_every_model_on_every_machine(serve: Serve) -> None:
    """Listed machines and those of ranges; figures are those of the items' own jobs."""
    served = serve("figured")
    one = served.model(onnx_bytes(b"one"), "one")
    two = served.model(onnx_bytes(b"two"), "two")
    body = {
        "models": [one["id"], two["sha256"]], "hardware": [PRESET],
        "base": PRESET, "vary": [*sizes(8, 64), "clock_hz=x1,x2"], "label": "chips",
    }  # fmt: skip
    made = post(served, body)
    assert made["fields"] == [FIELD, "clock_hz"]
    assert made["progress"]["total"] == 10
    done = ended(served, made["id"])
    assert done["state"] == "succeeded"
    assert done["progress"] == {"total": 10, "pending": 0, "queued": 0, "running": 0,
                                "succeeded": 10, "failed": 0, "canceled": 0}  # fmt: skip
    rows = results(served, made["id"])
    assert [row["number"] for row in rows] == list(range(10))
    assert {(row["model_name"], *row["values"]) for row in rows} == {
        (name, *values)
        for name in ("one", "two")
        for values in ((), *((k * KIB, hz) for k in (8, 64) for hz in (5e8, 1e9)))
    }
    for row in rows:
        job = served.client.job(row["job"])
        assert job["sweep"] == made["id"]
        assert job["state"] == "succeeded"
        summary: Any = job["summary"]
        assert (row["latency_s"], row["energy_pj"]) == (
            summary["latency_s"], summary["energy_pj"],
        )  # fmt: skip
        document = served.http.get(f"/v1/hardware/{row['hardware']}").json()["document"]
        levels = {level["name"]: level for level in document["levels"]}
        amounts = [
            level["capacity_bytes"]["value"] * level["instances"]["value"]
            for level in list(levels.values())[1:]
        ]
        assert row["on_chip_bytes"] == sum(amounts)
        if row["values"]:
            assert levels["GBUF"]["capacity_bytes"]["value"] == row["values"][0]
    listed = [job["id"] for job in served.client.jobs(sweep=made["id"])]
    assert sorted(listed) == sorted(row["job"] for row in rows)
    [summary_row] = served.http.get("/v1/sweeps", params={"label": "chips"}).json()["items"]
    assert summary_row["items_ended"] == summary_row["items_succeeded"] == 10
    assert served.http.get("/v1/sweeps", params={"state": "running"}).json()["items"] == []


def test_the_front_is_that_of_each_model(serve: Serve) -> None:
    """The oracle is the definition, over the figures that results give."""
    served = serve("figured")
    models = [served.model(onnx_bytes(name), "m")["id"] for name in (b"one", b"two")]
    vary = [*sizes(8, 16, 64), "/levels/REGF/capacity_bytes=x1,x2"]
    made = post(served, {"models": models, "base": PRESET, "vary": vary})
    done = ended(served, made["id"])
    rows = results(served, made["id"])
    costs = ("latency_s", "energy_pj", "on_chip_bytes")

    def beats(one: dict[str, Any], other: dict[str, Any]) -> bool:
        pairs = [(one[c], other[c]) for c in costs]
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)

    best = {
        row["number"] for row in rows
        if not any(beats(o, row) for o in rows if o["model"] == row["model"])
    }  # fmt: skip
    assert 0 < len(best) < len(rows)
    assert {row["number"] for row in done["front"]} == best
    assert {row["number"] for row in rows if row["is_on_front"]} == best


def test_results_as_a_table(serve: Serve, gates: Path) -> None:
    (gates / f"refuse-{16 * KIB}").touch()
    served = serve("figured")
    made = post(served, sweep_body(served, (8, 16)))
    ended(served, made["id"])
    response = served.http.get(f"/v1/sweeps/{made['id']}/results.csv")
    assert response.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(response.text)))
    documents = results(served, made["id"])
    for row, document in zip(rows, documents, strict=True):
        assert row[FIELD] == str(document["values"][0])
        for name in ("number", "state", "job", "hardware", "latency_s", "on_chip_bytes"):
            assert row[name] == ("" if document[name] is None else str(document[name]))
    assert rows[1]["why"] == "TW-MODEL-004: the graph has a cycle"


def test_failures_are_named_and_the_rest_goes_on(serve: Serve, gates: Path) -> None:
    (gates / f"refuse-{16 * KIB}").touch()
    served = serve("figured")
    # With half the cores there are memories of none: that is no machine, and has no job at all.
    vary = [*sizes(8, 16, 32), "num_cores=x1,x0.5"]
    made = post(served, {**sweep_body(served, ()), "vary": vary})
    done = ended(served, made["id"])
    assert done["state"] == "failed"
    assert done["progress"]["succeeded"] == 2
    assert done["progress"]["failed"] == 4
    cores = max(item["values"][1] for item in done["failures"])
    found = {tuple(item["values"]): item for item in done["failures"]}
    refused = found[(16 * KIB, cores)]
    assert refused["state"] == "failed"
    assert (refused["error"]["code"], refused["error"]["node"]) == ("TW-MODEL-004", "conv_1")
    for kib in (8, 16, 32):
        half = found[(kib * KIB, cores // 2)]
        assert half["state"] == "refused"
        assert half["job"] is half["hardware"] is None
        assert half["error"]["code"].startswith("TW-SPEC-")
    (gates / f"refuse-{16 * KIB}").unlink()
    before = {row["number"]: row["job"] for row in results(served, made["id"])}
    assert served.http.post(f"/v1/sweeps/{made['id']}/resume").status_code == 202
    again = ended(served, made["id"])
    assert again["progress"]["succeeded"] == 3
    assert again["state"] == "failed"  # what is no machine stays none
    after = {row["number"]: row["job"] for row in results(served, made["id"])}
    assert [n for n in after if after[n] != before[n]] == [refused["number"]]


def test_a_cancel_keeps_results_and_is_resumed(serve: Serve, gates: Path) -> None:
    for kib in (16, 32, 64):
        (gates / f"closed-{kib * KIB}").touch()
    served = serve("figured", workers=1, sweep_ahead=2)
    made = post(served, sweep_body(served, (8, 16, 32, 64, 128)))
    path = f"/v1/sweeps/{made['id']}"
    until(served, made["id"], lambda s: (s["progress"]["succeeded"], s["progress"]["running"])
          == (1, 1))  # fmt: skip
    assert_problem(served.http.delete(path), 409, "TW-SVC-002")
    assert served.http.post(f"{path}/cancel").status_code == 202
    done = ended(served, made["id"])
    assert done["state"] == "canceled"
    assert done["progress"] | {"total": 5} == {
        "total": 5, "pending": 0, "queued": 0, "running": 0, "succeeded": 1, "failed": 0,
        "canceled": 4,
    }  # fmt: skip
    assert served.http.post(f"{path}/cancel").json()["state"] == "canceled"
    jobs = [job["state"] for job in served.client.jobs(sweep=made["id"])]
    assert set(jobs) == {"succeeded", "canceled"}
    first = results(served, made["id"])[0]
    for gate in gates.iterdir():
        gate.unlink()
    resumed = served.http.post(f"{path}/resume").json()
    assert resumed["state"] == "running"
    assert resumed["cancel_requested"] is None
    assert ended(served, made["id"])["state"] == "succeeded"
    rows = results(served, made["id"])
    assert rows[0] == first
    assert [row["values"][0] for row in rows] == [k * KIB for k in (8, 16, 32, 64, 128)]
    assert served.http.post(f"{path}/resume").json()["state"] == "succeeded"
    assert_problem(served.http.post(f"{path}/cancel"), 409, "TW-SVC-002")
    jobs = [str(job["id"]) for job in served.client.jobs(sweep=made["id"])]
    assert len(jobs) > 5  # those of the first try are history
    assert served.http.delete(path).status_code == 204
    assert_problem(served.http.get(path), 404, "TW-SVC-001")
    for job in jobs:
        assert served.http.get(f"/v1/jobs/{job}").status_code == 404


def test_single_jobs_do_not_wait_for_a_sweep(serve: Serve, gates: Path) -> None:
    """What is submitted beside a sweep waits for the few items that wait already, not for all."""
    ahead, many = 2, tuple(range(8, 48, 2))
    (gates / "closed").touch()
    served = serve("figured", workers=1, sweep_ahead=ahead)
    made = post(served, sweep_body(served, many))
    until(served, made["id"], lambda s: s["progress"]["running"] == 1)
    waiting = until(served, made["id"], lambda s: s["progress"]["queued"] == ahead)
    assert waiting["progress"]["pending"] == len(many) - ahead - 1
    job = served.submit()
    other = post(served, sweep_body(served, (50, 52, 54)))
    (gates / "closed").unlink()
    single = served.ended(job["id"])
    done = ended(served, made["id"])
    assert done["state"] == ended(served, other["id"])["state"] == "succeeded"
    started = sorted(
        (float(served.client.job(row["job"])["started"]), sweep)
        for sweep in (made["id"], other["id"])
        for row in results(served, sweep)
    )  # fmt: skip
    before = [sweep for at, sweep in started if at < float(single["started"])]
    assert before == [made["id"]] * (1 + ahead)
    # Nor does the sweep that came later wait for all of the first.
    assert [sweep for _, sweep in started].index(other["id"]) <= 1 + 2 * ahead


def test_how_long_it_takes_is_told_from_what_is_done(serve: Serve, gates: Path) -> None:
    served = serve("figured", workers=1)
    (gates / f"closed-{64 * KIB}").touch()
    made = post(served, sweep_body(served, (8, 16, 64, 128)))
    assert made["eta_s"] is None
    found = until(served, made["id"], lambda s: (s["progress"]["succeeded"],
                                                 s["progress"]["running"]) == (2, 1))  # fmt: skip
    took = [row["seconds"] for row in results(served, made["id"]) if row["seconds"] is not None]
    assert len(took) == 2
    mean = sum(took) / 2
    assert mean <= found["eta_s"] + 1e-9 <= 2 * mean + 1e-6
    (gates / f"closed-{64 * KIB}").unlink()
    assert ended(served, made["id"])["eta_s"] is None


def test_idempotent_replay_gives_the_first_sweep(serve: Serve) -> None:
    served = serve(worker=False)
    body, key = sweep_body(served, (8, 16)), {"Idempotency-Key": "one"}
    first = post(served, body, **key)
    again = served.http.post("/v1/sweeps", json=body, headers=key)
    assert again.json()["id"] == first["id"]
    assert again.headers["idempotency-replayed"] == "true"
    other = served.http.post("/v1/sweeps", json={**body, "priority": 1}, headers=key)
    assert_problem(other, 422, "TW-SVC-010")
    assert len(served.http.get("/v1/sweeps").json()["items"]) == 1


def test_requests_at_the_same_time_with_one_key_make_one_sweep(serve: Serve) -> None:
    served = serve(worker=False)
    body, key = sweep_body(served, (8, 16)), {"Idempotency-Key": "k"}
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: post(served, body, **key)["id"], range(8)))
    assert len(set(found)) == 1
    [row] = served.http.get("/v1/sweeps").json()["items"]
    assert row["id"] == found[0]


def test_a_spec_that_another_project_has_is_both_projects(serve: Serve) -> None:
    """Machines of a sweep are stored many at a time, and belong to whoever asks."""
    served = serve(require_key=True, worker=False)
    for project in ("a", "b", "a"):
        _, text = create_key(
            served.services.database, project=project, name="k", scopes=[Scope.READ, Scope.WRITE]
        )
        sent = {"Authorization": f"Bearer {text}"}
        model = served.http.post("/v1/models", content=onnx_bytes(), headers=sent).json()["id"]
        body = {"models": [model], "base": PRESET, "vary": sizes(8, 16, 32)}
        made = served.http.post("/v1/sweeps", json=body, headers=sent)
        assert made.status_code == 202, made.text
        assert made.json()["progress"]["failed"] == 0
        listed = served.http.get("/v1/hardware", headers=sent).json()["items"]
        assert len(listed) == 3
        rows = served.http.get(f"/v1/sweeps/{made.json()['id']}/results", headers=sent).json()
        assert {row["hardware"] for row in rows["items"]} == {row["id"] for row in listed}


def test_unchanged_sweeps_are_not_sent_again(serve: Serve) -> None:
    served = serve(worker=False)
    made = post(served, sweep_body(served, (8, 16)))
    path = f"/v1/sweeps/{made['id']}"
    first = served.http.get(path)
    etag = {"If-None-Match": first.headers["etag"]}
    assert served.http.get(path, headers=etag).status_code == 304
    served.http.post(f"{path}/cancel")
    assert served.http.get(path, headers=etag).status_code == 200


@pytest.mark.parametrize(
    ("change", "status", "code", "pointer"),
    [
        ({"models": []}, 422, "TW-SVC-004", "/models"),
        ({"models": ["model_nope"]}, 404, "TW-SVC-001", "/models/0"),
        ({"models": ["0" * 64]}, 404, "TW-SVC-001", "/models/0"),
        ({"base": None}, 422, "TW-SVC-004", "/base"),
        ({"vary": []}, 422, "TW-SVC-004", "/vary"),
        ({"base": None, "vary": []}, 422, "TW-SVC-004", "/hardware"),
        ({"base": "no-such-chip"}, 404, "TW-SPEC-003", "/base"),
        ({"hardware": [PRESET, "no-such-chip"]}, 404, "TW-SPEC-003", "/hardware/1"),
        ({"hardware": ["0" * 64]}, 404, "TW-SVC-001", "/hardware/0"),
        ({"hardware": [{"name": "none"}]}, 422, "TW-SPEC-001", "/hardware/0"),
        ({"vary": ["/levels/L9/capacity_bytes=1"]}, 422, "TW-OPT-001", "/vary/0"),
        ({"vary": ["clock_hz=x2", "GBUF.managed=1"]}, 422, "TW-OPT-001", "/vary/1"),
        ({"vary": ["GBUF.capacity_bytes"]}, 422, "TW-OPT-001", "/vary/0"),
        ({"vary": ["clock_hz=1e9", "clock_hz=2e9"]}, 422, "TW-OPT-001", "/vary"),
        ({"options": {"strategy": "magic"}}, 422, "TW-OPT-001", "/options/strategy"),
        ({"options": {"inputs": "0" * 64}}, 404, "TW-SVC-001", "/options/inputs"),
        ({"surprise": 1}, 422, "TW-SVC-004", "/surprise"),
    ],
    ids=["no-models", "model", "digest", "no-base", "no-vary", "no-machine", "preset", "second",
         "spec", "document", "field", "no-number", "no-values", "twice", "options", "arrays",
         "unknown"],
)  # fmt: skip
def test_bad_sweeps_are_refused_with_a_place(
    serve: Serve, change: dict[str, Any], status: int, code: str, pointer: str
) -> None:
    served = serve(worker=False)
    body = {**sweep_body(served, (8, 16)), **change}
    response = served.http.post("/v1/sweeps", json=body)
    problem = assert_problem(response, status, code)
    places = {problem["pointer"], *(row["pointer"] for row in problem["errors"])} - {None}
    assert any(place == pointer or place.startswith(f"{pointer}/") for place in places)
    assert served.http.get("/v1/sweeps").json()["items"] == []
    assert served.http.get("/v1/hardware").json()["items"] == []


def test_too_many_items_and_sweeps_are_refused_with_their_number(serve: Serve) -> None:
    served = serve(worker=False, max_sweep_items=6, max_active_sweeps=1)
    models = [served.model(onnx_bytes(name), "m")["id"] for name in (b"one", b"two")]
    body = {"models": models, "base": PRESET, "vary": sizes(8, 16, 32, 64)}
    refused = assert_problem(served.http.post("/v1/sweeps", json=body), 413, "TW-SVC-003")
    assert (refused["limit"], refused["actual"]) == (6, 8)
    huge = {**body, "vary": [f"{FIELD}=1..1000000", "clock_hz=1..1e300"]}
    refused = assert_problem(served.http.post("/v1/sweeps", json=huge), 413, "TW-SVC-003")
    assert refused["actual"] == 2 * 20 * 997
    post(served, {**body, "vary": sizes(8, 16, 32)})
    refused = assert_problem(
        served.http.post("/v1/sweeps", json={**body, "vary": sizes(8)}), 429, "TW-SVC-011"
    )
    assert (refused["limit"], refused["actual"]) == (1, 1)


def test_a_job_of_an_unfinished_sweep_is_not_deleted_alone(serve: Serve, gates: Path) -> None:
    served = serve("figured", workers=1)
    (gates / f"closed-{16 * KIB}").touch()
    made = post(served, sweep_body(served, (8, 16)))
    until(served, made["id"], lambda s: s["progress"]["succeeded"] == 1)
    job = results(served, made["id"])[0]["job"]
    refused = assert_problem(served.http.delete(f"/v1/jobs/{job}"), 409, "TW-SVC-002")
    assert made["id"] in refused["detail"]
    (gates / f"closed-{16 * KIB}").unlink()
    ended(served, made["id"])
    kept = results(served, made["id"])[0]
    assert served.http.delete(f"/v1/jobs/{job}").status_code == 204
    assert results(served, made["id"])[0] == kept  # figures stay with the sweep


def test_a_model_that_a_sweep_waits_for_stays(serve: Serve) -> None:
    served = serve(worker=False, sweep_ahead=1)
    models = [served.model(onnx_bytes(name), "m")["id"] for name in (b"one", b"two")]
    made = post(served, {"models": models, "hardware": [PRESET]})
    assert made["progress"]["pending"] == 2
    # The first has a job by now, the second not: neither may go.
    for model in models:
        assert_problem(served.http.delete(f"/v1/models/{model}"), 409, "TW-SVC-002")
    path = f"/v1/sweeps/{made['id']}"
    served.http.post(f"{path}/cancel")
    assert ended(served, made["id"])["state"] == "canceled"
    assert_problem(served.http.delete(f"/v1/models/{models[1]}"), 409, "TW-SVC-002")
    assert served.http.delete(path).status_code == 204
    for model in models:
        assert served.http.delete(f"/v1/models/{model}").status_code == 204
