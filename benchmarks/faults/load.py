"""The users: they submit until they are told that a job was accepted, and cancel a few.

A request that fails is sent again with the same idempotency key, for as long as the campaign
lasts: so each submit must end as one job, however often it was tried.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar

import onnx

from benchmarks.random_models import BLOCKS, Model
from service.cli.demo import EXAMPLE
from service.client import ApiError, Client

USERS = 4
_TIMEOUT_S = 5.0
_PAUSE_S = 0.3
_CANCELED = 0.05
_ENDED = "TW-SVC-002"
"""Who cancels a job that has ended is told so."""
T = TypeVar("T")
_BLOCKS = ("plain", "residual", "excited")
"""One of each makes a small model."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A job that many submit: its outcome is always the same."""

    name: str
    model: Path
    hardware: str
    options: tuple[tuple[str, str], ...]


def kinds(folder: Path) -> list[Kind]:
    """A few small models by several strategies on several chips; their files are written there."""
    models = [EXAMPLE]
    for name in _BLOCKS:
        path = folder / f"{name}.onnx"
        path.write_bytes(_of_one_block(name))
        models.append(path)
    refused = folder / "refused.onnx"
    refused.write_bytes(_of_no_operator())
    found = []
    for model in models:
        for hardware, strategy in (("kapla-edge", "naive"), ("simba", "graphturbo")):
            options = (("strategy", strategy), ("verify", "none"))
            found.append(Kind(f"{model.stem} {strategy}", model, hardware, options))
    found.append(Kind("verified", EXAMPLE, "kapla-edge", (("strategy", "naive"),)))
    found.append(Kind("refused", refused, "kapla-edge", (("strategy", "naive"),)))
    return found


def _of_one_block(name: str) -> bytes:
    m = Model(len(name))
    m.shapes["x"] = (1, 4, 8, 8)
    (block,) = (block for block in BLOCKS if block.__name__ == name)
    return m.finished("x", [block(m, "x")]).SerializeToString()


def _of_no_operator() -> bytes:
    """A model that is refused: an operator that nobody knows."""
    model = onnx.load(EXAMPLE)
    model.graph.node[0].op_type = "NoSuchOperator"
    return model.SerializeToString()


@dataclass(frozen=True, slots=True)
class Accepted:
    """A job that the API said it has."""

    id: str
    kind: str
    is_canceled: bool
    """Its user asked for its end; whether it came in time is open."""


class Load:
    """Submits a number of jobs."""

    def __init__(self, url: str, found: list[Kind], count: int, seed: int) -> None:
        self.accepted: list[Accepted] = []
        self.given_up = 0
        """Submits that never became a job."""
        self.refused: list[str] = []
        """Answers that no user should get: neither a success nor something to try again."""
        self.tried_again: Counter[str] = Counter()
        self._url = url
        self._kinds = found
        self._count = count
        self._seed = seed
        self._lock = threading.Lock()

    def run(self, give_up: float) -> None:
        """Submit all of them, by several users at once, until the clock says `give_up`."""
        with ThreadPoolExecutor(USERS) as users:
            for done in [users.submit(self._user, n, give_up) for n in range(USERS)]:
                done.result()

    def _user(self, user: int, give_up: float) -> None:
        random = Random(f"{self._seed}.user.{user}")
        with Client(self._url, timeout_s=_TIMEOUT_S) as client:
            for number in range(user, self._count, USERS):
                kind = self._kinds[random.randrange(len(self._kinds))]
                is_canceled = random.random() < _CANCELED
                job = self._until_answered(partial(self._submit, client, kind, number), give_up)
                if job is None:
                    self.given_up += 1
                    continue
                if is_canceled:
                    self._until_answered(partial(client.cancel, job), give_up)
                with self._lock:
                    self.accepted.append(Accepted(job, kind.name, is_canceled))
                time.sleep(random.uniform(0.0, _PAUSE_S))

    def _submit(self, client: Client, kind: Kind, number: int) -> str:
        model = client.upload_model(kind.model)
        request = {"model": model["id"], "hardware": kind.hardware, "options": dict(kind.options)}
        return str(client.submit(request, key=f"faults-{self._seed}-{number}")["id"])

    def _until_answered(self, ask: Callable[[], T], give_up: float) -> T | None:
        """What is answered at last; None when there is no use in asking again."""
        while time.monotonic() < give_up:
            try:
                return ask()
            except ApiError as error:
                if error.code == _ENDED:
                    return None
                with self._lock:
                    self.tried_again[error.code] += error.retryable
                    if not error.retryable:
                        self.refused.append(f"{error.status} {error}")
                        return None
            time.sleep(_PAUSE_S)
        with self._lock:
            self.refused.append("no answer until the campaign gave up")
        return None
