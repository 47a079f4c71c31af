"""Worker processes: embedded in the service's own process, or alone on another machine.

Both run the same task on the same Celery application; they differ in pool and broker.  Both run a
reconciler thread, because any message may be lost at any time.
"""

from __future__ import annotations

import fcntl
import os
import random
import secrets
import shutil
import socket
import threading
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

from celery import signals
from celery.bootsteps import CLOSE, RUN, StartStopStep
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import configure_mappers

from service.bootstrap import Services, open_services
from service.errors import Conflict, ServiceError
from service.jobs.claim import Claim
from service.jobs.reconcile import collect_garbage, reconcile, reset_after_boot
from service.jobs.retention import retire
from service.log import configure, get_logger
from service.push.deliverer import Deliverer
from service.queue import ring
from service.settings import Settings
from service.store.blobs import sweep_spool
from service.store.repos import items, workers
from service.store.session import migrate
from service.store.strategy_sets import offered
from worker.runner.helping import Helper
from worker.runner.places import workplace_name
from worker.runner.polling import Poller
from worker.runner.tasks import ItemRunner, Step, register
from worker.sandbox.held import is_held, unheld
from worker.sandbox.isolation import isolation

_GARBAGE_EVERY_S = 3600.0
_BEAT_EVERY_S = 10.0


def package_version() -> str:
    """Give the installed version of this package."""
    try:
        return version("tilewright")
    except PackageNotFoundError:
        return "unpackaged"


def stale_workplaces(services: Services) -> list[Path]:
    """Folders of attempts whose worker was killed: without a lease, and held by no process.

    A worker that lost its lease may still be running its payload for a moment: pulled away from
    under it, the folder would look like a fault of whatever opens a file next.
    """
    found = unheld(services.settings.work_dir)
    if not found:
        return []
    with services.database.read() as session:
        leased = {workplace_name(item.id, item.fence) for item in items.leased_by(session, "")}
    return [path for path in found if path.name not in leased and not is_held(path)]


def sweep_workplaces(services: Services) -> int:
    """Remove `stale_workplaces`; give how many."""
    stale = stale_workplaces(services)
    for path in stale:
        shutil.rmtree(path, ignore_errors=True)
    return len(stale)


class Reconciler:
    """Repairs and rings in a thread until stopped; also beats for the worker's own row."""

    def __init__(self, services: Services, worker_id: str, slots: int) -> None:
        self._services = services
        self._worker_id = worker_id
        self._slots = slots
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reconciler", daemon=True)

    def start(self) -> None:
        """Announce the worker and start."""
        self._announce()
        self._thread.start()

    def stop(self) -> None:
        """Stop and sign the worker off."""
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()
        try:
            with self._services.database.write() as session:
                workers.remove(session, self._worker_id)
        except DBAPIError as error:
            get_logger().warning("cannot sign off", error=str(error.orig))

    def _announce(self) -> None:
        with self._services.database.write() as session:
            workers.register(
                session,
                worker_id=self._worker_id,
                host=socket.gethostname(),
                pid=os.getpid(),
                slots=self._slots,
                version=package_version(),
                sandbox_tier=isolation(self._services.settings.isolation).tier,
                strategies=offered(),
            )

    def _beat(self) -> None:
        with self._services.database.write() as session:
            known = workers.beat(session, self._worker_id)
        if not known:
            self._announce()

    def _run(self) -> None:
        services = self._services
        period = services.settings.reconcile_period_s
        beat_rounds = max(1, int(_BEAT_EVERY_S / period))
        garbage_rounds = max(1, int(_GARBAGE_EVERY_S / period))
        rounds = 0
        # Jitter keeps many reconcilers apart; it decides nothing.
        jitter = random.Random(self._worker_id)
        while True:
            try:
                repairs = reconcile(services.database, services.outbox, services.settings)
                if rounds % beat_rounds == 0:
                    self._beat()
                if repairs.lapsed or rounds % beat_rounds == 0:
                    sweep_workplaces(services)
                if rounds % garbage_rounds == garbage_rounds - 1:
                    retire(services.database, services.settings)
                    collect_garbage(services.database, services.blobs, services.settings)
                    sweep_spool(services.blobs.spool_dir, older_than_s=86_400.0)
            except (DBAPIError, ServiceError, OSError) as error:
                get_logger().warning("reconcile failed", error=str(error))
            rounds += 1
            if self._done.wait(period * (0.75 + 0.5 * jitter.random())):
                return


class DataDirectory:
    """The exclusive lock on a data directory, and the identity of the service that lives there."""

    def __init__(self, settings: Settings) -> None:
        self._path = settings.data_dir
        self._file: IO[str] | None = None

    def lock(self) -> str:
        """Take the lock and give the directory's lasting identity.

        Raises:
            Conflict: another process holds it.
        """
        self._path.mkdir(parents=True, exist_ok=True)
        file = (self._path / "lock").open("a+", encoding="ascii")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise Conflict(
                f"another tilewright process uses the data directory {self._path}",
                actual=str(self._path),
                remedy="Stop it, or choose another directory with TILEWRIGHT_DATA_DIR.",
            ) from error
        self._file = file
        file.seek(0)
        identity = file.read().strip()
        if not identity:
            identity = secrets.token_hex(8)
            file.write(identity)
            file.flush()
        return identity

    def unlock(self) -> None:
        """Give the lock back; the kernel does it for a killed process."""
        if self._file is not None:
            self._file.close()
            self._file = None


class EmbeddedWorker:
    """A worker in daemon threads of the service's process.

    `start` migrates, locks the data directory and voids what an earlier life left behind.  One at a
    time per process: Celery's registry of running tasks is global.
    """

    _only = threading.Lock()

    def __init__(
        self,
        services: Services,
        *,
        on_step: Callable[[Step, Claim], None] | None = None,
    ) -> None:
        self._services = services
        self._on_step = on_step
        self._directory = DataDirectory(services.settings)
        self._runner: ItemRunner | None = None
        self._reconciler: Reconciler | None = None
        self._deliverer: Deliverer | None = None
        self._helper: Helper | None = None
        self._controller: Any = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start working.

        Raises:
            Conflict: another process uses the data directory, or this one has a worker already.
        """
        if not self._only.acquire(blocking=False):
            raise Conflict("this process already runs an embedded worker")
        try:
            self._boot()
        except BaseException:
            self._directory.unlock()
            self._only.release()
            raise

    def _boot(self) -> None:
        services, settings = self._services, self._services.settings
        identity = self._directory.lock()
        migrate(settings.database_url)
        shutil.rmtree(settings.work_dir, ignore_errors=True)
        sweep_spool(services.blobs.spool_dir, older_than_s=0.0)
        voided = reset_after_boot(services.database, identity)
        worker_id = f"{identity}.{secrets.token_hex(4)}"
        hook = {} if self._on_step is None else {"on_step": self._on_step}
        self._runner = ItemRunner(services, worker_id, **hook)
        register(services.celery, self._runner)
        self._reconciler = Reconciler(services, worker_id, settings.workers)
        self._reconciler.start()
        self._deliverer = Deliverer(services.database, settings)
        self._deliverer.start()
        self._helper = Helper(services, self._runner, worker_id)
        self._helper.start()
        self._start_controller(worker_id)
        get_logger().info("worker started", worker_id=worker_id, voided_leases=voided)

    def _start_controller(self, worker_id: str) -> None:
        # Pool threads look tasks up in the process's default application.
        self._services.celery.set_default()
        # The public `worker` command installs signal handlers and belongs in a main thread.
        self._controller = self._services.celery.WorkController(
            app=self._services.celery,
            hostname=f"embedded-{worker_id}@{socket.gethostname()}",
            pool="threads",
            concurrency=self._services.settings.workers,
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
        )
        self._thread = threading.Thread(
            target=self._controller.start, name="celery-worker", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Kill running jobs (they go back to the queue without losing an attempt) and stop."""
        if self._runner is not None:
            self._runner.stop()
        if self._helper is not None:
            self._helper.stop()
        if self._reconciler is not None:
            self._reconciler.stop()
        if self._deliverer is not None:
            self._deliverer.stop()
        if self._controller is not None and self._thread is not None:
            # The consumer looks up from its queue every two seconds, or when a bell rings: let its
            # loop end first, then run the regular shutdown.
            consumer = self._controller.consumer.blueprint
            consumer.state = CLOSE
            ring(self._services.celery, "stop")
            self._thread.join(timeout=5)
            consumer.state = RUN
            self._controller.stop()
            self._thread.join(timeout=30)
            self._controller = self._thread = None
            self._directory.unlock()
            self._only.release()

    def __enter__(self) -> EmbeddedWorker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _reconnect(consumer: Any) -> None:
    """Let a consumer lose its connection, as far as it knows: its loop makes another one."""

    def lose() -> None:
        raise ConnectionResetError("no bell is heard on this connection")

    if consumer is not None:  # it is made when the worker starts
        consumer.call_soon(lose)


def run_worker(
    settings: Settings,
    *,
    on_step: Callable[[Step, Claim], None] | None = None,
) -> int:
    """Run a stand-alone worker in the foreground until SIGTERM; give the exit code.

    Raises:
        Conflict: the broker is in memory: such a worker would never hear a bell.
    """
    if settings.embedded:
        raise Conflict(
            "a stand-alone worker needs a broker that other processes can reach",
            actual=settings.broker_url,
            remedy="Set TILEWRIGHT_BROKER_URL to a redis:// or amqp:// URL, or use serve.",
        )
    configure(settings.log_level, settings.log_format)
    services = open_services(settings)
    migrate(settings.database_url)
    sweep_workplaces(services)
    worker_id = f"worker-{secrets.token_hex(8)}"
    hook = {} if on_step is None else {"on_step": on_step}
    runner = ItemRunner(services, worker_id, **hook)
    register(services.celery, runner)
    reconciler = Reconciler(services, worker_id, settings.workers)
    deliverer = Deliverer(services.database, settings)
    helper = Helper(services, runner, worker_id)
    poller = Poller(services.celery, runner, worker_id, lambda: _reconnect(worker.consumer))

    class Threads(StartStopStep):  # type: ignore[misc]  # celery has no types
        """Ours, once the pool has forked and whether or not the broker answers."""

        requires = ("celery.worker.components:Pool",)

        def start(self, parent: object) -> None:
            del parent
            reconciler.start()
            deliverer.start()
            poller.start()
            helper.start()

        def stop(self, parent: object) -> None:
            del parent  # `run_worker` stops them, also when the start failed half-way

    services.celery.steps["worker"].add(Threads)
    services.celery.finalize()
    worker = services.celery.Worker(
        hostname=f"{worker_id}@{socket.gethostname()}",
        pool=settings.worker_pool,
        concurrency=settings.workers,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=settings.broker_url.startswith("redis"),
        loglevel="WARNING",
        quiet=True,
    )
    # Long jobs go back to the queue instead of holding up a shutdown.  (A prefork pool's children
    # do not hear this: they finish their item.)
    signals.worker_shutting_down.connect(lambda **_: runner.stop(), weak=False)
    # A pool that forks must do so before this process has threads: a child would inherit locks that
    # they hold.  SQLAlchemy takes one when it first configures its mappers, so do that now, too.
    configure_mappers()
    try:
        worker.start()
    finally:
        runner.stop()
        helper.stop()
        poller.stop()
        reconciler.stop()
        deliverer.stop()
        services.close()
    return int(worker.exitcode or 0)
