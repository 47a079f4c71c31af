"""What a sandboxed child may say to its worker, and the worker's answers.

The child is not trusted: every frame is checked before anything is done with it, and a frame that
breaks the rules ends the attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.store.records import BlobRef
from service.text import is_carried
from worker.compiler.cache import CacheKey, CacheKind
from worker.compiler.errors import Detail
from worker.job.request import ProgressSink
from worker.runner.progress import ProgressRecorder
from worker.runner.store_cache import StoreCache
from worker.sandbox import wire
from worker.sandbox.problems import problem_in
from worker.sandbox.sandbox import Sandbox
from worker.sandbox.stage_clock import StageClock

_MOST_FIELDS = 16
_LONGEST_FIELD = 256
_ENTRY_BYTES = 1024
"""What a row costs beside its value."""


@dataclass(slots=True)
class Conversation:
    """What the child has said so far."""

    done: wire.Message | None = None
    problem: dict[str, Detail] | None = None
    cache_bytes_left: int = 0
    """How much more of what it wants to store is taken."""
    out_of_memory: bool = False
    too_many_bytes: bool = False
    violation: str | None = None
    clock: StageClock | None = None
    """Ends stages that take too long."""


def answer(
    frame: wire.Message,
    sandbox: Sandbox,
    progress: ProgressSink,
    cache: StoreCache,
    said: Conversation,
) -> None:
    """Serve one frame of the child."""
    match frame.op:
        case "cache_get":
            value = cache.get(_key(frame))
            head: Mapping[str, Any] = {"hit": value is not None}
            wire.send(sandbox.channel, head, value or b"")
        case "cache_put":
            key = _key(frame)
            said.cache_bytes_left -= len(frame.body) + _ENTRY_BYTES
            if said.cache_bytes_left >= 0:  # beyond, its work is good and just not kept
                cache.put(key, frame.body)
        case "stage":
            name, state = frame.text("stage", 64), frame.text("state", 64)
            if said.clock is not None:
                said.clock.stage(name, state)
            progress.stage(name, state)
        case "units":
            progress.units(frame.count("solved"), frame.count("cached"), frame.count("total"))
        case "artifact":
            progress.artifact(frame.text("name", 128), frame.text("file", 256))
        case "done":
            said.done = frame
        case "memory":
            said.out_of_memory = True
        case "files":
            said.too_many_bytes = True
        case "problem":
            said.problem = problem_in(frame)
        case other:
            raise wire.ProtocolError(f"unknown operation {other[:40]!r}")


def _key(frame: wire.Message) -> CacheKey:
    fields = frame.head.get("fields")
    if not isinstance(fields, list) or len(fields) > _MOST_FIELDS:
        raise wire.ProtocolError(f"a cache key needs a list of at most {_MOST_FIELDS} pairs")
    for pair in fields:
        if not isinstance(pair, list) or [type(text) for text in pair] != [str, str]:
            raise wire.ProtocolError("a field of a cache key is a pair of name and text")
        if any(len(text) > _LONGEST_FIELD or not is_carried(text) for text in pair):
            raise wire.ProtocolError(
                f"text of a cache key has at most {_LONGEST_FIELD} characters, all of UTF-8"
            )
    try:
        kind = CacheKind(frame.text("kind"))
    except ValueError as error:
        raise wire.ProtocolError("unknown kind of cache entry") from error
    if kind in (CacheKind.RUN, CacheKind.READS):
        raise wire.ProtocolError(f"entries of kind {kind} are not a payload's to ask for")
    return CacheKey(kind, tuple((name, value) for name, value in fields))


def named_artifacts(
    done: wire.Message, progress: ProgressRecorder
) -> tuple[tuple[str, str, BlobRef], ...]:
    """Store the artifacts that a finished child names."""
    return tuple((name, file, progress.store(file)) for name, file in artifact_names(done))


def artifact_names(done: wire.Message) -> tuple[tuple[str, str], ...]:
    """(artifact, file name) pairs of a finished child.

    Raises:
        ProtocolError: they are no such pairs, or too many.
    """
    named = done.head.get("artifacts")
    if not isinstance(named, list) or len(named) > 1000:
        raise wire.ProtocolError("artifacts must be a list of at most 1000 pairs")
    for pair in named:
        if not isinstance(pair, list) or [type(text) for text in pair] != [str, str]:
            raise wire.ProtocolError("an artifact is a pair of name and file name")
    return tuple((name, file) for name, file in named)
