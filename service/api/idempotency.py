"""Idempotency-Key for creates whose content dedupes by digest anyway (models, hardware).

Jobs take their key inside the transaction that creates them; see `service.jobs.submit`.
"""

from __future__ import annotations

from hashlib import sha256

from service.errors import IdempotencyMismatch
from service.jobs.submit import IdempotencyKey
from service.store.repos import catalog
from service.store.session import Database


def request_key(key: str | None, *, owner: str, route: str, body: bytes) -> IdempotencyKey | None:
    """Build the key of a request from its header and body."""
    if key is None:
        return None
    return IdempotencyKey(f"{owner} {route}", key, sha256(body).hexdigest())


def check_replay(database: Database, key: IdempotencyKey | None) -> None:
    """Refuse a key that was used with another body.

    Raises:
        IdempotencyMismatch: it was.
    """
    if key is None:
        return
    with database.read() as session:
        known = catalog.recall(session, key.scope, key.key)
    if known is not None and known[0] != key.request_sha256:
        raise IdempotencyMismatch(
            "this Idempotency-Key was used with another request body",
            limit=known[0],
            actual=key.request_sha256,
        )


def remember(database: Database, key: IdempotencyKey | None, resource_id: str) -> None:
    """Bind a key to the resource that its first request created."""
    if key is None:
        return
    with database.write() as session:
        catalog.remember(
            session,
            scope=key.scope,
            key=key.key,
            request_sha256=key.request_sha256,
            resource_id=resource_id,
        )
