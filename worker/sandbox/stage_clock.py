"""Wall-clock limits of the stages of a job, kept by the worker while the payload reports them.

The last resort, behind the counted budgets of the compiler: a stage that hangs is named, instead of
taking the rest of the job's time with it.  A payload that announces no stages has the job's limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType

from worker.compiler.errors import CompilerError, Detail


@dataclass(frozen=True, slots=True)
class Overrun:
    """A stage that was ended."""

    stage: str
    limit_s: float
    actual_s: float

    def to_problem(self) -> dict[str, Detail]:
        """TW-SVC-008 with the stage, its limit and what it took."""
        return CompilerError(
            "TW-SVC-008",
            f"the stage {self.stage} ran longer than its limit of {self.limit_s:g} s",
            stage=self.stage,
            limit=self.limit_s,
            actual=round(self.actual_s, 1),
            remedy=f"Raise {self.stage!r} in TILEWRIGHT_STAGE_LIMITS_S, or compile a smaller"
            " model.",
        ).to_problem()


class StageClock:
    """Calls `kill` when a stage has taken longer than `limits_s` says, all its visits together.

    A stage may be announced again, and within another; each has a clock of its own.  Use as a
    context manager: no timer outlives the block.  `kill` is called once, from another thread.
    """

    def __init__(self, limits_s: Mapping[str, float], kill: Callable[[], None]) -> None:
        self._limits_s = limits_s
        self._kill = kill
        self._lock = threading.Lock()
        self._spent_s: dict[str, float] = {}
        self._running: dict[str, tuple[float, threading.Timer]] = {}
        self._is_closed = False
        self.overrun: Overrun | None = None
        """The stage that was ended, if any was."""

    def stage(self, name: str, state: str) -> None:
        """Hear that a stage is `started` or `finished`; those without a limit are ignored."""
        limit_s = self._limits_s.get(name)
        if limit_s is None:
            return
        with self._lock:
            if state == "started" and name not in self._running and not self._is_closed:
                left_s = max(limit_s - self._spent_s.get(name, 0.0), 0.0)
                timer = threading.Timer(left_s, self._expire, (name, limit_s))
                timer.daemon = True
                self._running[name] = (time.monotonic(), timer)
                timer.start()
            elif state == "finished":
                self._stop(name)

    def _stop(self, name: str) -> float:
        """End a stage's clock; give all that the stage has taken."""
        running = self._running.pop(name, None)
        if running is not None:
            started, timer = running
            timer.cancel()
            self._spent_s[name] = self._spent_s.get(name, 0.0) + time.monotonic() - started
        return self._spent_s.get(name, 0.0)

    def _expire(self, name: str, limit_s: float) -> None:
        with self._lock:
            if name not in self._running or self.overrun is not None:
                return
            self.overrun = Overrun(name, limit_s, self._stop(name))
        self._kill()

    def __enter__(self) -> StageClock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace
        with self._lock:
            self._is_closed = True
            for name in tuple(self._running):
                self._stop(name)
