"""Upload bandwidth, memory growth and submit latency of the API, over loopback.

    python -m benchmarks.service_rates [--megabytes 1024] [--clients 50] [--seconds-between 1.0]

The API runs alone in a process of its own (no worker competes for the cores).  References of the
same run: a copy of the same file in 1 MiB pieces ended by fsync, and bare durable SQLite commits.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]  # has no stubs

PIECE = 1 << 20
HARDWARE = "kapla-edge"
SUBMITS_PER_CLIENT = 10


def _serve(folder: str, listener: socket.socket) -> None:
    import uvicorn

    from service.api.app import create_app
    from service.settings import Settings
    from service.store.session import migrate

    settings = Settings(data_dir=Path(folder), max_active_jobs=1_000_000)
    migrate(settings.database_url)
    config = uvicorn.Config(create_app(settings), log_config=None, access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while piece := stream.read(PIECE):
            yield piece


def _copy_seconds(source: Path, target: Path) -> float:
    started = time.perf_counter()
    with target.open("wb") as stream:
        for piece in _pieces(source):
            stream.write(piece)
        stream.flush()
        os.fsync(stream.fileno())
    return time.perf_counter() - started


def _commit_times(folder: Path, count: int) -> list[float]:
    """Time commits of one row each with the service's durability."""
    connection = sqlite3.connect(folder / "reference.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE t (x)")
    times = []
    for number in range(count):
        started = time.perf_counter()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO t VALUES (?)", (number,))
        connection.execute("COMMIT")
        times.append(time.perf_counter() - started)
    connection.close()
    return sorted(times)


def _upload(url: str, pid: int, path: Path) -> tuple[float, int, str]:
    """Give seconds, growth of the API's resident memory in bytes, and the model's id."""
    process = psutil.Process(pid)
    base = peak = process.memory_info().rss
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.02):
            peak = max(peak, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    response = httpx.post(
        f"{url}/v1/models",
        content=_pieces(path),
        headers={"Content-Length": str(path.stat().st_size)},
        timeout=600,
    )
    seconds = time.perf_counter() - started
    done.set()
    watcher.join()
    response.raise_for_status()
    return seconds, peak - base, str(response.json()["id"])


def _submit_times(url: str, model: str, clients: int, between_s: float) -> list[float]:
    times: list[float] = []

    def one(position: int) -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            client.get("/healthz")
            time.sleep(between_s * position / clients)
            for _ in range(SUBMITS_PER_CLIENT):
                started = time.perf_counter()
                body = {"model": model, "hardware": HARDWARE}
                client.post("/v1/jobs", json=body).raise_for_status()
                spent = time.perf_counter() - started
                times.append(spent)
                time.sleep(max(0.0, between_s - spent))

    threads = [threading.Thread(target=one, args=(k,)) for k in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(times)


def _ms(times: list[float], quantile: float) -> float:
    return 1e3 * times[min(len(times) - 1, int(quantile * len(times)))]


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201  # a benchmark's output


def main() -> None:
    """Run all measurements and print them with their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds-between", type=float, default=1.0)
    chosen = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        big = folder / "big.onnx"
        with big.open("wb") as stream:
            for number in range(chosen.megabytes):
                stream.write(sha256(str(number).encode()).digest() * (PIECE // 32))
        copy_s = _copy_seconds(big, folder / "copy")
        context = multiprocessing.get_context("fork")
        server = context.Process(target=_serve, args=(str(folder / "data"), listener), daemon=True)
        server.start()
        try:
            httpx.get(f"{url}/healthz", timeout=60).raise_for_status()
            assert server.pid is not None
            seconds, growth, model = _upload(url, server.pid, big)
            size = big.stat().st_size / 1e6
            _print(f"upload: {size / seconds:.0f} MB/s, API memory +{growth / 2**20:.0f} MiB")
            _print(f"  reference copy {size / copy_s:.0f} MB/s, ratio {seconds / copy_s:.2f}")
            commits = _commit_times(folder, 200)
            times = _submit_times(url, model, chosen.clients, chosen.seconds_between)
            _print(
                f"submit, {chosen.clients} clients, one each {chosen.seconds_between:g} s: "
                f"p50 {_ms(times, 0.5):.1f} ms, p95 {_ms(times, 0.95):.1f} ms"
            )
            ratio = _ms(times, 0.95) / _ms(commits, 0.95)
            _print(f"  reference commit p95 {_ms(commits, 0.95):.1f} ms, ratio {ratio:.1f}")
            _print(f"load average {os.getloadavg()[0]:.1f}")
        finally:
            server.terminate()
            server.join()


if __name__ == "__main__":
    main()
