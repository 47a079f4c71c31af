"""A payload that stays: it answers one question after the other, in one sandbox.

For questions whose answer takes milliseconds, where starting a process each time would cost more
than all the rest.  What a question leaves in its memory is the next one's risk, so only payloads
that keep nothing are asked this way; one that is late, too large or dead is replaced.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from worker.sandbox import wire
from worker.sandbox.held import own_folder
from worker.sandbox.isolation import IsolationChoice, isolation
from worker.sandbox.payload import Workplace, payload_argv, payload_env
from worker.sandbox.sandbox import Limits, Report, Sandbox

_LAST_S = 5.0


class Overdue(Exception):
    """It took longer than the question may."""


class Ended(Exception):
    """It ended without an answer, in a process that had answered nothing before."""

    def __init__(self, report: Report, why: str) -> None:
        super().__init__(why)
        self.report = report


class Standing:
    """One such payload.  Not for several threads at once."""

    def __init__(
        self,
        module: str,
        *,
        limits: Limits,
        choice: IsolationChoice,
        search_path: str,
        hidden: Path,
        parent: Path,
    ) -> None:
        """Nothing is started before the first question.

        `limits.wall_s` is how long one process may serve; the next question starts another.  Its
        folder is made, and held, below `parent`.
        """
        self._module = module
        self._limits = limits
        self._choice = choice
        self._search_path = search_path
        self._hidden = hidden
        self._sandbox: Sandbox | None = None
        self._parent = parent
        self._folder: AbstractContextManager[Path] | None = None
        self._started = 0.0

    def ask(self, head: Mapping[str, Any], body: bytes, limit_s: float) -> wire.Message:
        """Ask and wait for the answer.

        Raises:
            Overdue: no answer within `limit_s`; the process is gone.
            Ended: it died of this question, or broke the protocol.
            CompilerError: TW-SVC-018, the isolation demanded does not work here.
        """
        if self._sandbox is not None and self._is_old():
            self.close()
        is_used = self._sandbox is not None
        try:
            return self._exchange(head, body, limit_s)
        except Ended:
            # One that served before may have ended while nobody asked.
            if not is_used:
                raise
        return self._exchange(head, body, limit_s)

    def close(self) -> None:
        """End the process, if there is one, and remove its folder."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.__exit__(None, None, None)
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.__exit__(None, None, None)

    def __enter__(self) -> Standing:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace
        self.close()

    def _is_old(self) -> bool:
        """Half of its time is left for the question that is asked last."""
        return time.monotonic() - self._started > self._limits.wall_s / 2

    def _exchange(self, head: Mapping[str, Any], body: bytes, limit_s: float) -> wire.Message:
        sandbox = self._running()
        late = threading.Event()

        def end() -> None:
            late.set()
            sandbox.kill()

        timer = threading.Timer(limit_s, end)
        timer.daemon = True
        timer.start()
        frame, broken = None, ""
        try:
            wire.send(sandbox.channel, head, body)
            frame = wire.receive(sandbox.channel)
        except wire.ProtocolError as error:
            broken = str(error)
            sandbox.kill()
        except OSError:
            pass  # it ended while the question was on its way: the report says of what
        except BaseException:
            self.close()  # an answer that nobody has taken would be the next question's
            raise
        finally:
            timer.cancel()
        if frame is not None and not late.is_set():
            return frame
        # It has hung up, so it is about to end by itself, and its report will say why.
        timer = threading.Timer(_LAST_S, sandbox.kill)
        timer.daemon = True
        timer.start()
        report = sandbox.report()
        timer.cancel()
        self.close()
        if late.is_set():
            raise Overdue
        raise Ended(report, broken or report.sentence())

    def _running(self) -> Sandbox:
        if self._sandbox is None:
            try:
                self._start()
            except BaseException:  # of a full disk, say: what is half made goes
                self.close()
                raise
        assert self._sandbox is not None
        return self._sandbox

    def _start(self) -> None:
        folder = own_folder(self._parent, "standing")
        place = Workplace(folder.__enter__())
        self._folder = folder
        place.create()
        sandbox = Sandbox(
            payload_argv(self._module, "{channel}"),
            env=payload_env(place, self._search_path),
            cwd=place.temp,
            log_path=place.log,
            limits=self._limits,
            view=place.view(self._search_path, self._hidden),
            isolation=isolation(self._choice),
        )
        self._sandbox = sandbox
        sandbox.start()
        self._started = time.monotonic()
