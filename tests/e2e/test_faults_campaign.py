"""The fault campaign at smoke size, and that it sees what it looks for."""

from __future__ import annotations

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
from benchmarks.faults.audit import Books, audit
from benchmarks.faults.disk import Disk
from benchmarks.faults.load import Accepted
from benchmarks.faults.proxy import Mood, Proxy
from benchmarks.faults.subscriber import Subscriber
from service.jobs.cancel import cancel_job
from service.jobs.webhooks import NewWebhook, create_webhook
from service.settings import Settings
from worker.runner.main import EmbeddedWorker

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
    """What an audit asks of a site."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.data_dir = settings.data_dir

    def leftovers(self) -> list[str]:
        return []


TAMPERED = {
    "lost": "DELETE FROM job",
    "has other bytes": "UPDATE artifact SET blob_sha256 = (SELECT blob_sha256 FROM model)",
    "ended failed": "UPDATE job SET state = 'failed'",
    "given up": """UPDATE job SET error = '{"code":"TW-SVC-006"}'""",
    "follows event": "DELETE FROM event WHERE seq = 2",
    "has ended 2 times": "UPDATE event SET payload = (SELECT payload FROM event"
    " ORDER BY seq DESC LIMIT 1), type = 'state' WHERE seq = 1",
    "never ended": "UPDATE attempt SET outcome = NULL",
    "of another attempt": "UPDATE work_item SET fence = 9",
    "is ready": "UPDATE work_item SET state = 'ready'",
    "the content is not in the store": "UPDATE blob SET sha256 = sha256",
}


@pytest.mark.parametrize("breach", TAMPERED)
def test_an_audit_sees_a_breach(
    breach: str, make_settings: MakeSettings, open_desk: Callable[[Settings], Desk],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("benchmarks.faults.audit.SETTLE_S", 0.0)
    desk = open_desk(make_settings("quick"))
    with EmbeddedWorker(desk.services):
        job = desk.wait(desk.submit().id)
    books = Books(_Settled(desk.services.settings))
    usual = {"kind": books.outcomes()[job.id]}
    accepted = [Accepted(job.id, "kind", is_canceled=False)]
    site = _Settled(desk.services.settings)
    assert audit(site, books, accepted, usual) == []
    with desk.services.database.write() as session:
        session.execute(text(TAMPERED[breach]))
    if "store" in breach:
        for path in (site.data_dir / "blobs" / "cas").rglob("?" * 64):
            path.unlink()
    found = audit(site, books, accepted, usual)
    books.close()
    assert any(breach in text for text in found), found


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


def test_a_table_says_what_was_broken() -> None:
    one = faults.Result(faults.PLANS["embedded"], disk="a tmpfs", accepted=3)
    one.faults.update({"api killed": 2})
    assert "no breach" in faults.table([one]) and "api killed 2" in faults.table([one])
    worse = replace(one, breaches=["job_1 is lost"])
    assert "1 BREACHES" in faults.table([worse]) and "job_1 is lost" in faults.table([worse])


@pytest.mark.campaign
def test_embedded(capsys: pytest.CaptureFixture[str]) -> None:
    code = faults.main(["--plan", "embedded", "--jobs", "6", "--seed", "3"])
    said = capsys.readouterr().out
    assert code == 0, said
    assert "jobs accepted  6" in said


@pytest.mark.campaign
def test_scaled(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("moto.server", reason="moto, the S3 server for tests, is not installed")
    code = faults.main(["--plan", "scaled", "--jobs", "6", "--seed", "3"])
    said = capsys.readouterr().out
    if "not run" in said:
        pytest.skip(said)
    assert code == 0, said
    assert "jobs accepted  6" in said
