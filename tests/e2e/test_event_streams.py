"""Event streams of real servers: killed in the middle, two of them, the same one again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx
import pytest
from service_fixtures import Desk, MakeSettings, delete_queue

from benchmarks.faults.servers import free_port
from service.client import Client
from service.client.events import Event, parse_events
from service.settings import Settings
from service.states import JobState
from service.store.repos import jobs


@dataclass
class Server:
    """`tilewright serve --api-only` on a port that stays the same."""

    environment: dict[str, str]
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        words = ["serve", "--api-only", "--port", str(self.port)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "service.cli.main", *words],
            env=self.environment, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == self.url

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.communicate()
            self.process = None


@pytest.fixture
def settings(make_settings: MakeSettings, redis_url: str) -> Settings:
    return make_settings(broker_url=redis_url)


@pytest.fixture
def desk(settings: Settings, open_desk: Callable[[Settings], Desk]) -> Iterator[Desk]:
    made = open_desk(settings)
    yield made
    delete_queue(made.services)


@pytest.fixture
def servers(settings: Settings, desk: Desk) -> Iterator[list[Server]]:
    """Two API processes on one database, the first one started; no worker: the test says what
    happens."""
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("TILEWRIGHT_")},
        "TILEWRIGHT_DATA_DIR": str(settings.data_dir),
        "TILEWRIGHT_BROKER_URL": settings.broker_url,
        "TILEWRIGHT_QUEUE_NAME": settings.queue_name,
    }
    made = [Server(environment) for _ in range(2)]
    made[0].start()
    yield made
    for one in made:
        one.kill()


def tell(desk: Desk, job_id: str, *numbers: int) -> None:
    """Let something happen to a job, an event a transaction."""
    for number in numbers:
        with desk.services.database.write() as session:
            jobs.add_event(session, job_id, "note", {"number": number})


def end(desk: Desk, job_id: str) -> None:
    with desk.services.database.write() as session:
        assert jobs.move(session, job_id, JobState.CANCELED)


def test_a_stream_goes_on_behind_the_last_event_on_any_server(
    servers: list[Server], desk: Desk
) -> None:
    """Killed in mid-stream, resumed on the other, then on the first, which is back."""
    first, second = servers
    second.start()
    job = desk.submit()
    path = f"/v1/jobs/{job.id}/events"
    seen: list[Event] = []

    def follow(server: Server, until: int) -> None:
        """Read on from what was seen, up to the event with a number."""
        headers = {"Last-Event-ID": seen[-1].id} if seen else {}
        with httpx.stream("GET", server.url + path, headers=headers, timeout=30) as response:
            assert response.status_code == 200
            for event in parse_events(response.iter_lines()):
                seen.append(event)
                if event.body.get("number") == until:
                    return

    tell(desk, job.id, 1, 2, 3)
    with httpx.stream("GET", first.url + path, timeout=30) as response:
        for event in parse_events(response.iter_lines()):
            seen.append(event)
            if event.body.get("number") == 3:
                tell(desk, job.id, 4)
                first.kill()  # with event 4 somewhere between the database and the client
                break
    tell(desk, job.id, 5)
    follow(second, 5)
    tell(desk, job.id, 6)
    first.start()
    follow(first, 6)
    writer = threading.Timer(0.5, lambda: (tell(desk, job.id, 7), end(desk, job.id)))
    writer.start()
    follow(second, -1)  # to the end of the stream
    writer.join()
    *story, last = seen
    assert [int(event.id) for event in story] == list(range(1, len(story) + 1))
    assert [e.body["number"] for e in story if e.type == "note"] == [1, 2, 3, 4, 5, 6, 7]
    assert (last.type, last.body) == ("end", {"state": "canceled"})
    for server in servers:  # who has seen all is told to stop asking
        done = httpx.get(server.url + path, headers={"Last-Event-ID": story[-1].id})
        assert (done.status_code, done.content) == (204, b"")
        again = httpx.get(server.url + path, headers={"Last-Event-ID": story[-2].id})
        assert [e.type for e in parse_events([*again.text.splitlines(), ""])] == ["state", "end"]


def test_the_client_goes_on_by_itself_over_a_restart(servers: list[Server], desk: Desk) -> None:
    """Of a server that is away for longer than a few attempts to connect."""
    server = servers[0]
    job = desk.submit()
    story: list[Event] = []
    with Client(server.url) as client:
        reader = threading.Thread(target=lambda: story.extend(client.events(job.id)))
        reader.start()
        tell(desk, job.id, 1)
        time.sleep(0.5)
        server.kill()
        tell(desk, job.id, 2)
        time.sleep(3.0)
        server.start()
        tell(desk, job.id, 3)
        end(desk, job.id)
        reader.join(60)
        assert not reader.is_alive()
    assert [int(event.id) for event in story] == [1, 2, 3, 4, 5]
    assert [e.body["number"] for e in story if e.type == "note"] == [1, 2, 3]
    assert story[-1].body["state"] == "canceled"


def test_many_wait_on_no_thread(servers: list[Server], desk: Desk) -> None:
    """More waiters than the server has threads, on jobs and streams, and it answers others."""
    url, job = servers[0].url, desk.submit()
    path, held = f"{url}/v1/jobs/{job.id}", {"Prefer": "wait=30"}
    answers: list[str] = []
    limits = httpx.Limits(max_connections=200)
    with httpx.Client(timeout=60, limits=limits) as http:

        def wait() -> None:
            answers.append(json.loads(http.get(path, headers=held).text)["state"])

        def follow() -> None:
            with http.stream("GET", f"{path}/events") as response:
                answers.extend(e.type for e in parse_events(response.iter_lines()) if not e.body)
                answers.append("end")

        waiters = [threading.Thread(target=one) for one in (wait, follow) for _ in range(60)]
        for one in waiters:
            one.start()
        time.sleep(1.5)
        started = time.monotonic()
        for _ in range(5):
            assert http.get(f"{url}/v1/jobs").status_code == 200
        assert time.monotonic() - started < 10
        assert answers == []
        end(desk, job.id)
        for one in waiters:
            one.join(30)
    assert sorted(answers) == ["canceled"] * 60 + ["end"] * 60
