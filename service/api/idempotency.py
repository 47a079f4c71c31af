"""Idempotency-Key: what binds a key to a request.  It is taken in the transaction that creates."""

from __future__ import annotations

from hashlib import sha256

from service.jobs.submit import IdempotencyKey


def request_key(key: str | None, *, owner: str, route: str, body: bytes) -> IdempotencyKey | None:
    """Build the key of a request from its header and body."""
    if key is None:
        return None
    return IdempotencyKey(f"{owner} {route}", key, sha256(body).hexdigest())
