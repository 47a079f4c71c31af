"""Work goes on while the broker is away: the database is asked, slowly.

Bells only wake workers; what there is to do stands in the database.  While no bell can ring, one
thread of each stand-alone worker takes items one by one.  As soon as the broker answers again the
reconciler rings for what is ready and all slots take part.
"""

from __future__ import annotations

import random
import threading

from celery import Celery
from kombu.exceptions import OperationalError

from service.log import get_logger
from service.queue import reach
from worker.runner.tasks import ItemRunner

PERIOD_S = 5.0
"""Between two looks.  A look is a connection attempt, and while that fails one query."""
_ANSWER_S = 2.0


class Poller:
    """Looks for the broker, and without it for work, in a thread until stopped."""

    def __init__(self, app: Celery, runner: ItemRunner, worker_id: str) -> None:
        self._app = app
        self._runner = runner
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

    def _is_heard(self) -> bool:
        try:
            reach(self._app, _ANSWER_S)
        except (OperationalError, OSError):
            return False
        return True
