"""The exit codes, a closed set that scripts may rely on."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class Exit(IntEnum):
    """What a command's exit status means."""

    OK = 0
    GATE_FAILED = 1
    USAGE = 2
    REJECTED = 3
    """The model, the spec or another input was rejected."""
    INFEASIBLE = 4
    """Unsupported operators, or the work does not fit the machine."""
    SERVICE = 5
    """The service, or the way to it, failed."""
    TIMED_OUT = 6
    CANCELED = 7


def exit_of_job(job: Mapping[str, object]) -> int:
    """Give the exit code of a job that has ended.

    A failed job carries its problem document, and the document its exit code.
    """
    error = job.get("error")
    match str(job.get("state")):
        case "succeeded":
            return Exit.OK
        case "canceled":
            return Exit.CANCELED
        case "timed_out":
            return Exit.TIMED_OUT
        case "failed" if isinstance(error, dict) and isinstance(error.get("exit_code"), int):
            return int(error["exit_code"])
        case _:
            return Exit.SERVICE
