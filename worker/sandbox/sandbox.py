"""Run a job's payload in a supervised, limited subprocess.

`Sandbox` starts `supervisor.py`, which starts the payload.  Closing the lifeline kills everything,
and so does the death of this process: the kernel closes the pipe.  The payload talks over a socket
pair; when that closes, `report` says how it ended.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType

from worker.sandbox.isolation import Isolation, Mounts, Tier

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_SIGNALED = 128
_MEMORY_SIGNS = (
    b"MemoryError",
    b"bad_alloc",
    b"bad allocation",
    b"Cannot allocate memory",
    b"Arena alloc failed",
    b"Failed to allocate memory",
    b"Unable to allocate",
)


class End(StrEnum):
    """Why the payload ended."""

    EXITED = "exited"
    WALL = "wall"
    CROWD = "crowd"
    """It had too many processes."""
    MEMORY = "memory"
    """Its processes together had too much memory."""
    FILES = "files"
    """Its files together were too large, or too many."""
    CLOSED = "closed"
    """The worker closed the lifeline."""
    UNKNOWN = "unknown"
    """The supervisor itself was killed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a payload may use, all its processes together."""

    wall_s: float
    memory_bytes: int
    """Resident; of one process also its address space."""
    file_bytes: int
    """In its writable folders; of one file also by the kernel."""
    processes: int
    output_bytes: int


@dataclass(frozen=True, slots=True)
class Report:
    """How the payload ended and what it used."""

    end: End
    code: int | None
    signal: int | None
    cpu_s: float
    max_rss_bytes: int
    escaped: int
    """Processes that had left the payload's group and were killed in the sweep."""
    dropped_bytes: int
    file_bytes: int
    """The most that its files were seen to occupy together; 0 when nothing looked."""
    out_of_memory: bool
    """Its processes were over the limit together, or its last words say that one was."""

    def sentence(self) -> str:
        """Say in words how it ended."""
        if self.end is End.WALL:
            return "the wall clock ran out"
        if self.end is End.CROWD:
            return "it started too many processes"
        if self.end is End.MEMORY:
            return "its processes used too much memory together"
        if self.end is End.FILES:
            return "it wrote too many bytes or files"
        if self.end is End.CLOSED:
            return "it was killed by its worker"
        if self.signal is not None:
            return f"it was killed by signal {self.signal}"
        if self.code is not None:
            return f"it exited with code {self.code} before it had reported a result"
        return "its supervisor vanished"


class Sandbox:
    """One payload process tree.  Use as a context manager: nothing survives the block."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        log_path: Path,
        limits: Limits,
        view: Mounts,
        isolation: Isolation,
        nice: int = 0,
    ) -> None:
        """`cwd` must be one of the view's folders; `nice` lowers the priority of its processes."""
        self._nice = nice
        self._argv = tuple(argv)
        self._view = view
        self._isolation = isolation
        self._env = dict(env)
        self._cwd = cwd
        self._log_path = log_path
        self._limits = limits
        self._lock = threading.Lock()
        self._lifeline, self._lifeline_write = os.pipe()
        self.channel, self._payload_end = socket.socketpair()
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False

    def start(self) -> None:
        """Start the payload; the argument `{channel}` becomes the number of its socket.

        A sandbox that was killed before it started ends at once.
        """
        number = self._payload_end.fileno()
        limits = {
            "AS": self._limits.memory_bytes,
            "FSIZE": self._limits.file_bytes,
            "CORE": 0,
            # Backstop for a payload that outlives the supervisor: far above what it needs.
            "CPU": int(self._limits.wall_s * (os.cpu_count() or 1)) + 60,
        }
        spec = {
            "argv": self._isolation.wrap(
                [part.replace("{channel}", str(number)) for part in self._argv],
                self._view,
                self._cwd,
            ),
            "env": self._env,
            "cwd": str(self._cwd),
            "log": str(self._log_path),
            "channel": number,
            "lifeline": self._lifeline,
            "wall_s": self._limits.wall_s,
            "output_limit": self._limits.output_bytes,
            # Added up by the supervisor.  The kernel's own limit of processes does not hold for
            # root, and for others it counts every process of the user, other jobs included.
            "tree": {
                "processes": self._limits.processes + self._isolation.own_processes,
                "memory_bytes": self._limits.memory_bytes,
                "file_bytes": self._limits.file_bytes,
                "folders": [str(path) for path in self._view.writable],
            },
            "limits": limits,
            "nice": self._nice,
            # bubblewrap may need its own privileges first, and takes them from the payload itself.
            "no_new_privs": self._isolation.tier is not Tier.BUBBLEWRAP,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SUPERVISOR), json.dumps(spec)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(number, self._lifeline),
            env={},
            start_new_session=True,  # Ctrl-C in a terminal must not reach it
        )
        self._payload_end.close()
        os.close(self._lifeline)
        self._lifeline = -1

    def kill(self) -> None:
        """Kill the payload and everything it started.  From any thread, any number of times."""
        with self._lock:
            if not self._killed:
                self._killed = True
                os.close(self._lifeline_write)

    def report(self) -> Report:
        """Wait until every process is gone and say how it ended."""
        if self._process is None:
            raise RuntimeError("the sandbox was not started")
        raw, _ = self._process.communicate()
        try:
            document = json.loads(raw)
            end, code, signal = End(document["end"]), document["code"], document["signal"]
            cpu_s, rss = float(document["cpu_s"]), int(document["max_rss_bytes"])
            escaped, dropped = int(document["escaped"]), int(document["dropped_bytes"])
            files = int(document["file_bytes"])
        except (ValueError, KeyError, TypeError):
            end, code, signal, cpu_s = End.UNKNOWN, None, None, 0.0
            rss = escaped = dropped = files = 0
        is_wrapped = self._isolation.tier is Tier.BUBBLEWRAP
        if is_wrapped and code is not None and code > _SIGNALED:
            signal = code - _SIGNALED  # as shells say it, and bubblewrap
            code = None
        tail = self._tail()
        crashed = end is End.EXITED and code != 0
        return Report(
            end=end,
            code=code,
            signal=signal,
            cpu_s=cpu_s,
            max_rss_bytes=rss,
            escaped=escaped,
            dropped_bytes=dropped,
            file_bytes=files,
            out_of_memory=end is End.MEMORY
            or (crashed and any(sign in tail for sign in _MEMORY_SIGNS)),
        )

    def _tail(self) -> bytes:
        try:
            with self._log_path.open("rb") as file:
                file.seek(max(0, self._log_path.stat().st_size - 8192))
                return file.read()
        except FileNotFoundError:
            return b""

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace
        self.kill()
        self.channel.close()
        self._payload_end.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
        if self._process is not None:
            self._process.communicate() if self._process.poll() is None else self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
