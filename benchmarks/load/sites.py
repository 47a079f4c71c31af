"""What is measured: a server with keys and limits on, its database, broker and workers.

`sqlite` is one process, as `tilewright serve` is without settings; `postgres` an API of its own, a
PostgreSQL, a Redis and as many workers as wanted, each a process with one slot.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults.servers import OwnPostgres, OwnRedis
from benchmarks.server import Server, environment_of, running
from service.cli.serve import FIRST_KEY
from service.settings import Settings
from service.store.session import Database
from worker.sandbox.tree_usage import descendants

DATABASES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
LIMITS = {
    "REQUIRE_KEY": "true",
    "KEY_RATE": "1000000/minute;100000000/day",
    "PROJECT_RATE": "1000000/minute",
    "MAX_PROJECT_BYTES": "1000000000000",
    "MAX_ACTIVE_JOBS": "1000000",
}
"""Settings of a server that asks for keys, counts and audits, and that no load here comes near."""
_PAYLOADS = '''
import json
import time

from worker.job.request import JobOutcome


def hold(request, out_dir, cache, progress):
    """Keep the worker's only slot busy until the server stops."""
    time.sleep(3600)


def quick(request, out_dir, cache, progress):
    """Stages, units and a report, and no work: what the API sees of a job."""
    for stage in ("ingest", "partition", "schedule", "report"):
        progress.stage(stage, "started")
        progress.units(0, 8, 8)
        progress.stage(stage, "finished")
    (out_dir / "report.json").write_text(json.dumps({"layers": ["x" * 80] * 200}))
    return JobOutcome((("report", "report.json"),), "0" * 64, {"latency_cycles": 1})
'''
_TICKS = os.sysconf("SC_CLK_TCK")
_READY_S = 60.0


class CannotRun(Exception):
    """Something that a site needs is not installed here."""


@dataclass
class Site:
    """A running deployment."""

    name: str
    server: Server
    key: str
    settings: Settings
    """With which this process opens its database."""
    processes: dict[str, list[int]] = field(default_factory=dict)
    """By what they are: `api`, `database`, `broker`, `workers`."""

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds so far, by what used them; with all children, also those that ended."""
        return {kind: sum(map(_tree_cpu_s, pids)) for kind, pids in self.processes.items()}

    @contextmanager
    def database(self) -> Iterator[Database]:
        """Its database, to look into."""
        database = Database(self.settings.database_url, pool_size=1)
        yield database
        database.close()


def _tree_cpu_s(root: int) -> float:
    total = 0
    for pid in (root, *descendants(root)):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended between two looks; its parent has its time now
        total += sum(int(text) for text in fields[11:15])
    return total / _TICKS


def busy_s() -> float:
    """CPU seconds of everything on this machine so far."""
    fields = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


@contextmanager
def site(
    name: str,
    folder: Path,
    *,
    payload: str | None = None,
    workers: int = 0,
    counted: Path | None = None,
    help_from_s: float | None = None,
) -> Iterator[Site]:
    """Start one; all of it ends with the block.

    Args:
        name: `sqlite` or `postgres`.
        folder: for all its files.
        payload: of `_PAYLOADS`, instead of compiling.
        workers: processes with one slot each; on `sqlite` slots of the one process, at least one.
        counted: where the API writes what its parts cost (`benchmarks.load.parts`).
        help_from_s: of the settings, unless it is as they have it; 0: no worker helps another.

    Raises:
        CannotRun: PostgreSQL or Redis are not installed.
    """
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    data_dir = folder / "data"
    variables = {**LIMITS, "WORKERS": str(max(1, workers)), "DATA_DIR": str(data_dir)}
    if help_from_s is not None:
        variables["HELP_FROM_S"] = str(help_from_s)
    if payload is not None:
        (folder / "load_payload.py").write_text(_PAYLOADS)
        paths = json.dumps([str(folder)])
        variables |= {"RUNNER": f"load_payload:{payload}", "CHILD_PYTHON_PATH": paths}
    words: tuple[str, ...] = ()
    pids: dict[str, list[int]] = {}
    entry: tuple[str, ...] = ("service.cli.main",)
    if counted is not None:
        entry = ("benchmarks.load.parts", str(counted))
    with ExitStack() as stack:
        if name == "postgres":
            words = ("--api-only",)
            variables |= _servers(folder, stack, pids)
        server = stack.enter_context(running(data_dir, variables, words=words, entry=entry))
        pids["api"] = [server.pid]
        if name == "postgres":
            pids["workers"] = [_worker(variables, folder, n, stack) for n in range(workers)]
        key = (data_dir / FIRST_KEY).read_text().strip()
        settings = Settings(data_dir=data_dir, database_url=variables.get("DATABASE_URL", ""))
        made = Site(name, server, key, settings, pids)
        _await_workers(made, workers if name == "postgres" else 1)
        yield made


def _servers(folder: Path, stack: ExitStack, pids: dict[str, list[int]]) -> Mapping[str, str]:
    cluster = folder / "cluster"
    cluster.mkdir()
    database, broker = OwnPostgres(cluster), OwnRedis(folder)
    if not broker.installed or not database.create():
        raise CannotRun("no PostgreSQL or no Redis is installed")
    for server in (database, broker):
        if not server.start():
            raise CannotRun(f"the {server.name} does not start")
        stack.callback(server.stop)
        pids[server.name] = [pid for pid in (server.pid,) if pid is not None]
    return {"DATABASE_URL": database.url, "BROKER_URL": broker.url}


def _worker(variables: Mapping[str, str], folder: Path, number: int, stack: ExitStack) -> int:
    command = [sys.executable, "-m", "service.cli.main", "worker", "--workers", "1"]
    with (folder / f"worker_{number}.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment_of({**variables, "WORKERS": "1"}),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip

    def end() -> None:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(end)
    return process.pid


def _await_workers(made: Site, count: int) -> None:
    from service.store.repos import workers

    deadline = time.monotonic() + _READY_S
    with made.database() as database:
        while True:
            with database.read() as session:
                if workers.count_alive(session, workers.ALIVE_S) >= count:
                    return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{count} workers do not come up")
            time.sleep(0.1)
