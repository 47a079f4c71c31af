"""The load command at smoke size, and what its parts promise."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.load import __main__ as load
from benchmarks.load.clients import arrivals, closed, open_loop, request
from benchmarks.load.page import missed
from benchmarks.load.parts import Counts
from benchmarks.load.queue_model import Costs, bend, costs_of, forecast

COSTS = Costs(
    attempt_s=(1.0, 1.2, 1.4), cycle_s=1.25, worker_cpu_s=1.05, database_cpu_s=0.02,
    transactions=30, api_cpu_s=0.01, broker_cpu_s=0.002, commit_s=0.002, reconcile_cpu_s=0.01,
    idle_api=0.0, idle_broker=0.0, watch=0.0, cores=2,
)  # fmt: skip


def test_one_worker_does_what_it_was_measured_to() -> None:
    assert forecast(COSTS, 1, shared=True).per_s == pytest.approx(1 / COSTS.cycle_s, rel=0.03)


def test_a_worker_of_its_own_waits_for_nothing_but_the_database() -> None:
    busy_s = COSTS.worker_cpu_s + COSTS.database_cpu_s
    told = forecast(replace(COSTS, cycle_s=60.0), 1, shared=False)
    assert told.per_s == pytest.approx(1 / busy_s, rel=0.03)


@pytest.mark.parametrize("workers", [2, 4])
def test_shared_processors_are_never_used_twice(workers: int) -> None:
    told = forecast(COSTS, workers, shared=True)
    most = COSTS.cores / (COSTS.worker_cpu_s + COSTS.around_cpu_s)
    assert told.per_s <= most * 1.02
    assert told.around_load <= 1.0 + 1e-9
    if workers > COSTS.cores:
        assert told.per_s == pytest.approx(most, rel=0.05)


def test_a_database_that_is_used_up_bounds_all_workers() -> None:
    heavy = replace(COSTS, database_cpu_s=0.2)
    at = bend(heavy)
    assert 10 < at < 12.5
    told = forecast(heavy, 32, shared=False)
    most = heavy.cores / heavy.around_cpu_s
    assert told.per_s <= most
    assert told.per_s >= 0.9 * most
    assert told.around_load > 0.95


def test_what_passes_with_time_is_none_of_a_jobs() -> None:
    """Measured over 20 s, of which ten jobs took half: the rest is there without them, too."""
    idle = {"seconds": 10.0, "cpu_s": {"api": 0.2, "broker": 0.1, "database": 0.3, "workers": 0.1}}
    used = {"api": 0.5, "broker": 0.15, "database": 1.0, "workers": 8.0}
    jobs = {"jobs": 10, "seconds": 20.0, "span_s": 18.0, "attempt_s": [1.0] * 10, "cpu_s": used,
            "transactions": 300}  # fmt: skip
    watch = {"api": 0.002, "broker": 0.0, "database": 0.001, "workers": 0.0}
    costs = costs_of({"jobs": jobs, "idle": idle, "commit_s": 0.001, "watch": watch}, 2)
    assert costs.api_cpu_s == pytest.approx(0.006)
    assert costs.broker_cpu_s == 0.0
    assert costs.database_cpu_s == pytest.approx(0.038)
    assert costs.watch == pytest.approx(0.003)
    assert (costs.idle_api, costs.idle_broker) == (0.02, 0.01)
    assert costs.transactions == 30


def test_what_passes_with_time_leaves_less_for_jobs() -> None:
    heavy = replace(COSTS, database_cpu_s=0.2)
    kept = replace(heavy, idle_api=0.3, watch=0.2, idle_broker=0.01)
    workers = 32
    left = kept.cores - kept.idle_api - kept.watch - workers * kept.idle_broker
    told = forecast(kept, workers, shared=False)
    assert 0.85 * left / kept.around_cpu_s <= told.per_s <= 1.02 * left / kept.around_cpu_s
    assert bend(kept) < bend(heavy)


def test_arrivals_have_their_rate_and_are_the_same_again() -> None:
    found = list(arrivals(200.0, 50.0, seed=1))
    assert found == sorted(found) == list(arrivals(200.0, 50.0, seed=1))
    assert len(found) == pytest.approx(10_000, rel=0.05)


@pytest.fixture
def slow_server() -> Iterator[int]:
    """Answers one request after the other, each after 20 ms."""
    loop = asyncio.new_event_loop()
    turn = asyncio.Lock()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            async with turn:
                await asyncio.sleep(0.02)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    server = loop.run_until_complete(asyncio.start_server(answer, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield server.sockets[0].getsockname()[1]
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def test_latency_counts_from_when_a_request_was_due(slow_server: int) -> None:
    """A server that manages 50/s is asked 100/s: who only looked at each answer would see 20 ms."""

    def make(number: int) -> bytes:
        return request("GET", f"/{number}")

    address = ("127.0.0.1", slow_server)
    late = asyncio.run(
        open_loop(address, make, per_s=100.0, seconds=1.0, seed=1, expected=200)
    ).figures()
    assert late["p95_ms"] > 300
    alone = asyncio.run(closed(address, make, clients=1, each=10, expected=200)).figures()
    assert alone["errors"] == 0
    assert alone["p50_ms"] < late["p50_ms"]
    wrong = asyncio.run(closed(address, make, clients=1, each=3, expected=202)).figures()
    assert wrong["errors"] == 3


def _burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_each_moment_is_in_one_part() -> None:
    counts = Counts()
    inner = counts.wrapped(lambda: _burn(0.05), "inner")

    async def waits() -> None:
        _burn(0.03)
        await asyncio.sleep(0.2)
        inner()

    outer = counts.wrapped(waits, "outer")

    async def both() -> None:
        await asyncio.gather(outer(), outer())

    asyncio.run(both())
    assert counts.calls == {"outer": 2, "inner": 2}
    assert counts.seconds["inner"] == pytest.approx(0.10, rel=0.2)
    assert counts.seconds["outer"] == pytest.approx(0.06, rel=0.2)


def test_a_part_that_fails_is_left() -> None:
    counts = Counts()

    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    with pytest.raises(KeyError):
        asyncio.run(counts.wrapped(fails, "part")())
    before = dict(counts.seconds)
    counts.wrapped(lambda: None, "other")()
    assert counts.seconds["part"] == before["part"]


@pytest.mark.campaign(smoke=False)  # three minutes of servers; its parts are tested above
def test_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "load.md"
    load.main(["--small", "--out", str(out)])  # its figures say nothing, so neither does its status
    said = capsys.readouterr().out
    assert said == out.read_text()
    ledger = json.loads(out.with_suffix(".json").read_text())
    if "work" not in ledger:
        pytest.skip("no PostgreSQL or no Redis is installed")
    for name in ("sqlite", "postgres"):
        assert not ledger["reads"][name]["reads"]["errors"]
        assert ledger["submits"][name]["is_whole"]
        assert not ledger["streams"][name]["errors"]
        assert ledger["streams"][name]["streams"] == load.SMALL.streams
        assert ledger["submits"][name]["parts"]["parts_ms"]["audit row (SQL)"] > 0
    assert ledger["work"]["2"]["sweeps"]["jobs"] == ledger["work"]["1"]["sweeps"]["jobs"]
    assert "| 64 |" in said


def test_a_page_says_what_is_missed() -> None:
    assert missed("| 1 | MISSED |")
    assert not missed("| 1 | met |")
