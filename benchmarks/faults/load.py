"""The users: they ask until they are told that something was accepted, and cancel some of it.

A request that fails is sent again with the same idempotency key, for as long as the campaign
lasts: so each submit must end as one job or one sweep, however often it was tried.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import TypeVar

from benchmarks.faults.work import (
    Fate,
    JobTask,
    Kind,
    SweepKind,
    SweepTask,
    Task,
    num_jobs,
    padded,
)
from service.client import ApiError, Client
from service.client.errors import Json
from service.client.uploads import upload_resumable
from service.states import OPEN_SWEEP_STATES

USERS = 6
_TIMEOUT_S = 5.0
_PAUSE_S = 0.3
_STRUCK_UNTIL = 0.1
"""The part of all jobs that has not ended when the last fault strikes."""
_MOST_OPEN = 40
"""Users wait while more has not ended: so they ask from the first fault to the last."""
_CHUNK_BYTES = 64 << 10
_CONFLICT = "TW-SVC-002"
"""Who cancels what has ended is told so."""
_OPEN = frozenset(map(str, OPEN_SWEEP_STATES))
T = TypeVar("T")


class Answer(StrEnum):
    """What a user was told who asked for a cancel."""

    NOT_ASKED = "not asked"
    YES = "yes"
    """It ends canceled; a sweep, unless all of it had a result."""
    TOO_LATE = "too late"
    """It had ended."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Accepted:
    """A job or a sweep that the API said it has."""

    id: str
    kind: str
    cancel: Answer = Answer.NOT_ASKED
    is_resumed: bool = False
    """A sweep: it was canceled, and the API said that it goes on."""


class TooLate(Exception):
    """The API said that it has ended."""


class NoAnswer(Exception):
    """Until the campaign gave up, or one that no user should get."""


class Load:
    """Does what is planned."""

    def __init__(self, url: str, tasks: Sequence[Task], seed: int) -> None:
        self.jobs: list[Accepted] = []
        self.sweeps: list[Accepted] = []
        self.models: dict[str, str] = {}
        """Ids of uploaded models that nobody else has: their digests."""
        self.refused: list[str] = []
        """Answers that no user should get: neither a success nor something to try again."""
        self.tried_again: Counter[str] = Counter()
        self.taken: list[Task] = []
        """What users have begun with."""
        self.left = 0
        """Jobs, sweeps and items that have not ended, as far as whoever watches them knows."""
        self.is_done = False
        self._url = url
        self._tasks = tasks
        self._seed = seed
        self._lock = threading.Lock()

    def run(self, give_up: float, begin_until: float) -> None:
        """Do all of it, by several users at once.

        Nothing is begun after the clock says `begin_until`, and nothing tried after `give_up`.
        """
        with ThreadPoolExecutor(USERS) as users:
            for done in [users.submit(self._user, n, give_up, begin_until) for n in range(USERS)]:
                done.result()
        self.is_done = True

    def has_few(self, left: int) -> bool:
        """Whether all was submitted, and only a small part of it is left."""
        self.left = left
        return self.is_done and left <= _STRUCK_UNTIL * num_jobs(self.taken)

    def _user(self, user: int, give_up: float, begin_until: float) -> None:
        random = Random(f"{self._seed}.user.{user}")
        with Client(self._url, timeout_s=_TIMEOUT_S) as client:
            for number in range(user, len(self._tasks), USERS):
                while self.left > _MOST_OPEN and time.monotonic() < begin_until:
                    time.sleep(_PAUSE_S)
                if time.monotonic() > begin_until:
                    return
                self.taken.append(self._tasks[number])
                try:
                    self._do(client, self._tasks[number], f"{self._seed}-{number}", give_up)
                except NoAnswer:
                    continue
                except TooLate as error:
                    with self._lock:
                        self.refused.append(f"a conflict nobody has caused: {error}")
                time.sleep(random.uniform(0.0, _PAUSE_S))

    def _do(self, client: Client, task: Task, key: str, give_up: float) -> None:
        match task:
            case JobTask():
                job = self._until(partial(_submit, client, task.kind, f"faults-{key}"), give_up)
                found = Accepted(job, task.kind.name)
                if task.is_canceled:
                    ask = partial(client.cancel, job)
                    found = replace(found, cancel=self._cancel(ask, give_up))
                self._keep(self.jobs, found)
            case SweepTask():
                submit = partial(_submit_sweep, client, task.kind, f"faults-{key}")
                self._keep(self.sweeps, self._follow(client, self._until(submit, give_up), task,
                                                     give_up))  # fmt: skip
            case _:
                content = padded(task.padding)
                made = self._until(partial(_upload, client, content), give_up)
                with self._lock:
                    self.models[made] = sha256(content).hexdigest()

    def _follow(self, client: Client, sweep: str, task: SweepTask, give_up: float) -> Accepted:
        found = Accepted(sweep, task.kind.name)
        if task.fate is Fate.LEFT:
            return found
        cancel = self._cancel(partial(client.cancel_sweep, sweep), give_up)
        found = replace(found, cancel=cancel)
        if task.fate is Fate.CANCELED or cancel is not Answer.YES:
            return found
        try:
            while str(self._until(partial(client.sweep, sweep), give_up)["state"]) in _OPEN:
                time.sleep(_PAUSE_S)
            self._until(partial(client.resume_sweep, sweep), give_up)
        except NoAnswer:
            return found
        return replace(found, is_resumed=True)

    def _cancel(self, ask: Callable[[], object], give_up: float) -> Answer:
        try:
            self._until(ask, give_up)
        except TooLate:
            return Answer.TOO_LATE
        except NoAnswer:
            return Answer.NONE
        return Answer.YES

    def _keep(self, where: list[Accepted], found: Accepted) -> None:
        with self._lock:
            where.append(found)

    def _until(self, ask: Callable[[], T], give_up: float) -> T:
        """What is answered at last.

        Raises:
            TooLate: a conflict.
            NoAnswer: none, or one that no user should get; it is in `refused`.
        """
        while time.monotonic() < give_up:
            try:
                return ask()
            except ApiError as error:
                if error.code == _CONFLICT and not error.retryable:
                    raise TooLate(str(error)) from error
                with self._lock:
                    self.tried_again[error.code] += error.retryable
                    if not error.retryable:
                        self.refused.append(f"{error.status} {error}")
                        raise NoAnswer from error
            time.sleep(_PAUSE_S)
        with self._lock:
            self.refused.append("no answer until the campaign gave up")
        raise NoAnswer


def _submit(client: Client, kind: Kind, key: str) -> str:
    model = client.upload_model(kind.model)
    return str(client.submit(job_request(kind, model["id"]), key=key)["id"])


def _submit_sweep(client: Client, kind: SweepKind, key: str) -> str:
    models = [client.upload_model(path)["id"] for path in kind.models]
    return str(client.submit_sweep(sweep_request(kind, models), key=key)["id"])


def job_request(kind: Kind, model: Json) -> dict[str, Json]:
    """What a job of a kind asks for, with the id of its model."""
    return {"model": model, "hardware": kind.hardware, "options": dict(kind.options)}


def sweep_request(kind: SweepKind, models: Sequence[Json]) -> dict[str, Json]:
    """What a sweep of a kind asks for, with the ids of its models."""
    request: dict[str, Json] = {
        "models": list(models), "hardware": list(kind.hardware), "options": dict(kind.options),
    }  # fmt: skip
    if kind.vary is not None:
        request |= {"base": kind.base, "vary": [kind.vary]}
    return request


def _upload(client: Client, content: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        file.write(content)
        file.flush()
        made = upload_resumable(
            client.transport, Path(file.name), name="padded.onnx", progress=None,
            chunk_bytes=_CHUNK_BYTES,
        )  # fmt: skip
    return str(made["id"])
