"""Fixtures for tests of the service: databases, brokers, settings, a running embedded worker.

Servers are looked for in this order: the environment URL (TILEWRIGHT_TEST_PG_URL, ..._REDIS_URL,
..._AMQP_URL), a server on loopback's usual port, a binary that this fixture starts (PostgreSQL,
Redis), and otherwise the test is skipped with the reason.  On a shared server every session makes
its own database, key space or queue, and removes it.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.servers import OwnPostgres, OwnRabbit, OwnRedis, pg_works, reachable
from service.bootstrap import Services, open_services
from service.jobs import query, submit
from service.settings import Settings
from service.states import TERMINAL_JOB_STATES, JobState
from service.store.blobs import put_bytes
from service.store.records import JobRecord
from service.store.session import migrate
from worker.compiler.options import CompileOptions

TESTS = Path(__file__).parent


@pytest.fixture(scope="session")
def pg_admin_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PostgreSQL server on which databases may be created."""
    url = os.environ.get("TILEWRIGHT_TEST_PG_URL", "")
    local = "postgresql://postgres@127.0.0.1:5432/postgres"
    if not url and reachable(5432) and pg_works(local):
        url = local
    if url:
        yield url
        return
    server = OwnPostgres(tmp_path_factory.mktemp("pg"))
    if not (server.create() and server.start()):
        pytest.skip("no PostgreSQL: set TILEWRIGHT_TEST_PG_URL or install a server")
    try:
        yield server.url
    finally:
        server.stop()


@pytest.fixture
def own_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnPostgres]:
    """A running server that the test may restart."""
    server = OwnPostgres(tmp_path_factory.mktemp("pg"))
    if not (server.create() and server.start()):
        pytest.skip("no PostgreSQL server program that this test could start and stop")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def pg_template(pg_admin_url: str) -> Iterator[tuple[str, str]]:
    """(admin URL, name of a migrated template database): copying it is faster than migrating."""
    import psycopg

    name = f"tw_template_{secrets.token_hex(6)}"
    with psycopg.connect(pg_admin_url, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"')
        try:
            migrate(_with_database(pg_admin_url, name))
            yield pg_admin_url, name
        finally:
            admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _with_database(url: str, name: str) -> str:
    base = url.rsplit("/", 1)[0] + "/" + name
    return base.replace("postgresql://", "postgresql+psycopg://", 1)


@pytest.fixture
def pg_database_url(pg_template: tuple[str, str]) -> Iterator[str]:
    """The URL of a migrated, empty PostgreSQL database."""
    import psycopg

    admin_url, template = pg_template
    name = f"tw_test_{secrets.token_hex(6)}"
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        try:
            yield _with_database(admin_url, name)
        finally:
            admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def bare_pg_url(pg_admin_url: str) -> Iterator[str]:
    """The URL of a PostgreSQL database without tables."""
    import psycopg

    name = f"tw_test_{secrets.token_hex(6)}"
    with psycopg.connect(pg_admin_url, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"')
        try:
            yield _with_database(pg_admin_url, name)
        finally:
            admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of a migrated, empty database; each test that uses it runs on both back ends."""
    return database_of(request.param, request)


def database_of(kind: str, request: pytest.FixtureRequest) -> str:
    """The URL of a migrated, empty database of a kind: sqlite or postgres."""
    if kind == "postgres":
        return str(request.getfixturevalue("pg_database_url"))
    url = f"sqlite:///{request.getfixturevalue('tmp_path') / 'tw' / 'tilewright.db'}"
    migrate_quickly(url)
    return url


def migrate_quickly(url: str) -> None:
    """`migrate`, where a new SQLite file begins with the tables that one of this process got.

    Most of the time to start a service in a test would be spent on its tables.
    """
    path = Path(url.removeprefix("sqlite:///"))
    if url.startswith("sqlite:///") and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path)) as new:
            _migrated_tables().backup(new)
    migrate(url)


@cache
def _migrated_tables() -> sqlite3.Connection:
    """The tables of a new database, in memory."""
    kept = sqlite3.connect(":memory:", check_same_thread=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tilewright.db"
        migrate(f"sqlite:///{path}")
        with closing(sqlite3.connect(path)) as made:
            made.backup(kept)
    return kept


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis server; tests use their own queue names on it."""
    url = os.environ.get("TILEWRIGHT_TEST_REDIS_URL", "")
    if not url and reachable(6379):
        url = "redis://127.0.0.1:6379/0"
    if url:
        yield url
        return
    server = OwnRedis(tmp_path_factory.mktemp("redis"))
    if not (server.installed and server.start()):
        pytest.skip("no Redis: set TILEWRIGHT_TEST_REDIS_URL or install a server")
    try:
        yield server.url
    finally:
        server.stop()


@pytest.fixture(scope="session")
def amqp_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A RabbitMQ server; tests use their own queue names on it."""
    url = os.environ.get("TILEWRIGHT_TEST_AMQP_URL", "")
    if not url and reachable(5672):
        url = "amqp://guest:guest@127.0.0.1:5672//"
    if url:
        yield url
        return
    server = OwnRabbit(tmp_path_factory.mktemp("rabbitmq"))
    if not (server.installed and server.start()):
        pytest.skip("no RabbitMQ: set TILEWRIGHT_TEST_AMQP_URL or install a server")
    try:
        yield server.url
    finally:
        server.stop()
        server.names.stop()


def broker_of(kind: str, request: pytest.FixtureRequest) -> str:
    """The URL of a broker of a kind: memory, redis or amqp."""
    return "memory://" if kind == "memory" else str(request.getfixturevalue(f"{kind}_url"))


MakeSettings = Callable[..., Settings]


@pytest.fixture
def make_settings(tmp_path: Path) -> MakeSettings:
    """Build settings for a test: own data directory, own queue, short periods, fake payloads."""

    (tmp_path / "gates").mkdir(exist_ok=True)  # what payloads that wait may look at

    def make(runner: str = "quick", **changes: Any) -> Settings:
        values: dict[str, Any] = {
            "data_dir": tmp_path / "tw",
            "broker_url": "memory://",
            "queue_name": f"tw-test-{secrets.token_hex(6)}",
            "workers": 2,
            "lease_ttl_s": 10.0,
            "heartbeat_s": 1.0,
            "watch_s": 0.1,
            "reconcile_s": 0.2,
            "redispatch_s": 2.0,
            "retry_backoff_s": 0.05,
            "memory_base_bytes": 512 * 1024 * 1024,
            "output_limit_bytes": 256 * 1024,
            "runner": runner if ":" in runner else f"service_payloads:{runner}",
            "child_python_path": (str(TESTS), str(tmp_path / "gates")),
        }
        return Settings(**{**values, **changes})

    return make


@dataclass(frozen=True, slots=True)
class Desk:
    """What a test does as a user: submit and wait."""

    services: Services

    def submit(self, hardware: dict[str, Any] | None = None, **changes: Any) -> JobRecord:
        """Submit a job on a small fake model."""
        services = self.services
        model_bytes = changes.pop("model", b"fake model")
        ref = put_bytes(services.blobs, model_bytes, "application/octet-stream")
        model, _ = submit.add_model(services.database, ref, name="fake.onnx", kind="onnx")
        document = hardware or {"name": "toy"}
        spec, _ = submit.add_hardware(services.database, submit.NewSpec(document, "0" * 64, "toy"))
        options = changes.pop("options", CompileOptions())
        new = submit.NewJob(model.id, spec.id, options=options, **changes)
        return submit.submit_job(services.database, services.outbox, services.settings, new).job

    def job(self, job_id: str) -> JobRecord:
        return query.get_job(self.services.database, job_id)

    def wait(
        self, job_id: str, *states: JobState, timeout_s: float = 30.0, stage: str | None = None
    ) -> JobRecord:
        """Wait for a state (any terminal one by default) or a stage."""
        wanted = states or tuple(TERMINAL_JOB_STATES)
        deadline = time.monotonic() + timeout_s
        while True:
            job = self.job(job_id)
            if (job.stage == stage) if stage else (job.state in wanted):
                return job
            if time.monotonic() > deadline:
                raise AssertionError(f"job is {job.state} at {job.stage}, not {wanted} {stage}")
            time.sleep(0.02)


@pytest.fixture
def open_desk() -> Iterator[Callable[[Settings], Desk]]:
    """Open services for settings; closes them after the test."""
    opened: list[Services] = []

    def make(settings: Settings) -> Desk:
        migrate_quickly(settings.database_url)
        services = open_services(settings)
        opened.append(services)
        return Desk(services)

    yield make
    for services in opened:
        services.close()


def delete_queue(services: Services) -> None:
    """Leave nothing behind on a shared broker."""
    settings = services.settings
    with services.celery.connection_for_write() as connection:
        connection.default_channel.queue_delete(settings.queue)
    if settings.broker_url.startswith("redis"):
        import redis

        # kombu remembers the queue's binding in two keys of its own.
        with redis.Redis.from_url(settings.broker_url) as client:
            for kind in ("binding", "binding_permanent"):
                client.delete(f"_kombu.{kind}.{settings.queue}")
