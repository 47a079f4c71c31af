"""Work off items: claim, run the child, publish.  Load, call, save; nothing else.

One bell is one `ItemRunner.run`: at most one item is claimed, run in a sandbox and ended in exactly
one of the ways of `service.jobs.claim`.  Whatever the child does, this process goes on.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum

from celery import Celery
from sqlalchemy.exc import DBAPIError

from service.bootstrap import Services
from service.errors import (
    LeaseLost,
    NotFound,
    ServiceError,
    TooLarge,
    Unavailable,
)
from service.jobs import claim as protocol
from service.jobs import query
from service.jobs.claim import Claim, Heartbeat, Outcome, Usage
from service.jobs.feed import feed
from service.jobs.reconcile import promote
from service.log import bound, get_logger
from service.queue import RUN_ITEM
from service.store.blobs import put_stream
from service.store.records import BlobRef
from service.store.session import Database
from service.tracing import AttemptSpans
from worker.compiler.errors import DISK_FULL, TOOL_KILLED, Detail
from worker.runner.conversation import Conversation, answer, named_artifacts
from worker.runner.places import furnish, payload_sandbox, workplace_name
from worker.runner.progress import ProgressRecorder
from worker.runner.store_cache import StoreCache, reads_of
from worker.runner.verdict import over_limit
from worker.sandbox import wire
from worker.sandbox.compiled_loops import ensure_compiled_loops
from worker.sandbox.held import held_folder
from worker.sandbox.isolation import isolation
from worker.sandbox.payload import Workplace
from worker.sandbox.sandbox import End, Limits, Report, Sandbox
from worker.sandbox.stage_clock import StageClock

_REASON_CHARS = 300


class Step(StrEnum):
    """Points of the protocol at which a crash must be harmless; tests stop here."""

    CLAIMED = "claimed"
    CHILD_STARTED = "child_started"
    CHILD_ENDED = "child_ended"
    BLOBS_STORED = "blobs_stored"
    PUBLISHED = "published"


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ends, what publishes that, and the code of the fault, if it was one."""

    outcome: Outcome
    publish: Callable[[Claim, Usage], object]
    code: str | None = None


def _no_hook(step: Step, held: Claim) -> None:
    del step, held


class ItemRunner:
    """Runs claimed items for one worker process.  Thread-safe: every slot calls `run`."""

    def __init__(
        self,
        services: Services,
        worker_id: str,
        *,
        on_step: Callable[[Step, Claim], None] = _no_hook,
    ) -> None:
        self._services = services
        self._settings = services.settings
        self._isolation = isolation(services.settings.isolation)
        self._worker_id = worker_id
        self._on_step = on_step
        self._lock = threading.RLock()  # `stop` may be called from a signal handler
        self._running: set[Sandbox] = set()
        self._stopping = False
        self.taken = 0
        """Items so far, of this process."""

    @property
    def database(self) -> Database:
        """Where the items are."""
        return self._services.database

    def stop(self) -> None:
        """Kill what runs and give it back to the queue; take nothing new."""
        with self._lock:
            self._stopping = True
            for sandbox in self._running:
                sandbox.kill()

    def run(self, item_id: str) -> str | None:
        """Answer one bell: work on the best ready item; give its id, or None if there is none.

        `item_id` only says which item rang: priority is decided by the database now, not by the
        order of messages.
        """
        if self._stopping:
            return None
        try:
            held = protocol.claim(
                self._services.database, self._worker_id, self._settings.lease_ttl_s
            )
            if held is None:
                return None
            self.taken += 1
            with bound(job_id=held.job.id, item_id=held.item_id, fence=held.fence):
                self._attempt(held)
            promote(self._services.database)
            if not self._stopping:
                self._feed(held)
                self._services.outbox.nudge()
        except DBAPIError as error:
            # The bell is lost; the reconciler rings again, and a lease left behind runs out.
            get_logger().warning("database unavailable", item_id=item_id, error=str(error.orig))
            return None
        return held.item_id

    def _feed(self, held: Claim) -> None:
        """Let the sweep of a job that ended go on at once."""
        if held.job.sweep_id is not None:
            services = self._services
            feed(services.database, services.outbox, services.settings, held.job.sweep_id)

    def _attempt(self, held: Claim) -> None:
        log = get_logger()
        self._on_step(Step.CLAIMED, held)
        log.info("item claimed", attempt=held.attempts)
        place = Workplace(self._settings.work_dir / workplace_name(held.item_id, held.fence))
        try:
            with self._services.tracing.attempt(held.job, held.attempts, self._worker_id) as spans:
                self._guarded(held, place, spans)
        except LeaseLost:
            log.warning("lease lost, result discarded")
        finally:
            shutil.rmtree(place.root, ignore_errors=True)

    def _guarded(self, held: Claim, place: Workplace, spans: AttemptSpans) -> None:
        """Work, and account for faults on this side of the sandbox."""
        try:
            self._work(held, place, spans)
        except (Unavailable, DBAPIError, OSError) as fault:
            spans.outcome(Outcome.POSTPONED, type(fault).__name__)
            reason = f"{type(fault).__name__}: {str(fault)[:_REASON_CHARS]}"
            self._publish(held, lambda: self._postpone(held, reason))
        except ServiceError as refusal:
            error = refusal.to_problem()
            spans.outcome(Outcome.FAILED, refusal.error_code)
            self._publish(
                held, lambda: protocol.fail(self._services.database, held, error, Usage())
            )

    def _work(self, held: Claim, place: Workplace, spans: AttemptSpans) -> None:
        services, settings = self._services, self._settings
        limits = settings.payload_limits(held.job.wall_limit_s, held.model.size_bytes)
        sandbox = payload_sandbox(settings, self._isolation, place, limits)
        progress = ProgressRecorder(
            services.database,
            services.blobs,
            held,
            place.out,
            max_artifact_bytes=settings.max_artifact_bytes,
            spans=spans,
        )
        cache = StoreCache(
            services.database,
            services.blobs,
            job_id=held.job.id,
            inline_bytes=settings.cache_inline_bytes,
            owner=settings.cache_of(held.job.owner),
            like=reads_of(
                held.model.sha256, held.hardware.machine_digest,
                {"options": held.job.options, "part": held.part},
            ),
        )  # fmt: skip
        heartbeat = Heartbeat(
            services.database,
            held,
            ttl_s=settings.lease_ttl_s,
            beat_s=settings.heartbeat_s,
            watch_s=settings.watch_s,
            on_stop=sandbox.kill,
        )
        # The lease is renewed from here on: on a busy machine, compiling the loops may take longer
        # than it lasts.
        began = time.monotonic()
        with sandbox, heartbeat, held_folder(place.root), closing(cache):
            ensure_compiled_loops()
            place.create()
            furnish(services, held, place)
            with self._lock:
                self._running.add(sandbox)
                if self._stopping:
                    sandbox.kill()
            try:
                sandbox.start()
                self._on_step(Step.CHILD_STARTED, held)
                said = self._converse(sandbox, progress, cache)
                report = sandbox.report()
            finally:
                with self._lock:
                    self._running.discard(sandbox)
            self._on_step(Step.CHILD_ENDED, held)
            if heartbeat.lost:
                raise LeaseLost(held.item_id, held.fence)
            usage = Usage(report.cpu_s, report.max_rss_bytes, self._log(place))
            if heartbeat.canceling:
                ending = Ending(Outcome.CANCELED, self._canceled)
            elif self._stopping and report.end is End.CLOSED:
                ending = Ending(Outcome.GIVEN_BACK, self._give_back)
            else:
                ending = self._verdict(held, limits, progress, said, report)
            spans.used(usage.cpu_s, usage.max_rss_bytes)
            spans.outcome(ending.outcome, ending.code)
            if ending.outcome is Outcome.SUCCEEDED:
                cache.keep_reads()
            cache.flush_hits()
            self._publish(held, lambda: ending.publish(held, usage))
            self._on_step(Step.PUBLISHED, held)
            self._say_end(held, time.monotonic() - began, usage)

    def _say_end(self, held: Claim, seconds: float, usage: Usage) -> None:
        """One line for every attempt, with all that finds it again."""
        try:
            state = str(query.get_job(self._services.database, held.job.id).state)
        except (DBAPIError, NotFound):
            state = "unknown"  # it was published all the same, and may be deleted by now
        get_logger().info(
            "attempt ended", job=held.job.id, project=held.job.owner, attempt=held.attempts,
            state=state, seconds=round(seconds, 3), cpu_s=usage.cpu_s,
            max_rss_bytes=usage.max_rss_bytes, model=held.job.model_id,
            hardware=held.job.hardware_id, traceparent=held.job.traceparent,
        )  # fmt: skip

    def _converse(
        self, sandbox: Sandbox, progress: ProgressRecorder, cache: StoreCache
    ) -> Conversation:
        """Serve the child until it closes the channel."""
        clock = StageClock(self._settings.stage_limits_s, sandbox.kill)
        said = Conversation(cache_bytes_left=self._settings.cache_intake_bytes, clock=clock)
        try:
            with clock:
                try:
                    self._serve(sandbox, progress, cache, said)
                finally:  # files that it made stay, however it ended
                    progress.flush()
        except (wire.ProtocolError, TooLarge) as error:
            said.violation = str(error)
            sandbox.kill()
        except LeaseLost:
            sandbox.kill()
            sandbox.report()
            raise
        except ConnectionError:
            # It died while an answer was on its way: the report says of what.
            sandbox.kill()
        return said

    def _serve(
        self, sandbox: Sandbox, progress: ProgressRecorder, cache: StoreCache, said: Conversation
    ) -> None:
        while True:
            if not wire.is_waiting(sandbox.channel, progress.due_s()):
                progress.flush()
            if (frame := wire.receive(sandbox.channel)) is None:
                return
            answer(frame, sandbox, progress, cache, said)

    def _verdict(
        self,
        held: Claim,
        limits: Limits,
        progress: ProgressRecorder,
        said: Conversation,
        report: Report,
    ) -> Ending:
        """Decide how the attempt ends; store its artifacts when it succeeded."""
        if said.violation is not None:
            return self._crash(f"it broke the worker protocol: {said.violation}")
        if said.problem is not None:
            detail, code = str(said.problem["detail"]), str(said.problem["code"])
            if code == DISK_FULL:
                return Ending(Outcome.POSTPONED, lambda held, _: self._postpone(held, detail), code)
            if code == TOOL_KILLED:
                return self._crash(detail, code)
            return self._failure(said.problem)
        over = over_limit(said, report, limits, progress.last_stage)
        if over is not None:
            return self._failure(over)
        if said.done is None or report.end is not End.EXITED or report.code != 0:
            return self._crash(report.sentence())
        try:
            artifacts = named_artifacts(said.done, progress)
        except (wire.ProtocolError, TooLarge) as violation:
            return self._crash(f"it left a bad artifact: {violation}")
        self._on_step(Step.BLOBS_STORED, held)
        digest = said.done.text("bundle_digest")
        summary, estimates = said.done.head.get("summary"), said.done.head.get("estimates")
        return Ending(
            Outcome.SUCCEEDED,
            lambda held, usage: protocol.succeed(
                self._services.database,
                held,
                artifacts=artifacts,
                bundle_digest=digest,
                summary=summary if isinstance(summary, dict) else {},
                usage=usage,
                result=None if held.part is None else {"estimates": estimates},
            ),
        )

    def _failure(self, error: Mapping[str, Detail]) -> Ending:
        """The job ends with a problem; of its wall limit in a state of its own."""
        code = str(error["code"])
        outcome = Outcome.TIMED_OUT if code == "TW-SVC-008" else Outcome.FAILED
        return Ending(
            outcome,
            lambda held, usage: protocol.fail(
                self._services.database, held, error, usage,
                timed_out=outcome is Outcome.TIMED_OUT,
            ),
            code,
        )  # fmt: skip

    def _crash(self, reason: str, code: str = "crashed") -> Ending:
        return Ending(Outcome.CRASHED, lambda held, u: self._retry(held, reason, u), code)

    def _retry(self, held: Claim, reason: str, usage: Usage) -> None:
        get_logger().warning("attempt crashed", reason=reason, attempt=held.attempts)
        protocol.retry(
            self._services.database,
            held,
            reason,
            usage,
            backoff_s=self._settings.retry_backoff_s,
        )

    def _postpone(self, held: Claim, reason: str) -> None:
        get_logger().warning("attempt postponed", reason=reason)
        settings = self._settings
        protocol.postpone(
            self._services.database,
            held,
            reason,
            backoff_s=settings.retry_backoff_s,
            patience_s=settings.patience_s,
        )

    def _canceled(self, held: Claim, usage: Usage) -> None:
        protocol.canceled(self._services.database, held, usage)

    def _give_back(self, held: Claim, usage: Usage) -> None:
        del usage
        protocol.give_back(self._services.database, held)

    def _log(self, place: Workplace) -> BlobRef | None:
        """Keep what the child printed."""
        try:
            if place.log.stat().st_size == 0:
                return None
            with place.log.open("rb") as file:
                limit = self._settings.output_limit_bytes
                return put_stream(self._services.blobs, file, limit, "text/plain; charset=utf-8")
        except (OSError, ServiceError) as error:
            get_logger().warning("output lost", error=str(error))
            return None

    def _publish(self, held: Claim, end: Callable[[], object]) -> None:
        """End the lease; while the database is away, try again for as long as the lease may live.

        Raises:
            LeaseLost: the database was away for too long, or somebody else has the item.
        """
        deadline = time.monotonic() + self._settings.lease_ttl_s
        pause = 0.1
        while True:
            try:
                end()
                return
            except DBAPIError as error:
                get_logger().warning("publish failed", error=str(error.orig))
                if time.monotonic() + pause > deadline:
                    raise LeaseLost(held.item_id, held.fence) from error
                time.sleep(pause)
                pause = min(2 * pause, 2.0)


def register(app: Celery, runner: ItemRunner) -> None:
    """Make `runner` answer the bells that `app` receives."""

    @app.task(name=RUN_ITEM, shared=False, ignore_result=True, acks_late=False)  # type: ignore[untyped-decorator]
    def run_item(item_id: object = None, *_: object) -> None:
        # Anybody who can reach the broker can send anything: a bell without an id is no bell.
        if isinstance(item_id, str):
            runner.run(item_id)
