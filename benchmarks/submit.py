"""Latency of submitting jobs with many clients at once.

    python -m benchmarks.submit [--clients 50] [--requests 20] [--keys] [--limits] [--json]

A real server (`tilewright serve`: API, worker and SQLite in one process, synchronous=FULL) accepts
jobs for one stored model and a shipped preset.  Its only worker slot is held by a job that waits,
so that no compile work disturbs; everything else runs as in production: each accepted job is
committed to disk with its work item, event and idempotency key, and its doorbell is sent, before
the answer leaves.  With --keys the server asks for API keys, every request is sent with one, and
every submit leaves a row in the audit log, which is counted afterwards.  With --limits (and keys)
requests are counted against two rates of the key and one of its project, and each submit is held
against the project's quotas of jobs and bytes.

Two loads, each with as many connections as clients:

* paced: every client submits once per second, the clients spread evenly over the second, which is
  what 50 people or CI jobs do; the p95 target applies here, and is also shown for
* saturated: every client submits again as soon as it has its answer, so all are always waiting.
  Latency is then clients / throughput whatever the server does.

The reference is GET /healthz under the same load in the same run, the two alternating: it has the
same HTTP road, connections and load generator, and no work.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.server import Server, running
from service.cli.demo import EXAMPLE
from service.cli.serve import FIRST_KEY

TARGET_P95_MS = 50.0
PRESET = "stcp920-inferred"
LIMITS = {
    "KEY_RATE": "1000000/minute;100000000/day",
    "PROJECT_RATE": "1000000/minute",
    "MAX_PROJECT_BYTES": "1000000000000",
}
"""Settings of a server that counts, and that no load here comes near."""
_HOLD = '''
import time


def hold(request, out_dir, cache, progress):
    """Keep the worker's only slot busy until the server stops."""
    time.sleep(3600)
'''


@dataclass(frozen=True, slots=True)
class Load:
    """How clients behave."""

    clients: int
    requests: int
    """Of each client."""
    period_s: float
    """Between the starts of a client's requests; 0 means at once."""


def _call(
    server: Server, method: str, path: str, body: bytes | None = None, key: str | None = None
) -> dict[str, Any]:
    connection = http.client.HTTPConnection(*server.address)
    media = "application/x-onnx" if path == "/v1/models" else "application/json"
    sent = {} if key is None else {"Authorization": f"Bearer {key}"}
    connection.request(method, path, body=body, headers={"Content-Type": media, **sent})
    response = connection.getresponse()
    data = response.read()
    connection.close()
    if response.status >= 300:
        raise RuntimeError(f"{method} {path}: {response.status} {data[:500]!r}")
    document = json.loads(data)
    assert isinstance(document, dict)
    return document


def prepare(server: Server, key: str | None = None) -> str:
    """A stored model's id, and a job that holds the worker's only slot."""
    model = str(_call(server, "POST", "/v1/models", EXAMPLE.read_bytes(), key)["id"])
    body = json.dumps({"model": model, "hardware": PRESET}).encode()
    job = str(_call(server, "POST", "/v1/jobs", body, key)["id"])
    deadline = time.monotonic() + 60
    while _call(server, "GET", f"/v1/jobs/{job}", key=key)["state"] != "running":
        if time.monotonic() > deadline:
            raise RuntimeError("the holding job did not start")
        time.sleep(0.05)
    return model


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> int:
    """One request on a kept connection: its status."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").lower().split("\r\n")
    length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
    await reader.readexactly(length)
    return int(lines[0].split()[1])


def _get(client: int, number: int) -> bytes:
    del client, number
    return b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def _post(model: str, run: str, key: str | None) -> Callable[[int, int], bytes]:
    sent = "" if key is None else f"Authorization: Bearer {key}\r\n"

    def request(client: int, number: int) -> bytes:
        body = json.dumps({"model": model, "hardware": PRESET, "label": f"client-{client}"})
        return (
            f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{sent}"
            f"Idempotency-Key: {run}-{client}-{number}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        ).encode()

    return request


async def _run_load(
    address: tuple[str, int], load: Load, make: Callable[[int, int], bytes], expected: int
) -> tuple[list[float], float]:
    """Latencies in ms and requests per second."""
    times: list[float] = []

    async def client(index: int, start: float) -> None:
        reader, writer = await asyncio.open_connection(*address)
        first = start + load.period_s * index / load.clients
        for number in range(load.requests):
            pause = first + load.period_s * number - time.perf_counter()
            if pause > 0:
                await asyncio.sleep(pause)
            request = make(index, number)
            sent = time.perf_counter()
            status = await _exchange(reader, writer, request)
            times.append((time.perf_counter() - sent) * 1e3)
            if status != expected:
                raise RuntimeError(f"status {status}")
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(client(k, started + 0.1) for k in range(load.clients)))
    return times, len(times) / (time.perf_counter() - started - 0.1)


def _quantiles(times: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return {"p50_ms": cuts[49], "p95_ms": cuts[94], "p99_ms": cuts[98]}


def _summary(samples: list[tuple[list[float], float]]) -> dict[str, float]:
    times = [t for sample, _ in samples for t in sample]
    return {**_quantiles(times), "per_s": statistics.mean(rate for _, rate in samples)}


def measure(
    clients: int,
    requests: int,
    period_s: float,
    scratch: Path,
    *,
    has_keys: bool = False,
    has_limits: bool = False,
) -> dict[str, Any]:
    """Both loads; reference and submits alternate in two halves."""
    (scratch / "benchmark_payload.py").write_text(_HOLD)
    settings = {
        "WORKERS": "1",
        "MAX_ACTIVE_JOBS": "1000000",
        "RUNNER": "benchmark_payload:hold",
        "CHILD_PYTHON_PATH": json.dumps([str(scratch)]),
    }
    if has_keys:
        settings["REQUIRE_KEY"] = "true"
    if has_limits:
        settings |= LIMITS
    row: dict[str, Any] = {"clients": clients, "keys": has_keys, "limits": has_limits}
    accepted = 0
    with running(scratch / "server", settings) as server:
        key = (scratch / "server" / FIRST_KEY).read_text().strip() if has_keys else None
        model = prepare(server, key)
        loads = {
            "paced": Load(clients, max(requests // 2, 1), period_s),
            "saturated": Load(clients, max(requests // 2, 1), 0.0),
        }
        warm_up = Load(clients, 2, 0.0)
        for make, expected in ((_get, 200), (_post(model, "warm", key), 202)):
            asyncio.run(_run_load(server.address, warm_up, make, expected))
        accepted += clients * 2
        for name, load in loads.items():
            health, submit, spent = [], [], {"healthz": 0.0, "submit": 0.0}
            for half in range(2):
                began = server.cpu_s()
                health.append(asyncio.run(_run_load(server.address, load, _get, 200)))
                between = server.cpu_s()
                spent["healthz"] += between - began
                make = _post(model, f"{name}-{half}", key)
                submit.append(asyncio.run(_run_load(server.address, load, make, 202)))
                spent["submit"] += server.cpu_s() - between
                accepted += clients * load.requests
            row[name] = {"submit": _summary(submit), "healthz": _summary(health)}
            for kind, seconds in spent.items():
                row[name][kind]["cpu_ms"] = 1e3 * seconds / (2 * clients * load.requests)
            row[name]["p95_ratio"] = row[name]["submit"]["p95_ms"] / row[name]["healthz"]["p95_ms"]
    row["durable"] = _count(scratch / "server", "job") - 1 == accepted
    # Its rows are those of the jobs, and of the model.
    row["audited"] = _count(scratch / "server", "audit") - 2 == accepted if has_keys else None
    row["jobs"] = accepted
    is_whole = row["durable"] and row["audited"] is not False
    row["passed"] = bool(is_whole and row["paced"]["submit"]["p95_ms"] <= TARGET_P95_MS)
    row["passed_saturated"] = bool(row["saturated"]["submit"]["p95_ms"] <= TARGET_P95_MS)
    return row


def _count(data_dir: Path, table: str) -> int:
    import sqlite3

    connection = sqlite3.connect(data_dir / "tilewright.db")
    (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    connection.close()
    return int(count)


def render(row: dict[str, Any]) -> str:
    """A few lines of text."""
    keys = ", with keys, all audited" if row["audited"] else ", with keys" if row["keys"] else ""
    keys += ", with limits" if row["limits"] else ""
    lines = [f"job submit, {row['clients']} clients{keys}, {row['jobs']} jobs accepted, all in the"
             f" database afterwards: {'yes' if row['durable'] else 'NO'}"]  # fmt: skip
    for name in ("paced", "saturated"):
        for kind in ("submit", "healthz"):
            q = row[name][kind]
            lines.append(
                f"  {name:9} {kind:8} p50 {q['p50_ms']:6.1f} ms, p95 {q['p95_ms']:6.1f} ms,"
                f" p99 {q['p99_ms']:6.1f} ms, {q['per_s']:5.0f}/s,"
                f" {q['cpu_ms']:.2f} ms of the server's CPU time each"
            )
        lines.append(f"  {name:9} ratio of p95 to healthz {row[name]['p95_ratio']:.1f}")
    lines.append(
        f"target p95 <= {TARGET_P95_MS:g} ms: paced {'met' if row['passed'] else 'MISSED'},"
        f" saturated {'met' if row['passed_saturated'] else 'MISSED'}"
    )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--requests", type=int, default=20, help="of each client and load")
    parser.add_argument("--period", type=float, default=1.0, help="of a paced client, in seconds")
    parser.add_argument("--keys", action="store_true", help="ask for API keys")
    parser.add_argument("--limits", action="store_true", help="count requests; needs --keys")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    if args.limits and not args.keys:
        parser.error("--limits needs --keys: who needs no key is not counted")
    with tempfile.TemporaryDirectory() as folder:
        row = measure(
            args.clients,
            args.requests,
            args.period,
            Path(folder),
            has_keys=args.keys,
            has_limits=args.limits,
        )
    sys.stdout.write((json.dumps(row) if args.json else render(row)) + "\n")
    return 0 if row["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
