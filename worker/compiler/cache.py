"""The cache port: what the compiler asks of whoever stores its results.

Comes in: (kind, key) where key is a hex sha256 of everything that decides the value.  Goes out:
immutable bytes.  The port must not know what the bytes mean.  `MemoryCache` is the in-process
implementation; the service puts a database behind the same protocol.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Protocol


class CacheKind(StrEnum):
    SCHEDULE = "schedule"
    PROGRAM = "program"
    SIMULATION = "simulation"
    CHOICE = "choice"
    """Which of a strategy's candidates is the best for a unit."""
    VERDICT = "verdict"
    """Which of several programs of a model was the best."""
    ORACLE = "oracle"
    """What an oracle has answered to a batch of calls."""
    RUN = "run"
    """Documents of a whole compile, which the gate compares; no compile reads or writes any."""
    READS = "reads"
    """Which entries a compile found: the worker reads all of them at once for the next one like it;
    no compile reads or writes any."""


@dataclass(frozen=True, slots=True)
class CacheKey:
    """A cache key and the named fields it was made of, kept so that misses can be explained."""

    kind: CacheKind
    fields: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> str:
        text = json.dumps([str(self.kind), *map(list, self.fields)], separators=(",", ":"))
        return sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """One look-up, as reported to the user."""

    kind: str
    digest: str
    outcome: str
    """`hit` or `miss`."""
    label: str
    signature: str = ""
    """Of the unit it was for; several units may have one label."""


class Cache(Protocol):
    """Immutable values by key.  Implementations never raise for a miss."""

    def get(self, key: CacheKey) -> bytes | None:
        """Return the stored value, or None."""
        ...

    def put(self, key: CacheKey, value: bytes) -> None:
        """Store; a second put of the same key is ignored (first writer wins)."""
        ...


@dataclass(slots=True)
class MemoryCache:
    """A dictionary behind the port."""

    entries: dict[str, bytes] = field(default_factory=dict)
    keys: dict[str, CacheKey] = field(default_factory=dict)

    def get(self, key: CacheKey) -> bytes | None:
        return self.entries.get(key.digest)

    def put(self, key: CacheKey, value: bytes) -> None:
        self.entries.setdefault(key.digest, value)
        self.keys.setdefault(key.digest, key)


class NullCache:
    """Remembers nothing: `--no-cache`."""

    def get(self, key: CacheKey) -> bytes | None:
        del key
        return None

    def put(self, key: CacheKey, value: bytes) -> None:
        del key, value
