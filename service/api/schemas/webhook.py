"""Webhooks and what was sent to them; times are seconds since the epoch."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, StringConstraints

from service.api.schemas.base import AnswerModel, RequestModel
from service.push.targets import MOST_CHARS
from service.states import DeliveryState, EventType
from service.store.records import DeliveryAttemptRecord, DeliveryRecord, WebhookRecord
from service.text import carried


class WebhookRequest(RequestModel):
    """A subscription to be made."""

    url: Annotated[str, StringConstraints(min_length=1, max_length=MOST_CHARS)]
    """Where messages are sent: https, and a public address."""
    name: Annotated[str, StringConstraints(max_length=100)] = ""
    """For whom or what: shown in lists."""
    events: Annotated[
        list[Annotated[EventType, Field(strict=False)]],
        Field(max_length=len(EventType), default_factory=list),
    ]
    """What is told; all there are where it is left out or empty."""


class WebhookAnswer(AnswerModel):
    """A subscription without its secret."""

    id: str
    """Its id."""
    url: str
    """Where messages are sent."""
    name: str
    """For whom or what it is."""
    events: list[EventType]
    """What is told."""
    created: float
    """When it was made."""
    failing_since: float | None
    """Since when no attempt has succeeded; null: the last one did, or there was none."""
    disabled: float | None
    """When the server gave it up; null: it did not."""
    disabled_why: str | None
    """Why it did."""
    former_until: float | None
    """Until when the secret before the last rotation signs, too; null: no longer."""

    @classmethod
    def from_record(cls, record: WebhookRecord) -> Self:
        """Build the answer."""
        return cls(
            id=record.id, url=record.url, name=record.name, events=list(record.events),
            created=record.created, failing_since=record.failing_since, disabled=record.disabled,
            disabled_why=record.disabled_why, former_until=record.former_until,
        )  # fmt: skip


class WebhookSecretAnswer(WebhookAnswer):
    """A subscription with a secret that was made now."""

    secret: str
    """What messages are signed with, which is told here and never again."""


class WebhookList(AnswerModel):
    """All subscriptions of the project."""

    items: list[WebhookAnswer]
    """The subscriptions, the oldest first."""


class DeliveryAnswer(AnswerModel):
    """One message to one subscription."""

    id: str
    """Its `webhook-id`: the same in every attempt."""
    webhook: str
    """Id of the subscription."""
    type: str
    """What it tells: an event, or `webhook.ping`."""
    job: str | None
    """Id of the job that it tells of; null in a ping."""
    state: DeliveryState
    """What has become of it."""
    attempts: int
    """How often it was sent, or tried to."""
    next_attempt: float | None
    """When it is tried next; null: it has ended."""
    created: float
    """When it was written."""
    finished: float | None
    """When it was delivered or given up; null: it waits."""

    @classmethod
    def from_record(cls, record: DeliveryRecord) -> Self:
        """Build the answer."""
        return cls(**_fields(record))


def _fields(record: DeliveryRecord) -> dict[str, object]:
    is_open = record.state is DeliveryState.PENDING
    return {
        "id": record.id, "webhook": record.webhook_id, "type": record.type, "job": record.job_id,
        "state": record.state, "attempts": record.attempts,
        "next_attempt": record.not_before if is_open else None, "created": record.created,
        "finished": record.finished,
    }  # fmt: skip


class DeliveryAttemptAnswer(AnswerModel):
    """One try to deliver a message."""

    number: int
    """1 for the first."""
    started: float
    """When it began."""
    duration_s: float | None
    """How long it took; null: it goes on, or its worker died in it."""
    status: int | None
    """What the receiver answered; null: it did not.  Nothing else of an answer is kept."""
    error: str | None
    """Why it counts as failed; null: it does not, or goes on."""

    @classmethod
    def from_record(cls, record: DeliveryAttemptRecord) -> Self:
        """Build the answer."""
        return cls(
            number=record.number, started=record.started, duration_s=record.duration_s,
            status=record.status, error=record.error,
        )  # fmt: skip


class DeliveryDetail(DeliveryAnswer):
    """One message with its text and all attempts."""

    body: str
    """The very text that is signed and sent."""
    log: list[DeliveryAttemptAnswer]
    """All attempts, the first one first."""

    @classmethod
    def of(cls, record: DeliveryRecord, attempts: tuple[DeliveryAttemptRecord, ...]) -> Self:
        """Build the answer."""
        log = [DeliveryAttemptAnswer.from_record(attempt) for attempt in attempts]
        return cls(**_fields(record), body=carried(record.body), log=log)


class DeliveryPage(AnswerModel):
    """One page of messages, newest first."""

    items: list[DeliveryAnswer]
    """Messages of the page."""
    next_cursor: str | None = None
    """Give it as `cursor` for the next page; null on the last one."""
