"""The lease protocol on real databases: who owns what, and what a stale owner may still do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from service_fixtures import Desk, MakeSettings
from sqlalchemy import text, update
from sqlalchemy.exc import OperationalError

from service.errors import (
    Conflict,
    IdempotencyMismatch,
    LeaseLost,
    NotFound,
    QuotaExceeded,
    problem,
)
from service.jobs import claim as protocol
from service.jobs import query, reconcile, submit
from service.jobs.cancel import cancel_job
from service.jobs.claim import Heartbeat, Usage
from service.settings import Settings
from service.states import ItemState, JobState
from service.store.blobs import put_bytes
from service.store.records import JobFilter, JobRecord
from service.store.repos import items
from service.store.tables import ItemRow, JobRow, db_now
from worker.compiler.options import CompileOptions

OpenDesk = Callable[[Settings], Desk]


@pytest.fixture
def desk(database_url: str, make_settings: MakeSettings, open_desk: OpenDesk) -> Desk:
    return open_desk(make_settings(database_url=database_url))


def _age_lease(desk: Desk, seconds: float = 100.0) -> None:
    """Let every lease run out, as if its worker had been silent for that long."""
    with desk.services.database.write() as session:
        session.execute(update(ItemRow).values(lease_until=db_now() - seconds))


def _claim(desk: Desk, owner: str) -> protocol.Claim:
    held = protocol.claim(desk.services.database, owner, 10.0)
    assert held is not None
    return held


def _succeed(desk: Desk, held: protocol.Claim, digest: str = "d") -> None:
    ref = put_bytes(desk.services.blobs, digest.encode(), "text/plain")
    protocol.succeed(
        desk.services.database,
        held,
        artifacts=(("report", "report.json", ref),),
        bundle_digest=digest,
        summary={},
        usage=Usage(),
    )


def test_database_clock_is_a_number(desk: Desk) -> None:
    with desk.services.database.read() as session:
        now = session.scalar(text("SELECT 1")), session.query(db_now()).scalar()
    assert now[0] == 1
    assert now[1] is not None and now[1] > 1.7e9


def test_claim_moves_item_and_job_together(desk: Desk) -> None:
    job = desk.submit()
    held = _claim(desk, "a.1")
    assert held.job.id == job.id
    assert desk.job(job.id).state is JobState.RUNNING
    assert protocol.claim(desk.services.database, "b.1", 10.0) is None


def test_highest_priority_is_claimed_first(desk: Desk) -> None:
    low = desk.submit({"n": 1})
    high = desk.submit({"n": 2}, priority=5)
    assert _claim(desk, "a").job.id == high.id
    assert _claim(desk, "a").job.id == low.id


def test_stale_owner_is_fenced_off(desk: Desk) -> None:
    database = desk.services.database
    job = desk.submit()
    stale = _claim(desk, "a")
    _age_lease(desk)
    reconcile.expire_leases(
        database, desk.services.settings.model_copy(update={"retry_backoff_s": 0.0})
    )
    fresh = _claim(desk, "b")
    assert fresh.fence == stale.fence + 1
    assert not protocol.renew(database, stale, 10.0)
    with pytest.raises(LeaseLost):
        protocol.record(database, stale, [(protocol.Stage("schedule", "started"), 0.0)])
    with pytest.raises(LeaseLost):
        _succeed(desk, stale, "stale")
    with pytest.raises(LeaseLost):
        protocol.fail(database, stale, problem("TW-INT-001", "stale"), Usage())
    _succeed(desk, fresh, "fresh")
    assert desk.job(job.id).bundle_digest == "fresh"
    outcomes = [(a.fence, a.outcome) for a in query.list_attempts(database, job.id)]
    assert outcomes == [(1, "lost"), (2, "succeeded")]


def test_same_owner_with_an_older_fence_is_stale_too(desk: Desk) -> None:
    database = desk.services.database
    desk.submit()
    stale = _claim(desk, "a")
    _age_lease(desk)
    reconcile.expire_leases(
        database, desk.services.settings.model_copy(update={"retry_backoff_s": 0.0})
    )
    fresh = _claim(desk, "a")
    with pytest.raises(LeaseLost):
        _succeed(desk, stale)
    _succeed(desk, fresh)


def test_one_owner_per_item_at_a_barrier(desk: Desk) -> None:
    count, threads = 12, 8
    for index in range(count):
        desk.submit({"n": index})
    barrier = threading.Barrier(threads)

    def race(number: int) -> list[tuple[str, int]]:
        barrier.wait()
        won = []
        while (held := protocol.claim(desk.services.database, f"w{number}", 30.0)) is not None:
            won.append((held.item_id, held.fence))
        return won

    with ThreadPoolExecutor(threads) as pool:
        won = [pair for pairs in pool.map(race, range(threads)) for pair in pairs]
    assert len(won) == count
    assert len({item_id for item_id, _ in won}) == count
    assert {fence for _, fence in won} == {1}


def test_attempts_run_out_and_the_job_fails(desk: Desk) -> None:
    database = desk.services.database
    job = desk.submit()
    settings = desk.services.settings.model_copy(update={"retry_backoff_s": 0.0})
    for _ in range(settings.max_attempts):
        _claim(desk, "a")
        _age_lease(desk)
        reconcile.expire_leases(database, settings)
    done = desk.job(job.id)
    assert done.state is JobState.FAILED
    assert done.error is not None and done.error["code"] == "TW-SVC-006"
    with database.read() as session:
        (item,) = items.of_job(session, job.id)
    assert item.state is ItemState.DEAD
    assert protocol.claim(database, "a", 10.0) is None


def test_retry_waits_for_its_backoff(desk: Desk) -> None:
    database = desk.services.database
    job = desk.submit()
    held = _claim(desk, "a")
    assert protocol.retry(database, held, "killed by signal 9", Usage(), backoff_s=60.0)
    assert protocol.claim(database, "a", 10.0) is None
    assert desk.job(job.id).state is JobState.RUNNING
    crash = [e for e in query.list_events(database, job.id) if e.type == "crash"]
    assert crash[0].payload == {"reason": "killed by signal 9", "retry_in_s": 60.0}


def test_heartbeat_never_extends_past_the_hard_deadline(desk: Desk) -> None:
    database = desk.services.database
    desk.submit(wall_limit_s=5.0)
    held = _claim(desk, "a")
    assert protocol.renew(database, held, 10_000.0)
    with database.read() as session:
        item = items.get(session, held.item_id)
    assert item is not None and item.hard_deadline is not None
    assert item.lease_until == pytest.approx(item.hard_deadline)
    with database.write() as session:
        session.execute(update(ItemRow).values(hard_deadline=db_now() - 1.0))
    assert not protocol.renew(database, held, 10.0)
    assert reconcile.expire_leases(database, desk.services.settings) == 1


def test_heartbeat_dies_with_its_work(desk: Desk) -> None:
    """A finish that raises must not leave a thread that renews a dead item for ever."""
    database = desk.services.database
    desk.submit()
    held = _claim(desk, "a")
    beat = Heartbeat(database, held, ttl_s=10.0, beat_s=0.05, watch_s=0.05, on_stop=lambda: None)
    with pytest.raises(OperationalError), beat:
        raise OperationalError("finish", {}, Exception("the database restarts"))
    assert not any(t.name == f"heartbeat-{held.item_id}" for t in threading.enumerate())
    _age_lease(desk)
    assert reconcile.expire_leases(database, desk.services.settings) == 1


def test_heartbeat_reports_a_lost_lease_and_a_cancel(desk: Desk) -> None:
    database = desk.services.database
    job = desk.submit()
    held = _claim(desk, "a")
    stopped = threading.Event()
    with Heartbeat(
        database, held, ttl_s=10.0, beat_s=0.05, watch_s=0.05, on_stop=stopped.set
    ) as beat:
        cancel_job(database, job.id)
        assert stopped.wait(5.0)
        assert beat.canceling and not beat.lost
        with database.write() as session:
            session.execute(update(ItemRow).values(fence=ItemRow.fence + 1))
        for _ in range(100):
            if beat.lost:
                break
            stopped.wait(0)
            threading.Event().wait(0.05)
        assert beat.lost


def test_two_finishers_do_not_lose_the_wake_up(desk: Desk) -> None:
    """The last two needs of an item finish at the same time; it must become ready."""
    database = desk.services.database
    job = desk.submit()
    with database.write() as session:
        for name, needs in (("left", ()), ("right", ()), ("join", ("left", "right"))):
            items.insert(
                session,
                item_id=name,
                job_id=job.id,
                kind="unit",
                priority=9,
                max_attempts=3,
                wall_limit_s=60.0,
                needs=needs,
            )
    for name in ("left", "right"):
        assert protocol.claim(database, f"w-{name}", 10.0, name) is not None
    barrier = threading.Barrier(2)

    def finish(name: str) -> None:
        barrier.wait()
        with database.write() as session:
            assert items.finish(session, name, f"w-{name}", 1, ItemState.DONE)
        reconcile.promote(database)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(finish, ("left", "right")))
    with database.read() as session:
        join = items.get(session, "join")
    assert join is not None and join.state is ItemState.READY


def test_promote_waits_for_every_need(desk: Desk) -> None:
    database = desk.services.database
    job = desk.submit()
    with database.write() as session:
        items.insert(
            session,
            item_id="need",
            job_id=job.id,
            kind="unit",
            priority=1,
            max_attempts=3,
            wall_limit_s=60.0,
        )
        items.insert(
            session,
            item_id="then",
            job_id=job.id,
            kind="unit",
            priority=1,
            max_attempts=3,
            wall_limit_s=60.0,
            needs=("need",),
        )
    assert reconcile.promote(database) == ()
    assert protocol.claim(database, "w", 10.0, "then") is None
    assert protocol.claim(database, "w", 10.0, "need") is not None
    with database.write() as session:
        items.finish(session, "need", "w", 1, ItemState.DONE)
    assert reconcile.promote(database) == ("then",)


def test_cancel_queued_is_immediate(desk: Desk) -> None:
    database = desk.services.database
    job = desk.submit()
    assert cancel_job(database, job.id).state is JobState.CANCELED
    assert protocol.claim(database, "a", 10.0) is None
    assert cancel_job(database, job.id).state is JobState.CANCELED


def test_cancel_running_then_finish_race(desk: Desk) -> None:
    database = desk.services.database
    first = desk.submit({"n": 1})
    held = _claim(desk, "a")
    assert cancel_job(database, first.id).state is JobState.CANCELING
    _succeed(desk, held)
    assert desk.job(first.id).state is JobState.CANCELED
    second = desk.submit({"n": 2})
    held = _claim(desk, "a")
    _succeed(desk, held)
    with pytest.raises(Conflict):
        cancel_job(database, second.id)


def test_cancel_races_claim_at_a_barrier(desk: Desk) -> None:
    database = desk.services.database
    for number in range(6):
        job = desk.submit({"n": number})
        barrier = threading.Barrier(2)

        def take(barrier: threading.Barrier = barrier) -> protocol.Claim | None:
            barrier.wait()
            return protocol.claim(database, "a", 10.0)

        def cancel(barrier: threading.Barrier = barrier, job_id: str = job.id) -> JobState:
            barrier.wait()
            return cancel_job(database, job_id).state

        with ThreadPoolExecutor(2) as pool:
            taken, canceled = pool.submit(take), pool.submit(cancel)
            held, state = taken.result(), canceled.result()
        assert (held is None) == (state is JobState.CANCELED)
        if held is not None:
            protocol.canceled(database, held, Usage())
        assert desk.job(job.id).state is JobState.CANCELED


def test_cancel_during_backoff_needs_no_worker(desk: Desk) -> None:
    database = desk.services.database
    job = desk.submit()
    protocol.retry(database, _claim(desk, "a"), "crash", Usage(), backoff_s=60.0)
    assert cancel_job(database, job.id).state is JobState.CANCELED


def test_cancel_of_a_vanished_worker_is_settled(desk: Desk) -> None:
    database = desk.services.database
    job = desk.submit()
    _claim(desk, "a")
    cancel_job(database, job.id)
    _age_lease(desk)
    reconcile.reconcile(database, desk.services.outbox, desk.services.settings)
    assert desk.job(job.id).state is JobState.CANCELED


def test_queue_deadline_expires_the_job(desk: Desk) -> None:
    database = desk.services.database
    job = desk.submit()
    with database.write() as session:
        session.execute(update(JobRow).values(queue_deadline=db_now() - 1.0))
    assert reconcile.expire_queued(database) == 1
    assert desk.job(job.id).state is JobState.EXPIRED
    assert protocol.claim(database, "a", 10.0) is None


def test_idempotent_replay_and_mismatch(desk: Desk) -> None:
    services = desk.services
    first = desk.submit()
    new = submit.NewJob(first.model_id, first.hardware_id)
    key = submit.IdempotencyKey("local POST /v1/jobs", "k1", "a" * 64)
    one = submit.submit_job(services.database, services.outbox, services.settings, new, key)
    two = submit.submit_job(services.database, services.outbox, services.settings, new, key)
    assert (one.created, two.created) == (True, False)
    assert one.job.id == two.job.id
    other = submit.IdempotencyKey(key.scope, key.key, "b" * 64)
    with pytest.raises(IdempotencyMismatch):
        submit.submit_job(services.database, services.outbox, services.settings, new, other)
    assert len(query.list_jobs(services.database).rows) == 2


def test_concurrent_replays_make_one_job(desk: Desk) -> None:
    services = desk.services
    first = desk.submit()
    new = submit.NewJob(first.model_id, first.hardware_id)
    key = submit.IdempotencyKey("local POST /v1/jobs", "k2", "a" * 64)
    barrier = threading.Barrier(4)

    def send(_: int) -> submit.Submission:
        barrier.wait()
        return submit.submit_job(services.database, services.outbox, services.settings, new, key)

    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(send, range(4)))
    assert len({s.job.id for s in got}) == 1
    assert sum(s.created for s in got) == 1


def test_unknown_references_and_quota(desk: Desk) -> None:
    services = desk.services
    job = desk.submit()
    with pytest.raises(NotFound):
        submit.submit_job(
            services.database,
            services.outbox,
            services.settings,
            submit.NewJob("model_x", job.hardware_id),
        )
    tight = services.settings.model_copy(update={"max_active_jobs": 1})
    with pytest.raises(QuotaExceeded) as caught:
        submit.submit_job(
            services.database,
            services.outbox,
            tight,
            submit.NewJob(job.model_id, job.hardware_id),
        )
    assert caught.value.headers == {"Retry-After": "30"}


def test_pages_walk_through_all_jobs_once(desk: Desk) -> None:
    made = [desk.submit({"n": n}, label="even" if n % 2 == 0 else None).id for n in range(7)]
    seen: list[str] = []
    cursor = None
    while True:
        page = query.list_jobs(desk.services.database, cursor=cursor, limit=3)
        seen += [job.id for job in page.rows]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == made[::-1]


def test_a_list_of_jobs_can_be_narrowed(desk: Desk) -> None:
    """Each filter alone, and all together, against picking by hand."""
    database = desk.services.database
    made = [
        desk.submit(
            {"n": n % 2}, label=("a", "b", None)[n % 3], model=bytes([n % 2]),
            options=CompileOptions(strategy=("auto", "naive")[n // 3 % 2]),
        )
        for n in range(12)
    ]  # fmt: skip
    with database.write() as session:
        for number, job in enumerate(made):
            row = session.get(JobRow, job.id)
            assert row is not None
            row.created = 1000.0 + number
    jobs = {job.id: query.get_job(database, job.id) for job in made}
    wanted = JobFilter(
        (JobState.QUEUED,), "a", made[0].model_id, made[0].hardware_id, "auto", 1001.0, 1011.0
    )
    rules: dict[str, Callable[[JobRecord], bool]] = {
        "states": lambda job: job.state is JobState.QUEUED,
        "label": lambda job: job.label == "a",
        "model": lambda job: job.model_id == made[0].model_id,
        "hardware": lambda job: job.hardware_id == made[0].hardware_id,
        "strategy": lambda job: job.options["strategy"] == "auto",
        "since": lambda job: job.created >= 1001.0,
        "until": lambda job: job.created < 1011.0,
    }

    def listed(found: JobFilter) -> list[str]:
        return [job.id for job in query.list_jobs(database, wanted=found).rows]

    newest_first = [job.id for job in reversed(made)]
    for name, rule in rules.items():
        one = replace(JobFilter(), **{name: getattr(wanted, name)})
        assert listed(one) == [job_id for job_id in newest_first if rule(jobs[job_id])], name
    every = [job_id for job_id in newest_first if all(r(jobs[job_id]) for r in rules.values())]
    assert listed(wanted) == every
    assert every
    assert listed(JobFilter((JobState.FAILED,))) == []
    for odd in ("au_o", "a%", 'auto","seed":"0'):
        assert listed(JobFilter(strategy=odd)) == []


def test_clone_and_delete(desk: Desk) -> None:
    services = desk.services
    job = desk.submit(options=CompileOptions(seed=5))
    copy = submit.clone_job(services.database, services.outbox, services.settings, job.id).job
    assert (copy.cloned_from, copy.options["seed"]) == (job.id, 5)
    with pytest.raises(Conflict):
        query.delete_job(services.database, job.id)
    cancel_job(services.database, job.id)
    query.delete_job(services.database, job.id)
    with pytest.raises(NotFound):
        query.get_job(services.database, job.id)
    with pytest.raises(Conflict):
        query.delete_model(services.database, copy.model_id)


def test_outbox_rings_once_and_again_when_old(desk: Desk) -> None:
    job = desk.submit()
    outbox = desk.services.outbox
    assert outbox.flush() == 0  # submit has rung already
    with desk.services.database.write() as session:
        session.execute(update(ItemRow).values(dispatched_at=db_now() - 100.0))
    assert outbox.flush() == 1
    with desk.services.database.read() as session:
        (item,) = items.of_job(session, job.id)
    assert item.dispatches == 2
