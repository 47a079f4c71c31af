"""The sandbox alone: limits, sweeps and what the supervisor reports."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from worker.sandbox.isolation import Isolation, IsolationChoice, Mounts, Tier, isolation
from worker.sandbox.sandbox import End, Limits, Report, Sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process isolation needs Linux")

Start = Callable[..., Sandbox]


@pytest.fixture(params=[IsolationChoice.LIMITS, IsolationChoice.AUTO])
def tier(request: pytest.FixtureRequest) -> Isolation:
    """Limits alone, and bubblewrap where it works."""
    found = isolation(request.param)
    if request.param is IsolationChoice.AUTO and found.tier is not Tier.BUBBLEWRAP:
        pytest.skip(f"only {found.tier} here: {found.reason}")
    return found


@pytest.fixture
def start(tmp_path: Path, tier: Isolation) -> Iterator[Start]:
    made: list[Sandbox] = []

    def make(code: str, **changes: float) -> Sandbox:
        values = {
            "wall_s": 20.0,
            "memory_bytes": 256 * 2**20,
            "file_bytes": 2**20,
            "processes": 64,
            "output_bytes": 4096,
        }
        sandbox = Sandbox(
            (sys.executable, "-I", "-c", code),
            env={"PATH": os.defpath},
            cwd=tmp_path,
            log_path=tmp_path / "log",
            limits=Limits(**{**values, **changes}),  # type: ignore[arg-type]  # numbers by name
            view=Mounts(writable=(tmp_path,)),
            isolation=tier,
        )
        made.append(sandbox)
        sandbox.start()
        return sandbox

    yield make
    for sandbox in made:
        sandbox.__exit__(None, None, None)


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def _holders(folder: Path) -> list[int]:
    """Processes that work in a folder."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if link.readlink() == folder:
                found.append(int(link.parent.name))
        except OSError:
            continue
    return found


def _wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _report(sandbox: Sandbox) -> Report:
    return sandbox.report()


def test_exit_code_and_usage(start: Start) -> None:
    report = _report(start("import sys; sys.exit(7)"))
    assert (report.end, report.code, report.signal) == (End.EXITED, 7, None)
    assert report.cpu_s > 0
    assert report.max_rss_bytes > 2**20


def test_signal(start: Start) -> None:
    report = _report(start("import os; os.kill(os.getpid(), 11)"))
    assert report.signal == 11
    assert "signal 11" in report.sentence()


def test_wall_clock(start: Start) -> None:
    began = time.monotonic()
    report = _report(start("import time; time.sleep(60)", wall_s=0.3))
    assert report.end is End.WALL
    assert time.monotonic() - began < 5


def test_memory_limit_is_recognised(start: Start) -> None:
    report = _report(start("x = bytearray(2 ** 30)"))
    assert report.code == 1
    assert report.out_of_memory


def test_output_is_cut(start: Start, tmp_path: Path) -> None:
    report = _report(start("print('x' * 1_000_000)"))
    assert (tmp_path / "log").stat().st_size == 4096
    assert report.dropped_bytes == 1_000_001 - 4096
    assert report.code == 0


def test_file_limit(start: Start) -> None:
    code = "f = open('big', 'wb')\nwhile True: f.write(b'x' * 65536)"
    report = _report(start(code))
    assert report.code == 1 or report.signal == 25 or report.end is End.FILES
    assert not report.out_of_memory


def test_kill_takes_everything(start: Start, tmp_path: Path, tier: Isolation) -> None:
    code = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        open('pid', 'w').write(str(os.getpid()))\n"
        "        os.rename('pid', 'daemon')\n"
        "        time.sleep(100)\n"
        "    os._exit(0)\n"
        "time.sleep(100)\n"
    )
    sandbox = start(code)
    deadline = time.monotonic() + 10
    while not (tmp_path / "daemon").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    pid = int((tmp_path / "daemon").read_text())
    sandbox.kill()
    report = _report(sandbox)
    assert report.end is End.CLOSED
    if tier.tier is Tier.BUBBLEWRAP:  # its numbers are its own; the kernel ends the name space
        assert not _holders(tmp_path)
    else:
        assert report.escaped >= 1
        assert _gone(pid)


def test_killed_before_it_started_ends_at_once(tmp_path: Path, tier: Isolation) -> None:
    sandbox = Sandbox(
        (sys.executable, "-I", "-c", "import time; time.sleep(60)"),
        env={},
        cwd=tmp_path,
        log_path=tmp_path / "log",
        limits=Limits(30.0, 2**28, 2**20, 64, 4096),
        view=Mounts(writable=(tmp_path,)),
        isolation=tier,
    )
    with sandbox:
        sandbox.kill()
        sandbox.start()
        assert sandbox.report().end is End.CLOSED


def test_death_of_the_worker_takes_everything(tmp_path: Path, tier: Isolation) -> None:
    """kill -9 of the process that owns the sandbox: payload and its daemon are gone."""
    choice = "auto" if tier.tier is Tier.BUBBLEWRAP else "limits"
    script = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from worker.sandbox.isolation import IsolationChoice, Mounts, isolation
from worker.sandbox.sandbox import Limits, Sandbox
code = '''
import os, time
if os.fork() == 0:
    os.setsid()
    open("daemon", "w").write(str(os.getpid()))
    time.sleep(100)
open("payload.tmp", "w").write(str(os.getpid()))
os.rename("payload.tmp", "payload")
time.sleep(100)
'''
here = Path({str(tmp_path)!r})
sandbox = Sandbox((sys.executable, "-I", "-c", code), env={{}}, cwd=here,
                  log_path=here / "log", limits=Limits(60.0, 2**28, 2**20, 64, 4096),
                  view=Mounts(writable=(here,)), isolation=isolation(IsolationChoice({choice!r})))
sandbox.start()
time.sleep(100)
"""
    worker = subprocess.Popen([sys.executable, "-c", script])
    try:
        deadline = time.monotonic() + 20
        while not (tmp_path / "payload").exists() or not (tmp_path / "daemon").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.05)
        assert len(_holders(tmp_path)) >= 2
    finally:
        worker.kill()
        worker.wait()
    assert _wait_until(lambda: not _holders(tmp_path))


def test_no_descriptor_of_the_worker_leaks(start: Start, tmp_path: Path) -> None:
    secret = (tmp_path / "secret").open("w")
    with secret:
        os.set_inheritable(secret.fileno(), True)
        sandbox = start("import os; print(sorted(os.listdir('/proc/self/fd')))")
        assert sandbox.report().code == 0
        listed = (tmp_path / "log").read_text()
    # 0, 1, 2, the channel, and the folder handle of listdir itself
    assert len(listed.split(",")) == 5, listed


def test_fork_bomb_is_stopped(start: Start) -> None:
    """Also as root, for whom the kernel's process limit does not hold."""
    code = (
        "import os, time\n"
        "for _ in range(150):\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(60)\n"
        "time.sleep(60)\n"
    )
    began = time.monotonic()
    report = _report(start(code, processes=50))
    assert report.end is End.CROWD
    assert time.monotonic() - began < 10
    assert "too many processes" in report.sentence()
