"""API keys: what they look like, and what a caller may do with one.

A key is `tw_PREFIX.SECRET`: the prefix finds its row, of the secret only the digest is stored.  A
secret has 256 random bits, so a fast digest is as good as a slow one (6-service.md, section 7).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from types import MappingProxyType

LOCAL = "local"
"""The project of whoever needs no key, and of all that was stored before there were keys."""
PROJECT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_ONE_RATE = r"[1-9][0-9]{0,8}/(?:second|minute|hour|day)"
RATE = re.compile(rf"{_ONE_RATE}(?:;{_ONE_RATE}){{0,3}}")
"""`N/WINDOW`, several of them apart by `;`: all must hold."""
_PREFIX_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"
_PREFIX_CHARS = 12
_KEY = re.compile(rf"tw_([{_PREFIX_ALPHABET}]{{{_PREFIX_CHARS}}})\.([A-Za-z0-9_-]{{43}})")


class Scope(StrEnum):
    """What a key allows; none includes another, but `admin` includes `keys`."""

    READ = "read"
    """Look at everything of its project, and ask what stores nothing."""
    WRITE = "write"
    """Create, cancel and delete in its project."""
    METRICS = "metrics"
    """Totals over all projects, for a monitoring system."""
    KEYS = "keys"
    """Create, list and revoke keys of its project that may do no more than it may, and read the
    project's part of the audit log."""
    ADMIN = "admin"
    """Create, list and revoke keys, set limits and read the audit log, of any project."""


class Role(StrEnum):
    """A name for what people of one kind need: a set of scopes, and nothing beside it."""

    READER = "reader"
    """Looks at results."""
    DEVELOPER = "developer"
    """Compiles, too: what CI and people have."""
    LEAD = "lead"
    """Gives a project's people their keys beside that."""
    OPERATOR = "operator"
    """Compiles, and watches the service."""
    ADMIN = "admin"
    """May do anything."""


SCOPES_OF: Mapping[Role, frozenset[Scope]] = MappingProxyType(
    {
        Role.READER: frozenset({Scope.READ}),
        Role.DEVELOPER: frozenset({Scope.READ, Scope.WRITE}),
        Role.LEAD: frozenset({Scope.READ, Scope.WRITE, Scope.KEYS}),
        Role.OPERATOR: frozenset({Scope.READ, Scope.WRITE, Scope.METRICS}),
        Role.ADMIN: frozenset(Scope) - {Scope.KEYS},
    }
)


def role_of(scopes: Iterable[Scope]) -> Role | None:
    """The role that has just these scopes; None: it is none of them."""
    given = frozenset(scopes)
    return next((role for role, held in SCOPES_OF.items() if held == given), None)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request."""

    project: str
    scopes: frozenset[Scope]
    key_id: str | None
    """None: no key was needed."""
    who: str = ""
    """For people: the key's name, or whose token it is."""
    rate: str | None = None
    """Of the key; None: what settings give every key."""
    project_rate: str | None = None
    """Of its project; None: what settings give every project."""

    def may(self, needed: Scope) -> bool:
        """Whether it has a scope, or one that includes it."""
        return needed in self.scopes or (needed is Scope.KEYS and Scope.ADMIN in self.scopes)


OPERATOR = Caller(LOCAL, frozenset(Scope), None, "operator")
"""Whoever reaches a server that listens on loopback alone, or opens the data directory."""


def new_key() -> tuple[str, str]:
    """A new key: (prefix, whole text).  The one use of randomness: nothing derives from it."""
    prefix = "".join(secrets.choice(_PREFIX_ALPHABET) for _ in range(_PREFIX_CHARS))
    return prefix, f"tw_{prefix}.{secrets.token_urlsafe(32)}"


def prefix_of(text: str) -> str | None:
    """The prefix of a key; None: the text has not the form of one."""
    found = _KEY.fullmatch(text)
    return None if found is None else found[1]


def digest_of(text: str) -> str:
    """What is stored of a key."""
    return sha256(text.encode()).hexdigest()


def is_same(digest: str, text: str) -> bool:
    """Whether a key has this digest; takes as long for all."""
    return secrets.compare_digest(digest, digest_of(text))
