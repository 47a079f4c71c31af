"""One deployment: API, workers and all that they stand on, and who starts again what has ended."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from benchmarks.faults.disk import Disk
from benchmarks.faults.proxy import Proxy
from benchmarks.faults.servers import (
    OwnPostgres,
    OwnRabbit,
    OwnRedis,
    OwnS3,
    Server,
    free_port,
    reachable,
    signal_tree,
)
from service.settings import Settings
from worker.sandbox.tree_usage import descendants, parents

REPO = Path(__file__).resolve().parents[2]
SLOTS = 4
LEASE_S = 6.0
_DISK_MIB = 1024
_CLUSTER_MIB = 512
_READY_S = 90.0
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Plan:
    """What a deployment consists of."""

    name: str
    database: str = "sqlite"
    broker: str = "memory"
    """`memory`, `redis` or `rabbitmq`."""
    store: str = "files"
    """`files` or `s3`, behind a proxy."""

    @property
    def embedded(self) -> bool:
        return self.broker == "memory"


PLANS = {
    plan.name: plan
    for plan in (
        Plan("embedded"),
        Plan("scaled", "postgres", "redis", "s3"),
        Plan("rabbitmq", "postgres", "rabbitmq", "files"),
    )
}


class CannotRun(Exception):
    """Something that a plan needs is not installed here."""


@dataclass
class Child:
    """A process of ours, `tilewright serve` or `worker`; it is wanted until the site ends."""

    name: str
    command: list[str]
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    rests_until: float = 0.0
    """While somebody wants it to be gone."""
    was_ended: bool = False
    """By a fault, not by itself."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Start it."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, env=self.environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, cwd=REPO,
            )  # fmt: skip
        self.was_ended = False

    def end(self, number: int, rest_s: float = 0.0) -> None:
        """Send it a signal that ends it, and let it be gone for a while."""
        with self.lock:
            self.rests_until = time.monotonic() + rest_s
            self.was_ended = True
            if self.alive:
                os.kill(self.pid, number)

    def signal(self, number: int) -> None:
        """Send a signal to it alone."""
        with self.lock:
            if self.alive:
                os.kill(self.pid, number)


class Site:
    """A running deployment below one folder.  A context manager."""

    def __init__(self, plan: Plan, folder: Path, *, attempts: int) -> None:
        self.plan = plan
        self.folder = folder
        self.data_dir = folder / "disk" / "data"
        self.proxy: Proxy | None = None
        self.database: OwnPostgres | None = None
        self.broker: OwnRedis | OwnRabbit | None = None
        self.children: list[Child] = []
        self.servers: list[Server] = []
        self.resting: set[Server] = set()
        """Servers that a fault wants to be gone."""
        self.ended_alone: Counter[str] = Counter()
        """Processes that ended although nobody had told them to."""
        self._store: OwnS3 | None = None
        self._attempts = attempts
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self.queue = f"tw-faults-{secrets.token_hex(6)}"
        self.url = f"http://127.0.0.1:{free_port()}"
        self.disk = Disk(folder / "disk", _DISK_MIB)
        self.temporary = folder / "temporary"
        """Where its processes make temporary folders."""
        self.temporary.mkdir()
        self.environment: dict[str, str] = {}
        """Of its processes."""
        self._others = set(_children_of(os.getpid()))
        self.cluster_disk: Disk | None = None

    def __enter__(self) -> Site:
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def settings(self) -> Settings:
        """Those of its processes, with which this one looks at its database and store."""
        return Settings(
            data_dir=self.data_dir, database_url=self._variables().get("DATABASE_URL", ""),
            blob_url=self._variables().get("BLOB_URL", ""),
            s3_endpoint=None if self._store is None else self._store.endpoint,
        )  # fmt: skip

    def _variables(self) -> dict[str, str]:
        found = {
            "LEASE_TTL_S": f"{LEASE_S:g}",
            "HEARTBEAT_S": "1",
            "RECONCILE_S": "0.5",
            "REDISPATCH_S": "5",
            "RETRY_BACKOFF_S": "0.2",
            "QUEUE_NAME": self.queue,
            "MAX_ATTEMPTS": str(self._attempts),
            "MAX_ACTIVE_JOBS": "1000000",
            "WEBHOOK_HOSTS": '["127.0.0.1"]',
            "WEBHOOK_TIMEOUT_S": "3",
            "WEBHOOK_BACKOFF_S": "0.5",
            "DATA_DIR": str(self.data_dir),
        }
        if self.database is not None:
            found["DATABASE_URL"] = self.database.url
        if self.broker is not None:
            found["BROKER_URL"] = self.broker.url
        if self.proxy is not None:
            found["BLOB_URL"] = f"s3://{OwnS3.bucket}/faults"
            found["S3_ENDPOINT"] = self.proxy.endpoint
        return found

    def _open(self) -> None:
        if self.plan.database == "postgres":
            self.cluster_disk = Disk(self.folder / "cluster", _CLUSTER_MIB)
            self.database = OwnPostgres(self.cluster_disk.folder)
            if not self.database.create():
                raise CannotRun("no PostgreSQL server is installed")
            self._serve(self.database)
        if not self.plan.embedded:
            kind = OwnRedis if self.plan.broker == "redis" else OwnRabbit
            self.broker = kind(self.folder)
            if not self.broker.installed:
                raise CannotRun(f"no {self.plan.broker} server is installed")
            self._serve(self.broker)
        if self.plan.store == "s3":
            if find_spec("moto") is None or find_spec("obstore") is None:
                raise CannotRun("moto and obstore are not installed: pip install '.[test-servers]'")
            self._store = OwnS3()
            self._serve(self._store)
            self.proxy = Proxy(self._store.port)
        self._start_children()
        self._keeper.start()
        self._await_ready()

    def _serve(self, server: Server) -> None:
        if not server.start():
            raise CannotRun(f"the {server.name} does not start")
        self.servers.append(server)

    def _start_children(self) -> None:
        port = self.url.rsplit(":", 1)[1]
        api = ["serve", "--port", port]
        names = [("api", [*api, "--workers", str(SLOTS)] if self.plan.embedded else
                  [*api, "--api-only"])]  # fmt: skip
        if not self.plan.embedded:
            names += [(f"worker {n}", ["worker", "--workers", "1"]) for n in range(SLOTS)]
        given = {k: v for k, v in os.environ.items() if not k.startswith("TILEWRIGHT_")}
        given |= {f"TILEWRIGHT_{k}": v for k, v in self._variables().items()}
        given |= {"PYTHONPATH": str(REPO), "AWS_ACCESS_KEY_ID": "test",
                  "AWS_SECRET_ACCESS_KEY": "test", "TMPDIR": str(self.temporary),
                  **self.disk.environment}  # fmt: skip
        self.environment = given
        os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
        os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")
        for name, words in names:
            command = [sys.executable, "-m", "service.cli.main", *words]
            log = self.folder / f"{name.replace(' ', '_')}.log"
            child = Child(name, command, given, log)
            self.children.append(child)
            child.start()
            if name == "api":
                self._await_ready(self._listens)

    def _listens(self) -> bool:
        return reachable(int(self.url.rsplit(":", 1)[1]))

    def _is_ready(self) -> bool:
        from service.client import ApiError, Client

        try:
            with Client(self.url, timeout_s=5) as client:
                client.transport.request("GET", "/v1/readyz")
        except ApiError:
            return False
        return True

    def _await_ready(self, looks: Callable[[], bool] | None = None) -> None:
        deadline = time.monotonic() + _READY_S
        while not (looks or self._is_ready)():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.plan.name} is not ready: {self.last_words()}")
            time.sleep(_LOOK_S)

    def last_words(self) -> str:
        """The last lines of every log."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}: {log.read_text('utf-8', 'replace')[-1500:]}" for log in logs)

    def _keep(self) -> None:
        """Start again what has ended, as `restart: always` would."""
        while not self._closing.wait(_LOOK_S):
            for child in self.children:
                with child.lock:
                    if child.alive or time.monotonic() < child.rests_until:
                        continue
                    if not child.was_ended:
                        self.ended_alone[child.name.split()[0]] += 1
                        child.rests_until = time.monotonic() + 1.0
                        child.was_ended = True
                        continue
                    child.start()
            for server in self.servers:
                if not server.alive and server not in self.resting:
                    server.launch()

    def payloads(self) -> list[int]:
        """Processes below workers: supervisors, payloads and what those started."""
        return [pid for child in self.children if child.alive for pid in descendants(child.pid)]

    def calm(self) -> None:
        """No fault any more: everything runs, and is ready."""
        for child in self.children:
            child.rests_until = 0.0
            child.signal(signal.SIGCONT)
        for server in self.servers:
            server.thaw()
        self.resting.clear()
        self.disk.empty()
        if self.cluster_disk is not None:
            self.cluster_disk.empty()
        self._await_ready()

    def stop_children(self) -> list[str]:
        """End the service as an operator would; names of those that did not end in time."""
        self._closing.set()
        if self._keeper.ident is not None:
            self._keeper.join()
        stubborn = []
        for child in self.children:
            if child.alive:
                child.signal(signal.SIGTERM)
        for child in self.children:
            if child.process is None:
                continue
            try:
                child.process.wait(timeout=40)
            except subprocess.TimeoutExpired:
                stubborn.append(child.name)
                signal_tree(child.pid, signal.SIGKILL)
                child.process.wait()
        return stubborn

    def leftovers(self, below: Path | None = None) -> list[str]:
        """Command lines of processes that mention this site's data, or work there."""
        found = []
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            if pid != os.getpid():
                told = f"{_words(pid)} in {_folder(pid)}"
                if str(below or self.data_dir) in told:
                    found.append(told)
        return found

    def strays(self) -> list[str]:
        """Command lines of processes whose starter is gone, and which live on (`orphans`)."""
        names = self.broker.names.pid if isinstance(self.broker, OwnRabbit) else None
        known = {names, *(server.pid for server in self.servers)}
        known |= {child.pid for child in self.children if child.process is not None}
        known |= self._others
        found = [pid for pid in _children_of(os.getpid()) if pid not in known]
        words = [_words(pid) for pid in found if not _is_ending(pid)]
        return [line for line in words if line]  # one that ends has lost its words before its state

    def close(self) -> None:
        """End everything that was started."""
        self.stop_children()
        if self.proxy is not None:
            self.proxy.close()
        for server in self.servers:
            server.thaw()
            server.stop(signal.SIGQUIT if isinstance(server, OwnPostgres) else signal.SIGKILL)
        if isinstance(self.broker, OwnRabbit):
            self.broker.names.stop()
        self.servers = []
        self.disk.close()
        if self.cluster_disk is not None:
            self.cluster_disk.close()


@contextmanager
def orphans() -> Iterator[None]:
    """Become the parent of whatever is left by a process below this one: so `strays` finds it."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _children_of(parent: int) -> list[int]:
    return [pid for pid, above in parents().items() if above == parent]


def _words(pid: int) -> str:
    """Its command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
    except OSError:
        return ""


def _folder(pid: int) -> str:
    """Where it works."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def _is_ending(pid: int) -> bool:
    """Whether nothing of it is left but its end, which nobody has asked for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in ("Z", "X")


def own_folder() -> Path:
    """A folder that an unprivileged database server can enter."""
    folder = Path(tempfile.mkdtemp(prefix="tw-faults-", dir="/tmp"))
    folder.chmod(0o755)
    return folder
