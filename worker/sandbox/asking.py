"""One question to one payload: a request file in, one document or one problem out.

For payloads that are no jobs: preflight, matching, disassembling and running a bundle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker.compiler.errors import CompilerError, Detail
from worker.sandbox import wire
from worker.sandbox.isolation import IsolationChoice, isolation
from worker.sandbox.payload import Workplace, payload_argv, payload_env
from worker.sandbox.problems import problem_in
from worker.sandbox.sandbox import End, Limits, Report, Sandbox


class Refused(Exception):
    """The payload's own refusal, or a limit it met."""

    def __init__(self, problem: dict[str, Detail]) -> None:
        super().__init__(str(problem.get("detail", "refused")))
        self.problem = problem


class Died(Exception):
    """It ended without an answer."""

    def __init__(self, report: Report, why: str) -> None:
        super().__init__(why)
        self.report = report


def ask(
    module: str,
    request: Mapping[str, Any],
    place: Workplace,
    *,
    limits: Limits,
    choice: IsolationChoice,
    search_path: str,
    hidden: Path,
    read_only: tuple[Path, ...] = (),
    nice: int = 0,
) -> dict[str, Any]:
    """Run `module` on `request` in the sandbox and give its answer.

    The payload sees the files `read_only` where they are, and runs `nice` steps below us.  `place`
    must have been created; what the payload leaves is in `place.out`, which nothing changes any
    more when this returns.

    Raises:
        Refused: it answered with a problem, or was over a limit of memory or files.
        Died: it ran too long, crashed, or broke the protocol.
        CompilerError: TW-SVC-018, the isolation demanded does not work here.
    """
    path = place.given / "request.json"
    path.write_text(json.dumps(request), encoding="utf-8")
    sandbox = Sandbox(
        payload_argv(module, str(path), "{channel}"),
        env=payload_env(place, search_path),
        cwd=place.temp,
        log_path=place.log,
        limits=limits,
        view=place.view(search_path, hidden, read_only),
        isolation=isolation(choice),
        nice=nice,
    )
    frame, broken = None, ""
    with sandbox:
        sandbox.start()
        try:
            frame = wire.receive(sandbox.channel)
        except wire.ProtocolError as error:
            broken = str(error)
            sandbox.kill()
        report = sandbox.report()
    if frame is not None and frame.op == "problem":
        try:
            raise Refused(problem_in(frame))
        except wire.ProtocolError as error:
            broken = str(error)
    if report.out_of_memory or (frame is not None and frame.op == "memory"):
        raise Refused(_over("TW-SVC-009", "needs more memory than", limits.memory_bytes))
    if report.end is End.FILES or (frame is not None and frame.op == "files"):
        raise Refused(_over("TW-SVC-017", "writes more than", limits.file_bytes))
    answer: Any = None
    if frame is not None and frame.op == "answer" and not broken:
        try:
            answer = json.loads(frame.body)
        except (ValueError, RecursionError):
            broken = "its answer is not JSON"
    if isinstance(answer, dict) and report.end is End.EXITED and report.code == 0:
        return answer
    raise Died(report, broken or report.sentence())


def _over(code: str, what: str, limit: int) -> dict[str, Detail]:
    return CompilerError(code, f"it {what} its limit of {limit} bytes", limit=limit).to_problem()
