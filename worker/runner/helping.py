"""While a worker has nothing to do, it helps a long job that another one runs (decision 0098).

It runs the same payload up to the kernels, from the last candidate to the first, at a low priority.
What it solves stands in the cache when the job gets there.  It ends when the job goes on to its
next stage, when there is other work, or when it fails, and nobody is told of that but the log.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from contextlib import closing
from dataclasses import dataclass

from sqlalchemy.exc import DBAPIError

from service.bootstrap import Services
from service.errors import ServiceError
from service.jobs import helping
from service.jobs.claim import Claim
from service.log import bound, get_logger
from service.store.repos.helps import Scheduling
from worker.job.request import NoProgress
from worker.runner.conversation import Conversation, answer
from worker.runner.places import furnish, payload_sandbox, workplace_name
from worker.runner.store_cache import StoreCache
from worker.runner.tasks import ItemRunner
from worker.sandbox import wire
from worker.sandbox.compiled_loops import has_compiled_loops
from worker.sandbox.held import held_folder
from worker.sandbox.isolation import isolation
from worker.sandbox.payload import Workplace
from worker.sandbox.sandbox import Sandbox

LOOKS = 4
"""At the queue, in the seconds that a job must have left to be helped: enough to know its pace."""
_LONGEST_PAUSE_S = 5.0
_NICE = 10
_ANSWER_S = 0.25
"""How soon a helper makes room for an item that this process took."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """An attempt at the first look that found it."""

    fence: int
    done: int
    at_s: float


class Counted(NoProgress):
    """Keeps how many units were solved last."""

    solved = 0

    def units(self, solved: int, cached: int, total: int) -> None:
        """Keep the number."""
        del cached, total
        self.solved = solved


class Helper:
    """Looks for jobs to help, in a thread until stopped."""

    def __init__(self, services: Services, runner: ItemRunner, worker_id: str) -> None:
        self._services = services
        self._runner = runner
        self._worker_id = worker_id
        self._slots = services.settings.workers
        self._from_s = services.settings.help_from_s
        self._seen: dict[str, _Seen] = {}
        self._is_said = False
        """Whether the database says that this worker helps somebody."""
        # Jitter keeps many workers apart; it decides nothing.
        self._jitter = random.Random(worker_id)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="helper", daemon=True)

    def start(self) -> None:
        """Start looking, unless the settings say that no job is helped."""
        if self._from_s:
            self._thread.start()

    def stop(self) -> None:
        """Help nobody any more."""
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        pause_s = min(_LONGEST_PAUSE_S, self._from_s / LOOKS)
        while not self._done.wait(pause_s * (0.75 + 0.5 * self._jitter.random())):
            try:
                if self._is_said:  # the database was away when it ended
                    self._end()
                found = self._longest()
                if found is not None and has_compiled_loops():
                    self._help(found)
            except (DBAPIError, ServiceError, OSError) as error:
                get_logger().warning("no help", error=str(error)[:300])

    def _longest(self) -> Scheduling | None:
        """The attempt with most seconds left by its own pace, if these are enough."""
        now = time.monotonic()
        found = helping.needing(self._services.database, self._worker_id, self._slots)
        before, self._seen = self._seen, {}
        left: dict[str, float] = {}
        for each in found:
            seen = before.get(each.job_id)
            if seen is None or seen.fence != each.fence:
                seen = _Seen(each.fence, each.done, now)
            self._seen[each.job_id] = seen
            spent_s = now - seen.at_s
            left[each.job_id] = each.left * spent_s / max(each.done - seen.done, 1)
        slow = [each for each in found if left[each.job_id] >= self._from_s]
        return max(slow, key=lambda each: left[each.job_id], default=None)

    def _help(self, found: Scheduling) -> None:
        services = self._services
        taken = self._runner.taken
        held = helping.begin(services.database, self._worker_id, found)
        if held is None:
            return
        self._is_said = True
        try:
            with bound(job_id=held.job.id, item_id=held.item_id, fence=held.fence):
                self._work(held, taken)
        finally:
            self._end()

    def _end(self) -> None:
        helping.end(self._services.database, self._worker_id)
        self._is_said = False

    def _work(self, held: Claim, taken: int) -> None:
        services, settings = self._services, self._services.settings
        name = f"help.{self._worker_id}.{workplace_name(held.item_id, held.fence)}"
        place = Workplace(settings.work_dir / name)
        limits = settings.payload_limits(held.job.wall_limit_s, held.model.size_bytes)
        sandbox = payload_sandbox(
            settings, isolation(settings.isolation), place, limits, nice=_NICE
        )
        cache = StoreCache(
            services.database, services.blobs, job_id=None,
            inline_bytes=settings.cache_inline_bytes, owner=settings.cache_of(held.job.owner),
        )  # fmt: skip
        counted = Counted()
        get_logger().info("help began")
        try:
            with sandbox, held_folder(place.root), closing(cache):
                place.create()
                furnish(services, held, place, is_helping=True)
                sandbox.start()
                why = self._serve(sandbox, cache, counted, held, taken)
                report = sandbox.report()
        finally:
            shutil.rmtree(place.root, ignore_errors=True)
        get_logger().info("help ended", why=why, solved=counted.solved, cpu_s=report.cpu_s)

    def _serve(
        self, sandbox: Sandbox, cache: StoreCache, counted: Counted, held: Claim, taken: int
    ) -> str:
        """Answer the payload until it ends or is of no more use; give why."""
        settings = self._services.settings
        said = Conversation(cache_bytes_left=settings.cache_intake_bytes)
        looked = time.monotonic()
        try:
            while True:
                if self._done.is_set() or self._runner.taken != taken:
                    sandbox.kill()
                    return "this worker has other work"
                if time.monotonic() - looked >= settings.watch_s:
                    if not helping.is_needed(self._services.database, held, self._slots):
                        sandbox.kill()
                        return "it is not needed"
                    looked = time.monotonic()
                if not wire.is_waiting(sandbox.channel, _ANSWER_S):
                    continue
                frame = wire.receive(sandbox.channel)
                if frame is None:
                    return "its payload ended" if said.problem is None else "its payload failed"
                answer(frame, sandbox, counted, cache, said)
        except (wire.ProtocolError, ConnectionError) as error:
            sandbox.kill()
            return f"its payload broke off: {error}"
