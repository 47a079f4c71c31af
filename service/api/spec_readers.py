"""Reading foreign specs in processes of their own: limited, killable, a few at a time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from hashlib import sha256
from queue import Empty, LifoQueue
from typing import Any

from anyio import to_thread

from service.api.payloads import PayloadRefused
from service.errors import Unavailable
from service.settings import Settings
from worker.compiler.errors import SpecError
from worker.sandbox import wire
from worker.sandbox.problems import problem_in
from worker.sandbox.sandbox import Limits
from worker.sandbox.standing import Ended, Overdue, Standing

READERS = 2
"""Specs that are read at the same time; others wait their turn."""
LIMIT_S = 10.0
"""A spec takes milliseconds; what takes this long was made to."""
WAIT_S = 15.0
"""How long a spec waits for a reader."""
REMEMBERED = 64
"""Specs whose reading is kept, so that the same spec with every job costs nothing."""
LIFE_S = 4 * 3600.0
MEMORY_BYTES = 1 << 30
_FILE_BYTES = 64 << 20
_OUTPUT_BYTES = 1 << 16
_PROCESSES = 16


class SpecReaders:
    """The processes of one application; the one used last is asked first."""

    def __init__(self, settings: Settings) -> None:
        limits = Limits(LIFE_S, MEMORY_BYTES, _FILE_BYTES, _PROCESSES, _OUTPUT_BYTES)
        self._free: LifoQueue[Standing] = LifoQueue()
        for _ in range(READERS):
            reader = Standing(
                "worker.children.spec_child",
                limits=limits,
                choice=settings.isolation,
                search_path=settings.child_path,
                hidden=settings.data_dir,
                parent=settings.asked_dir,
            )
            self._free.put(reader)
        self._turn: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        self._known: OrderedDict[bytes, dict[str, Any]] = OrderedDict()

    async def read(self, text: bytes) -> dict[str, Any]:
        """`document`, `machine_digest` and `name` of a spec; what was read before is remembered.

        Raises:
            PayloadRefused: the spec is refused, with all findings.
            SpecError: TW-SPEC-004, it takes more time or memory than a spec may.
            Unavailable: every reader is busy, or one ended of something else.
            CompilerError: TW-SVC-018, the isolation demanded does not work here.
        """
        key = sha256(text).digest()
        known = self._known.get(key)
        if known is None:
            known = await self.ask("read", text)
            self._known[key] = known
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return known

    async def ask(self, what: str, text: bytes) -> dict[str, Any]:
        """`read` or `lint` a spec; raises as `read` does.

        Who waits for a turn holds no thread: other requests need those.
        """
        loop = asyncio.get_running_loop()
        if self._turn is None or self._turn[0] is not loop:  # a test's or the client's own loop
            self._turn = (loop, asyncio.Semaphore(READERS))
        turn = self._turn[1]
        try:
            async with asyncio.timeout(WAIT_S):
                await turn.acquire()
        except TimeoutError:
            raise Unavailable(
                f"{READERS} specs are being read, and none ended in {WAIT_S:g} s",
                limit=READERS,
                headers={"Retry-After": "5"},
            ) from None
        try:
            return await to_thread.run_sync(self._ask, what, text)
        finally:
            turn.release()

    def _ask(self, what: str, text: bytes) -> dict[str, Any]:
        reader = self._free.get()
        try:
            frame = reader.ask({"op": what}, text, LIMIT_S)
        except Overdue:
            raise SpecError(
                "TW-SPEC-004", f"reading the spec takes more than {LIMIT_S:g} s", limit=LIMIT_S
            ) from None
        except Ended as end:
            if end.report.out_of_memory:
                raise _too_much_memory() from end
            raise Unavailable(f"the process that read the spec ended: {end}") from end
        finally:
            self._free.put(reader)
        if frame.op == "memory":
            raise _too_much_memory()
        answer = frame.head.get("answer")
        if frame.op == "answer" and isinstance(answer, dict):
            return answer
        try:
            raise PayloadRefused(problem_in(frame))
        except wire.ProtocolError as error:
            raise Unavailable(f"the process that read the spec says nonsense: {error}") from error

    def close(self) -> None:
        """End the processes; one that is reading ends with its question's limit."""
        idle: list[Standing] = []
        while True:
            try:
                idle.append(self._free.get_nowait())
            except Empty:
                break
        for reader in idle:
            reader.close()
            self._free.put(reader)


def _too_much_memory() -> SpecError:
    return SpecError(
        "TW-SPEC-004", f"reading the spec takes more than {MEMORY_BYTES} bytes", limit=MEMORY_BYTES
    )
