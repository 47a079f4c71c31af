"""A step of a strategy that broke: kept as a value, so that another way is taken.

A schedule, its program and its kernel are one of several ways to compute the same thing.  One that
crashes or breaks a rule is our bug and not the user's end: whoever asked tries the next way, and
the report says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from worker.compiler.errors import Infeasible

T = TypeVar("T")

_MOST_CHARACTERS = 500
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")


@dataclass(frozen=True, slots=True)
class Fault:
    """Which step of which strategy broke, and how."""

    strategy: str
    version: str
    step: str
    """group, split, schedule, lower, audit or codegen."""
    reason: str
    """Type and message of what was raised, the same in every process."""

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
    """
    try:
        return work()
    except (MemoryError, Infeasible):
        raise
    except Exception as error:  # the boundary of a strategy: see decisions/0017
        message = _ADDRESS.sub("0x...", f"{type(error).__name__}: {error}")
        return Fault(strategy, version, step, message[:_MOST_CHARACTERS])
