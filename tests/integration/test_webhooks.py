"""Webhooks: what is told when jobs end, signed, once, again when it was not taken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from api_fixtures import PRESET
from service_fixtures import Desk, MakeSettings
from sqlalchemy import func, select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from webhook_receiver import Receiver, receiver, status

from service.errors import Conflict, Malformed, NotFound, QuotaExceeded
from service.jobs import query, webhooks
from service.jobs.cancel import cancel_job
from service.jobs.claim import claim
from service.jobs.reconcile import collect_garbage, expire_queued
from service.jobs.retention import retire
from service.jobs.submit import IdempotencyKey
from service.jobs.webhooks import NewWebhook
from service.push.deliverer import Deliverer, give_back, settle, take
from service.push.sending import Outcome
from service.settings import Settings
from service.states import TERMINAL_JOB_STATES, DeliveryState, EventType, JobState
from service.store.repos import deliveries, jobs
from service.store.repos import webhooks as hooks
from service.store.session import Database
from service.store.tables import DeliveryRow, JobRow, WebhookRow

OPEN = {"webhook_hosts": ("127.0.0.1",), "webhook_backoff_s": 0.02, "webhook_timeout_s": 5.0}


GOOD = Outcome(200, None, 0.1)


BAD = Outcome(500, "answered 500", 0.1)


@pytest.fixture
def listening() -> Iterator[Receiver]:
    with receiver() as state:
        yield state


@pytest.fixture
def desk(
    database_url: str, open_desk: Callable[[Settings], Desk], make_settings: MakeSettings
) -> Desk:
    return open_desk(make_settings(database_url=database_url, **OPEN))


def subscribe(desk: Desk, url: str = "http://127.0.0.1:9/", **changes: Any) -> tuple[str, str]:
    """(id, secret) of a new subscription."""
    new = NewWebhook(url, "ci", changes.pop("events", ()))
    services = desk.services
    record, secret = webhooks.create_webhook(
        services.database, services.settings, new, owner=changes.pop("owner", "local"), **changes
    )
    return record.id, secret


def sent_to(desk: Desk, webhook_id: str, owner: str = "local") -> list[Any]:
    return list(query.list_deliveries(desk.services.database, webhook_id, owner=owner).rows)


def ended(desk: Desk, state: JobState = JobState.SUCCEEDED) -> str:
    """A job that ends in a state by the move that every end takes."""
    job = desk.submit()
    with desk.services.database.write() as session:
        for step in (JobState.RUNNING, JobState.CANCELING):
            if state == JobState.EXPIRED:
                break
            if step is JobState.RUNNING or state is JobState.CANCELED:
                assert jobs.move(session, job.id, step)
        assert jobs.move(session, job.id, state, error={"code": "TW-SVC-008", "detail": "late"})
    return job.id


def age(desk: Desk, row: type, seconds: float, *columns: str) -> None:
    """Let times of all rows be so long ago."""
    with desk.services.database.write() as session:
        session.execute(
            update(row).values({name: getattr(row, name) - seconds for name in columns}),
            execution_options={"synchronize_session": False},
        )


def test_there_is_an_event_for_each_end() -> None:
    ends = {f"job.{state}" for state in TERMINAL_JOB_STATES}
    assert {*ends, EventType.SWEEP_ENDED} == set(EventType)


@pytest.mark.parametrize("state", sorted(TERMINAL_JOB_STATES))
def test_every_end_is_told_once_to_who_wants_it(desk: Desk, state: JobState) -> None:
    everything, _ = subscribe(desk)
    this, _ = subscribe(desk, events=(EventType(f"job.{state}"),))
    other, _ = subscribe(desk, events=[e for e in EventType if e != f"job.{state}"])
    foreign, _ = subscribe(desk, owner="else")
    job_id = ended(desk, state)
    assert sent_to(desk, other) == []
    assert sent_to(desk, foreign, "else") == []
    for webhook_id in (everything, this):
        [message] = sent_to(desk, webhook_id)
        assert (message.job_id, message.type) == (job_id, f"job.{state}")
        assert message.state is DeliveryState.PENDING
    with desk.services.database.write() as session:
        assert not jobs.move(session, job_id, state)  # it has ended: nothing more is told
    assert len(sent_to(desk, everything)) == 1


def test_what_is_not_committed_is_not_told(desk: Desk) -> None:
    """The message and the end are one transaction."""
    hook, _ = subscribe(desk)
    job = desk.submit()
    with pytest.raises(RuntimeError), desk.services.database.write() as session:
        assert jobs.move(session, job.id, JobState.CANCELED)
        raise RuntimeError("the process dies here")
    assert sent_to(desk, hook) == []
    assert desk.job(job.id).state is JobState.QUEUED


def test_cancels_and_deadlines_are_told(desk: Desk) -> None:
    hook, _ = subscribe(desk)
    canceled, late = desk.submit(), desk.submit()
    cancel_job(desk.services.database, canceled.id)
    with desk.services.database.write() as session:
        session.execute(update(JobRow).where(JobRow.id == late.id).values(queue_deadline=0.0))
    assert expire_queued(desk.services.database) == 1
    assert {(m.job_id, m.type) for m in sent_to(desk, hook)} == {
        (canceled.id, "job.canceled"), (late.id, "job.expired"),
    }  # fmt: skip


def test_a_lease_keeps_others_off_and_lapses(desk: Desk) -> None:
    """As after a kill -9 between the end of a job and its delivery, and in the middle of it."""
    database, settings = desk.services.database, desk.services.settings
    hook, _ = subscribe(desk)
    ended(desk)
    [order] = take(database, settings, 10)
    assert take(database, settings, 10) == []
    age(desk, DeliveryRow, 3600.0, "lease_until")
    [again] = take(database, settings, 10)
    assert (again.due.id, again.due.body) == (order.due.id, order.due.body)
    assert again.due.fence == order.due.fence + 1
    assert again.due.number == 2
    settle(database, settings, order.due, BAD)  # the first comes back from the dead: it is void
    assert sent_to(desk, hook)[0].state is DeliveryState.PENDING
    assert take(database, settings, 10) == []
    settle(database, settings, again.due, GOOD)
    assert sent_to(desk, hook)[0].state is DeliveryState.DELIVERED
    settle(database, settings, order.due, BAD)
    assert sent_to(desk, hook)[0].state is DeliveryState.DELIVERED


def test_no_more_than_two_at_a_time_to_one_receiver(desk: Desk) -> None:
    database, settings = desk.services.database, desk.services.settings
    first, _ = subscribe(desk)
    for _ in range(4):
        ended(desk)
    second, _ = subscribe(desk)
    ended(desk)
    orders = take(database, settings, 10)
    assert sorted(o.webhook.id for o in orders) == sorted([first, first, second])
    assert take(database, settings, 10) == []
    settle(database, settings, next(o.due for o in orders if o.webhook.id == first), GOOD)
    assert [o.webhook.id for o in take(database, settings, 10)] == [first]


def test_many_deliverers_send_everything_once(desk: Desk, listening: Receiver) -> None:
    """Four at once, each with connections of its own, as four workers."""
    services = desk.services
    for _ in range(5):
        subscribe(desk, listening.url)
    for _ in range(6):
        ended(desk)
    databases = [Database(services.settings.database_url) for _ in range(4)]
    deliverers = [Deliverer(database, services.settings) for database in databases]
    for one in deliverers:
        one.start()
    listening.wait(30, timeout_s=60)
    time.sleep(0.5)
    for one in deliverers:
        one.stop()
    for database in databases:
        database.close()
    assert len(listening.got) == len({got.id for got in listening.got}) == 30
    assert listening.most_open <= 10
    known = query.list_webhooks(services.database, "local")
    left = {m.state for hook in known for m in sent_to(desk, hook.id)}
    assert left == {DeliveryState.DELIVERED}


def test_two_that_count_at_once_take_no_more_than_two(
    pg_database_url: str, open_desk: Callable[[Settings], Desk], make_settings: MakeSettings
) -> None:
    """On PostgreSQL transactions overlap: the second waits for no one, and takes nothing."""
    desk = open_desk(make_settings(database_url=pg_database_url, **OPEN))
    subscribe(desk)
    for _ in range(5):
        ended(desk)
    database = desk.services.database
    with database.write() as first:
        assert len(deliveries.lease(first, ttl_s=60.0, limit=10, each=2)) == 2
        with database.write() as second:
            assert deliveries.lease(second, ttl_s=60.0, limit=10, each=2) == []
    with database.write() as third:
        assert deliveries.lease(third, ttl_s=60.0, limit=10, each=2) == []


def test_the_end_of_a_job_waits_for_a_deletion_and_is_not_broken_by_it(
    pg_database_url: str, open_desk: Callable[[Settings], Desk], make_settings: MakeSettings
) -> None:
    """On PostgreSQL the subscription goes between the look at it and the message to it."""
    desk = open_desk(make_settings(database_url=pg_database_url, **OPEN))
    hook, _ = subscribe(desk)
    job = desk.submit()
    database = desk.services.database
    done = threading.Event()

    def end() -> None:
        with database.write() as session:
            assert jobs.move(session, job.id, JobState.CANCELED)
        done.set()

    with database.write() as session:
        hooks.remove(session, hook)
        ending = threading.Thread(target=end)
        ending.start()
        assert not done.wait(0.5)  # it waits for what becomes of the subscription
    ending.join(10)
    assert done.is_set()
    assert desk.job(job.id).state is JobState.CANCELED


def test_a_database_that_is_away_for_a_moment_costs_no_message(
    desk: Desk, listening: Receiver
) -> None:
    """The receiver has taken it when the database goes: it is noted later, and not sent again."""
    services = desk.services
    hook, _ = subscribe(desk, listening.url)
    ended(desk)
    failures = 2

    class Flaky(Database):
        @contextmanager
        def write(self) -> Iterator[Session]:
            nonlocal failures
            if listening.got and failures:
                failures -= 1
                raise OperationalError("UPDATE", {}, Exception("the server closed the connection"))
            with super().write() as session:
                yield session

    database = Flaky(services.settings.database_url)
    deliverer = Deliverer(database, services.settings)
    deliverer.start()
    deadline = time.monotonic() + 20
    while sent_to(desk, hook)[0].state is DeliveryState.PENDING:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    deliverer.stop()
    database.close()
    assert failures == 0
    assert len(listening.got) == 1
    assert sent_to(desk, hook)[0].state is DeliveryState.DELIVERED


def test_a_subscription_may_go_while_something_is_sent_to_it(desk: Desk) -> None:
    database, settings = desk.services.database, desk.services.settings
    for outcome in (GOOD, BAD):
        hook, _ = subscribe(desk)
        ended(desk)
        [order] = take(database, settings, 10)
        webhooks.delete_webhook(database, hook, "local")
        settle(database, settings, order.due, outcome)
        give_back(database, order.due, outcome)
    assert take(database, settings, 10) == []


def test_a_message_is_given_up_after_its_span(desk: Desk) -> None:
    database = desk.services.database
    settings = desk.services.settings.model_copy(update={"webhook_backoff_s": 1e-3})
    hook, _ = subscribe(desk)
    ended(desk)
    for number in (1, 2):
        [order] = take(database, settings, 10)
        assert order.due.number == number
        settle(database, settings, order.due, BAD)
        time.sleep(0.01)
    assert sent_to(desk, hook)[0].state is DeliveryState.PENDING
    age(desk, DeliveryRow, settings.webhook_give_up_s, "since")
    [order] = take(database, settings, 10)
    settle(database, settings, order.due, BAD)
    [message] = sent_to(desk, hook)
    assert message.state is DeliveryState.GIVEN_UP
    assert message.finished is not None
    found = query.get_webhook(database, hook, "local")
    assert found.disabled is None  # its receiver has not failed for long enough
    assert found.failing_since is not None


def test_a_subscription_that_fails_for_long_is_disabled(desk: Desk) -> None:
    database, settings = desk.services.database, desk.services.settings
    hook, _ = subscribe(desk)
    ended(desk)
    [order] = take(database, settings, 10)
    settle(database, settings, order.due, BAD)
    age(desk, WebhookRow, settings.webhook_disable_s, "failing_since")
    age(desk, DeliveryRow, settings.webhook_give_up_s, "since", "not_before")
    ended(desk)  # a second message that waits
    later = [o for o in take(database, settings, 10) if o.due.id == order.due.id]
    age(desk, DeliveryRow, 3600.0, "lease_until")
    settle(database, settings, later[0].due, BAD)
    found = query.get_webhook(database, hook, "local")
    assert found.disabled is not None
    assert "120 h" in (found.disabled_why or "")
    assert {m.state for m in sent_to(desk, hook)} == {DeliveryState.GIVEN_UP}
    ended(desk)
    assert len(sent_to(desk, hook)) == 2  # nothing is written for it any more
    given_up = sent_to(desk, hook)[0].id
    with pytest.raises(Conflict, match="disabled"):
        webhooks.replay(database, hook, given_up, owner="local")
    enabled = webhooks.enable_webhook(database, hook, owner="local")
    assert (enabled.disabled, enabled.disabled_why, enabled.failing_since) == (None, None, None)
    ended(desk)
    assert len(sent_to(desk, hook)) == 3
    assert webhooks.replay(database, hook, given_up, owner="local").state is DeliveryState.PENDING


def test_one_success_ends_a_failing_time(desk: Desk) -> None:
    database, settings = desk.services.database, desk.services.settings
    hook, _ = subscribe(desk)
    for outcome, fails in ((BAD, True), (GOOD, False)):
        ended(desk)
        for order in take(database, settings, 1):
            settle(database, settings, order.due, outcome)
        found = query.get_webhook(database, hook, "local")
        assert (found.failing_since is not None) is fails


def test_gone_means_no_more(desk: Desk) -> None:
    database, settings = desk.services.database, desk.services.settings
    hook, _ = subscribe(desk)
    ended(desk)
    [order] = take(database, settings, 10)
    settle(database, settings, order.due, Outcome(410, "answered 410", 0.1))
    found = query.get_webhook(database, hook, "local")
    assert "410" in (found.disabled_why or "")
    assert sent_to(desk, hook)[0].state is DeliveryState.GIVEN_UP


def test_a_receiver_may_ask_for_time(desk: Desk) -> None:
    database, settings = desk.services.database, desk.services.settings
    hook, _ = subscribe(desk)
    ended(desk)
    [order] = take(database, settings, 10)
    settle(database, settings, order.due, Outcome(429, "answered 429", 0.1, 1000.0))
    [message] = sent_to(desk, hook)
    assert 990 < message.not_before - order.due.now < 1010


def test_a_stopping_worker_gives_back_what_it_has_not_delivered(
    desk: Desk, listening: Receiver
) -> None:
    hook, _ = subscribe(desk, listening.url)
    listening.answers = [lambda handler: time.sleep(30), status(200)]
    ended(desk)
    services = desk.services
    first = Deliverer(services.database, services.settings)
    first.start()
    listening.wait(1)
    started = time.monotonic()
    first.stop()
    assert time.monotonic() - started < 10
    [message] = sent_to(desk, hook)
    assert message.state is DeliveryState.PENDING
    assert not message.is_leased
    second = Deliverer(services.database, services.settings)
    second.start()
    got = listening.wait(2)
    second.stop()
    assert got[0].id == got[1].id
    log = query.get_delivery(services.database, hook, message.id, "local")[1]
    assert [a.error for a in log] == ["the worker stopped", None]


def test_giving_back_is_only_for_the_holder(desk: Desk) -> None:
    database, settings = desk.services.database, desk.services.settings
    hook, _ = subscribe(desk)
    ended(desk)
    [order] = take(database, settings, 1)
    age(desk, DeliveryRow, 3600.0, "lease_until")
    [holder] = take(database, settings, 1)
    give_back(database, order.due, Outcome(None, "the worker stopped", 0.1))
    assert take(database, settings, 1) == []
    settle(database, settings, holder.due, GOOD)
    assert sent_to(desk, hook)[0].state is DeliveryState.DELIVERED


def test_what_is_on_its_way_is_not_replayed(desk: Desk) -> None:
    hook, _ = subscribe(desk)
    ended(desk)
    [message] = sent_to(desk, hook)
    with pytest.raises(Conflict, match="pending"):
        webhooks.replay(desk.services.database, hook, message.id, owner="local")


def test_pings_are_idempotent_and_bound_to_their_request(desk: Desk) -> None:
    database = desk.services.database
    one, _ = subscribe(desk)
    key = IdempotencyKey("local ping", "k", "a" * 64)
    first = webhooks.ping(database, one, owner="local", idempotency=key)
    assert webhooks.ping(database, one, owner="local", idempotency=key).id == first.id
    assert len(sent_to(desk, one)) == 1


def test_webhooks_are_counted_and_only_ones_own(desk: Desk) -> None:
    database = desk.services.database
    mine, _ = subscribe(desk)
    message = webhooks.ping(database, mine, owner="local").id
    theirs, _ = subscribe(desk, owner="else")
    for call in (
        lambda: query.get_webhook(database, mine, "else"),
        lambda: webhooks.delete_webhook(database, mine, "else"),
        lambda: webhooks.ping(database, mine, owner="else"),
        lambda: webhooks.replay(database, theirs, message, owner="else"),
        lambda: query.get_delivery(database, theirs, message, "else"),
        lambda: webhooks.rotate_secret(database, desk.services.settings, mine, owner="else"),
        lambda: webhooks.enable_webhook(database, mine, owner="else"),
    ):
        with pytest.raises(NotFound):
            call()
    for _ in range(webhooks.MOST - 1):
        subscribe(desk)
    with pytest.raises(QuotaExceeded):
        subscribe(desk)
    subscribe(desk, owner="else")
    webhooks.delete_webhook(database, mine, "local")
    subscribe(desk)
    with database.read() as session:
        left = session.scalar(select(func.count()).select_from(DeliveryRow))
    assert left == 0


def test_deliveries_go_when_settings_say_so(desk: Desk) -> None:
    services = desk.services
    hook, _ = subscribe(desk)
    for _ in range(2):
        ended(desk)
    for order in take(services.database, services.settings, 1):
        settle(services.database, services.settings, order.due, GOOD)
    kept = services.settings.model_copy(update={"keep_deliveries_s": 3600.0})
    assert retire(services.database, kept).deliveries == 0
    age(desk, DeliveryRow, 7200.0, "finished")
    age(desk, DeliveryRow, 7200.0, "created", "since")
    assert retire(services.database, services.settings).deliveries == 0
    assert retire(services.database, kept).deliveries == 1
    [message] = sent_to(desk, hook)
    assert message.state is DeliveryState.PENDING  # however old: it is not delivered yet


def test_a_deleted_jobs_messages_go_once_they_have_ended(desk: Desk) -> None:
    services = desk.services
    hook, _ = subscribe(desk)
    waiting, done = ended(desk), ended(desk)
    for order in take(services.database, services.settings, 10):
        if order.due.id in {m.id for m in sent_to(desk, hook) if m.job_id == done}:
            settle(services.database, services.settings, order.due, GOOD)
    for job_id in (waiting, done):
        query.delete_job(services.database, job_id)
    assert [m.job_id for m in sent_to(desk, hook)] == [waiting]
    collect_garbage(services.database, services.blobs, services.settings)
    assert [m.job_id for m in sent_to(desk, hook)] == [waiting]


def test_a_job_ends_while_its_subscription_is_deleted(desk: Desk) -> None:
    """The end of a job never fails for want of somebody to tell."""
    hook, _ = subscribe(desk)
    job = desk.submit(hardware={"name": PRESET})
    held = claim(desk.services.database, "w", 30.0)
    assert held is not None
    webhooks.delete_webhook(desk.services.database, hook, "local")
    with desk.services.database.write() as session:
        assert jobs.move(session, job.id, JobState.SUCCEEDED)
    with pytest.raises(NotFound):
        query.get_webhook(desk.services.database, hook, "local")


def test_a_url_is_judged_by_the_servers_settings(desk: Desk) -> None:
    with pytest.raises(Malformed, match="not a public address"):
        subscribe(desk, "https://10.0.0.1/")
