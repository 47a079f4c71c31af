"""Sweeps that estimate first, on both databases: parts, winners, cancel, resume, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from api_fixtures import PRESET, Serve, assert_problem
from service_fixtures import Desk, MakeSettings
from sqlalchemy import update

from service.errors import TooLarge
from service.jobs import claim as protocol
from service.jobs import exploring, submit, sweeps
from service.jobs.exploring import FIGURES, Cost
from service.jobs.feed import feed
from service.jobs.reconcile import reconcile
from service.jobs.sweeps import NewExplore, NewSweep, Sweep
from service.settings import Settings
from service.states import SweepItemState, SweepState
from service.store.blobs import put_bytes
from service.store.tables import ItemRow
from worker.compiler.machine import canonical_document, preset_document
from worker.compiler.options import CompileOptions, VerifyMode
from worker.explore.chips import COSTS

OpenDesk = Callable[[Settings], Desk]
SIZE = "GBUF.capacity_bytes"
VALUES = (1024, 2048, 4096, 8192, 16384)


@pytest.fixture
def desk(
    database_url: str, open_desk: OpenDesk, make_settings: MakeSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> Desk:  # fmt: skip
    monkeypatch.setattr(exploring, "MACHINES_OF_PART", 2)
    return open_desk(make_settings(database_url=database_url, sweep_ahead=10))


def explored(desk: Desk, *models: str, winners: int = 1, **changes: Any) -> str:
    """Three parts of five machines for each model."""
    services = desk.services
    found = []
    for name in models or ("one",):
        ref = put_bytes(services.blobs, name.encode(), "application/octet-stream")
        found.append(submit.add_model(services.database, ref, name=name, kind="onnx")[0].id)
    document = canonical_document(preset_document("kapla-edge"))
    base = submit.NewSpec(document, "0" * 64, "edge")
    vary = (f"{SIZE}={','.join(map(str, VALUES))}",)
    explore = NewExplore(base, "edge", vary, len(VALUES), COSTS, winners)
    new = NewSweep(tuple(found), (), (SIZE,), explore, **changes)
    return sweeps.submit_sweep(services.database, services.settings, new)[0].record.id


def fed(desk: Desk, sweep_id: str) -> int:
    services = desk.services
    return feed(services.database, services.outbox, services.settings, sweep_id)


def seen(desk: Desk, sweep_id: str) -> Sweep:
    return sweeps.get_sweep(desk.services.database, sweep_id)


def states(desk: Desk, sweep_id: str) -> list[str]:
    return [str(item.state) for item in seen(desk, sweep_id).items]


def taken(desk: Desk) -> protocol.Claim:
    held = protocol.claim(desk.services.database, "w", 60.0)
    assert held is not None
    return held


def rows_of(part: Any) -> list[dict[str, Any]]:
    """The more memory, the faster; more than 4 KiB is dear.  The smallest does not fit."""
    found: list[dict[str, Any]] = []
    for k in range(part["first"], part["first"] + part["count"]):
        about: dict[str, Any] = {"choice": [k], "values": [VALUES[k]]}
        if k == 0:
            found.append({**about, "why": "conv needs 2000 of GBUF, has 1024"})
            continue
        latency_s, energy_pj = 1.0 / (1 + k), 10.0 ** max(k, 2)
        found.append({**about, "latency_s": latency_s, "energy_pj": energy_pj,
                      "on_chip_bytes": VALUES[k], "area_mm2": float(VALUES[k]),
                      "off_chip_bytes_per_s": 1.0, "cycles": 100 - k, "gap": None,
                      "machine_digest": f"{k:064}"})  # fmt: skip
    return found


def figured(k: int, **odd: Any) -> dict[str, Any]:
    """A row of the first part, with something odd about it."""
    figures = dict.fromkeys(FIGURES, 1.0)
    about = {"choice": [k], "values": [VALUES[k]], "machine_digest": f"{k:064}"}
    return {**figures, **about, **odd}


def end(desk: Desk, held: protocol.Claim, rows: object = None) -> None:
    """As a job that compiles for the base, or a winner's machine."""
    result: dict[str, Any] | None = None
    if held.part is not None:
        result = {"estimates": rows_of(held.part) if rows is None else rows}
    protocol.succeed(
        desk.services.database, held, artifacts=(), bundle_digest="b",
        summary={"latency_s": 7.0, "energy_pj": 8.0}, usage=protocol.Usage(), result=result,
    )  # fmt: skip


def test_parts_are_estimated_and_the_best_is_compiled(desk: Desk) -> None:
    options = CompileOptions(verify=VerifyMode.FULL, max_power_w=3.0)
    sweep_id = explored(desk, "one", "two", options=options)
    assert fed(desk, sweep_id) == 6
    for _ in range(3):
        held = taken(desk)
        assert held.part is not None
        assert held.part["vary"] == [f"{SIZE}=1024,2048,4096,8192,16384"]
        own = CompileOptions.from_json(dict(held.job.options))
        assert (own.strategy, own.verify, own.max_power_w) == ("naive", VerifyMode.NONE, None)
        end(desk, held)
    assert fed(desk, sweep_id) == 1  # the first model has all of its parts: its winner
    found = seen(desk, sweep_id)
    assert found.record.items_total == len(found.items) == 7
    winner = found.items[6]
    assert (winner.model_id, winner.values) == (found.items[0].model_id, (16384,))
    assert winner.estimates[0]["latency_s"] == 0.2
    assert winner.on_chip_bytes == 16384
    assert [item.latency_s for item in found.items[:3]] == [None] * 3  # theirs is of the base
    for _ in range(4):
        held = taken(desk)
        if held.part is None:
            assert dict(held.job.options)["strategy"] == "auto"
            levels = {level["name"]: level for level in held.hardware.document["levels"]}  # type: ignore[index,union-attr,call-overload]
            assert levels["GBUF"]["capacity_bytes"]["value"] == 16384  # type: ignore[index,call-overload]
        end(desk, held)
    assert fed(desk, sweep_id) == 1
    end(desk, taken(desk))
    fed(desk, sweep_id)
    done = seen(desk, sweep_id)
    assert done.record.state is SweepState.SUCCEEDED
    assert len(done.items) == 8
    assert [item.latency_s for item in done.items[6:]] == [7.0, 7.0]


def test_the_order_of_changes_is_that_of_commits(desk: Desk) -> None:
    """Winners are told in streams: each has a number of its own, after all before it."""
    sweep_id = explored(desk, winners=3)
    fed(desk, sweep_id)
    for _ in range(3):
        end(desk, taken(desk))
    before = seen(desk, sweep_id).record.event_seq
    fed(desk, sweep_id)
    found = seen(desk, sweep_id)
    numbers = [item.seq for item in found.items]
    assert len(set(numbers)) == len(numbers) == 6
    assert min(numbers[3:]) > before
    assert found.record.event_seq >= max(numbers)


@pytest.mark.parametrize(
    "odd",
    [
        "rows", [], [{}, {}], [{"choice": [0], "values": [1]}] * 2,
        [{"choice": [0], "values": [1, 2], "why": "x"}] * 2,
        [{"choice": [0], "values": [float("inf")], "why": "x"}] * 2,
        [{"choice": ["a"], "values": [1], "why": "x"}] * 2,
        [figured(k, gap="much") for k in range(2)],
        [figured(k, latency_s=10**400) for k in range(2)],
        [figured(k, latency_s=True) for k in range(2)],
        [figured(k, choice=[k + 5]) for k in range(2)],
        [figured(k, choice=[k, 0]) for k in range(2)],
        [figured(k, values=[VALUES[4]]) for k in range(2)],
        [figured(1 - k) for k in range(2)],
    ],
)  # fmt: skip
def test_what_is_no_estimate_fails_the_part_and_a_resume_runs_it(desk: Desk, odd: object) -> None:
    """A job's own process wrote it; a worker of a release that knows no parts writes nothing."""
    sweep_id = explored(desk)
    fed(desk, sweep_id)
    for rows in (odd, None, None):
        end(desk, taken(desk), rows)
    fed(desk, sweep_id)
    failed = seen(desk, sweep_id)
    assert failed.record.state is SweepState.FAILED
    assert states(desk, sweep_id) == ["failed", "succeeded", "succeeded"]
    assert failed.items[0].error is not None
    assert failed.items[0].error["code"] == "TW-SVC-015"
    sweeps.resume_sweep(desk.services.database, sweep_id)
    assert fed(desk, sweep_id) == 1
    end(desk, taken(desk))
    fed(desk, sweep_id)
    end(desk, taken(desk))
    fed(desk, sweep_id)
    assert seen(desk, sweep_id).record.state is SweepState.SUCCEEDED


def test_a_cancel_keeps_what_is_estimated_and_a_resume_does_the_rest(desk: Desk) -> None:
    sweep_id = explored(desk)
    fed(desk, sweep_id)
    end(desk, taken(desk))
    fed(desk, sweep_id)
    sweeps.cancel_sweep(desk.services.database, sweep_id)
    fed(desk, sweep_id)
    found = seen(desk, sweep_id)
    assert found.record.state is SweepState.CANCELED
    assert states(desk, sweep_id) == ["succeeded", "canceled", "canceled"]
    assert len(found.items[0].estimates) == 2
    sweeps.resume_sweep(desk.services.database, sweep_id)
    assert fed(desk, sweep_id) == 2
    for _ in range(2):
        end(desk, taken(desk))
    assert fed(desk, sweep_id) == 1
    assert states(desk, sweep_id) == ["succeeded"] * 3 + ["active"]


def test_a_cancel_before_the_winners_are_there_can_be_resumed(desk: Desk) -> None:
    """All parts have succeeded, and nobody has looked: winners are owed, so it was canceled."""
    sweep_id = explored(desk)
    fed(desk, sweep_id)
    for _ in range(3):
        end(desk, taken(desk))
    sweeps.cancel_sweep(desk.services.database, sweep_id)
    fed(desk, sweep_id)
    assert seen(desk, sweep_id).record.state is SweepState.CANCELED
    assert states(desk, sweep_id) == ["succeeded"] * 3
    assert sweeps.resume_sweep(desk.services.database, sweep_id).record.state is SweepState.RUNNING
    assert fed(desk, sweep_id) == 1
    end(desk, taken(desk))
    fed(desk, sweep_id)
    assert seen(desk, sweep_id).record.state is SweepState.SUCCEEDED


@pytest.mark.parametrize("winners", [0, 1])
def test_nothing_to_compile_ends_it(desk: Desk, winners: int) -> None:
    """No winner was asked for, or no machine has figures."""
    sweep_id = explored(desk, winners=winners)
    fed(desk, sweep_id)
    for _ in range(3):
        held = taken(desk)
        rows = [{"choice": r["choice"], "values": r["values"], "why": "small"}
                for r in rows_of(held.part)]  # fmt: skip
        end(desk, held, rows if winners else None)
    fed(desk, sweep_id)
    assert seen(desk, sweep_id).record.state is SweepState.SUCCEEDED
    assert states(desk, sweep_id) == ["succeeded"] * 3


def test_a_part_whose_worker_died_is_the_same_part_again(desk: Desk) -> None:
    sweep_id = explored(desk)
    fed(desk, sweep_id)
    services = desk.services
    first = taken(desk)
    with services.database.write() as session:
        session.execute(update(ItemRow).where(ItemRow.id == first.item_id).values(lease_until=0.0))
    reconcile(services.database, services.outbox, services.settings)
    with services.database.write() as session:  # without the pause before another try
        session.execute(update(ItemRow).values(not_before=0.0))
    again = {held.item_id: held for held in (taken(desk), taken(desk), taken(desk))}
    assert again[first.item_id].part == first.part
    assert again[first.item_id].attempts == 2
    for held in again.values():
        end(desk, held)
    fed(desk, sweep_id)
    assert states(desk, sweep_id) == ["succeeded"] * 3 + ["active"]
    assert seen(desk, sweep_id).items[3].state is SweepItemState.ACTIVE


def test_parts_and_winners_count_as_items(desk: Desk) -> None:
    services = desk.services
    exploring.check_range(2, 5, 1, services.settings)
    tight = services.settings.model_copy(update={"max_sweep_items": 8})
    exploring.check_range(2, 5, 1, tight)
    with pytest.raises(TooLarge, match="10 items; a sweep has 8 at most"):
        exploring.check_range(2, 5, 2, tight)


def test_what_may_be_compared_is_what_the_command_compares() -> None:
    assert tuple(map(str, Cost)) == COSTS


def test_refusals_name_their_place(serve: Serve) -> None:
    served = serve(worker=False, max_sweep_items=3)
    good = {"models": [served.model()["id"]], "base": PRESET, "explore": {"winners": 2},
            "vary": ["GBUF.capacity_bytes=x1,x2"]}  # fmt: skip
    for changes, status, code, pointer in (
        ({"hardware": [PRESET]}, 422, "TW-SVC-004", "/hardware"),
        ({"base": None}, 422, "TW-SVC-004", "/base"),
        ({"vary": []}, 422, "TW-SVC-004", "/vary"),
        ({"vary": ["clock_hz=x1,x2", "/launch_cycles=x1,x2"]}, 422, "TW-OPT-001", "/vary/1"),
        ({"vary": ["clock_hz=x1", "clock_hz=x2"]}, 422, "TW-OPT-001", "/vary"),
        ({"vary": ["clock_hz=1..1e305"]}, 422, "TW-OPT-001", "/vary/0"),
        ({"explore": {"winners": 21}}, 422, "TW-SVC-004", "/explore/winners"),
        ({"explore": {"costs": ["beauty"]}}, 422, "TW-SVC-004", "/explore/costs/0"),
        ({"explore": {"winners": 3}}, 413, "TW-SVC-003", None),
        ({"models": ["mdl_none"]}, 404, "TW-SVC-001", "/models/0"),
    ):  # fmt: skip
        response = served.http.post("/v1/sweeps", json={**good, **changes})
        problem = assert_problem(response, status, code)
        found = problem["pointer"] or (problem["errors"] or [{}])[0].get("pointer")
        assert found == pointer, problem
    made = served.http.post("/v1/sweeps", json=good)
    assert made.status_code == 202, made.text
    assert made.json()["explore"]["machines"] == 2
    assert made.json()["progress"]["total"] == 1
