"""Blobs, cache and database misbehave: results are recomputed or retried, never lost."""

from __future__ import annotations

import errno
import io
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from service_fixtures import Desk, MakeSettings
from sqlalchemy import event, text, update
from sqlalchemy.exc import OperationalError

import service.jobs.claim as protocol
from service.errors import DigestMismatch, NotFound, TooLarge, Unavailable
from service.jobs import query
from service.jobs.reconcile import collect_garbage
from service.settings import Settings
from service.states import JobState
from service.store.blobs import BlobWriter, copy_to, put_bytes, put_stream, read_bytes, sweep_spool
from service.store.local_blobs import LocalBlobStore
from service.store.repos import cache as entries
from service.store.session import Database
from service.store.tables import BlobRow, ItemRow, db_now
from worker.compiler.cache import CacheKey, CacheKind
from worker.runner.main import EmbeddedWorker
from worker.runner.store_cache import StoreCache, reads_of

OpenDesk = Callable[[Settings], Desk]


@pytest.fixture
def store(tmp_path: Path) -> LocalBlobStore:
    return LocalBlobStore(tmp_path / "blobs", tmp_path / "blobs" / "spool")


def _damage(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(b"damaged")


def test_put_and_read(store: LocalBlobStore, tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    ref = put_stream(store, io.BytesIO(data), 4_000_000, "application/octet-stream")
    assert ref.sha256 == sha256(data).hexdigest()
    assert store.head(ref.sha256) == len(data)
    assert read_bytes(store, ref.sha256) == data
    assert b"".join(store.open_range(ref.sha256, 1_000_000, 10)) == data[1_000_000:1_000_010]
    assert copy_to(store, ref.sha256, tmp_path / "copy") == len(data)
    assert list(store.list_digests()) == [ref.sha256]
    assert store.path(ref.sha256).stat().st_mode & 0o777 == 0o444
    assert list(store.spool_dir.iterdir()) == []
    assert put_bytes(store, data, "x").sha256 == ref.sha256


def test_limits_and_declarations(store: LocalBlobStore) -> None:
    with pytest.raises(TooLarge) as caught:
        put_stream(store, io.BytesIO(b"12345"), 4, "x")
    assert (caught.value.limit, caught.value.actual) == (4, 5)
    with (
        pytest.raises(DigestMismatch),
        BlobWriter(store, limit_bytes=10, media_type="x") as writer,
    ):
        writer.write(b"abc")
        writer.commit(expected_sha256="0" * 64)
    with (
        pytest.raises(DigestMismatch),
        BlobWriter(store, limit_bytes=10, media_type="x") as writer,
    ):
        writer.write(b"abc")
        writer.commit(expected_bytes=4)
    assert list(store.spool_dir.iterdir()) == []
    assert list(store.list_digests()) == []


@pytest.mark.parametrize("digest", ["../../etc/passwd", "A" * 64, "", "0" * 63])
def test_digests_never_become_paths(store: LocalBlobStore, digest: str) -> None:
    with pytest.raises(NotFound):
        store.path(digest)
    assert store.head(digest) is None


def test_missing_and_damaged_blobs(store: LocalBlobStore, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        store.open_range("0" * 64)
    ref = put_bytes(store, b"good", "x")
    _damage(store.path(ref.sha256))
    with pytest.raises(DigestMismatch):
        read_bytes(store, ref.sha256)
    with pytest.raises(DigestMismatch):
        copy_to(store, ref.sha256, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_spool_sweep_spares_the_young(store: LocalBlobStore) -> None:
    with BlobWriter(store, limit_bytes=10, media_type="x") as writer:
        writer.write(b"abc")
        assert sweep_spool(store.spool_dir, older_than_s=60.0) == 0
        assert sweep_spool(store.spool_dir, older_than_s=0.0) == 1


@pytest.fixture
def desk(database_url: str, make_settings: MakeSettings, open_desk: OpenDesk) -> Desk:
    return open_desk(make_settings(database_url=database_url))


def _key(name: str) -> CacheKey:
    return CacheKey(CacheKind.SCHEDULE, (("signature", name),))


@contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    """What the database is asked meanwhile."""
    seen: list[str] = []

    def note(conn: object, cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    event.listen(database.engine, "before_cursor_execute", note)
    yield seen
    event.remove(database.engine, "before_cursor_execute", note)


def test_cache_first_writer_wins_and_counts_hits(desk: Desk) -> None:
    services = desk.services
    cache = StoreCache(services.database, services.blobs, job_id="job_1", inline_bytes=100)
    small, large = b"s" * 100, b"l" * 101
    cache.put(_key("small"), small)
    cache.put(_key("small"), b"other")
    cache.put(_key("large"), large)
    assert cache.get(_key("small")) == small
    assert cache.get(_key("large")) == large
    assert cache.get(_key("none")) is None
    cache.flush_hits()
    entry = query.get_cache_entry(services.database, _key("large").digest)
    assert (entry.hits, entry.size_bytes, entry.filled_by_job) == (1, 101, "job_1")
    assert entry.fields == (("signature", "large"),)


def test_hits_of_many_entries_take_few_statements(desk: Desk) -> None:
    database = desk.services.database
    with database.write() as session:
        for number in range(60):
            key = _key(str(number))
            entries.store(session, digest=key.digest, kind="schedule", fields=key.fields, value=b"",
                  job_id=None)  # fmt: skip
    hits = [(_key(str(number)).digest, 1 + number % 2) for number in range(50)]
    with statements(database) as seen, database.write() as session:
        entries.touch(session, [*hits, ("f" * 64, 3)])  # one has been deleted
    assert sum(one.startswith(("SELECT", "UPDATE")) for one in seen) == 4
    found = [query.get_cache_entry(database, _key(str(n)).digest).hits for n in range(60)]
    assert found == [1 + n % 2 for n in range(50)] + [0] * 10


def test_a_cache_asks_on_one_connection_and_replaces_it_when_it_breaks(
    pg_database_url: str, make_settings: MakeSettings, open_desk: OpenDesk
) -> None:
    """No question leaves a transaction open, and the pool has all its connections back."""
    services = open_desk(make_settings(database_url=pg_database_url)).services
    pool: Any = services.database.engine.pool
    mine = "FROM pg_stat_activity WHERE query LIKE '%cache_entry%' AND pid <> pg_backend_pid()"
    cache = StoreCache(services.database, services.blobs, job_id=None, inline_bytes=100)
    cache.put(_key("a"), b"value")
    seen = set()
    for _ in range(3):
        assert cache.get(_key("a")) == b"value"
        assert pool.checkedout() == 1
        with services.database.read() as session:
            rows = session.execute(text(f"SELECT pid, state {mine} AND query LIKE 'SELECT%'")).all()
        seen |= {(row.pid, row.state) for row in rows}
    assert len(seen) == 1 and {state for _, state in seen} == {"idle"}
    with services.database.read() as session:
        session.execute(text(f"SELECT pg_terminate_backend(pid) {mine}"))
    assert cache.get(_key("a")) == b"value"
    cache.close()
    assert pool.checkedout() == 0
    entry = query.get_cache_entry(services.database, _key("a").digest)
    assert entry.hits == 4


def test_what_the_last_job_like_this_one_found_is_read_at_once(desk: Desk) -> None:
    services = desk.services
    like = reads_of("m" * 64, "h" * 64, {"options": {"strategy": "naive"}})
    values = {_key(str(k)): bytes([k]) * (150 if k % 3 == 0 else 50) for k in range(20)}

    def cache(like: CacheKey | None = like) -> StoreCache:
        return StoreCache(
            services.database, services.blobs, job_id="job_1", inline_bytes=100, like=like
        )

    def found(own: StoreCache, keys: Iterable[CacheKey]) -> tuple[list[bytes | None], int]:
        with statements(services.database) as seen:
            got = [own.get(key) for key in keys]
        own.keep_reads()
        own.close()
        return got, sum(" cache_entry" in one for one in seen)

    first = cache()
    for key, value in values.items():
        first.put(key, value)
    first.keep_reads()  # it put them, and found nothing
    first.close()
    wanted = list(values.values())
    assert found(cache(), values) == (wanted, 21)
    assert found(cache(), values) == (wanted, 2)
    assert found(cache(reads_of("n" * 64, "h" * 64, {})), values) == (wanted, 21)
    assert query.get_cache_entry(services.database, like.digest).hits == 1
    assert query.get_cache_entry(services.database, _key("3").digest).hits == 3

    # One is gone, another is new: the rest comes at once, and the next job expects the new ones.
    gone, new = _key("0"), _key("new")
    with services.database.write() as session:
        entries.drop(session, gone.digest)
    filling = cache(None)
    filling.put(new, b"new")
    filling.close()
    now = [*list(values)[1:], gone, new]
    assert found(cache(), now) == ([*wanted[1:], None, b"new"], 4)
    assert found(cache(), now) == ([*wanted[1:], None, b"new"], 3)


def test_a_value_that_was_read_ahead_and_is_lost_is_filled_again(desk: Desk) -> None:
    services = desk.services
    assert isinstance(services.blobs, LocalBlobStore)
    like = reads_of("m" * 64, "h" * 64, {})
    value = b"value"
    for _ in range(2):
        cache = StoreCache(
            services.database, services.blobs, job_id=None, inline_bytes=0, like=like
        )
        for name in ("a", "b"):
            cache.put(_key(name), name.encode() + value)
            assert cache.get(_key(name)) == name.encode() + value
        cache.keep_reads()
        cache.close()
    services.blobs.path(sha256(b"a" + value).hexdigest()).unlink()
    cache = StoreCache(services.database, services.blobs, job_id=None, inline_bytes=0, like=like)
    assert cache.get(_key("b")) == b"b" + value
    assert cache.get(_key("a")) is None
    cache.put(_key("a"), b"a" + value)
    assert cache.get(_key("a")) == b"a" + value


@pytest.mark.parametrize("fault", ["missing", "damaged"])
def test_lost_cache_value_is_a_miss_and_is_filled_again(desk: Desk, fault: str) -> None:
    services = desk.services
    assert isinstance(services.blobs, LocalBlobStore)
    cache = StoreCache(services.database, services.blobs, job_id=None, inline_bytes=0)
    value = b"value"
    cache.put(_key("a"), value)
    path = services.blobs.path(sha256(value).hexdigest())
    if fault == "missing":
        path.unlink()
    else:
        _damage(path)
    assert cache.get(_key("a")) is None
    cache.put(_key("a"), value)
    assert cache.get(_key("a")) == value


def test_lost_model_fails_the_job_with_a_remedy(
    make_settings: MakeSettings, open_desk: OpenDesk
) -> None:
    desk = open_desk(make_settings("quick"))
    assert isinstance(desk.services.blobs, LocalBlobStore)
    job = desk.submit(model=b"soon lost")
    desk.services.blobs.path(sha256(b"soon lost").hexdigest()).unlink()
    with EmbeddedWorker(desk.services):
        done = desk.wait(job.id)
    assert done.state is JobState.FAILED
    assert done.error is not None
    assert (done.error["code"], done.error["remedy"]) == ("TW-SVC-012", "Upload the file again.")


def test_finish_is_retried_while_the_lease_lives(
    make_settings: MakeSettings, open_desk: OpenDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database restarts exactly when the result is published."""
    desk = open_desk(make_settings("quick"))
    real, calls = protocol.succeed, []

    def flaky(*args: object, **kwargs: object) -> None:
        calls.append(1)
        if len(calls) < 3:
            raise OperationalError("UPDATE", {}, Exception("server closed the connection"))
        real(*args, **kwargs)  # type: ignore[arg-type]  # passed through

    monkeypatch.setattr(protocol, "succeed", flaky)
    with EmbeddedWorker(desk.services):
        job = desk.wait(desk.submit().id)
    assert job.state is JobState.SUCCEEDED
    assert (len(calls), job.attempts) == (3, 1)


FAULTS = {
    "disk full": lambda: OSError(errno.ENOSPC, "No space left on device"),
    "store away": lambda: Unavailable("the blob store refused a read"),
    "database away": lambda: OperationalError("SELECT", {}, Exception("connection refused")),
}


def _fail_reads(monkeypatch: pytest.MonkeyPatch, fault: str, times: float) -> None:
    """Let reads of the store fail so many times."""
    real, calls = LocalBlobStore.open_range, []

    def open_range(store: LocalBlobStore, *args: Any) -> Iterator[bytes]:
        calls.append(1)
        if len(calls) <= times:
            raise FAULTS[fault]()
        return real(store, *args)

    monkeypatch.setattr(LocalBlobStore, "open_range", open_range)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_no_fault_of_a_job_costs_it_no_attempt(
    fault: str, make_settings: MakeSettings, open_desk: OpenDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More failures than a job has attempts, and it ends well."""
    desk = open_desk(make_settings("quick"))
    _fail_reads(monkeypatch, fault, times=5)
    with EmbeddedWorker(desk.services):
        job = desk.wait(desk.submit().id)
    assert (job.state, job.attempts) == (JobState.SUCCEEDED, 1)
    outcomes = [a.outcome for a in query.list_attempts(desk.services.database, job.id)]
    assert outcomes == ["postponed"] * 5 + ["succeeded"]
    events = query.list_events(desk.services.database, job.id)
    pauses = [event.payload["retry_in_s"] for event in events if event.type == "postponed"]
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8]


def test_a_job_that_finds_the_disk_full_waits(
    make_settings: MakeSettings, open_desk: OpenDesk
) -> None:
    desk = open_desk(make_settings("full_once"))
    with EmbeddedWorker(desk.services):
        job = desk.wait(desk.submit().id)
    assert (job.state, job.attempts) == (JobState.SUCCEEDED, 1)


def test_a_job_whose_compiler_is_killed_is_tried_again(
    make_settings: MakeSettings, open_desk: OpenDesk
) -> None:
    """As by whoever frees memory: it says nothing of the code."""
    desk = open_desk(make_settings("killed_tool_once"))
    with EmbeddedWorker(desk.services):
        job = desk.wait(desk.submit().id)
    assert (job.state, job.attempts) == (JobState.SUCCEEDED, 2)
    outcomes = [a.outcome for a in query.list_attempts(desk.services.database, job.id)]
    assert outcomes == ["crashed", "succeeded"]


def test_patience_ends(
    make_settings: MakeSettings, open_desk: OpenDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = open_desk(make_settings("quick", patience_s=0.0))
    _fail_reads(monkeypatch, "disk full", times=float("inf"))
    with EmbeddedWorker(desk.services):
        job = desk.wait(desk.submit().id)
    assert (job.state, job.attempts) == (JobState.FAILED, 3)
    assert job.error is not None and job.error["code"] == "TW-SVC-006"


def test_pauses_double_up_to_a_minute() -> None:
    assert [protocol.pause_s(1.0, tries) for tries in (1, 2, 3, 7, 50, 5000)] == [
        1,
        2,
        4,
        60,
        60,
        60,
    ]


def test_lost_lease_kills_the_child_and_the_job_runs_again(
    make_settings: MakeSettings, open_desk: OpenDesk, tmp_path: Path
) -> None:
    """Another worker took the item while this one was stopped: its child dies, its result too."""
    gate = tmp_path / "gates" / "gate"
    desk = open_desk(make_settings("hold", heartbeat_s=0.2))
    with EmbeddedWorker(desk.services):
        job = desk.submit({"gate": str(gate)})
        desk.wait(job.id, stage="ingest")
        with desk.services.database.write() as session:
            session.execute(update(ItemRow).values(lease_until=db_now() - 60.0, owner="other"))
        deadline = time.monotonic() + 20
        while desk.job(job.id).attempts < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        gate.touch()
        done = desk.wait(job.id)
    assert done.state is JobState.SUCCEEDED
    outcomes = [a.outcome for a in query.list_attempts(desk.services.database, job.id)]
    assert outcomes == ["lost", "succeeded"]


def test_garbage_goes_and_what_is_used_stays(desk: Desk) -> None:
    services = desk.services
    desk.submit()
    lonely = put_bytes(services.blobs, b"lonely", "x")
    with services.database.write() as session:
        session.add(BlobRow(sha256=lonely.sha256, size_bytes=6, media_type="x", created=db_now()))
    collect_garbage(services.database, services.blobs, services.settings)
    assert services.blobs.head(lonely.sha256) == 6  # younger than the grace period
    collect_garbage(services.database, services.blobs, services.settings, grace_s=-1.0)
    assert services.blobs.head(lonely.sha256) is None
    kept = sha256(b"fake model").hexdigest()
    assert services.blobs.head(kept) == len(b"fake model")
    with pytest.raises(NotFound):
        query.get_blob(services.database, lonely.sha256)
