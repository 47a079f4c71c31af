"""Stage times and the share of the cache in /metrics: of jobs that ended lately."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from api_fixtures import Serve
from prometheus_client.parser import text_string_to_metric_families
from service_fixtures import Desk, MakeSettings
from sqlalchemy import text

from service.jobs import claim as protocol
from service.jobs import query
from service.jobs.claim import Stage, Units, Usage
from service.settings import Settings

OpenDesk = Callable[[Settings], Desk]


@pytest.fixture
def desk(database_url: str, make_settings: MakeSettings, open_desk: OpenDesk) -> Desk:
    return open_desk(make_settings("quick", database_url=database_url))


def _ended(desk: Desk, stages: list[tuple[str, str, float]], cached: int, total: int) -> str:
    """A job whose stage events came at given seconds."""
    database = desk.services.database
    job = desk.submit()
    held = protocol.claim(database, "w", 60.0)
    assert held is not None
    steps = [(Stage(stage, state), 0.0) for stage, state, _ in stages]
    protocol.record(database, held, [*steps, (Units(total - cached, cached, total), 0.0)])
    protocol.succeed(
        database, held, artifacts=(), bundle_digest="0" * 64, summary={}, usage=Usage()
    )
    with database.write() as session:
        found = session.execute(
            text("SELECT id FROM event WHERE job_id = :job AND type = 'stage' ORDER BY seq"),
            {"job": job.id},
        ).scalars()
        for event, (_, _, at) in zip(list(found), stages, strict=True):
            session.execute(
                text("UPDATE event SET ts = :at WHERE id = :id"), {"at": at, "id": event}
            )
    return job.id


def test_stages_of_every_try_count_once(desk: Desk) -> None:
    """Three that ended; one that a killed worker began has no time."""
    _ended(
        desk,
        [("ingest", "started", 10.0), ("ingest", "started", 20.0), ("ingest", "finished", 20.5),
         ("schedule", "started", 21.0), ("schedule", "finished", 26.0)],
        cached=1, total=4,
    )  # fmt: skip
    _ended(desk, [("ingest", "started", 5.0), ("ingest", "finished", 5.02)], cached=4, total=4)
    found = dict(query.recent_stages(desk.services.database))
    assert list(found) == ["ingest", "schedule"]
    assert dict(found["ingest"].counts)[0.03] == 1
    assert dict(found["ingest"].counts)[1.0] == dict(found["ingest"].counts)[float("inf")] == 2
    assert found["ingest"].total_s == pytest.approx(0.52)
    assert dict(found["schedule"].counts)[3.0] == 0
    assert dict(found["schedule"].counts)[10.0] == 1
    assert query.recent_units(desk.services.database) == (5, 8)


def test_what_ended_long_ago_does_not_count(desk: Desk) -> None:
    _ended(desk, [("ingest", "started", 1.0), ("ingest", "finished", 2.0)], cached=1, total=2)
    with desk.services.database.write() as session:
        session.execute(text("UPDATE job SET finished = finished - 3601"))
    assert query.recent_stages(desk.services.database) == ()
    assert query.recent_units(desk.services.database) == (0, 0)


def test_they_are_served(serve: Serve) -> None:
    """The fake payload has two stages and three units, the second job's all cached."""
    served = serve()
    assert "tilewright_cache_ratio 0" not in served.http.get("/metrics").text  # of nothing
    for n in range(2):
        served.ended(served.submit(label=f"n{n}")["id"])
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(served.http.get("/metrics").text)
        for sample in family.samples
    }
    assert samples["tilewright_cache_ratio",] == 0.5
    for stage in ("ingest", "schedule"):
        assert samples["tilewright_stage_seconds_bucket", "+Inf", stage] == 2
        assert samples["tilewright_stage_seconds_gcount", stage] == 2
        assert samples["tilewright_stage_seconds_gsum", stage] > 0
