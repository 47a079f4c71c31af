"""Webhooks from HTTP to HTTP: what a receiver gets, and what a server says of it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Iterator
from typing import Any

import pytest
from api_fixtures import Serve, Served, assert_problem
from sqlalchemy import update
from standardwebhooks.webhooks import Webhook
from webhook_receiver import Receiver, receiver, status

from service.store.tables import WebhookRow, db_now

OPEN = {"webhook_hosts": ("127.0.0.1",), "webhook_backoff_s": 0.02, "webhook_timeout_s": 5.0}


@pytest.fixture
def listening() -> Iterator[Receiver]:
    with receiver() as state:
        yield state


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
