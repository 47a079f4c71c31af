"""Several compiles at the same time: a server's workers, or this machine's processors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")

ON_A_SERVER = 8
"""Jobs that a gate has on a server at once, unless it is told another number.  Where a server has
fewer slots than that they only wait there; whatever it is, results are the same."""
_JOIN_S = 10.0


class Together(Protocol):
    """Makes calls, and gives their results in the order of the calls."""

    def __call__(self, calls: Sequence[Callable[[], T]], /) -> list[T]:
        """Raises: what a call raised; no other is begun after it."""
        ...


class Threads:
    """Calls in `num` threads of this process, begun in their order."""

    def __init__(self, num: int) -> None:
        self._num = num
        self.stop = threading.Event()
        """Set as soon as results are of no more use; who makes them may look at it."""

    def __call__(self, calls: Sequence[Callable[[], T]], /) -> list[T]:
        """Of several calls that raise, what came first is raised; others may raise because of it.

        An interrupt of the caller's thread is its own: no call is waited for longer than
        `_JOIN_S` then.
        """
        if self._num == 1 or len(calls) == 1:
            return [call() for call in calls]
        found: dict[int, T] = {}
        raised: list[BaseException] = []
        todo = iter(enumerate(calls))
        turn = threading.Lock()

        def work() -> None:
            while not self.stop.is_set():
                with turn:
                    number, call = next(todo, (-1, None))
                if call is None:
                    return
                try:
                    found[number] = call()
                except BaseException as error:
                    raised.append(error)
                    self.stop.set()

        threads = [
            threading.Thread(target=work, name=f"gate-{k}", daemon=True)
            for k in range(min(self._num, len(calls)))
        ]
        try:  # an interrupt may come while they start
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException:
            self.stop.set()
            for thread in threads:
                if thread.ident is not None:
                    thread.join(_JOIN_S / len(threads))
            raise
        if raised:
            raise raised[0]
        return [found[number] for number in range(len(calls))]
