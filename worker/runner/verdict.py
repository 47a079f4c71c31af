"""Which limit ended a payload, in the user's words: for jobs and for local compiles alike."""

from __future__ import annotations

from worker.compiler.errors import CompilerError, Detail
from worker.runner.conversation import Conversation
from worker.sandbox.sandbox import End, Limits, Report


def over_limit(
    said: Conversation, report: Report, limits: Limits, stage: str | None
) -> dict[str, Detail] | None:
    """The problem of a payload that was over a limit; None for one that was not.

    `stage` is the last one that the payload announced.
    """
    if said.clock is not None and said.clock.overrun is not None:
        return said.clock.overrun.to_problem()
    if said.out_of_memory or report.out_of_memory:
        return CompilerError(
            "TW-SVC-009",
            f"the job needed more than its memory limit of {limits.memory_bytes} bytes",
            stage=stage,
            limit=limits.memory_bytes,
            actual=report.max_rss_bytes,
        ).to_problem()
    if said.too_many_bytes or report.end is End.FILES:
        return CompilerError(
            "TW-SVC-017",
            "the job wrote more files, or more bytes into them, than it may",
            stage=stage,
            limit=limits.file_bytes,
            actual=report.file_bytes or None,
        ).to_problem()
    if report.end is End.WALL:
        return CompilerError(
            "TW-SVC-008",
            f"the job ran longer than its wall limit of {limits.wall_s:g} s",
            stage=stage,
            limit=limits.wall_s,
            actual=limits.wall_s,
        ).to_problem()
    return None
