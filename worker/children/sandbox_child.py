"""The payload: runs one job in the sandbox, with cache and progress over a socket to the worker.

`python -P -m worker.children.sandbox_child REQUEST.json CHANNEL [--runner module:function]
[--strategy-limit-s SECONDS]`.
What happens to it does not matter to anybody else: it may crash, hang, or be killed at any
instruction.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from worker.compiler.cache import Cache, CacheKey, NullCache
from worker.compiler.errors import Detail
from worker.compiler.faults import limited_by
from worker.compiler.frontend.sympy_later import import_onnx_ir
from worker.compiler.options import CompileOptions
from worker.compiler.stages import Watch
from worker.job.request import JobOutcome, JobRequest, ProgressSink
from worker.job.watchdog import LIMIT_S, Watchdog
from worker.sandbox import wire
from worker.sandbox.answering import failure_frame

Runner = Callable[[JobRequest, Path, Cache, ProgressSink], JobOutcome]


class Channel:
    """The child's end of the socket; one exchange at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()

    def tell(self, head: Mapping[str, Any], body: bytes = b"") -> None:
        """Send without waiting for an answer."""
        with self._lock:
            wire.send(self._sock, head, body)

    def ask(self, head: Mapping[str, Any]) -> wire.Message:
        """Send and wait for the answer; without a worker there is no reason to go on."""
        with self._lock:
            wire.send(self._sock, head)
            reply = wire.receive(self._sock)
        if reply is None:
            raise SystemExit(125)
        return reply


class ChannelCache:
    """The cache port over the channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def get(self, key: CacheKey) -> bytes | None:
        reply = self._channel.ask({"op": "cache_get", **_key(key)})
        return reply.body if reply.head.get("hit") is True else None

    def put(self, key: CacheKey, value: bytes) -> None:
        if len(value) <= wire.MAX_BODY_BYTES:
            self._channel.tell({"op": "cache_put", **_key(key)}, value)


def _key(key: CacheKey) -> dict[str, Any]:
    return {"kind": str(key.kind), "fields": [list(pair) for pair in key.fields]}


class ChannelProgress:
    """The progress sink over the channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def stage(self, name: str, state: str) -> None:
        self._channel.tell({"op": "stage", "stage": name, "state": state})

    def units(self, solved: int, cached: int, total: int) -> None:
        self._channel.tell({"op": "units", "solved": solved, "cached": cached, "total": total})

    def artifact(self, name: str, file_name: str) -> None:
        self._channel.tell({"op": "artifact", "name": name, "file": file_name})


def load_runner(path: str) -> Runner:
    """Import `module:function`."""
    module, _, name = path.partition(":")
    gc.disable()  # what an import makes stays: looking for garbage in it costs a tenth of it
    try:
        import_onnx_ir()
        runner: Runner = getattr(importlib.import_module(module), name)
    finally:
        gc.freeze()
        gc.enable()
    return runner


def read_request(document: Mapping[str, Any]) -> tuple[JobRequest, Path]:
    """Parse what the worker wrote: the job's request and its output folder."""
    hardware: Mapping[str, Detail] = document["hardware"]
    calibration = document.get("calibration_path")
    inputs = document.get("inputs_path")
    link = document.get("link_path")
    request = JobRequest(
        model_path=Path(document["model_path"]),
        model_name=document["model_name"],
        hardware=hardware,
        options=CompileOptions.from_json(document["options"]),
        build_dir=Path(document["build_dir"]),
        calibration_path=Path(calibration) if calibration else None,
        inputs_path=Path(inputs) if inputs else None,
        watch=Watch.from_json(document["watch"]),
        link_path=Path(link) if link else None,
        is_helping=bool(document.get("is_helping")),
    )
    return request, Path(document["out_dir"])


def run(channel: Channel, request_path: Path, runner: str, strategy_limit_s: float) -> int:
    """Run the job and report its end over the channel; give the exit code."""
    try:
        document = json.loads(request_path.read_text(encoding="utf-8"))
        request, out_dir = read_request(document)
        cache: Cache = NullCache() if request.options.no_cache else ChannelCache(channel)
        work = load_runner(runner)
        with limited_by(Watchdog(strategy_limit_s)):
            progress = ChannelProgress(channel)
            outcome = work(request, out_dir, cache, progress)
            rows = _estimated(document, request, out_dir, outcome, progress)
    except Exception as error:  # the task boundary: the worker hears of anything
        channel.tell(failure_frame(error))
    else:
        channel.tell(
            {
                "op": "done",
                "artifacts": [list(pair) for pair in outcome.artifacts],
                "bundle_digest": outcome.bundle_digest,
                "summary": dict(outcome.summary),
                "estimates": rows,
            }
        )
    return 0


def _estimated(
    document: Mapping[str, Any], request: JobRequest, out_dir: Path, outcome: JobOutcome,
    progress: ProgressSink,
) -> list[dict[str, Any]] | None:  # fmt: skip
    """Estimates of the chips that the request asks for with its program; None: it asks for none."""
    if document.get("part") is None:
        return None
    from worker.explore.part import STAGE, Part, part_rows

    progress.stage(STAGE, "started")
    bundle = out_dir / dict(outcome.artifacts)["bundle"]
    rows = part_rows(bundle, request.hardware, Part.from_json(document["part"]))
    progress.stage(STAGE, "finished")
    return rows


def main(argv: list[str]) -> int:
    """Entry of the payload process."""
    parser = argparse.ArgumentParser(prog="sandbox_child")
    parser.add_argument("request", type=Path)
    parser.add_argument("channel", type=int)
    parser.add_argument("--runner", default="worker.job.job:run_job")
    parser.add_argument("--strategy-limit-s", type=float, default=LIMIT_S)
    arguments = parser.parse_args(argv)
    with socket.socket(fileno=arguments.channel) as sock:
        # Processes the job starts (C compilers, tests of kernels) must not hold the channel open.
        sock.set_inheritable(False)
        limit_s = arguments.strategy_limit_s
        return run(Channel(sock), arguments.request, arguments.runner, limit_s)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
