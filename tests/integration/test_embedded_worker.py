"""The embedded service end to end: submit, run in the sandbox, succeed."""

from __future__ import annotations

from collections.abc import Callable

from service_fixtures import Desk, MakeSettings

from service.jobs import query
from service.settings import Settings
from service.states import JobState
from service.store.blobs import read_bytes
from worker.main import EmbeddedWorker

OpenDesk = Callable[[Settings], Desk]


def test_job_succeeds_with_artifacts_events_and_cache(
    make_settings: MakeSettings, open_desk: OpenDesk
) -> None:
    desk = open_desk(make_settings("quick"))
    with EmbeddedWorker(desk.services):
        job = desk.wait(desk.submit().id)
        again = desk.wait(desk.submit().id)
    database = desk.services.database
    assert job.state is JobState.SUCCEEDED, job.error
    assert job.summary == {"latency_cycles": 42}
    assert (job.units_solved, job.units_cached, job.units_total) == (3, 0, 3)
    assert (again.units_solved, again.units_cached) == (0, 3)
    artifacts = {a.name: a for a in query.list_artifacts(database, job.id)}
    assert sorted(artifacts) == ["layers", "report"]
    assert read_bytes(desk.services.blobs, artifacts["layers"].sha256) == b"index\n0\n"
    events = query.list_events(database, job.id)
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert [e.payload["state"] for e in events if e.type == "state"] == [
        "queued",
        "running",
        "succeeded",
    ]
    (stats,) = query.cache_stats(database)
    assert (stats.kind, stats.entries, stats.hits) == ("schedule", 3, 3)
    assert not list(desk.services.settings.work_dir.iterdir())
