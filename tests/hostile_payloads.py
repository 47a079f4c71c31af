"""Payloads that try to get out of the sandbox, in Python and in C, and say how far they came.

They run as jobs do; `hardware` carries the places to try.  A payload that is kept in reports so in
its artifact; one that is over a limit is killed before it reports anything.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from worker.compiler.cache import Cache
from worker.job.request import JobOutcome, JobRequest, ProgressSink

_C = r"""
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <sys/socket.h>
static int planted = -1;
__attribute__((constructor)) static void at_load(void) { planted = getpid(); }
int loaded(void) { return planted; }
int reads(const char *path) {
  char c;
  int f = open(path, O_RDONLY);
  return f >= 0 && read(f, &c, 1) == 1;
}
int writes(const char *path) {
  int f = open(path, O_WRONLY | O_CREAT, 0600);
  return f >= 0 && write(f, "x", 1) == 1;
}
int reaches(int port) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return connect(socket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&at, sizeof at) == 0;
}
"""


def _came_through(tried: Callable[[], object]) -> bool:
    try:
        return bool(tried())
    except (OSError, ValueError):
        return False


def _connects(family: int, address: Any) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(2)
        sock.connect(address)
        return True


def _written(path: str) -> bool:
    with open(path, "r+b" if os.path.isfile(path) else "wb") as file:
        return file.write(b"planted") == 7


def _linked(source: str, target: Path) -> bool:
    os.link(source, target)
    return target.read_bytes() != b""


def _native(build: Path) -> ctypes.CDLL:
    """The C payload, compiled as kernels are."""
    source, library = build / "evil.c", build / "evil.so"
    source.write_text(_C)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return ctypes.CDLL(str(library))


def explores(
    request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink
) -> JobOutcome:
    """Try everything and report what worked, by name."""
    del cache, progress
    places: Mapping[str, Any] = request.hardware["places"]  # type: ignore[assignment]
    before = {path: sorted(os.listdir(path)) for path in places["list"] if os.path.isdir(path)}
    native = _native(request.build_dir)
    worked: dict[str, bool] = {}
    for path in places["read"]:
        worked[f"read {path}"] = _came_through(lambda p=path: Path(p).read_bytes())
        worked[f"C reads {path}"] = native.reads(path.encode()) == 1
        worked[f"link {path}"] = _came_through(lambda p=path: _linked(p, out_dir / "linked"))
    for path in places["write"]:
        worked[f"write {path}"] = _came_through(lambda p=path: _written(p))
        worked[f"C writes {path}"] = native.writes(path.encode()) == 1
    for path in places["open"]:  # opened and left as it is: it belongs to the machine
        worked[f"open {path}"] = _came_through(
            lambda p=path: os.close(os.open(p, os.O_WRONLY)) is None
        )
    port = places["port"]
    worked["loopback"] = _came_through(lambda: _connects(socket.AF_INET, ("127.0.0.1", port)))
    worked["C loopback"] = native.reaches(port) == 1
    for name in places["unix"]:
        address = "\0" + name[1:] if name.startswith("@") else name
        worked[f"socket {name}"] = _came_through(lambda a=address: _connects(socket.AF_UNIX, a))
    for pid in places["pids"]:
        worked[f"signal {pid}"] = _came_through(lambda p=pid: os.kill(p, 0) is None)
    own = {"out": _came_through(lambda: _written(str(out_dir / "own"))), "C": native.loaded() > 0}
    document = {"worked": worked, "own": own, "before": before, "environment": sorted(os.environ)}
    (out_dir / "report.json").write_text(json.dumps(document))
    return JobOutcome((("report", "report.json"),), sha256(b"").hexdigest(), {"n": 1})


def _never(out_dir: Path) -> JobOutcome:
    time.sleep(30)
    (out_dir / "report.json").write_text("{}")
    return JobOutcome((("report", "report.json"),), sha256(b"").hexdigest(), {"n": 1})


def crowd_of_memory(
    request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink
) -> JobOutcome:
    """Several processes, each well within the limit of one."""
    del request, cache, progress
    for _ in range(6):
        if os.fork() == 0:
            kept = bytearray(os.urandom(1)) * (150 << 20)
            time.sleep(60)
            sys.exit(len(kept) and 0)
    return _never(out_dir)


def many_files(
    request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink
) -> JobOutcome:
    """Many files, each well within the limit of one; half of them removed and held open."""
    del cache, progress
    held = []
    for number in range(12):
        path = request.build_dir / f"part{number}"
        file = path.open("wb")
        file.write(b"x" * (1 << 20))
        file.flush()
        held.append(file)
        if number % 2:
            path.unlink()
    return _never(out_dir)


def held_files(
    request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink
) -> JobOutcome:
    """Memory files that no folder shows."""
    del request, cache, progress
    held = [os.memfd_create(f"m{number}") for number in range(12)]
    for descriptor in held:
        os.write(descriptor, b"x" * (1 << 20))
    return _never(out_dir)


def forks(request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink) -> JobOutcome:
    """More processes than allowed, each in a session of its own."""
    del request, cache, progress
    for _ in range(200):
        if os.fork() == 0:
            os.setsid()
            time.sleep(60)
            os._exit(0)
    return _never(out_dir)
