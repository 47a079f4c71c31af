"""Structured logs: static event text, facts as fields, ids bound once per task or request.

`configure` is called by the process entries only.  Everything else does `log = get_logger()`.
structlog is imported when something is logged or bound: most commands say nothing, and it would be
a tenth of what they import.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Literal, TextIO, cast

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger, Processor

LogFormat = Literal["json", "console"]


class _CurrentStderr:
    """Whatever sys.stderr is when a line is written: test runners replace and close it."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


_STDERR = cast("TextIO", _CurrentStderr())


@dataclass(slots=True)
class _Chosen:
    """What the next use of structlog sets up first."""

    level: str = "DEBUG"
    log_format: LogFormat | None = None
    """None: as structlog comes, but on stderr."""
    is_done: bool = False


_CHOSEN = _Chosen()


def configure(level: str = "INFO", log_format: LogFormat = "json") -> None:
    """Send structured lines to stderr; standard-library loggers join at WARNING and above.

    stdout stays free for data: the CLI prints results there.
    """
    _CHOSEN.level, _CHOSEN.log_format, _CHOSEN.is_done = level, log_format, False
    if "structlog" in sys.modules:  # loggers that were given out follow at once
        _structlog()
    logging.basicConfig(level=logging.WARNING, stream=_STDERR, format="%(name)s: %(message)s")


def _structlog() -> ModuleType:
    """structlog, set up as `configure` said last."""
    import structlog

    if _CHOSEN.is_done:
        return structlog
    _CHOSEN.is_done = True
    if _CHOSEN.log_format is None:
        if not structlog.is_configured():
            # Also before `configure`: a library that logs must not write into a command's data.
            structlog.configure(logger_factory=structlog.PrintLoggerFactory(file=_STDERR))
        return structlog
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if _CHOSEN.log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    level = logging.getLevelNamesMapping()[_CHOSEN.level]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=_STDERR),
        cache_logger_on_first_use=False,
    )
    return structlog


def get_logger(**fields: object) -> FilteringBoundLogger:
    """Give a logger with `fields` bound to every line."""
    logger: FilteringBoundLogger = _structlog().get_logger(**fields)
    return logger


@contextmanager
def bound(**fields: object) -> Iterator[None]:
    """Add `fields` to every line logged by this thread or task inside the block."""
    with _structlog().contextvars.bound_contextvars(**fields):
        yield
