"""The limit on what one step of a strategy may take, so that one that hangs costs its unit alone.

A payload's main thread runs strategies between signals of a timer.  The signal's handler looks at
the CPU time that the process used since the step began, and raises in whatever frame runs.  Waiting
uses no CPU time: seconds in which the process was awake and did nothing are counted on their own,
so that neither a busy nor a suspended machine is mistaken for a strategy that waits.  Wall time
decides nothing.

What cannot be stopped so: a loop in C, which no handler interrupts, and code that catches
everything and goes on.  Their end is the stage's limit, and the job's.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from worker.compiler.faults import Overrun

T = TypeVar("T")

LIMIT_S = 300.0
"""CPU time of a step: the largest models of benchmarks/MODELS.md take 21 s for all steps of all."""
STRIKES = 3
"""Steps that a strategy may lose in one job; it is not asked any more, or the job would not end."""
_IDLE_SHARE = 0.005
"""Of a tick: what taking a signal and entering the handler may cost, many times over."""


class Watchdog:
    """Limits the steps of one process; see the module's docstring."""

    def __init__(self, limit_s: float = LIMIT_S, tick_s: float = 1.0) -> None:
        self._limit_s = limit_s
        self._tick_s = min(tick_s, limit_s)
        self._strikes: Counter[str] = Counter()
        self._is_armed = False
        self._start = self._last = 0.0
        self._idle_s = 0.0

    def __call__(self, strategy: str, work: Callable[[], T]) -> T:
        """What `work` gives.  Nothing is limited beside the main thread: only that is interrupted.

        Raises:
            Overrun: it took too long, or this strategy did so too often.
        """
        if self._strikes[strategy] >= STRIKES:
            raise Overrun(f"not asked, because {STRIKES} of its steps timed out")
        if self._is_armed or threading.current_thread() is not threading.main_thread():
            return work()
        before = signal.signal(signal.SIGALRM, self._look)
        try:
            self._start = self._last = time.process_time()
            self._idle_s = 0.0
            self._is_armed = True
            signal.setitimer(signal.ITIMER_REAL, self._tick_s, self._tick_s)
            try:
                return work()
            finally:
                self._is_armed = False
        except Overrun:
            self._is_armed = False  # it may have come between the two lines above
            self._strikes[strategy] += 1
            raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)

    def _look(self, number: int, frame: FrameType | None) -> None:
        """The handler.  It raises at every tick from then on: `work` may have caught the first."""
        del number, frame
        if not self._is_armed:
            return
        now = time.process_time()
        is_idle = now - self._last < _IDLE_SHARE * self._tick_s
        self._idle_s = self._idle_s + self._tick_s if is_idle else 0.0
        self._last = time.process_time()  # what the handler itself took is no work of the step's
        if now - self._start > self._limit_s:
            raise Overrun(f"timed out after {self._limit_s:g} s of CPU")
        if self._idle_s >= self._limit_s:
            raise Overrun(f"timed out after {self._limit_s:g} s of waiting")
