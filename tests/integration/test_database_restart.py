"""The database crashes and comes back while jobs run: every job succeeds, each once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest
from service_fixtures import Desk, MakeSettings
from sqlalchemy.exc import DBAPIError

from benchmarks.faults.servers import OwnPostgres
from service.jobs import query
from service.settings import Settings
from service.states import JobState
from worker.runner.main import EmbeddedWorker

OpenDesk = Callable[[Settings], Desk]


@pytest.mark.campaign
def test_immediate_restarts_lose_and_double_nothing(
    make_settings: MakeSettings, open_desk: OpenDesk, own_postgres: OwnPostgres
) -> None:
    settings = make_settings("patient", database_url=own_postgres.url, lease_ttl_s=5.0)
    desk = open_desk(settings)
    with EmbeddedWorker(desk.services):
        made = [desk.submit({"n": n, "seconds": 0.4}) for n in range(12)]
        for pause_s in (0.3, 0.9, 1.4):
            time.sleep(pause_s)
            own_postgres.stop(signal.SIGQUIT)
            with pytest.raises(DBAPIError):
                desk.job(made[0].id)
            assert own_postgres.start()
        done = [desk.wait(job.id, timeout_s=60) for job in made]
    assert [job.state for job in done] == [JobState.SUCCEEDED] * len(made)
    for job in done:
        events = query.list_events(desk.services.database, job.id)
        finished = [e for e in events if e.payload.get("state") == "succeeded"]
        assert len(finished) == 1
        assert [e.seq for e in events] == list(range(1, len(events) + 1))
