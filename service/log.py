"""Structured logs: static event text, facts as fields, ids bound once per task or request.

`configure` is called by the process entries only.  Everything else does `log = get_logger()`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TextIO, cast

import structlog
from structlog.typing import FilteringBoundLogger, Processor

LogFormat = Literal["json", "console"]


class _CurrentStderr:
    """Whatever sys.stderr is when a line is written: test runners replace and close it."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


_STDERR = cast("TextIO", _CurrentStderr())


def configure(level: str = "INFO", log_format: LogFormat = "json") -> None:
    """Send structured lines to stderr; standard-library loggers join at WARNING and above.

    stdout stays free for data: the CLI prints results there.
    """
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level]),
        logger_factory=structlog.PrintLoggerFactory(file=_STDERR),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=logging.WARNING, stream=_STDERR, format="%(name)s: %(message)s")


def get_logger(**fields: object) -> FilteringBoundLogger:
    """Give a logger with `fields` bound to every line."""
    logger: FilteringBoundLogger = structlog.get_logger(**fields)
    return logger


@contextmanager
def bound(**fields: object) -> Iterator[None]:
    """Add `fields` to every line logged by this thread or task inside the block."""
    with structlog.contextvars.bound_contextvars(**fields):
        yield


if not structlog.is_configured():
    # Also before `configure`: a library that logs must not write into a command's data, nor the
    # variables of a traceback, which may hold somebody's key.
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[*structlog.get_config()["processors"][:-1], plain],
        logger_factory=structlog.PrintLoggerFactory(file=_STDERR),
    )
