"""Many event streams and uploads at once, and the API's memory while jobs come and go.

Every follower submits a job, opens its stream at once, reads it to its end, and asks for the job
and its report; then for the next one.  So there are as many open streams as followers until the
last jobs end.  Meanwhile all uploaders send models, each with a connection of its own.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from benchmarks.load.clients import Connection, request
from benchmarks.load.requests import job_of, stored_model
from benchmarks.load.sites import Site, site

MIB = 1 << 20
Row = dict[str, Any]
_WAIT_S = 3600.0


def models(count: int, mib: int) -> list[bytes]:
    """Models of so many bytes, each with other ones."""
    weight = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[1024, mib * 256], raw_data=bytes(mib * MIB)
    )
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1024])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, mib * 256])
    graph = helper.make_graph([node], "g", [given], [result], [weight])
    found = []
    for number in range(count):
        made = helper.make_model(graph, doc_string=f"model {number}")
        onnx.checker.check_model(made)
        found.append(made.SerializeToString())
    return found


@dataclass(slots=True)
class _Run:
    """What is seen while it runs."""

    site: Site
    model: str
    marks: list[int]
    """After how many ended jobs memory is looked at."""
    open_now: int = 0
    most_open: int = 0
    ended: int = 0
    events: int = 0
    uploading: int = 0
    most_uploading: int = 0
    uploads: int = 0
    memory: list[Row] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def look(self) -> None:
        """Note the API's memory where it is due."""
        if self.ended in self.marks:
            rollup = Path(f"/proc/{self.site.server.pid}/smaps_rollup").read_text()
            kib = {line.split(":")[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}
            self.memory.append(
                {
                    "jobs": self.ended, "rss_mb": kib["Rss"] * 1024 / 1e6,
                    "pss_mb": kib["Pss"] * 1024 / 1e6, "streams": self.open_now,
                }
            )  # fmt: skip


async def _follow(run: _Run, label: str) -> None:
    headers, address = run.site.headers, run.site.server.address
    one = await Connection.open(address)
    sent = request("POST", "/v1/jobs", body=job_of(run.model, label), headers=headers)
    path = f"/v1/jobs/{(await one.document(sent))['id']}"
    one.close()  # the stream outlasts what a server keeps a silent connection for
    stream = await Connection.open(address)
    status, _ = await stream.head(request("GET", f"{path}/events", headers=headers))
    if status != 200:
        raise RuntimeError(f"a stream was answered {status}")
    run.open_now += 1
    run.most_open = max(run.most_open, run.open_now)
    last = b""
    while (line := await stream.reader.readline()) and not last.startswith(b"event: end"):
        run.events += line.startswith(b"id: ")
        last = line if line.startswith(b"event:") else last
    run.open_now -= 1
    stream.close()
    if not last.startswith(b"event: end") or b"succeeded" not in line:
        raise RuntimeError(f"a stream ended with {last!r} {line!r}")
    one = await Connection.open(address)
    job = await one.document(request("GET", path, headers=headers))
    if job["state"] != "succeeded":
        raise RuntimeError(f"a job ended {job['state']}")
    await one.document(request("GET", f"{path}/report", headers=headers))
    one.close()


async def _follower(run: _Run, number: int, rounds: int) -> None:
    for turn in range(rounds):
        try:
            await _follow(run, f"follower {number}, job {turn}")
        except (RuntimeError, OSError, asyncio.IncompleteReadError) as error:
            run.errors.append(f"stream: {error}")
        run.ended += 1
        run.look()


async def _upload(run: _Run, body: bytes) -> None:
    headers = {**run.site.headers, "Content-Type": "application/x-onnx"}
    try:
        one = await Connection.open(run.site.server.address)
        run.uploading += 1
        run.most_uploading = max(run.most_uploading, run.uploading)
        await one.document(request("POST", "/v1/models", body=body, headers=headers))
        one.close()
        run.uploads += 1
    except (RuntimeError, OSError, asyncio.IncompleteReadError) as error:
        run.errors.append(f"upload: {error}")
    run.uploading -= 1


async def _all(run: _Run, *, jobs: int, streams: int, bodies: list[bytes]) -> None:
    rounds = jobs // streams
    followers = [asyncio.create_task(_follower(run, n, rounds)) for n in range(streams)]
    while run.most_open < streams and not all(task.done() for task in followers):
        await asyncio.sleep(0.2)
    await asyncio.gather(*(_upload(run, body) for body in bodies))
    await asyncio.wait_for(asyncio.gather(*followers), _WAIT_S)


def measure_streams(
    name: str, folder: Path, *, jobs: int, streams: int, uploaders: int, mib: int, workers: int
) -> Row:
    """Follow `jobs` jobs with `streams` streams at once, upload models meanwhile."""
    bodies = models(uploaders, mib)
    with site(name, folder, payload="quick", workers=workers) as made:
        marks = [jobs * quarter // 4 for quarter in (1, 2, 3, 4)]
        run = _Run(made, stored_model(made), marks)
        before, began = made.cpu_s(), time.monotonic()
        asyncio.run(_all(run, jobs=jobs, streams=streams, bodies=bodies))
        seconds = time.monotonic() - began
        after = made.cpu_s()
    figures = [mark["rss_mb"] for mark in run.memory]
    counts = [mark["jobs"] for mark in run.memory]
    slope = statistics.linear_regression(counts, figures).slope * 1000
    return {
        "jobs": run.ended, "streams": run.most_open, "uploaders": run.most_uploading,
        "uploads": run.uploads, "mib": mib, "events": run.events, "seconds": seconds,
        "errors": len(run.errors), "first_error": run.errors[0] if run.errors else None,
        "memory": run.memory, "slope_mb_per_1000": slope,
        "api_cpu_s": after["api"] - before["api"], "workers": workers,
    }  # fmt: skip


def is_flat(row: Row) -> bool:
    """Whether memory grew by no more than a twentieth from the first mark to the last."""
    figures = [mark["rss_mb"] for mark in row["memory"]]
    return bool(figures[-1] <= 1.05 * figures[0])
