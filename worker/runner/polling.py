"""Work goes on while no bell is heard: the database is asked, slowly.

Bells only wake workers; what there is to do stands in the database.  While the broker is away, one
thread of each stand-alone worker takes items one by one.  As soon as the broker answers again the
reconciler rings for what is ready and all slots take part.

A worker may be deaf to a broker that answers: kombu keeps a message whose acknowledgement found
nobody as one under way, and with as many of these as slots its consumer takes no other message on
that connection, which nothing ends.  So a worker that does nothing, while the same items are ready
and rung for at several looks, connects anew and takes one of them.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from celery import Celery
from kombu.exceptions import OperationalError
from sqlalchemy.exc import DBAPIError

from service.jobs.claim import unheard
from service.log import get_logger
from service.queue import reach
from worker.runner.tasks import ItemRunner

PERIOD_S = 5.0
"""Between two looks.  A look is a connection attempt, and while that fails one query."""
_ANSWER_S = 2.0
LOOKS = 3
"""At which the same items are ready before a worker takes itself for deaf: seven seconds at least,
in which a bell that rings is heard."""


class Poller:
    """Looks for the broker, and without it, or deaf to it, for work, in a thread until stopped.

    `reconnect` lets the consumer of bells begin anew.
    """

    def __init__(
        self, app: Celery, runner: ItemRunner, worker_id: str, reconnect: Callable[[], None]
    ) -> None:
        self._app = app
        self._runner = runner
        self._worker_id = worker_id
        self._reconnect = reconnect
        self._waiting: frozenset[str] = frozenset()
        """Ready at every look since this worker did something."""
        self._looks = 0
        self._taken = 0
        # Jitter keeps many workers apart; it decides nothing.
        self._jitter = random.Random(worker_id)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poller", daemon=True)

    def start(self) -> None:
        """Start looking."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; an item that runs must have been stopped before (`ItemRunner.stop`)."""
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        was_heard = True
        while not self._done.wait(PERIOD_S * (0.75 + 0.5 * self._jitter.random())):
            is_heard = self._is_heard()
            if was_heard and not is_heard:
                get_logger().warning("no broker: asking the database", every_s=PERIOD_S)
            was_heard = is_heard
            while not is_heard and not self._done.is_set():
                if self._runner.run("poll") is None:
                    break
                is_heard = self._is_heard()
            if is_heard and self._is_deaf():
                get_logger().warning("no bell is heard: connecting anew", ready=len(self._waiting))
                self._looks = 0
                self._reconnect()
                self._runner.run("poll")

    def _is_deaf(self) -> bool:
        """Whether the same items wait for this worker, which does nothing, at the third look."""
        try:
            now = unheard(self._runner.database, self._worker_id)
        except DBAPIError:
            now = frozenset()
        if self._looks and self._taken == self._runner.taken and self._waiting & now:
            self._waiting &= now
            self._looks += 1
        else:
            self._waiting, self._looks = now, int(bool(now))
        self._taken = self._runner.taken
        return self._looks >= LOOKS

    def _is_heard(self) -> bool:
        try:
            reach(self._app, _ANSWER_S)
        except (OperationalError, OSError):
            return False
        return True
