"""Reads and submits: latency at a rate, the rate at saturation, and what their parts cost."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import text

from benchmarks.load.clients import Connection, Make, Sample, closed, open_loop, request
from benchmarks.load.sites import Site, site
from service.cli.demo import EXAMPLE

PRESET = "stcp920-inferred"
READS_PER_S = 200.0
Row = dict[str, Any]


async def _document(made: Site, sent: bytes) -> dict[str, Any]:
    connection = await Connection.open(made.server.address)
    try:
        return await connection.document(sent)
    finally:
        connection.close()


def stored_model(made: Site) -> str:
    """Id of a model that the server has."""
    headers = {**made.headers, "Content-Type": "application/x-onnx"}
    sent = request("POST", "/v1/models", body=EXAMPLE.read_bytes(), headers=headers)
    return str(asyncio.run(_document(made, sent))["id"])


def job_of(model: str, label: str) -> bytes:
    """The body of a submit."""
    return json.dumps({"model": model, "hardware": PRESET, "label": label}).encode()


def submits(made: Site, model: str, run: str) -> Make:
    """Submits, each with an Idempotency-Key of its own."""

    def one(number: int) -> bytes:
        headers = {**made.headers, "Idempotency-Key": f"{run}-{number}"}
        return request("POST", "/v1/jobs", body=job_of(model, f"job {number}"), headers=headers)

    return one


def _held(made: Site, model: str) -> None:
    """Let a job that does not end have the only slot there is, so that no work disturbs."""
    if made.name == "postgres":
        return  # it has no worker at all
    sent = request("POST", "/v1/jobs", body=job_of(model, "hold"), headers=made.headers)
    job = str(asyncio.run(_document(made, sent))["id"])
    deadline = time.monotonic() + 60
    look = request("GET", f"/v1/jobs/{job}", headers=made.headers)
    while asyncio.run(_document(made, look))["state"] != "running":
        if time.monotonic() > deadline:
            raise RuntimeError("the holding job did not start")
        time.sleep(0.05)


def _measured(made: Site, run: Callable[[], Sample]) -> Row:
    """Figures of a load, with the CPU milliseconds of each request by what used them."""
    before = made.cpu_s()
    sample = run()
    after = made.cpu_s()
    row: Row = sample.figures()
    row["cpu_ms"] = {
        kind: 1e3 * (after[kind] - before[kind]) / len(sample.times_ms) for kind in after
    }
    row["first_error"] = sample.errors[0] if sample.errors else None
    return row


def _idle(made: Site, seconds: float) -> float:
    """CPU milliseconds that the API uses in a second in which nobody asks."""
    before = made.cpu_s()["api"]
    time.sleep(seconds)
    return 1e3 * (made.cpu_s()["api"] - before) / seconds


def _counts(made: Site) -> tuple[int, int]:
    """Jobs, and rows of the audit log that say that one was submitted."""
    with made.database() as database, database.read() as session:
        jobs = session.scalar(text("SELECT count(*) FROM job"))
        rows = session.scalar(
            text("SELECT count(*) FROM audit WHERE route = 'POST /v1/jobs' AND outcome = 'done'")
        )
        return int(jobs or 0), int(rows or 0)


def measure_reads(name: str, folder: Path, *, seconds: float, jobs: int) -> Row:
    """`GET /v1/jobs/{id}`, 200 a second at random moments, of jobs that wait in the queue."""
    with site(name, folder, payload="hold") as made:
        model = stored_model(made)
        _held(made, model)
        make = submits(made, model, "reads")
        asyncio.run(closed(made.server.address, make, clients=10, each=jobs // 10, expected=202))
        with made.database() as database, database.read() as session:
            ids = list(session.scalars(text("SELECT id FROM job ORDER BY id")))

        def load(one: Make, span: float) -> Callable[[], Sample]:
            return lambda: asyncio.run(
                open_loop(
                    made.server.address, one, per_s=READS_PER_S, seconds=span, seed=1, expected=200
                )
            )

        def read(number: int) -> bytes:
            return request("GET", f"/v1/jobs/{ids[number * 7919 % len(ids)]}", headers=made.headers)

        def health(number: int) -> bytes:
            del number
            return request("GET", "/healthz")

        load(read, min(2.0, seconds))()
        row = {"reads": _measured(made, load(read, seconds))}
        row["healthz"] = _measured(made, load(health, min(10.0, seconds)))
        return {**row, "jobs": len(ids), "idle_ms_per_s": _idle(made, min(10.0, seconds))}


def measure_submits(name: str, folder: Path, *, clients: int, each: int, rounds: int) -> Row:
    """Submits of many clients: each once a second, then all of them always waiting."""
    row: Row = {"clients": clients}
    with site(name, folder / "plain", payload="hold") as made:
        model = stored_model(made)
        _held(made, model)
        held, accepted = _counts(made)[0], 0

        def load(run: str, count: int, period_s: float) -> Callable[[], Sample]:
            make = submits(made, model, run)
            return lambda: asyncio.run(
                closed(
                    made.server.address, make, clients=clients, each=count, expected=202,
                    period_s=period_s,
                )
            )  # fmt: skip

        load("warm", 2, 0.0)()
        accepted += 2 * clients
        row["paced"] = _measured(made, load("paced", each, 1.0))
        row["saturated"] = [
            _measured(made, load(f"saturated {n}", each, 0.0)) for n in range(rounds)
        ]
        accepted += (rounds + 1) * each * clients
        jobs, rows = _counts(made)
        row["jobs"], row["is_whole"] = accepted, jobs - held == accepted == rows - held
    row["parts"] = _parts(name, folder, clients=clients, each=each)
    return row


def _parts(name: str, folder: Path, *, clients: int, each: int) -> Row:
    """CPU milliseconds of a submit by part, of a server that counts them."""
    out = folder / "parts.json"
    with site(name, folder / "counted", payload="hold", counted=out) as made:
        model = stored_model(made)
        _held(made, model)
        make = submits(made, model, "counted")
        address = made.server.address
        sample = asyncio.run(closed(address, make, clients=clients, each=each, expected=202))
    if sample.errors:
        raise RuntimeError(sample.errors[0])
    found = json.loads(out.read_text())
    calls = found["calls"]["SQL: job, item, event"]
    parts = {part: 1e3 * spent / calls for part, spent in found["seconds"].items()}
    total = 1e3 * found["whole_s"] / calls
    rest = "event loop, threads, sockets, and what runs beside"
    return {"total_ms": total, "parts_ms": parts | {rest: total - sum(parts.values())}}
