"""What settings call old goes, with its bytes; what is used or young stays."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from service_fixtures import Desk, MakeSettings
from sqlalchemy import update

from service.errors import NotFound
from service.jobs import query, submit
from service.jobs.reconcile import collect_garbage
from service.jobs.retention import Retired, retire
from service.settings import Settings
from service.states import JobState
from service.store.blobs import put_bytes
from service.store.tables import CacheEntryRow, CalibrationRow, JobRow, ModelRow, db_now
from worker.compiler.cache import CacheKey, CacheKind
from worker.compiler.options import CompileOptions
from worker.runner.store_cache import StoreCache

HOUR_S = 3600.0


@pytest.fixture
def desk(
    database_url: str, open_desk: Callable[[Settings], Desk], make_settings: MakeSettings
) -> Desk:
    return open_desk(make_settings(database_url=database_url))


def settings_of(desk: Desk, **changes: float) -> Settings:
    return desk.services.settings.model_copy(update=changes)


def age(desk: Desk, row: type, column: str, seconds: float, **where: str) -> None:
    """Let a time of some rows be so long ago."""
    statement = update(row).values({column: db_now() - seconds})
    with desk.services.database.write() as session:
        session.execute(
            statement.where(*(getattr(row, name) == value for name, value in where.items())),
            execution_options={"synchronize_session": False},
        )


def ended(desk: Desk, state: JobState, seconds_ago: float, model: bytes) -> str:
    """A job on a model of its own that ended so long ago."""
    job = desk.submit(model=model)
    with desk.services.database.write() as session:
        row = session.get(JobRow, job.id)
        assert row is not None
        row.state = str(state)
    age(desk, JobRow, "finished", seconds_ago, id=job.id)
    return job.id


def test_nothing_is_old_unless_settings_say_so(desk: Desk) -> None:
    for number, state in enumerate((JobState.SUCCEEDED, JobState.FAILED)):
        ended(desk, state, 1e9, bytes([number]))
    assert retire(desk.services.database, desk.services.settings) == Retired(0, 0, 0, 0, 0)


def test_jobs_go_when_they_ended_long_ago(desk: Desk) -> None:
    database = desk.services.database
    old = [
        ended(desk, state, 2 * HOUR_S, str(state).encode())
        for state in JobState
        if state not in {JobState.QUEUED, JobState.RUNNING, JobState.CANCELING}
    ]
    young = ended(desk, JobState.SUCCEEDED, HOUR_S / 2, b"young")
    open_ = ended(desk, JobState.RUNNING, 2 * HOUR_S, b"open")
    done = retire(database, settings_of(desk, keep_jobs_s=HOUR_S))
    assert done == Retired(len(old), 0, 0, 0, 0)
    for job_id in old:
        with pytest.raises(NotFound):
            query.get_job(database, job_id)
    assert {job.id for job in query.list_jobs(database).rows} == {young, open_}
    assert retire(database, settings_of(desk, keep_jobs_s=HOUR_S)) == Retired(0, 0, 0, 0, 0)


def test_models_and_arrays_go_when_no_job_names_them(desk: Desk) -> None:
    """And their bytes with the garbage."""
    services = desk.services
    arrays = [put_bytes(services.blobs, bytes([n]), "application/zip") for n in (1, 2, 3)]
    for ref in arrays:
        submit.add_calibration(services.database, ref, name="a")
    desk.submit(model=b"used", options=CompileOptions(inputs=arrays[0].sha256))
    alone = put_bytes(services.blobs, b"alone", "application/x-onnx")
    model, _ = submit.add_model(services.database, alone, name="alone", kind="onnx")
    settings = settings_of(desk, keep_unused_s=HOUR_S)
    assert retire(services.database, settings) == Retired(0, 0, 0, 0, 0)
    age(desk, ModelRow, "created", 2 * HOUR_S)
    age(desk, CalibrationRow, "created", 2 * HOUR_S, blob_sha256=arrays[0].sha256)
    age(desk, CalibrationRow, "created", 2 * HOUR_S, blob_sha256=arrays[1].sha256)
    assert retire(services.database, settings) == Retired(0, 1, 1, 0, 0)
    with pytest.raises(NotFound):
        query.get_model(services.database, model.id)
    left = {row.sha256 for row in query.list_calibrations(services.database, owner="local").rows}
    assert left == {arrays[0].sha256, arrays[2].sha256}
    assert len(query.list_models(services.database).rows) == 1
    collect_garbage(services.database, services.blobs, settings, grace_s=-1.0)
    assert services.blobs.head(alone.sha256) is None
    assert services.blobs.head(arrays[1].sha256) is None
    assert services.blobs.head(arrays[0].sha256) == 1


def test_arrays_of_another_project_are_no_use(desk: Desk) -> None:
    services = desk.services
    ref = put_bytes(services.blobs, b"arrays", "application/zip")
    for owner in ("local", "other"):
        submit.add_calibration(services.database, ref, name="a", owner=owner)
    desk.submit(options=CompileOptions(calibration=ref.sha256))
    age(desk, CalibrationRow, "created", 2 * HOUR_S)
    assert retire(services.database, settings_of(desk, keep_unused_s=HOUR_S)).arrays == 1
    assert query.get_calibration(services.database, ref.sha256, "local").sha256 == ref.sha256


def filled(desk: Desk, sizes: tuple[int, ...]) -> list[str]:
    """Cache entries of so many bytes, each used an hour after the one before; of two projects."""
    digests = []
    for number, size in enumerate(sizes):
        services = desk.services
        owner = ("local", "other")[number % 2]
        cache = StoreCache(
            services.database, services.blobs, job_id=None, inline_bytes=1 << 20, owner=owner
        )
        key = CacheKey(CacheKind.SCHEDULE, (("number", str(number)),))
        cache.put(key, bytes(size))
        stored = key.digest if owner == "local" else f"{key.digest}@{owner}"
        age(desk, CacheEntryRow, "last_used", (len(sizes) - number) * HOUR_S, digest=stored)
        digests.append(stored)
    return digests


def left_of(desk: Desk) -> set[str]:
    with desk.services.database.read() as session:
        return {row.digest for row in session.query(CacheEntryRow)}


@pytest.mark.parametrize(
    ("most", "kept"), [(0, 4), (1000, 4), (100, 4), (99, 3), (70, 2), (50, 1), (39, 0)]
)
def test_the_cache_has_a_size(desk: Desk, most: int, kept: int) -> None:
    """What was used last stays: 10, 20, 30 and 40 bytes, by rising use."""
    digests = filled(desk, (10, 20, 30, 40))
    done = retire(desk.services.database, settings_of(desk, max_cache_bytes=most))
    assert done == Retired(0, 0, 0, 4 - kept, 0)
    assert left_of(desk) == set(digests[4 - kept :])


def test_cache_entries_go_when_nobody_uses_them(desk: Desk) -> None:
    digests = filled(desk, (1, 1, 1, 1))
    done = retire(desk.services.database, settings_of(desk, keep_cache_s=2.5 * HOUR_S))
    assert done == Retired(0, 0, 0, 2, 0)
    assert left_of(desk) == set(digests[2:])


def test_many_go_in_one_round(desk: Desk) -> None:
    """More than one transaction takes."""
    filled(desk, (1,) * 250)
    done = retire(desk.services.database, settings_of(desk, max_cache_bytes=5))
    assert done.cache_entries == 245


def test_the_page_names_every_setting() -> None:
    page = Path(__file__, "../../../docs/keeping.md").resolve().read_text()
    ours = {name for name in Settings.model_fields if name.startswith("keep_")} | {
        "max_cache_bytes"
    }
    assert set(re.findall(r"^\| `TILEWRIGHT_(\w+)` \|", page, re.MULTILINE)) == {
        name.upper() for name in ours
    }
