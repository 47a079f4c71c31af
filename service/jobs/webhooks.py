"""Subscriptions to the ends of a project's jobs and sweeps.  Each function is one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from service.addresses import Allowed
from service.errors import Conflict, QuotaExceeded
from service.jobs import audit
from service.jobs.query import delivery_of, webhook_of
from service.jobs.submit import IdempotencyKey, first_made
from service.push.targets import checked
from service.sealing import new_secret, seal
from service.settings import Settings
from service.states import EventType
from service.store.ids import new_id
from service.store.records import DeliveryRecord, WebhookRecord
from service.store.repos import catalog, deliveries, webhooks
from service.store.repos.deliveries import PING
from service.store.session import Database

MOST = 50
"""Subscriptions of one project: each costs a row for every job that ends."""
FORMER_S = 86400.0
"""How long the secret before a rotation goes on signing, so that receivers can change theirs."""


@dataclass(frozen=True, slots=True)
class NewWebhook:
    """What a user subscribes to."""

    url: str
    name: str
    events: Sequence[EventType]
    """Empty: all there are."""


SecretShown = Callable[[WebhookRecord, str], None]
DeliveryShown = Callable[[DeliveryRecord], None]


def create_webhook(
    database: Database,
    settings: Settings,
    new: NewWebhook,
    *,
    owner: str,
    idempotency: IdempotencyKey | None = None,
    before_commit: SecretShown | None = None,
) -> tuple[WebhookRecord, str]:
    """Subscribe: (what is stored, its secret).  The secret is told once.

    Raises:
        Malformed: the URL is none, or leads where messages may not go.
        QuotaExceeded: the owner has as many as it may.
        Conflict: a request with this idempotency key has made one, whose secret is told no more.
    """
    checked(new.url, Allowed.of(settings.webhook_hosts))
    webhook_id, secret = new_id("wh"), new_secret()
    with database.write() as session:
        _take_once(session, idempotency, webhook_id, "Delete the one that got lost; make another.")
        if webhooks.count(session, owner) >= MOST:
            raise QuotaExceeded(
                f"a project has at most {MOST} webhooks", limit=MOST,
                remedy="Delete one that is not needed.",
            )  # fmt: skip
        webhooks.insert(
            session, webhook_id=webhook_id, project=owner, name=new.name, url=new.url,
            events=[event for event in EventType if event in new.events or not new.events],
            secret=seal(secret, settings.webhook_keys),
        )  # fmt: skip
        audit.record(session, audit.current(), webhook_id)
        record = webhook_of(session, webhook_id, owner)
        if before_commit is not None:
            before_commit(record, secret)
    return record, secret


def rotate_secret(
    database: Database,
    settings: Settings,
    webhook_id: str,
    *,
    owner: str,
    idempotency: IdempotencyKey | None = None,
    before_commit: SecretShown | None = None,
) -> tuple[WebhookRecord, str]:
    """Give a subscription a new secret, told once; the one before signs, too, for FORMER_S.

    Raises:
        NotFound: it is unknown, or another owner's.
        Conflict: a request with this idempotency key has done it; the secret is told no more.
    """
    secret = new_secret()
    with database.write() as session:
        webhook_of(session, webhook_id, owner)
        _take_once(session, idempotency, webhook_id, "Ask for another one.")
        webhooks.rotate(session, webhook_id, seal(secret, settings.webhook_keys), FORMER_S)
        audit.record(session, audit.current(), webhook_id)
        record = webhook_of(session, webhook_id, owner)
        if before_commit is not None:
            before_commit(record, secret)
    return record, secret


def enable_webhook(
    database: Database,
    webhook_id: str,
    *,
    owner: str,
    before_commit: Callable[[WebhookRecord], None] | None = None,
) -> WebhookRecord:
    """Send to a disabled subscription again; of jobs that ended meanwhile nothing is told.

    Raises:
        NotFound: it is unknown, or another owner's.
    """
    with database.write() as session:
        webhook_of(session, webhook_id, owner)
        webhooks.enable(session, webhook_id)
        audit.record(session, audit.current(), webhook_id)
        record = webhook_of(session, webhook_id, owner)
        if before_commit is not None:
            before_commit(record)
    return record


def delete_webhook(database: Database, webhook_id: str, owner: str) -> None:
    """Delete a subscription with its secret and its deliveries, also those that wait.

    Raises:
        NotFound: it is unknown, or another owner's.
    """
    with database.write() as session:
        webhook_of(session, webhook_id, owner)
        webhooks.remove(session, webhook_id)
        audit.record(session, audit.current(), webhook_id)


def ping(
    database: Database,
    webhook_id: str,
    *,
    owner: str,
    idempotency: IdempotencyKey | None = None,
    before_commit: DeliveryShown | None = None,
) -> DeliveryRecord:
    """Send a message that says nothing, also to a disabled subscription, and once only.

    Raises:
        NotFound: it is unknown, or another owner's.
        IdempotencyMismatch: the key was used with another request.
    """
    delivery_id = new_id("msg")
    with database.write() as session:
        webhook_of(session, webhook_id, owner)
        earlier = first_made(session, idempotency, delivery_id)
        if earlier is None:
            facts = {"webhook": webhook_id}
            deliveries.insert(session, delivery_id, webhook_id, PING, facts)
            audit.record(session, audit.current(), delivery_id)
        return _answered(session, webhook_id, earlier or delivery_id, owner, before_commit)


def replay(
    database: Database,
    webhook_id: str,
    delivery_id: str,
    *,
    owner: str,
    idempotency: IdempotencyKey | None = None,
    before_commit: DeliveryShown | None = None,
) -> DeliveryRecord:
    """Send a message that has ended again: the same id and body, signed anew.

    Raises:
        NotFound: it is unknown, or another owner's.
        Conflict: it has not ended, or its subscription is disabled.
        IdempotencyMismatch: the key was used with another request.
    """
    with database.write() as session:
        found = delivery_of(session, webhook_id, delivery_id, owner)
        if first_made(session, idempotency, delivery_id) is None:
            if webhook_of(session, webhook_id, owner).disabled is not None:
                raise Conflict(
                    "the webhook is disabled", actual=webhook_id, remedy="Enable it first."
                )
            if not deliveries.replay(session, delivery_id):
                raise Conflict(
                    f"the delivery is {found.state}: it will be sent", actual=str(found.state),
                    remedy="Wait for its end; `next_attempt` says when it is tried.",
                )  # fmt: skip
            audit.record(session, audit.current(), delivery_id)
        return _answered(session, webhook_id, delivery_id, owner, before_commit)


def _answered(
    session: Session, webhook_id: str, delivery_id: str, owner: str,
    before_commit: DeliveryShown | None,
) -> DeliveryRecord:  # fmt: skip
    record = delivery_of(session, webhook_id, delivery_id, owner)
    if before_commit is not None:
        before_commit(record)
    return record


def _take_once(
    session: Session, idempotency: IdempotencyKey | None, webhook_id: str, remedy: str
) -> None:
    if idempotency is not None and not catalog.remember(
        session, scope=idempotency.scope, key=idempotency.key,
        request_sha256=idempotency.request_sha256, resource_id=webhook_id,
    ):  # fmt: skip
        raise Conflict(
            "a request with this Idempotency-Key was answered, and a secret is told once",
            remedy=remedy,
        )
