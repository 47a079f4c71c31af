"""Progress that comes quickly is written together: all of it, in order, and soon."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from service_fixtures import Desk, MakeSettings
from sqlalchemy import event

from service.jobs import claim as protocol
from service.jobs import query
from service.jobs.claim import Artifact, Stage, Units
from service.settings import Settings
from service.states import JobState
from service.store.blobs import put_bytes
from worker.runner.main import EmbeddedWorker

OpenDesk = Callable[[Settings], Desk]


@pytest.fixture
def desk(database_url: str, make_settings: MakeSettings, open_desk: OpenDesk) -> Desk:
    return open_desk(make_settings("talkative", database_url=database_url, workers=1))


@pytest.fixture
def inserts(desk: Desk) -> Iterator[list[str]]:
    """Statements that write events of stages, as they are run."""
    found: list[str] = []

    def note(conn: object, cursor: object, statement: str, *_: object) -> None:
        if statement.upper().startswith("INSERT INTO EVENT"):
            found.append(statement)

    event.listen(desk.services.database.engine, "before_cursor_execute", note)
    yield found
    event.remove(desk.services.database.engine, "before_cursor_execute", note)


def test_forty_stages_take_few_transactions(desk: Desk, inserts: list[str], tmp_path: Path) -> None:
    gate = tmp_path / "gates" / "open"
    with EmbeddedWorker(desk.services):
        job = desk.submit({"name": "toy", "gate": str(gate)})
        waiting = desk.wait(job.id, stage="stage 19")  # it says nothing more, and waits
        assert waiting.state is JobState.RUNNING
        deadline = time.monotonic() + 10
        while len(query.list_events(desk.services.database, job.id)) < 42:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        before = len(inserts)
        gate.touch()
        assert desk.wait(job.id).state is JobState.SUCCEEDED
    events = query.list_events(desk.services.database, job.id)
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    told = [(e.payload["stage"], e.payload["state"]) for e in events if e.type == "stage"]
    states = ("started", "finished")
    assert told[:40] == [(f"stage {n}", state) for n in range(20) for state in states]
    assert told[40:] == [(n, state) for n in ("ingest", "schedule") for state in states]
    assert before <= 12  # submitted, running, and of forty stages what a quarter of a second parts


def test_each_keeps_the_moment_it_came(desk: Desk) -> None:
    """Though it is written later: figures of stages are made of these."""
    database = desk.services.database
    job = desk.submit()
    held = protocol.claim(database, "w", 60.0)
    assert held is not None
    steps = [(Stage("schedule", "started"), 5.0), (Units(1, 0, 3), 3.5),
             (Stage("schedule", "finished"), 2.0), (Units(2, 1, 3), 0.0)]  # fmt: skip
    protocol.record(database, held, steps)
    *_, start, units, end, last = query.list_events(database, job.id)
    assert [e.type for e in (start, units, end, last)] == ["stage", "units", "stage", "units"]
    assert end.ts - start.ts == pytest.approx(3.0, abs=0.5)
    assert last.ts - end.ts == pytest.approx(2.0, abs=0.5)
    now = desk.job(job.id)
    assert (now.stage, now.units_solved, now.units_cached, now.units_total) == ("schedule", 2, 1, 3)


def test_who_lost_the_lease_records_nothing(desk: Desk) -> None:
    database = desk.services.database
    job = desk.submit()
    held = protocol.claim(database, "w", 60.0)
    assert held is not None
    protocol.give_back(database, held)
    before = query.list_events(database, job.id)
    with pytest.raises(protocol.LeaseLost):
        protocol.record(database, held, [(Stage("schedule", "started"), 0.0)])
    assert query.list_events(database, job.id) == before


def test_many_artifacts_and_events_are_few_statements(desk: Desk) -> None:
    """None is run once for each row: a driver that is given many rows may do that."""
    services = desk.services
    desk.submit()
    held = protocol.claim(services.database, "w", 60.0)
    assert held is not None
    seen: list[tuple[str, bool]] = []

    def note(
        conn: object, cursor: object, statement: str, values: object, context: object, many: bool
    ) -> None:
        seen.append((statement, many))

    made = tuple(
        (f"artifact {k}", f"file{k % 9}", put_bytes(services.blobs, bytes([k % 9]), "text/plain"))
        for k in range(10)
    )
    artifacts = (*made, ("artifact 3", "file3 again", made[4][2]))  # a stage may run again
    event.listen(services.database.engine, "before_cursor_execute", note)
    steps = [(Stage("schedule", "started"), 1.0), *((Artifact(*one), 0.5) for one in artifacts)]
    protocol.record(services.database, held, steps)
    recorded = len(seen)
    protocol.succeed(
        services.database, held, artifacts=made, bundle_digest="b", summary={},
        usage=protocol.Usage(),
    )  # fmt: skip
    event.remove(services.database.engine, "before_cursor_execute", note)
    assert recorded <= 7
    assert len(seen) - recorded <= 12
    inserts = [statement for statement, many in seen if many]
    assert len(inserts) == 5
    assert all("), (" in statement for statement in inserts), "one row: run once for each"
    kept = query.list_artifacts(services.database, held.job.id)
    assert {(row.name, row.file_name, row.sha256) for row in kept} == {
        (name, file_name, ref.sha256) for name, file_name, ref in made
    }
    told = [e for e in query.list_events(services.database, held.job.id) if e.type == "artifact"]
    assert [e.payload["name"] for e in told] == [name for name, _, _ in artifacts]
