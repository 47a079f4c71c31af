"""Browsers that have shown a key: a signed cookie says which, until it ends.

The cookie holds the key's prefix, when it ends, and a signature; never the key, because browsers
send cookies to every port of a host.  The key's row is looked up with each request, so a revoked
key ends its sessions.  Share links are signed by the same secret.
"""

from __future__ import annotations

import hmac
import os
import secrets
import time
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from starlette.requests import Request

from service.settings import Settings

COOKIE = "tilewright_session"
SESSION_S = 12 * 3600
"""A working day; then the key is asked for again."""
_FILE = "session-secret"
_SEPARATOR = "."


@dataclass(frozen=True)
class Signer:
    """Signs what browsers bring back, and reads it."""

    settings: Settings

    @cached_property
    def _secret(self) -> bytes:
        """The setting's, or the data directory's own, which is made where it is needed first."""
        given = self.settings.session_secret
        if given:
            return given.encode()
        path = self.settings.data_dir / _FILE
        if not path.exists():
            draft = path.with_name(f"{_FILE}.{secrets.token_hex(8)}")
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_urlsafe(32))
            try:
                os.link(draft, path)  # of several processes that start together, one wins
            except FileExistsError:
                pass
            finally:
                draft.unlink()
        return path.read_bytes()

    def sign(self, purpose: str, name: str, lasts_s: float) -> str:
        """A text that says `name` for so long."""
        until = int(time.time() + lasts_s)
        return _SEPARATOR.join((name, str(until), self._mac(purpose, name, until)))

    def read(self, purpose: str, text: str) -> tuple[str, int] | None:
        """(name, when it ends) of a text that was signed for this purpose and has not ended."""
        name, _, rest = text.rpartition(_SEPARATOR)
        name, _, until = name.rpartition(_SEPARATOR)
        if not (name and until.isascii() and until.isdecimal() and len(until) < 16):
            return None
        if not hmac.compare_digest(rest.encode(), self._mac(purpose, name, int(until)).encode()):
            return None
        return (name, int(until)) if time.time() < int(until) else None

    def _mac(self, purpose: str, name: str, until: int) -> str:
        return hmac.new(self._secret, f"{purpose}\n{name}\n{until}".encode(), sha256).hexdigest()


def session_of(signer: Signer, request: Request) -> str | None:
    """The prefix of the key whose session the request belongs to."""
    cookie = request.cookies.get(COOKIE)
    found = None if cookie is None else signer.read("session", cookie)
    return None if found is None else found[0]


def is_of_own_page(request: Request) -> bool:
    """Whether a browser says that a page of this server sends it.

    `service.api.origin` has refused pages that say otherwise; here whoever says nothing is, too,
    because a cookie is sent without anybody's doing.
    """
    return "origin" in request.headers or (
        request.headers.get("sec-fetch-site", "").lower() == "same-origin"
    )
