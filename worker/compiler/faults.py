"""A step of a strategy that broke: kept as a value, so that another way is taken.

A schedule, its program and its kernel are one of several ways to compute the same thing.  One that
crashes or breaks a rule is our bug and not the user's end: whoever asked tries the next way, and
the report says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, TypeVar

from worker.compiler.errors import NO_ROOM, Infeasible, said

T = TypeVar("T")

_OWN_STEPS = frozenset(
    ("load", "group", "schedule", "estimate", "summary", "page", "serialize", "execute", "price")
)
"""Those in which a plugin's own code runs."""


class Overrun(BaseException):
    """A step took too long.  Whoever limits it raises this in the strategy's own frames, where
    `except Exception` must not hold it up."""


class Limiter(Protocol):
    """Runs a step of a strategy, and not for ever."""

    def __call__(self, strategy: str, work: Callable[[], T]) -> T: ...


_LIMITER: ContextVar[Limiter | None] = ContextVar("limiter", default=None)


@contextmanager
def limited_by(limiter: Limiter) -> Iterator[None]:
    """Steps of strategies inside run by it.  The compiler itself has no clock."""
    before = _LIMITER.set(limiter)
    try:
        yield
    finally:
        _LIMITER.reset(before)


@dataclass(frozen=True, slots=True)
class Fault:
    """Which step of which strategy broke, and how."""

    strategy: str
    version: str
    step: str
    """load, group, schedule, lower, audit, codegen, estimate, summary, page, serialize or price."""
    reason: str
    """Type and message of what was raised, the same in every process."""
    is_passing: bool = False
    """It was stopped, or the machine let it down (a file was gone): another run may end otherwise,
    so no cache keeps it."""

    @property
    def sentence(self) -> str:
        return f"{self.strategy} {self.version} failed at step {self.step}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Fallback:
    """A fault and whose it would have been: another way was taken for these nodes."""

    nodes: tuple[str, ...]
    """ONNX nodes of the group, in graph order."""
    fault: Fault


def attempt(strategy: str, version: str, step: str, work: Callable[[], T]) -> T | Fault:
    """What `work` returns, or the fault it ends in.

    `work` is pure: a cache, a database or a channel that breaks in it would be blamed on the
    strategy.

    Raises:
        MemoryError: another way needs memory too.
        Infeasible: that something does not fit is an answer.
        OSError: the disk is full.  Another way would end well, and with other bytes than the next
            run of the same.
    """
    limiter = _LIMITER.get()
    try:
        if limiter is None or step not in _OWN_STEPS:
            return work()
        return limiter(strategy, work)
    except (MemoryError, Infeasible):
        raise
    except Overrun as late:
        return Fault(strategy, version, step, str(late), is_passing=True)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        return Fault(strategy, version, step, said(error), is_passing=True)
    except (Exception, SystemExit) as error:  # the boundary of a plugin: see decisions/0017
        return Fault(strategy, version, step, said(error))
