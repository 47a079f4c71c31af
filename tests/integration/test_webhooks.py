"""Webhooks: what is told when jobs end, signed, once, again when it was not taken."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from api_fixtures import PRESET, Serve, Served, assert_problem
from service_fixtures import Desk, MakeSettings
from sqlalchemy import func, select, update
from standardwebhooks.webhooks import Webhook
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
from service.store.repos import jobs
from service.store.tables import DeliveryRow, JobRow, WebhookRow, db_now

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
    assert {f"job.{state}" for state in TERMINAL_JOB_STATES} == set(EventType)


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


def test_a_message_is_signed_and_says_what_ended(serve: Serve, listening: Receiver) -> None:
    """From HTTP to HTTP: the official library verifies it, and so does the formula."""
    served = serve(**OPEN)
    made = served.client.create_webhook(listening.url, name="ci")
    secret = str(made["secret"])
    job = served.ended(served.submit(label="nightly")["id"])
    [got] = listening.wait(1)
    assert Webhook(secret).verify(got.body, got.headers) == got.document
    key = base64.b64decode(secret.removeprefix("whsec_"))
    assert len(key) == 32
    signed = f"{got.id}.{got.headers['webhook-timestamp']}.".encode() + got.body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert got.headers["webhook-signature"] == f"v1,{expected}"
    assert abs(int(got.headers["webhook-timestamp"]) - time.time()) < 60
    assert got.headers["content-type"] == "application/json"
    document = got.document
    assert document["type"] == "job.succeeded"
    facts = document["data"]
    assert facts["id"] == job["id"]
    assert (facts["state"], facts["label"]) == ("succeeded", "nightly")
    assert served.http.get(facts["url"]).json()["bundle_sha256"] == facts["bundle_sha256"]
    [row] = list(served.client.deliveries(str(made["id"])))
    assert row["id"] == got.id
    detail = delivered(served, made, got.id)
    assert detail["body"].encode() == got.body
    assert [(a["number"], a["status"], a["error"]) for a in detail["log"]] == [(1, 204, None)]


def delivered(served: Served, hook: dict[str, Any], message: str) -> dict[str, Any]:
    """A message once it has ended."""
    deadline = time.monotonic() + 20
    while True:
        found = served.client.delivery(str(hook["id"]), message)
        if found["state"] != "pending":
            return dict(found)
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def test_what_is_not_taken_is_sent_again_with_the_same_id(
    serve: Serve, listening: Receiver
) -> None:
    """A receiver that fails, redirects, hangs up and at last takes it."""
    served = serve(**OPEN)
    listening.answers = [
        status(500), status(302, Location=f"{listening.url}/elsewhere"),
        lambda handler: handler.connection.close(), status(200),
    ]  # fmt: skip
    made = served.client.create_webhook(listening.url)
    served.client.cancel(served.submit()["id"])
    got = listening.wait(4)
    detail = delivered(served, made, got[0].id)
    assert detail["state"] == "delivered"
    log = detail["log"]
    assert [a["status"] for a in log] == [500, 302, None, 200]
    assert "redirect" in log[1]["error"]
    assert {g.path for g in got} == {"/hook"}  # the redirect was not followed
    assert {(g.id, g.body) for g in got} == {(got[0].id, got[0].body)}
    for one in got:
        Webhook(str(made["secret"])).verify(one.body, one.headers)


def test_a_receiver_that_hangs_keeps_nobody_waiting(serve: Serve, listening: Receiver) -> None:
    served = serve(**{**OPEN, "webhook_timeout_s": 1.0, "webhook_backoff_s": 30.0})
    with receiver() as stuck:
        stuck.answers = [lambda handler: time.sleep(3)]
        slow = served.client.create_webhook(stuck.url)
        served.client.create_webhook(listening.url)
        for _ in range(3):
            served.client.cancel(served.submit()["id"])
        first = listening.wait(3)
        assert stuck.most_open <= 2
        assert len({got.id for got in first}) == 3
        waiting = list(served.client.deliveries(str(slow["id"])))
        assert len(waiting) == 3
        deadline = time.monotonic() + 10
        while not (log := served.client.delivery(str(slow["id"]), str(waiting[-1]["id"]))["log"])[
            0
        ]["error"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert log[0]["error"] == "no answer within 1 s"
        assert 0.9 < log[0]["duration_s"] < 3


def test_an_answer_that_drips_ends_in_time(serve: Serve, listening: Receiver) -> None:
    """Each byte comes soon, the status line never does."""

    def drip(handler: Any) -> None:
        for byte in b"HTTP/1.1 200 OK\r\nX: " + b"y" * 1000:
            handler.wfile.write(bytes([byte]))
            time.sleep(0.05)

    served = serve(**{**OPEN, "webhook_timeout_s": 0.5, "webhook_backoff_s": 30.0})
    listening.answers = [drip]
    made = served.client.create_webhook(listening.url)
    message = str(served.client.ping_webhook(str(made["id"]))["id"])
    detail = delivered(served, made, message)
    assert detail["log"][0]["error"] == "no answer within 0.5 s"
    assert detail["log"][0]["duration_s"] < 2


def test_a_body_without_end_is_not_read(serve: Serve, listening: Receiver) -> None:
    def flood(handler: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b"secret of a neighbour" * 1000)

    served = serve(**OPEN)
    listening.answers = [flood]
    made = served.client.create_webhook(listening.url)
    message = str(served.client.ping_webhook(str(made["id"]))["id"])
    detail = delivered(served, made, message)
    assert detail["state"] == "delivered"
    assert detail["log"][0]["duration_s"] < 2
    assert "neighbour" not in str(detail)


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


def test_replay_sends_the_same_again(serve: Serve, listening: Receiver) -> None:
    served = serve(**OPEN)
    made = served.client.create_webhook(listening.url)
    hook = str(made["id"])
    served.client.cancel(served.submit()["id"])
    [first] = listening.wait(1)
    delivered(served, made, first.id)
    path = f"/v1/webhooks/{hook}/deliveries/{first.id}/replay"
    key = {"Idempotency-Key": "again"}
    answers = [served.http.post(path, headers=key) for _ in range(2)]
    assert [a.status_code for a in answers] == [202, 202]
    second = listening.wait(2)[1]
    assert (second.id, second.body) == (first.id, first.body)
    detail = delivered(served, made, first.id)
    assert [a["number"] for a in detail["log"]] == [1, 2]
    served.http.post(path, headers=key)  # the same request: nothing more is sent
    assert delivered(served, made, first.id)["attempts"] == 2
    assert len(listening.got) == 2


def test_what_is_on_its_way_is_not_replayed(desk: Desk) -> None:
    hook, _ = subscribe(desk)
    ended(desk)
    [message] = sent_to(desk, hook)
    with pytest.raises(Conflict, match="pending"):
        webhooks.replay(desk.services.database, hook, message.id, owner="local")


def test_a_ping_is_sent_once_and_to_the_disabled_too(serve: Serve, listening: Receiver) -> None:
    served = serve(**OPEN)
    listening.answers = [status(410), status(503), status(200)]
    made = served.client.create_webhook(listening.url)
    hook = str(made["id"])
    seen = []
    for _ in range(3):
        message = str(served.client.ping_webhook(hook)["id"])
        detail = delivered(served, made, message)
        seen.append((detail["type"], detail["state"], detail["attempts"]))
    assert served.client.webhook(hook)["disabled"] is not None
    assert seen == [
        ("webhook.ping", "given_up", 1), ("webhook.ping", "given_up", 1),
        ("webhook.ping", "delivered", 1),
    ]  # fmt: skip
    assert listening.got[0].document["data"] == {"webhook": hook}


def test_both_secrets_sign_after_a_rotation(serve: Serve, listening: Receiver) -> None:
    served = serve(**OPEN)
    made = served.client.create_webhook(listening.url)
    hook, old = str(made["id"]), str(made["secret"])
    rotated = served.client.rotate_webhook(hook)
    new = str(rotated["secret"])
    assert new != old
    assert rotated["former_until"] is not None
    served.client.ping_webhook(hook)
    [got] = listening.wait(1)
    assert len(got.headers["webhook-signature"].split()) == 2
    for secret in (old, new):
        Webhook(secret).verify(got.body, got.headers)
    with served.services.database.write() as session:
        session.execute(update(WebhookRow).values(former_until=db_now() - 1.0))
    served.client.ping_webhook(hook)
    late = listening.wait(2)[1]
    Webhook(new).verify(late.body, late.headers)
    assert len(late.headers["webhook-signature"].split()) == 1
    assert served.client.webhook(hook)["former_until"] is None


def test_secrets_are_told_once(serve: Serve) -> None:
    served = serve(worker=False)
    key = {"Idempotency-Key": "mine"}
    body = {"url": "https://example.com/"}
    made = served.http.post("/v1/webhooks", json=body, headers=key)
    assert made.status_code == 201
    assert made.headers["cache-control"] == "no-store"
    secret, hook = made.json()["secret"], made.json()["id"]
    assert_problem(served.http.post("/v1/webhooks", json=body, headers=key), 409, "TW-SVC-002")
    rotate = f"/v1/webhooks/{hook}/rotate"
    assert served.http.post(rotate, headers=key).status_code == 200
    assert_problem(served.http.post(rotate, headers=key), 409, "TW-SVC-002")
    assert len(served.client.webhooks()) == 1
    for path in ("/v1/webhooks", f"/v1/webhooks/{hook}", f"/v1/webhooks/{hook}/deliveries"):
        assert secret not in served.http.get(path).text
        assert "whsec" not in served.http.get(path).text


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


def test_pages_of_deliveries(serve: Serve) -> None:
    served = serve(worker=False)
    hook = str(served.client.create_webhook("https://example.com/")["id"])
    ids = [str(served.client.ping_webhook(hook)["id"]) for _ in range(5)]
    assert [row["id"] for row in served.client.deliveries(hook, limit=2)] == ids[::-1]
    assert list(served.client.deliveries(hook, state="delivered")) == []
    assert len(list(served.client.deliveries(hook, state="pending"))) == 5
    for bad in ({"state": "lost"}, {"cursor": "x"}, {"limit": 0}, {"event": "x"}):
        response = served.http.get(f"/v1/webhooks/{hook}/deliveries", params=bad)
        assert_problem(response, 422, "TW-SVC-004")


def test_bad_subscriptions_are_refused(serve: Serve) -> None:
    served = serve(worker=False)
    for body in (
        {"url": "https://example.com/", "events": ["job.started"]},
        {"url": "http://example.com/"}, {"url": "https://127.0.0.1/"}, {"url": "ftp://x/"},
        {"url": "https://"}, {"url": ""}, {"url": "https://e.com/", "secret": "mine"},
    ):  # fmt: skip
        problem = assert_problem(served.http.post("/v1/webhooks", json=body), 422, "TW-SVC-004")
        assert problem["hints"], body
    assert served.client.webhooks() == []


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
