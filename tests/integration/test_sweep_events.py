"""Streams of sweeps, and the message when one ends: on both databases, and over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_fixtures import Serve, Served, assert_problem
from service_fixtures import Desk, MakeSettings

from service.client.events import Event, parse_events
from service.jobs import query, sweeps
from service.jobs.feed import feed
from service.jobs.submit import NewSpec, add_model
from service.jobs.sweeps import NewPoint, NewSweep
from service.jobs.webhooks import NewWebhook, create_webhook
from service.settings import Settings
from service.states import EventType, SweepState
from service.store.blobs import put_bytes

FIELD = "/levels/GBUF/capacity_bytes"
OPEN: dict[str, Any] = {"webhook_hosts": ("127.0.0.1",)}


@pytest.fixture
def desk(
    database_url: str, open_desk: Callable[[Settings], Desk], make_settings: MakeSettings
) -> Desk:
    return open_desk(make_settings(database_url=database_url, sweep_ahead=2, **OPEN))


def swept(desk: Desk, machines: int) -> str:
    services = desk.services
    ref = put_bytes(services.blobs, b"fake model", "application/octet-stream")
    model = add_model(services.database, ref, name="fake", kind="onnx")[0].id
    points = tuple(
        NewPoint(NewSpec({"name": f"toy-{n}"}, f"{n:064}", f"toy-{n}"), f"toy-{n}", (n,), n)
        for n in range(machines)
    )
    new = NewSweep((model,), points, ("n",))
    return sweeps.submit_sweep(services.database, services.settings, new)[0].record.id


def fed(desk: Desk, sweep_id: str) -> None:
    services = desk.services
    feed(services.database, services.outbox, services.settings, sweep_id)


def numbers(desk: Desk, sweep_id: str) -> dict[int, int]:
    """Of every item, by its place."""
    sweep = sweeps.get_sweep(desk.services.database, sweep_id)
    found = {item.number: item.seq for item in sweep.items}
    assert len(set(found.values())) == len(found), "each change has a number of its own"
    assert max(found.values()) <= sweep.record.event_seq
    return found


def test_what_changed_has_a_new_number_and_what_did_not_keeps_its_own(desk: Desk) -> None:
    sweep_id = swept(desk, 6)
    first = numbers(desk, sweep_id)
    assert first == {n: n + 1 for n in range(6)}
    fed(desk, sweep_id)
    second = numbers(desk, sweep_id)
    assert {n for n in first if second[n] != first[n]} == {0, 1}
    assert min(second[0], second[1]) > max(first.values())
    database = desk.services.database
    before = sweeps.get_sweep(database, sweep_id).record.event_seq
    sweeps.cancel_sweep(database, sweep_id)
    third = numbers(desk, sweep_id)
    assert {n for n in first if third[n] != second[n]} == {2, 3, 4, 5}
    assert min(third[n] for n in (2, 3, 4, 5)) > before
    fed(desk, sweep_id)
    ended = sweeps.get_sweep(database, sweep_id)
    assert ended.record.state is SweepState.CANCELED
    sweeps.resume_sweep(database, sweep_id)
    again = numbers(desk, sweep_id)
    assert min(again.values()) > ended.record.event_seq


def test_the_end_is_told_in_its_transaction_and_after_a_resume_again(desk: Desk) -> None:
    services = desk.services
    ids = {
        name: create_webhook(
            services.database, services.settings,
            NewWebhook("http://127.0.0.1:9/", name, events), owner=owner,
        )[0].id
        for name, events, owner in (
            ("all", (), "local"), ("sweeps", (EventType.SWEEP_ENDED,), "local"),
            ("jobs", (EventType.CANCELED,), "local"), ("foreign", (), "else"),
        )
    }  # fmt: skip

    def told(name: str) -> list[dict[str, Any]]:
        owner = "else" if name == "foreign" else "local"
        rows = query.list_deliveries(services.database, ids[name], owner=owner).rows
        found = [json.loads(row.body) for row in rows if row.type == EventType.SWEEP_ENDED]
        return [body["data"] for body in reversed(found)]

    sweep_id = swept(desk, 3)
    fed(desk, sweep_id)
    sweeps.cancel_sweep(services.database, sweep_id)
    assert told("all") == told("sweeps") == [], "jobs of it have not ended"
    fed(desk, sweep_id)
    record = sweeps.get_sweep(services.database, sweep_id).record
    body = {
        "id": sweep_id, "state": "canceled", "label": None, "items_total": 3,
        "items_succeeded": 0, "created": record.created, "finished": record.finished,
        "url": f"/v1/sweeps/{sweep_id}",
    }  # fmt: skip
    assert told("all") == told("sweeps") == [body]
    assert told("jobs") == told("foreign") == []
    sweeps.resume_sweep(services.database, sweep_id)
    sweeps.cancel_sweep(services.database, sweep_id)
    fed(desk, sweep_id)
    assert len(told("sweeps")) == 2


def post(served: Served, *kib: int) -> str:
    body = {"models": [served.model()["id"]], "base": "kapla-edge",
            "vary": [f"{FIELD}={','.join(f'{k}KiB' for k in kib)}"]}  # fmt: skip
    return str(served.client.submit_sweep(body)["id"])


def test_a_stream_has_every_item_and_goes_on_where_it_was_cut(serve: Serve, tmp_path: Path) -> None:
    gate = tmp_path / "gates" / f"closed-{64 * 1024}"
    gate.parent.mkdir(exist_ok=True)
    gate.touch()
    served = serve("figured")
    sweep_id = post(served, 8, 16, 64)
    path = f"{served.url}/v1/sweeps/{sweep_id}/events"
    first: list[Event] = []
    with httpx.stream("GET", path, timeout=60) as response:
        for event in parse_events(response.iter_lines()):
            first.append(event)
            if event.type == "progress" and event.body["progress"]["succeeded"] == 2:
                break
    ids = [int(event.id) for event in first]
    assert ids == sorted(ids)
    known = {event.body["number"]: event.body for event in first if event.type == "item"}
    assert {known[0]["state"], known[1]["state"]} == {"succeeded"}
    assert sorted(first[-1].body["front"]) == [0, 1]
    gate.unlink()
    rest = list(served.client.sweep_events(sweep_id, first[-1].id))
    assert {event.body["number"] for event in rest if event.type == "item"} == {2}
    last = rest[-1]
    assert last.type == "progress"
    assert last.body["state"] == "succeeded"
    assert last.body["front"] == [0, 1, 2]
    for event in rest:
        if event.type == "item":
            known[event.body["number"]] = event.body
    found = served.http.get(f"/v1/sweeps/{sweep_id}/results").json()["items"]
    for item in found:
        ours = known[item["number"]]
        assert {**ours, "is_on_front": item["number"] in last.body["front"]} == item
    with httpx.stream("GET", path, timeout=60) as response:
        whole = list(parse_events(response.iter_lines()))
    assert [event.type for event in whole] == ["item", "item", "item", "progress", "end"]
    done = served.http.get(path, headers={"Last-Event-ID": last.id})
    assert done.status_code == 204
    bad = served.http.get(path, headers={"Last-Event-ID": "x"})
    assert_problem(bad, 422, "TW-SVC-004")
    assert_problem(served.http.get("/v1/sweeps/swp_none/events"), 404, "TW-SVC-001")


def test_a_sweep_that_is_canceled_ends_its_stream(serve: Serve) -> None:
    served = serve(worker=False)
    sweep_id = post(served, 8)
    kinds: list[str] = []
    with httpx.stream("GET", f"{served.url}/v1/sweeps/{sweep_id}/events", timeout=60) as response:
        for event in parse_events(response.iter_lines()):
            kinds.append(event.type)
            if event.type == "progress" and kinds.count("progress") == 1:
                served.client.cancel_sweep(sweep_id)
            if event.type == "end":
                assert event.body == {"state": "canceled"}
    assert kinds[-1] == "end"
