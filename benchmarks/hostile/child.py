"""One case in a child of its own, forked from this preloaded process, with limits.

Forking costs milliseconds where a fresh interpreter costs seconds.  The parent must have no second
thread when it forks, so it runs one case at a time; `--jobs` starts more parents.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

WALL_S = 20.0
"""A case that takes longer hangs."""
RSS_BYTES = 2 << 30
"""More resident memory than this is too much for one of our small inputs."""
_ADDRESS_SPACE = 16 << 30
"""Protects the machine; what is judged is resident memory."""
_RESULT_CHARS = 1 << 16

FAULTS = ("internal", "hung", "memory", "crash", "wrong")
"""Verdicts that no input may have."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one case ended."""

    kind: str
    """`accepted`, `refused`, or one of FAULTS."""
    code: str = ""
    detail: str = ""
    seconds: float = 0.0
    rss_mb: int = 0


def run_limited(case: Callable[[Path], Verdict]) -> Verdict:
    """Run `case` in a child with an empty folder; its whole process group is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        reader, writer = os.pipe()
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _be_the_child(case, Path(folder), writer)
        os.close(writer)
        text = _read(reader, started + WALL_S)
        if text is None:
            os.killpg(pid, signal.SIGKILL)
        _, status, used = os.wait4(pid, 0)
        _end_group(pid)
        seconds = time.monotonic() - started
        return _judge(text, status, used.ru_maxrss << 10, seconds)


def _be_the_child(case: Callable[[Path], Verdict], folder: Path, writer: int) -> None:
    status = 1
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
        scratch = os.open(folder / "output", os.O_RDWR | os.O_CREAT, 0o600)
        for stream in (1, 2):
            os.dup2(scratch, stream)
        os.chdir(folder)
        verdict = case(folder)
        os.write(writer, json.dumps(asdict(verdict)).encode()[:_RESULT_CHARS])
        status = 0
    except MemoryError:
        os.write(writer, json.dumps(asdict(Verdict("memory", detail="MemoryError"))).encode())
    except BaseException:  # the boundary of the child: everything is told
        last = traceback.format_exc().strip().splitlines()
        place = next((line.strip() for line in reversed(last) if "/worker/" in line), "")
        words = " ".join(last[-4:])[-500:]
        told = Verdict("internal", detail=f"{words} @ {place[-160:]}")
        os.write(writer, json.dumps(asdict(told)).encode()[:_RESULT_CHARS])
    finally:
        sys.stdout.flush()
        os._exit(status)


def _read(reader: int, deadline: float) -> str | None:
    """What the child says until it closes the pipe; None when it hangs."""
    found = b""
    try:
        while True:
            ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            block = os.read(reader, _RESULT_CHARS)
            if not block:
                return found.decode()
            found += block
    finally:
        os.close(reader)


def _end_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _judge(text: str | None, status: int, rss: int, seconds: float) -> Verdict:
    took, rss_mb = round(seconds, 2), rss >> 20
    if text is None:
        return Verdict("hung", detail=f"longer than {WALL_S:g} s", seconds=took, rss_mb=rss_mb)
    if not text:
        signal_number = os.waitstatus_to_exitcode(status)
        return Verdict("crash", detail=f"status {signal_number}", seconds=took, rss_mb=rss_mb)
    told = Verdict(**json.loads(text))
    if rss > RSS_BYTES and told.kind not in FAULTS:
        return Verdict("memory", told.code, f"{rss_mb} MB", took, rss_mb)
    return Verdict(told.kind, told.code, told.detail, took, rss_mb)
