"""Clients: kept connections of plain HTTP, in the two ways in which requests come.

`closed`: every client asks again as soon as it has its answer, so that all are always waiting.
`open_loop`: requests are due at random moments, whatever became of the ones before; latency is
counted from when a request was due, so that a server (or this program) that is late is not let off.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

Address = tuple[str, int]
Make = Callable[[int], bytes]
"""The bytes of request number n."""


def request(
    method: str, path: str, *, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> bytes:
    """The bytes of one request."""
    fields = {"Host": "localhost", **(headers or {})}
    if body:
        fields = {"Content-Type": "application/json", "Content-Length": str(len(body))} | fields
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {text}" for name, text in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Connection:
    """One kept connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: Address) -> Connection:
        """Connect."""
        return cls(*await asyncio.open_connection(*address, limit=1 << 20))

    def close(self) -> None:
        """Close it."""
        self._writer.close()

    async def head(self, sent: bytes) -> tuple[int, dict[str, str]]:
        """Send a request; the status and the fields of its answer, whose body is still to come."""
        self._writer.write(sent)
        await self._writer.drain()
        head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines if line)
        return int(first.split()[1]), {name.lower(): text.strip() for name, _, text in pairs}

    async def ask(self, sent: bytes) -> tuple[int, bytes]:
        """Send a request; its status and body."""
        status, fields = await self.head(sent)
        return status, await self.reader.readexactly(int(fields.get("content-length", "0")))

    async def document(self, sent: bytes) -> dict[str, object]:
        """The same of what must succeed with a JSON object.

        Raises:
            RuntimeError: it did not.
        """
        status, body = await self.ask(sent)
        if status >= 300:
            raise RuntimeError(f"{sent[:80]!r}: {status} {body[:300]!r}")
        found = json.loads(body)
        assert isinstance(found, dict)
        return found


@dataclass(slots=True)
class Sample:
    """What came of many requests."""

    times_ms: list[float] = field(default_factory=list)
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Quantiles in ms, requests per second, errors."""
        cuts = statistics.quantiles(self.times_ms, n=100, method="inclusive")
        return {
            "requests": len(self.times_ms), "per_s": len(self.times_ms) / self.seconds,
            "p50_ms": cuts[49], "p95_ms": cuts[94], "p99_ms": cuts[98],
            "most_ms": max(self.times_ms), "errors": len(self.errors),
        }  # fmt: skip


async def _one(sample: Sample, one: Connection, sent: bytes, due: float, expected: int) -> None:
    status, body = await one.ask(sent)
    sample.times_ms.append((time.perf_counter() - due) * 1e3)
    if status != expected:
        sample.errors.append(f"{status} {body[:200]!r}")


async def closed(
    address: Address, make: Make, *, clients: int, each: int, expected: int, period_s: float = 0.0
) -> Sample:
    """So many clients with so many requests each.

    With a period every client begins a request so often, the clients spread over it; without, at
    once.
    """
    sample = Sample()
    connections = [await Connection.open(address) for _ in range(clients)]
    began = time.perf_counter()

    async def client(index: int) -> None:
        for number in range(each):
            due = began + period_s * (number + index / clients)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            due = time.perf_counter()
            sent = make(index * each + number)
            await _one(sample, connections[index], sent, due, expected)

    await asyncio.gather(*map(client, range(clients)))
    sample.seconds = time.perf_counter() - began
    for connection in connections:
        connection.close()
    return sample


def arrivals(per_s: float, seconds: float, seed: int) -> Iterable[float]:
    """Moments of a Poisson process, in seconds from its start."""
    random, at = Random(seed), 0.0
    while (at := at + random.expovariate(per_s)) < seconds:
        yield at


async def open_loop(
    address: Address, make: Make, *, per_s: float, seconds: float, seed: int, expected: int
) -> Sample:
    """Requests that are due at random moments; as many connections as that takes."""
    sample = Sample()
    idle: list[Connection] = []
    running: set[asyncio.Task[None]] = set()
    began = time.perf_counter()

    async def answer(number: int, due: float) -> None:
        one = idle.pop() if idle else await Connection.open(address)
        await _one(sample, one, make(number), due, expected)
        idle.append(one)

    for number, at in enumerate(arrivals(per_s, seconds, seed)):
        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
        task = asyncio.create_task(answer(number, began + at))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    sample.seconds = time.perf_counter() - began
    for one in idle:
        one.close()
    return sample
