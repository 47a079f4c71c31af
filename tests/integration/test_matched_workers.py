"""A job is for workers that have its strategies, and says why it waits while none of them lives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from service_fixtures import Desk, MakeSettings
from sqlalchemy import update

from service.jobs import claim as protocol
from service.jobs import query
from service.jobs.reconcile import note_waiting, reconcile, restate_wants
from service.settings import Settings
from service.store.repos import workers
from service.store.strategy_sets import is_served, offered, wanted, why_waiting
from service.store.tables import AttemptRow, ItemRow, JobRow, db_now
from worker.compiler.descriptors import strategies
from worker.compiler.options import CompileOptions

OpenDesk = Callable[[Settings], Desk]
OLD = "graphturbo 1\nnaive 1"


@pytest.fixture
def desk(database_url: str, make_settings: MakeSettings, open_desk: OpenDesk) -> Desk:
    return open_desk(make_settings(database_url=database_url))


def _worker(desk: Desk, name: str, offer: str) -> None:
    with desk.services.database.write() as session:
        workers.register(
            session, worker_id=name, host="h", pid=1, slots=1, version="1", sandbox_tier="none",
            strategies=offer,
        )  # fmt: skip


def _claimed(desk: Desk, offer: str | None = None) -> str | None:
    held = protocol.claim(desk.services.database, "w", 10.0, offer=offer)
    return None if held is None else held.job.id


def test_a_job_by_name_wants_its_strategy_and_those_that_take_what_it_leaves() -> None:
    found = strategies()
    naive, turbo = (f"{name} {found[name].version}" for name in ("naive", "graphturbo"))
    assert wanted(CompileOptions(strategy="naive")) == naive
    assert wanted(CompileOptions(strategy="graphturbo")).splitlines() == [turbo, naive]
    assert wanted(CompileOptions()) == offered()


def test_reasons_name_what_the_nearest_worker_lacks() -> None:
    assert why_waiting("a 1", []) == "no worker is alive"
    assert why_waiting("a 1", ["a 1\nb 1"]) is None
    assert why_waiting("a 1\nb 2", ["b 2"]) == "the live worker lacks strategy a 1"
    reason = why_waiting("a 1\nb 2", ["a 2\nb 1", "a 1\nb 1"])
    assert reason == "none of 2 live workers has strategy b 2"


def test_workers_of_a_release_that_named_none_take_whatever_there_is() -> None:
    assert is_served("a 1", "")


def test_only_a_worker_with_the_strategies_claims(desk: Desk) -> None:
    job = desk.submit()
    assert _claimed(desk, OLD) is None
    assert _claimed(desk) == job.id


def test_others_are_not_held_up_by_a_job_that_nobody_can_take(desk: Desk) -> None:
    database = desk.services.database
    stuck = desk.submit({"n": 1}, priority=9)
    with database.write() as session:
        session.execute(update(ItemRow).values(strategies="chain 7"))
    good = desk.submit({"n": 2})
    _worker(desk, "a", offered())
    with database.write() as session:
        session.execute(update(ItemRow).values(dispatched_at=None))
    assert desk.services.outbox.nudge() == 1  # one bell, for the second in line
    assert _claimed(desk) == good.id
    assert _claimed(desk, f"chain 7\n{offered()}") == stuck.id


def test_a_bell_that_the_wrong_worker_heard_is_rung_again(desk: Desk) -> None:
    desk.submit()
    _worker(desk, "a", OLD)
    _worker(desk, "b", offered())
    desk.services.outbox.flush()
    assert desk.services.outbox.flush() == 0
    assert _claimed(desk, OLD) is None
    assert desk.services.outbox.flush() == 1


def test_a_job_says_why_it_waits_and_that_it_waits_no_more(desk: Desk) -> None:
    database = desk.services.database
    job = desk.submit()
    _worker(desk, "a", OLD)
    before = desk.job(job.id).event_seq
    note_waiting(database)
    waiting = desk.job(job.id)
    assert waiting.waiting is not None
    assert waiting.waiting.startswith("the live worker lacks strategies graphturbo ")
    assert waiting.event_seq == before + 1  # clients that poll by ETag see it
    assert note_waiting(database) == 0  # said once
    _worker(desk, "b", offered())
    note_waiting(database)
    assert desk.job(job.id).waiting is None
    kinds = [
        event.payload for event in query.list_events(database, job.id) if event.type == "waiting"
    ]
    assert [kind["reason"] is None for kind in kinds] == [False, True]


def test_a_job_without_a_worker_is_no_sign_of_unheard_bells(desk: Desk) -> None:
    desk.submit()
    _worker(desk, "a", OLD)
    with desk.services.database.write() as session:
        session.execute(update(ItemRow).values(created=db_now() - 1000.0))
    assert query.queue_stats(desk.services.database).oldest_ready_s > 900.0
    note_waiting(desk.services.database)
    assert query.queue_stats(desk.services.database).oldest_ready_s == 0.0


def test_it_is_quiet_since_an_attempt_began_or_ended(desk: Desk) -> None:
    database = desk.services.database
    desk.submit()
    assert query.queue_stats(database).quiet_s is None
    held = protocol.claim(database, "w", 10.0)
    assert held is not None
    with database.write() as session:
        session.execute(update(AttemptRow).values(started=db_now() - 1000.0))
    began = query.queue_stats(database).quiet_s
    assert began is not None and began > 900.0
    protocol.fail(database, held, {"code": "TW-MODEL-004"}, protocol.Usage())
    ended = query.queue_stats(database).quiet_s
    assert ended is not None and ended < 100.0


def test_a_claim_ends_the_waiting(desk: Desk) -> None:
    job = desk.submit()
    note_waiting(desk.services.database)
    assert desk.job(job.id).waiting == "no worker is alive"
    assert _claimed(desk) == job.id
    assert desk.job(job.id).waiting is None


def test_a_job_that_expires_says_why_nobody_took_it(desk: Desk) -> None:
    job = desk.submit()
    _worker(desk, "a", OLD)
    note_waiting(desk.services.database)
    with desk.services.database.write() as session:
        session.execute(update(JobRow).values(queue_deadline=db_now() - 1))
    reconcile(desk.services.database, desk.services.outbox, desk.services.settings)
    error = desk.job(job.id).error
    assert error is not None and "lacks strategies graphturbo" in str(error["detail"])


def test_a_server_that_starts_lets_older_jobs_want_its_own_versions(desk: Desk) -> None:
    database = desk.services.database
    job = desk.submit()
    with database.write() as session:
        session.execute(update(ItemRow).values(strategies=OLD))
    assert _claimed(desk) is None
    assert restate_wants(database) == 1
    assert restate_wants(database) == 0
    last = query.list_events(database, job.id)[-1]
    assert last.type == "strategies" and last.payload["had"] == OLD.splitlines()
    assert _claimed(desk) == job.id
