"""A storm of requests at a real server on loopback: a fuzzer, generated JSON, and raw sockets.

While it blows, `/healthz` is asked every 100 ms and good jobs are submitted: the server must answer
within a second, the jobs must succeed, and nothing may be answered with 5xx.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any
from urllib.parse import quote

HOSTILE_AT_ONCE = 100
HEALTH_LIMIT_S = 1.0
PATHS = (
    "/v1/jobs", "/v1/models", "/v1/hardware", "/v1/hardware/lint", "/v1/uploads",
    "/v1/calibrations",
    "/v1/cache/prune", "/v1/cache/entries", "/v1/jobs/x/clone", "/v1/jobs/x/cancel", "/v1/errors",
    "/v1/jobs/x/events", "/v1/artifacts/x", "/v1/models/x/preflight", "/healthz", "/readyz",
)  # fmt: skip
TEXTS: tuple[Any, ...] = (
    "", "x", "\ud800", "\x00", "é" * 500, "9" * 5000, "x" * 200_000, "../../etc/passwd", "%00",
    "\r\n",
    -1, 0, 2**63, 2**64, 10**400, 1e400, float("nan"), None, True, [], {}, [[[[[[]]]]]],
    {"a": {"b": {}}}, [0] * 5000,
)  # fmt: skip
FIELDS = (
    "model", "hardware", "options", "label", "priority", "wall_limit_s", "symbols", "preset",
    "spec",
    "text", "unused_for_s", "sha256", "size_bytes", "name", "seed", "strategy", "verify", "surplus",
)  # fmt: skip


@dataclass
class Tally:
    """What the storm has seen; every thread adds to it."""

    answers: dict[int, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    good: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answered(self, status: int, what: str) -> None:
        """Count one answer; 5xx is a fault."""
        with self.lock:
            self.answers[status] = self.answers.get(status, 0) + 1
            if status >= 500:
                self.faults.append(f"{status} for {what[:300]}")

    def failed(self, what: str) -> None:
        """Note a fault."""
        with self.lock:
            self.faults.append(what[:400])


@dataclass
class Health:
    """What a watcher of `/healthz` has seen."""

    asked: int = 0
    slowest_s: float = 0.0
    faults: list[str] = field(default_factory=list)


def storm(seconds: float, seed: int) -> bool:
    """Run the storm on a fresh data directory; prints the counts, gives True on a fault."""
    from service.cli.embedded import embedded_service

    tally = Tally()
    with (
        tempfile.TemporaryDirectory(prefix="storm-") as folder,
        embedded_service(Path(folder) / "data", workers=1) as url,
    ):
        stop = time.monotonic() + seconds
        # A process of its own: here it would wait for a hundred threads to look at its watch.
        heard: Queue[Health] = get_context("spawn").Queue()
        watcher = get_context("spawn").Process(target=_watch_health, args=(url, stop, heard))
        watcher.start()
        threads = [_thread(_good_jobs, url, stop, tally)]
        for number in range(HOSTILE_AT_ONCE):
            blow = (_json_requests, _raw_sockets)[number % 2]
            threads.append(_thread(blow, url, stop, tally, random.Random(f"{seed}/{number}")))
        _fuzz(url, seconds, seed, tally)
        for thread in threads:
            thread.join(timeout=seconds + 60)
            if thread.is_alive():
                tally.failed("a request never ended")
        health = heard.get(timeout=60)
        watcher.join(timeout=60)
        tally.faults += health.faults
        _every_page(url, tally)
    counts = ", ".join(f"{n} x {status}" for status, n in sorted(tally.answers.items()))
    sys.stdout.write(f"api: {seconds / 60:g} minutes, answers: {counts}; slowest /healthz"
                     f" {health.slowest_s:.2f} s of {health.asked}; good jobs {tally.good};"
                     f" {len(tally.faults)} faults\n")  # fmt: skip
    for fault in tally.faults[:50]:
        sys.stdout.write(f"fault: {fault!r}\n")
    return bool(tally.faults)


def _thread(target: Callable[..., None], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


def _watch_health(url: str, stop: float, heard: Queue[Health]) -> None:
    import httpx

    health = Health()
    with httpx.Client(base_url=url, timeout=30) as client:
        while time.monotonic() < stop:
            started = time.monotonic()
            try:
                status = client.get("/healthz").status_code
            except httpx.HTTPError as error:
                health.faults.append(f"/healthz: {error}")
                continue
            took = time.monotonic() - started
            health.asked += 1
            health.slowest_s = max(health.slowest_s, took)
            if took > HEALTH_LIMIT_S or status != 200:
                health.faults.append(f"/healthz answered {status} after {took:.2f} s")
            time.sleep(0.1)
    heard.put(health)


def _good_jobs(url: str, stop: float, tally: Tally) -> None:
    from service.cli.demo import EXAMPLE
    from service.client import Client

    with Client(url) as client:
        model = client.upload_model(EXAMPLE)["id"]
        asked = {"model": model, "hardware": {"preset": "stcp920-inferred"},
                 "options": {"verify": "sample", "no_cache": True}}  # fmt: skip
        while time.monotonic() < stop or not tally.good.get("succeeded"):
            state = str(client.wait(str(client.submit(asked)["id"]))["state"])
            tally.good[state] = tally.good.get(state, 0) + 1
            if state not in ("succeeded", "canceled"):  # the fuzzer cancels what it finds listed
                tally.failed(f"a good job ended {state}")


def _json_requests(url: str, stop: float, tally: Tally, rng: random.Random) -> None:
    """Requests with hostile values in bodies, queries and headers."""
    import httpx

    with httpx.Client(base_url=url, timeout=60) as client:
        while time.monotonic() < stop:
            path, verb = rng.choice(PATHS), rng.choice(("GET", "POST", "POST", "DELETE", "PATCH"))
            body = json.dumps(_document(rng, 0)).encode()
            headers = {"Content-Type": rng.choice(("application/json", "text/plain", "x/y", ""))}
            if rng.random() < 0.3:
                name = rng.choice(("Range", "Last-Event-ID", "Idempotency-Key", "Prefer",
                                   "If-None-Match", "Content-Length", "Host"))  # fmt: skip
                text = rng.choice(
                    ("9" * 5000, "bytes=" + "9" * 4000 + "-", "wait=1e999", '"', "-1")
                )
                if name not in ("Content-Length", "Host"):
                    headers[name] = text
            query = ""
            if rng.random() < 0.4:
                key = rng.choice(("cursor", "limit", "state", "set", "hardware", "kind", "label"))
                text = rng.choice(("9" * 3000, "%ff", "%00", "a=%ed%a0%80", "N=" + "9" * 4000, "x"))
                query = f"?{key}={text}"
            try:
                with client.stream(verb, path + query, content=body, headers=headers) as answer:
                    why = ""
                    if answer.status_code >= 500:
                        why = f" said {answer.read()[:300]!r}"
                    tally.answered(answer.status_code, f"{verb} {path[:80]}{why} {body[:100]!r}")
            except httpx.TimeoutException:
                tally.failed(f"no answer in 60 s: {verb} {path}{query} {body[:200]!r}")
            except httpx.HTTPError:
                continue  # the server closed the connection: its right
            time.sleep(rng.random() * 0.5)


def _document(rng: random.Random, depth: int) -> Any:
    if depth > 3 or rng.random() < 0.3:
        return rng.choice(TEXTS)
    keys = rng.sample(FIELDS, rng.randrange(1, 5))
    return {key: _document(rng, depth + 1) for key in keys}


def _raw_sockets(url: str, stop: float, tally: Tally, rng: random.Random) -> None:
    """Bytes that are not HTTP, or HTTP that never ends."""
    host, port = url.removeprefix("http://").split(":")
    while time.monotonic() < stop:
        try:
            with socket.create_connection((host, int(port)), timeout=10) as line:
                sent = _bytes(rng, f"{host}:{port}")
                line.sendall(sent)
                if rng.random() < 0.5:
                    line.shutdown(socket.SHUT_WR)
                line.settimeout(min(5.0, max(0.1, stop - time.monotonic())))
                head = line.recv(4096).split(b"\r\n", 1)[0]
                if head.startswith(b"HTTP/1.1 ") and head[9:12].isdigit():
                    tally.answered(int(head[9:12]), repr(sent[:200]))
        except OSError:
            pass  # a refused or broken connection is an answer too
        time.sleep(rng.random() * 0.5)


def _bytes(rng: random.Random, host: str) -> bytes:
    path = quote(rng.choice(PATHS))
    start = f"POST {path} HTTP/1.1\r\nHost: {host}\r\n".encode()
    ways = (
        lambda: rng.randbytes(rng.randrange(1, 3000)) + b"\r\n\r\n",
        lambda: start + b"Content-Length: 1000000\r\n\r\n" + rng.randbytes(100),
        lambda: start + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\nx",
        lambda: start + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        lambda: start + b"Content-Length: -5\r\n\r\n",
        lambda: start + b"X: " + b"y" * rng.choice((100, 70_000, 200_000)) + b"\r\n\r\n",
        lambda: start + b"".join(b"H%d: 1\r\n" % k for k in range(3000)) + b"\r\n",
        lambda: start[: rng.randrange(1, len(start))],
        lambda: start.replace(b" HTTP", b"?" + b"a=1&" * 5000 + b" HTTP") + b"\r\n",
        lambda: start.replace(b"POST", b"\xff\xfe") + b"\r\n",
        lambda: start + b"Content-Type: multipart/form-data; boundary=" + b"b" * 5000
        + b"\r\nContent-Length: 50\r\n\r\n" + b"--" + b"b" * 48,
        lambda: b"GET / HTTP/9.9\r\nHost: evil.example\r\n\r\n",
    )  # fmt: skip
    return rng.choice(ways)()


def _fuzz(url: str, seconds: float, seed: int, tally: Tally) -> None:
    """schemathesis on the server's own schema, its stateful phase included."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"]
    command += ["--seed", str(seed), "--checks", "not_a_server_error", "--continue-on-failure"]
    command += ["--max-time", str(max(5, int(seconds))), "--request-timeout", "60"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=seconds * 3 + 120
        )
    except subprocess.TimeoutExpired:
        tally.failed("schemathesis did not end")
        return
    text = done.stdout
    if done.returncode not in (0, 1) or "Server error" in text or "5xx" in text:
        tally.failed(f"schemathesis ended with {done.returncode}: {(text + done.stderr)[-600:]}")
    sys.stdout.write("".join(f"  {line}\n" for line in text.strip().splitlines()[-12:]))


def _every_page(url: str, tally: Tally) -> None:
    """After the storm every stored thing must still be listed and shown."""
    from service.client import Client
    from service.client.errors import ApiError

    with Client(url) as client:
        try:
            for job in list(client.jobs(limit=50)):
                client.job(str(job["id"]))
            list(client.models())
        except ApiError as error:
            tally.failed(f"a list is broken after the storm: {error}")
