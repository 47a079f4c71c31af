"""What a sandboxed child may say to its worker, and the worker's answers.

The child is not trusted: every frame is checked before anything is done with it, and a frame that
breaks the rules ends the attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.store.records import BlobRef
from worker import wire
from worker.compiler.cache import CacheKey, CacheKind
from worker.compiler.error_catalog import ERROR_CATALOG
from worker.compiler.errors import Detail
from worker.progress import ProgressRecorder
from worker.sandbox import Sandbox
from worker.store_cache import StoreCache


@dataclass(slots=True)
class Conversation:
    """What the child has said so far."""

    done: wire.Frame | None = None
    problem: dict[str, Detail] | None = None
    out_of_memory: bool = False
    violation: str | None = None


def answer(
    frame: wire.Frame,
    sandbox: Sandbox,
    progress: ProgressRecorder,
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
            cache.put(_key(frame), frame.body)
        case "stage":
            progress.stage(frame.text("stage", 64), frame.text("state", 64))
        case "units":
            progress.units(frame.count("solved"), frame.count("cached"), frame.count("total"))
        case "artifact":
            progress.artifact(frame.text("name", 128), frame.text("file", 256))
        case "done":
            said.done = frame
        case "memory":
            said.out_of_memory = True
        case "problem":
            said.problem = _problem(frame)
        case other:
            raise wire.ProtocolError(f"unknown operation {other[:40]!r}")


def _key(frame: wire.Frame) -> CacheKey:
    fields = frame.head.get("fields")
    if not isinstance(fields, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)
        for pair in fields
    ):
        raise wire.ProtocolError("a cache key needs a list of pairs of text")
    try:
        kind = CacheKind(frame.text("kind"))
    except ValueError as error:
        raise wire.ProtocolError("unknown kind of cache entry") from error
    return CacheKey(kind, tuple((name, value) for name, value in fields))


def _problem(frame: wire.Frame) -> dict[str, Detail]:
    document = frame.head.get("problem")
    if not isinstance(document, dict) or document.get("code") not in ERROR_CATALOG:
        raise wire.ProtocolError("a problem needs a code of the catalogue")
    return document


def named_artifacts(
    done: wire.Frame, progress: ProgressRecorder
) -> tuple[tuple[str, str, BlobRef], ...]:
    """Store the artifacts that a finished child names."""
    named = done.head.get("artifacts")
    if not isinstance(named, list) or len(named) > 1000:
        raise wire.ProtocolError("artifacts must be a list of at most 1000 pairs")
    found = []
    for pair in named:
        if not isinstance(pair, list) or [type(text) for text in pair] != [str, str]:
            raise wire.ProtocolError("an artifact is a pair of name and file name")
        name, file_name = pair
        found.append((name, file_name, progress.store(file_name)))
    return tuple(found)
