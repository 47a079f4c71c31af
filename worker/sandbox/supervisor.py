"""The small process between a worker and the code it does not trust.  Standard library only.

Run as a script: `python -I -S supervisor.py SPEC`, SPEC being one JSON object.  It starts the
payload in its own session with resource limits and waits for the first of four things: the payload
ends, the worker closes the lifeline pipe (cancel, or the worker is dead), the wall clock runs out,
or the whole tree of processes is over a limit: their number, memory, or bytes of files.  Then it
kills whatever is left, daemons included, and prints one JSON report on stdout.

Why a process of its own and not code in the worker: a parent-death signal fires when the creating
*thread* ends, a group kill misses processes that changed their session, and limits set in a pool
process would outlive the job.  This process has one thread, and as a child subreaper it inherits
every orphan of the payload.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Run with -I: nothing but the folder of the package, last, so that it hides no standard module.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from worker.sandbox import tree_usage  # the path above comes first

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SWEEP_LIMIT_S = 20.0
_READ_BYTES = 65_536
_COUNT_EVERY_S = 0.25
_WALK_SHARE = 10
"""Walking over files may take one part in this of the time."""


def _prctl(option: int, value: int) -> bool:
    try:
        return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False  # not Linux: weaker isolation, reported by the worker as its sandbox tier


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _payload(spec: dict[str, Any], output: int, supervisor: int) -> None:
    """Become the payload.  Runs in the forked child and never returns."""
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(127)  # the supervisor died before the signal was armed
        if spec["no_new_privs"]:
            _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.set_inheritable(spec["channel"], True)
        os.chdir(spec["cwd"])
        os.nice(spec["nice"])
        os.umask(0o077)
        for name, value in spec["limits"].items():
            _limit(getattr(resource, f"RLIMIT_{name}"), value)
        os.execve(spec["argv"][0], spec["argv"], spec["env"])
    except BaseException as error:  # a fork must not return into its parent's code
        os.write(2, f"cannot start the payload: {error}\n".encode())
    os._exit(126)


class _Log:
    """Keeps the first bytes of the payload's output and counts the rest."""

    def __init__(self, path: str, limit: int) -> None:
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115  # lives as long as the process
        self._left = limit
        self.seen = 0
        self.dropped = 0

    def take(self, chunk: bytes) -> None:
        self.seen += len(chunk)
        kept = chunk[: self._left]
        self._left -= len(kept)
        self.dropped += len(chunk) - len(kept)
        if kept:
            self._file.write(kept)


def _drain(output: int, log: _Log) -> None:
    os.set_blocking(output, False)
    try:
        while chunk := os.read(output, _READ_BYTES):
            log.take(chunk)
    except BlockingIOError:
        return


@dataclass(slots=True)
class _Watch:
    """Adds up what the payload's processes use, and says which limit they are over."""

    processes: int
    memory_bytes: int
    file_bytes: int
    folders: list[str]
    most_memory_bytes: int = 0
    most_file_bytes: int = 0
    _next_walk: float = 0.0

    def excess(self) -> str | None:
        """Look once."""
        found = tree_usage.descendants(os.getpid())
        if len(found) > self.processes:
            return "crowd"
        memory = tree_usage.memory_bytes(found, self.memory_bytes)
        self.most_memory_bytes = max(self.most_memory_bytes, memory)
        if memory > self.memory_bytes:
            return "memory"
        began = time.monotonic()
        if began < self._next_walk:
            return None
        excess = self.excess_files(found)
        self._next_walk = time.monotonic() + _WALK_SHARE * (time.monotonic() - began)
        return excess

    def excess_files(self, processes: Sequence[int] = ()) -> str | None:
        """Look at the files alone."""
        files = tree_usage.files(self.folders, processes)
        self.most_file_bytes = max(self.most_file_bytes, files.num_bytes)
        is_over = files.num_bytes > self.file_bytes or files.entries > tree_usage.MOST_ENTRIES
        return "files" if is_over else None


def _wait(pidfd: int, lifeline: int, output: int, log: _Log, wall_s: float, watch: _Watch) -> str:
    """Wait for the first of: payload ended, lifeline closed, wall clock, a limit passed."""
    deadline = time.monotonic() + wall_s
    next_count = time.monotonic() + _COUNT_EVERY_S
    poll = select.poll()
    for descriptor in (pidfd, lifeline, output):
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return "wall"
        ready = {descriptor for descriptor, _ in poll.poll(min(left, _COUNT_EVERY_S) * 1000)}
        if time.monotonic() >= next_count:
            excess = watch.excess()
            if excess is not None:
                return excess
            next_count = time.monotonic() + _COUNT_EVERY_S
        if output in ready:
            chunk = os.read(output, _READ_BYTES)
            log.take(chunk)
            if not chunk:
                poll.unregister(output)
        if pidfd in ready:
            return "exited"
        if lifeline in ready:
            return "closed"


def _children() -> list[int]:
    """List the direct children of this process, adopted orphans included."""
    me = os.getpid()
    try:
        with open(f"/proc/self/task/{me}/children", encoding="ascii") as file:
            return [int(text) for text in file.read().split()]
    except OSError:
        pass  # the kernel was built without this file
    return [pid for pid, parent in tree_usage.parents().items() if parent == me]


def _kill(pid: int, *, group: bool = False) -> None:
    try:
        if group:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _sweep() -> tuple[int, float, int]:
    """Kill and reap everything that is left: (processes, CPU seconds, largest RSS in bytes)."""
    count, cpu_s, rss = 0, 0.0, 0
    deadline = time.monotonic() + _SWEEP_LIMIT_S
    while time.monotonic() < deadline:
        for pid in _children():
            _kill(pid)
        try:
            pid, _, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == 0:
            time.sleep(0.001)
            continue
        count += 1
        cpu_s += usage.ru_utime + usage.ru_stime
        rss = max(rss, usage.ru_maxrss * 1024)
    return count, cpu_s, rss


def main() -> None:
    spec = json.loads(sys.argv[1])
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # the lifeline is the only way to stop it early
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    os.set_inheritable(spec["lifeline"], False)
    os.set_inheritable(spec["channel"], False)
    output, output_end = os.pipe()
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, signal.SIG_DFL)
        _payload(spec, output_end, supervisor)
    os.close(output_end)
    # Only the payload may hold the channel: its closing tells the worker that all is over.
    os.close(spec["channel"])
    log = _Log(spec["log"], spec["output_limit"])
    watch = _Watch(**spec["tree"])
    end = _wait(os.pidfd_open(pid), spec["lifeline"], output, log, spec["wall_s"], watch)
    _kill(pid, group=True)
    _kill(pid)  # in case it had not reached setsid yet
    _, status, usage = os.wait4(pid, 0)
    escaped, cpu_s, rss = _sweep()
    _drain(output, log)
    if end == "exited":
        end = watch.excess_files() or end  # what it wrote since the last look
    code = os.waitstatus_to_exitcode(status)
    report = {
        "end": end,
        "code": code if code >= 0 else None,
        "signal": -code if code < 0 else None,
        "cpu_s": usage.ru_utime + usage.ru_stime + cpu_s,
        "max_rss_bytes": max(usage.ru_maxrss * 1024, rss, watch.most_memory_bytes),
        "escaped": escaped,
        "output_bytes": log.seen,
        "dropped_bytes": log.dropped,
        "file_bytes": watch.most_file_bytes,
    }
    os.write(1, json.dumps(report).encode())


if __name__ == "__main__":
    main()
