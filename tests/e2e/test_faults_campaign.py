"""The fault campaign at smoke size, and that it sees what it looks for."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from service_fixtures import Desk, MakeSettings
from sqlalchemy import text

from benchmarks.faults import __main__ as faults
from benchmarks.faults.books import Books
from benchmarks.faults.disk import Disk
from benchmarks.faults.printed import Result, table
from benchmarks.faults.proxy import Mood, Proxy
from benchmarks.faults.site import PLANS
from benchmarks.faults.subscriber import Subscriber
from benchmarks.faults.work import (
    Fate,
    JobTask,
    SweepTask,
    UploadTask,
    num_jobs,
    padded,
    planned,
    work,
)
from service.jobs.cancel import cancel_job
from service.jobs.webhooks import NewWebhook, create_webhook
from service.settings import Settings

ANSWER = b"what the store has"


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    class Store(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(ANSWER)))
            self.end_headers()
            self.wfile.write(ANSWER)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    made = Proxy(server.server_address[1])
    yield made
    made.close()
    server.shutdown()
    server.server_close()
    thread.join()


def _read(proxy: Proxy, timeout_s: float = 10.0) -> bytes:
    with urllib.request.urlopen(proxy.endpoint, timeout=timeout_s) as answer:
        return bytes(answer.read())


def test_a_proxy_passes_and_is_slow(proxy: Proxy) -> None:
    assert _read(proxy) == ANSWER
    proxy.mood = Mood.SLOW
    assert _read(proxy) == ANSWER
    assert proxy.spoilt == 1


@pytest.mark.parametrize("mood", [Mood.REFUSE, Mood.CUT, Mood.ERROR, Mood.HANG], ids=str)
def test_a_proxy_misbehaves(proxy: Proxy, mood: Mood) -> None:
    proxy.mood = mood
    with pytest.raises((OSError, urllib.error.HTTPError, ValueError, Exception)) as caught:
        assert _read(proxy, timeout_s=1.0) == ANSWER
    told = {Mood.ERROR: "HTTP Error 50", Mood.CUT: "IncompleteRead", Mood.HANG: "timed out"}
    assert told.get(mood, "") in f"{caught.value} {caught.value!r}"
    assert not isinstance(caught.value, AssertionError)
    proxy.mood = Mood.PASS
    assert _read(proxy) == ANSWER


def test_a_disk_is_full_and_empty_again(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk", mib=2)
    try:
        if not disk.is_mounted:
            pytest.skip("nothing may be mounted here")
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            (disk.folder / "file").write_bytes(bytes(8192))
        disk.empty()
        (disk.folder / "file").write_bytes(bytes(8192))
    finally:
        disk.close()


class _Settled:
    """What a subscriber's books ask of a site."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings


def test_a_subscriber_sees_what_it_was_not_told(
    make_settings: MakeSettings, open_desk: Callable[[Settings], Desk],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("benchmarks.faults.subscriber.SETTLE_S", 0.0)
    desk = open_desk(make_settings("quick"))
    job = desk.submit()
    services = desk.services
    new = NewWebhook("https://example.com/", "", ())
    create_webhook(services.database, services.settings, new, owner="local")
    cancel_job(services.database, job.id)
    subscriber = Subscriber(1)
    books = Books(_Settled(services.settings))

    def breaches(statement: str) -> str:
        with services.database.write() as session:
            session.execute(text(statement))
        return " ".join(subscriber.audit(books))

    try:
        assert "is pending" in breaches("UPDATE webhook_delivery SET attempts = 1")
        assert "nobody has it" in breaches("UPDATE webhook_delivery SET state = 'delivered'")
        with services.database.read() as session:
            subscriber.taken[str(session.scalar(text("SELECT id FROM webhook_delivery")))] = 1
        assert subscriber.audit(books) == []
        assert "says job.expired" in breaches("UPDATE webhook_delivery SET type = 'job.expired'")
        twice = (
            "INSERT INTO webhook_delivery (id, webhook_id, job_id, type, body, state, attempts,"
            " tries, not_before, since, fence, created) SELECT 'msg_twice', webhook_id, job_id,"
            " type, body, state, attempts, tries, not_before, since, fence, created"
            " FROM webhook_delivery"
        )
        assert "has 2 messages" in breaches(twice)
        assert "nobody was told" in breaches("DELETE FROM webhook_delivery")
        assert "is nobody's" in " ".join(subscriber.audit(books))
        (gone, given_up), (waits, first), (_, second) = (socket.socketpair() for _ in range(3))
        given_up.close()
        subscriber.begin("msg_2", gone)
        subscriber.begin("msg_2", waits)
        assert "twice at once" not in " ".join(subscriber.audit(books))
        subscriber.begin("msg_2", second)
        assert "twice at once" in " ".join(subscriber.audit(books))
        assert first.fileno() >= 0  # held until here
    finally:
        books.close()
        subscriber.close()


def _message(about: str, state: str, kind: str = "sweep.ended", told: str = "delivered") -> str:
    body = json.dumps({"data": {"id": about, "state": state}})
    return (
        "INSERT INTO webhook_delivery (id, webhook_id, type, body, state, attempts, tries,"
        f" not_before, since, fence, created) SELECT 'msg_' || (SELECT count(*) FROM"
        f" webhook_delivery), id, '{kind}', '{body}', '{told}', 1, 1, 0, 0, 1,"
        " (SELECT count(*) FROM webhook_delivery) FROM webhook"
    )


def test_half_a_message_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sender was killed; what is whole is looked at."""
    seen: list[bytes] = []
    monkeypatch.setattr(
        Subscriber, "answer", lambda self, message, headers, body: seen.append(body)
    )
    subscriber = Subscriber(1)

    def sent(body: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", subscriber.port), 10) as sender:
            head = "POST / HTTP/1.1\r\nwebhook-id: msg_1\r\nContent-Length: 9\r\n\r\n"
            sender.sendall(head.encode() + body)
            sender.shutdown(socket.SHUT_WR)
            return sender.recv(1024)

    try:
        assert sent(b"half") == sent(b"all of it") == b""
        assert seen == [b"all of it"]
    finally:
        subscriber.close()


def test_a_subscriber_sees_what_it_was_not_told_of_sweeps(
    make_settings: MakeSettings, open_desk: Callable[[Settings], Desk],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("benchmarks.faults.subscriber.SETTLE_S", 0.0)
    services = open_desk(make_settings("quick")).services
    new = NewWebhook("https://example.com/", "", ())
    create_webhook(services.database, services.settings, new, owner="local")
    with services.database.write() as session:
        session.execute(
            text(
                "INSERT INTO sweep (id, owner, fields, options, priority, state, items_total,"
                " created) VALUES ('swp_1', 'local', '[]', '{}', 0, 'succeeded', 1, 0)"
            )
        )
    subscriber = Subscriber(1)
    books = Books(_Settled(services.settings))
    subscriber.taken.update(f"msg_{n}" for n in range(9))

    def breaches(*resumed: str) -> str:
        found = subscriber.audit(books, resumed)
        return " ".join(one for one in found if "nobody's" not in one)

    def told(state: str) -> None:
        with services.database.write() as session:
            session.execute(text(_message("swp_1", state).replace(":", "\\:")))

    try:
        assert "nobody was told of swp_1" in breaches()
        told("canceled")
        assert "the last message on swp_1 says canceled" in breaches()
        assert "swp_1 has one message" in breaches("swp_1")
        told("succeeded")
        assert breaches("swp_1") == ""
        assert "swp_1 has 2 messages" in breaches()
    finally:
        books.close()
        subscriber.close()


def test_a_table_says_what_was_broken() -> None:
    one = Result(PLANS["embedded"], disk="a tmpfs", jobs=3)
    one.faults.update({"api killed": 2})
    assert "no breach" in table([one])
    assert "api killed 2" in table([one])
    worse = replace(one, breaches=["job_1 is lost"])
    assert "1 BREACHES" in table([worse])
    assert "job_1 is lost" in table([worse])


def test_a_plan_has_its_number_of_jobs_and_all_kinds_of_work(tmp_path: Path) -> None:
    found = work(tmp_path)
    for count in (8, 1000):
        tasks = planned(found, count, seed=1)
        assert num_jobs(tasks) == count
        assert tasks == planned(found, count, seed=1)
    swept = [task for task in tasks if isinstance(task, SweepTask)]
    assert {task.fate for task in swept} == set(Fate)
    assert {task.kind for task in swept} == set(found.sweeps)
    single = [task for task in tasks if isinstance(task, JobTask)]
    assert {task.kind for task in single} == set(found.jobs)
    assert {task.is_canceled for task in single} == {True, False}
    paddings = {task.padding for task in tasks if isinstance(task, UploadTask)}
    assert len(paddings) > 10
    assert padded("x") != padded("y")


@pytest.mark.campaign
@pytest.mark.parametrize("plan", ["embedded", "scaled", "rabbitmq"])
def test_a_few_jobs_survive(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    if plan == "scaled":
        pytest.importorskip("moto.server", reason="moto, the S3 server for tests, is not installed")
    code = faults.main(["--plan", plan, "--jobs", "8", "--seed", "3"])
    said = capsys.readouterr().out
    if "not run" in said:
        pytest.skip(said)
    assert code == 0, said
    assert (
        "sweeps         1 of 4 items (0 canceled before they were jobs): resumed and succeeded 1"
        in said
    )
