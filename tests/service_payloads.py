"""Fake payloads for the sandbox: each behaves in one way, good or hostile.

They replace `worker.job.job:run_job`; `hardware["steps"]` may carry parameters.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

from worker.compiler.cache import Cache, CacheKey, CacheKind
from worker.compiler.errors import ModelError
from worker.compiler.package.build import flags_for
from worker.job.request import JobOutcome, JobRequest, ProgressSink


def _outcome(out_dir: Path, text: str) -> JobOutcome:
    (out_dir / "report.json").write_text(json.dumps({"text": text}))
    return JobOutcome((("report", "report.json"),), sha256(text.encode()).hexdigest(), {"n": 1})


def quick(request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink) -> JobOutcome:
    """Two stages, three units shared through the cache, two artifacts."""
    progress.stage("ingest", "started")
    model = request.model_path.read_bytes()
    progress.stage("ingest", "finished")
    progress.stage("schedule", "started")
    solved = cached = 0
    for index in range(3):
        key = CacheKey(CacheKind.SCHEDULE, (("unit", str(index)), ("kind", "fake")))
        if cache.get(key) is None:
            cache.put(key, b"x" * (10 if index else 200_000))
            solved += 1
        else:
            cached += 1
        progress.units(solved, cached, 3)
    progress.stage("schedule", "finished")
    (out_dir / "layers.csv").write_text("index\n0\n")
    progress.artifact("layers", "layers.csv")
    report = {"model": sha256(model).hexdigest()}
    if request.calibration_path is not None:
        report["calibration"] = sha256(request.calibration_path.read_bytes()).hexdigest()
    if request.inputs_path is not None:
        report["inputs"] = sha256(request.inputs_path.read_bytes()).hexdigest()
    (out_dir / "report.json").write_text(json.dumps(report))
    return JobOutcome(
        (("report", "report.json"), ("layers", "layers.csv")),
        sha256(model).hexdigest(),
        {"latency_cycles": 42},
    )


def compared(
    request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink
) -> JobOutcome:
    """Results that can be compared, as files of `compared_runs`; what the model's bytes say is
    slow, renamed, of an old release, or broken."""
    from compared_runs import NODES, SLOW, layers, slow_spec, write

    model = request.model_path.read_bytes()
    if b"slow" in model:
        files = write(out_dir, NODES, layers(a=40, c=90), spec=slow_spec(), **SLOW)
    elif b"old" in model:
        files = write(out_dir, NODES, layers(), schema_version=1)
    else:
        files = write(out_dir, NODES, layers(), padding=200_000)
    if b"broken" in model:
        (out_dir / files["report"]).write_text("[")
    return JobOutcome(tuple(files.items()), sha256(model).hexdigest(), {"latency_cycles": 175})


def figured(request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink) -> JobOutcome:
    """Like quick, with figures of the machine: a larger GBUF is faster and takes more energy.

    Waits while a file `closed`, or `closed-CAPACITY`, is among the gates; `refuse-CAPACITY` there
    refuses the model.
    """
    level = next(level for level in request.hardware["levels"] if level["name"] == "GBUF")
    capacity = int(level["capacity_bytes"]["value"])
    gates = [Path(place) for place in sys.path if place.endswith("gates")]
    for gate in gates:
        while (gate / "closed").exists() or (gate / f"closed-{capacity}").exists():
            time.sleep(0.01)
        if (gate / f"refuse-{capacity}").exists():
            raise ModelError("TW-MODEL-004", "the graph has a cycle", node="conv_1")
    found = quick(request, out_dir, cache, progress)
    figures = {"latency_s": 1.0 / capacity, "energy_pj": 2.0 * capacity}
    return JobOutcome(found.artifacts, found.bundle_digest, figures)


def patient(request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink) -> JobOutcome:
    """Like quick, but takes `seconds` of the hardware document first."""
    seconds: Any = request.hardware.get("seconds", 1)
    progress.stage("ingest", "started")
    time.sleep(float(seconds))
    return quick(request, out_dir, cache, progress)


def hold(request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink) -> JobOutcome:
    """Report a stage, then wait until the file named by the hardware document exists."""
    progress.stage("ingest", "started")
    gate = Path(str(request.hardware["gate"]))
    while not gate.exists():
        time.sleep(0.01)
    return quick(request, out_dir, cache, progress)


def talkative(
    request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink
) -> JobOutcome:
    """Twenty stages as fast as it can, then, saying nothing more, wait as `hold` does."""
    for number in range(20):
        progress.stage(f"stage {number}", "started")
        progress.stage(f"stage {number}", "finished")
    gate = Path(str(request.hardware["gate"]))
    while not gate.exists():
        time.sleep(0.01)
    return quick(request, out_dir, cache, progress)


def long_search(
    request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink
) -> JobOutcome:
    """Many slow units; whoever helps solves them from the last, or does what `helper` says.

    Goes on to its next stage when a file `open` is among the gates, where there is such a folder.
    """
    count, helper = 60, request.hardware.get("helper")
    if request.is_helping and helper == "dies":
        os._exit(3)
    if request.is_helping and helper == "hangs":
        time.sleep(3600)
    progress.stage("schedule", "started")
    solved = cached = 0
    order = reversed(range(count)) if request.is_helping else range(count)
    for index in order:
        key = CacheKey(CacheKind.SCHEDULE, (("unit", str(index)), ("kind", "slow")))
        if cache.get(key) is None:
            time.sleep(0.01 if request.is_helping else 0.1)
            cache.put(key, b"x" * 10)
            solved += 1
        else:
            cached += 1
        progress.units(solved, cached, count)
    gates = [Path(place) for place in sys.path if place.endswith("gates")]
    while helper == "waits" and not any((gate / "open").exists() for gate in gates):
        time.sleep(0.02)
        progress.units(solved, cached, count + 1)
    progress.stage("schedule", "finished")
    progress.stage("codegen", "started")
    return _outcome(out_dir, "searched")


def refuse(request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink) -> JobOutcome:
    """Finish one stage with an artifact, then refuse the model."""
    del request, cache
    (out_dir / "placement.json").write_text("{}")
    progress.stage("partition", "finished")
    progress.artifact("placement", "placement.json")
    raise ModelError("TW-MODEL-004", "the graph has a cycle", node="conv_1")


def bug(request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink) -> JobOutcome:
    """Raise something untyped."""
    del request, out_dir, cache, progress
    raise ZeroDivisionError("an untyped bug")


def segfault(
    request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink
) -> JobOutcome:
    """Crash in native code."""
    del request, cache, progress
    ctypes.string_at(0)
    return _outcome(out_dir, "unreachable")


def killed(request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink) -> JobOutcome:
    """Die as if the kernel's out-of-memory killer had chosen us."""
    del request, cache, progress
    os.kill(os.getpid(), signal.SIGKILL)
    return _outcome(out_dir, "unreachable")


def killed_once(
    request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink
) -> JobOutcome:
    """Die on the first try, succeed on the second."""
    if request.build_dir.parent.name.endswith(".1"):  # the first attempt's own folder
        os.kill(os.getpid(), signal.SIGKILL)
    return quick(request, out_dir, cache, progress)


def killed_tool_once(
    request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink
) -> JobOutcome:
    """Have a C compiler that is killed on the first attempt."""
    if int(request.build_dir.parent.name.rpartition(".")[2]) == 1:  # the attempt's own folder
        compiler = request.build_dir.parent / "cc"
        compiler.write_text("#!/bin/sh\nkill -9 $$\n")
        compiler.chmod(0o755)
        flags_for(compiler)
    return quick(request, out_dir, cache, progress)


def full_once(
    request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink
) -> JobOutcome:
    """Find the disk full on the first three tries."""
    if int(request.build_dir.parent.name.rpartition(".")[2]) <= 3:  # the attempt's own folder
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return quick(request, out_dir, cache, progress)


def greedy(request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink) -> JobOutcome:
    """Allocate until the limit."""
    del request, cache, progress
    hoard = []
    while True:
        hoard.append(bytearray(64 * 1024 * 1024))
        if len(hoard) > 10_000:
            return _outcome(out_dir, "unreachable")


def native_greedy(
    request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink
) -> JobOutcome:
    """Abort the way C++ does when an allocation fails."""
    del request, cache, progress
    sys.stderr.write("terminate called after throwing an instance of 'std::bad_alloc'\n")
    sys.stderr.flush()
    os.abort()
    return _outcome(out_dir, "unreachable")


def sleeper(request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink) -> JobOutcome:
    """Run for ever."""
    del request, out_dir, cache
    progress.stage("schedule", "started")
    while True:
        time.sleep(1)


def flood(request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink) -> JobOutcome:
    """Print 64 MiB, then succeed."""
    block = "y" * 65_536
    for _ in range(1024):
        sys.stdout.write(block)
    sys.stdout.flush()
    return quick(request, out_dir, cache, progress)


def disk_bomb(
    request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink
) -> JobOutcome:
    """Write one file past the limit."""
    del request, cache, progress
    with (out_dir / "big").open("wb") as file:
        while True:
            file.write(b"\0" * 1_048_576)


def daemon(request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink) -> JobOutcome:
    """Leave a double-forked daemon behind that holds every descriptor, then succeed."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write, b"up")
            time.sleep(600)
        os._exit(0)
    os.read(read, 2)
    return quick(request, out_dir, cache, progress)


def gibberish(
    request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink
) -> JobOutcome:
    """Write nonsense into the worker's channel."""
    del request, cache, progress
    os.write(int(sys.argv[2]), b"\xff" * 4096)
    time.sleep(5)
    return _outcome(out_dir, "unreachable")


def thief(request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink) -> JobOutcome:
    """Name a file outside the output folder as an artifact."""
    del request, cache, progress
    (out_dir / "link").symlink_to("/etc/passwd")
    return JobOutcome((("report", "link"),), "0" * 64, {})


def exits(request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink) -> JobOutcome:
    """Leave without a word."""
    del request, out_dir, cache, progress
    os._exit(3)
