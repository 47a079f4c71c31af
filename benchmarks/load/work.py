"""Warm jobs and sweeps over one worker and over two: who uses the processors, what two bring.

Small models by several strategies on several chips (those of the fault campaign), each compiled
once before, so that everything a cache can answer is answered by it: the shortest jobs there are,
hence the ones for which the service around them weighs most.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from benchmarks.faults.work import work
from benchmarks.load.sites import Site, site
from service.client import Client
from service.client.errors import Json, WaitTimeout

CHIPS = ("kapla-edge", "simba", "stcp920-inferred")
Row = dict[str, Any]
_WAIT_S = 1800.0
_SETTLE_S = 2.0
"""Until PostgreSQL has added up what its processes did."""
_PROBES = 40


def _succeeded(made: dict[str, Json]) -> None:
    if made["state"] != "succeeded":
        raise RuntimeError(f"{made['id']} is {made['state']}")


def _transactions(session: Session) -> int:
    query = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
    return int(session.scalar(text(query)) or 0)


class _Window:
    """What the processes used, and the database did, between two moments."""

    def __init__(self, made: Site, session: Session) -> None:
        self._made, self._session = made, session
        time.sleep(_SETTLE_S)
        self._cpu = made.cpu_s()
        self._count = _transactions(session)
        self._began = time.monotonic()
        session.rollback()
        self.now = float(session.scalar(text("SELECT extract(epoch FROM clock_timestamp())")) or 0)
        session.rollback()

    def close(self) -> Row:
        """Seconds, CPU seconds by what used them, transactions."""
        seconds = time.monotonic() - self._began
        after = self._made.cpu_s()
        time.sleep(_SETTLE_S)
        count = _transactions(self._session) - self._count
        self._session.rollback()
        used = {kind: after[kind] - self._cpu[kind] for kind in after}
        return {"seconds": seconds, "cpu_s": used, "transactions": count}


def _attempts(session: Session, since: float) -> list[tuple[float, float]]:
    rows = session.execute(
        text("SELECT started, ended FROM attempt WHERE started >= :since AND ended IS NOT NULL"
             " ORDER BY started"), {"since": since},
    )  # fmt: skip
    found = [(float(row[0]), float(row[1])) for row in rows]
    session.rollback()
    return found


def _figures(window: _Window, session: Session, count: int) -> Row:
    row = window.close()
    attempts = _attempts(session, window.now)
    if len(attempts) != count:
        raise RuntimeError(f"{len(attempts)} attempts for {count} jobs")
    span = max(end for _, end in attempts) - attempts[0][0]
    row |= {"jobs": count, "per_s": count / span, "span_s": span,
            "attempt_s": [end - start for start, end in attempts]}  # fmt: skip
    used = row["cpu_s"]
    around = used["api"] + used["database"] + used["broker"]
    row["share_around"] = around / (around + used["workers"])
    return row


def _commit_s(session: Session) -> float:
    """Median time of a transaction that writes one row, seen by a client, nothing else going on."""
    found = []
    for _ in range(_PROBES):
        began = time.perf_counter()
        session.execute(text("UPDATE worker SET pid = pid"))
        session.commit()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def _idle(made: Site, session: Session, seconds: float) -> Row:
    window = _Window(made, session)
    time.sleep(seconds)
    return window.close()


def _watching(folder: Path, request: dict[str, Json], model: Path, seconds: float) -> Row:
    """CPU seconds a second that one who waits for a job takes while nothing happens to it.

    However many wait, the server looks once for all of them; no worker is there to take the job.
    """
    with site("postgres", folder) as made, Client(made.server.url, key=made.key) as client:
        uploaded = client.upload_model(model)["id"]
        job = str(client.submit(request | {"model": uploaded})["id"])

        def used(watch: Callable[[], object]) -> dict[str, float]:
            time.sleep(_SETTLE_S)
            began, before = time.monotonic(), made.cpu_s()
            watch()
            took, after = time.monotonic() - began, made.cpu_s()
            return {kind: (after[kind] - before[kind]) / took for kind in after}

        def watch() -> None:
            with suppress(WaitTimeout):
                client.wait(job, timeout_s=seconds)

        alone = used(lambda: time.sleep(seconds))
        return {kind: max(0.0, spent - alone[kind]) for kind, spent in used(watch).items()}


def measure_work(
    folder: Path, *, workers: int, jobs: int, rounds: int, kinds: int | None,
    chips: Sequence[str], idle_s: float,
) -> Row:  # fmt: skip
    """`jobs` warm jobs at once, then a warm sweep of models times chips, `rounds` times over.

    `kinds`: of how many kinds the jobs are, and the sweep of their models; None: of all.
    """
    models = folder / "models"
    models.mkdir(parents=True)
    found = [kind for kind in work(models).jobs if kind.name != "refused"][:kinds]
    first: dict[str, Json] = {"hardware": found[0].hardware, "options": dict(found[0].options)}
    watch = _watching(folder / "watched", first, found[0].model, idle_s)
    with (
        site("postgres", folder / "site", workers=workers) as made,
        Client(made.server.url, key=made.key) as client,
        made.database() as database,
        Session(database.engine) as session,
    ):
        ids = {kind.model: str(client.upload_model(kind.model)["id"]) for kind in found}
        asked: list[dict[str, Json]] = [
            {"model": ids[k.model], "hardware": k.hardware, "options": dict(k.options)}
            for k in found
        ]
        sweep: dict[str, Json] = {
            "models": list[Json](sorted(set(ids.values()))), "hardware": list[Json](chips),
            "options": {"strategy": "naive", "verify": "none"},
        }  # fmt: skip

        def run_jobs(count: int) -> None:
            made_ids = [client.submit(asked[n % len(asked)])["id"] for n in range(count)]
            for job in made_ids:
                _succeeded(client.wait(str(job), timeout_s=_WAIT_S))

        def run_sweep() -> None:
            made_id = str(client.submit_sweep(sweep)["id"])
            _succeeded(client.wait_sweep(made_id, timeout_s=_WAIT_S))

        run_jobs(len(asked))
        run_sweep()
        row: Row = {"workers": workers, "commit_s": _commit_s(session), "watch": watch}
        row["idle"] = _idle(made, session, idle_s)
        window = _Window(made, session)
        run_jobs(jobs)
        row["jobs"] = _figures(window, session, jobs)
        window = _Window(made, session)
        for _ in range(rounds):
            run_sweep()
        row["sweeps"] = _figures(window, session, rounds * len(ids) * len(chips))
        return row
