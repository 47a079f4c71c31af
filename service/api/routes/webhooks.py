"""Webhooks: subscribe to the ends of a project's jobs, and see what was sent."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from service.api.answers import Prepared
from service.api.callers import Project
from service.api.deps import Key, Name, State
from service.api.idempotency import request_key
from service.api.schemas.webhook import (
    DeliveryAnswer,
    DeliveryDetail,
    DeliveryPage,
    WebhookAnswer,
    WebhookList,
    WebhookRequest,
    WebhookSecretAnswer,
)
from service.jobs import query, webhooks
from service.states import DeliveryState
from service.store.records import DeliveryRecord, WebhookRecord

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])
_SECRET = {"Cache-Control": "no-store"}
With = tuple[WebhookRecord, str]


def _told(made: With) -> WebhookSecretAnswer:
    return WebhookSecretAnswer(
        **WebhookAnswer.from_record(made[0]).model_dump(), secret=made[1]
    )  # fmt: skip


@router.post("", status_code=201, response_model=WebhookSecretAnswer)
def create_webhook(body: WebhookRequest, state: State, project: Project, key: Key) -> Response:
    """Subscribe.  The secret is in this answer and nowhere else: a repeat by `Idempotency-Key` is a
    409."""
    idempotency = request_key(
        key, owner=project, route="POST /v1/webhooks", body=body.model_dump_json().encode()
    )
    answer: Prepared[With] = Prepared(_told)
    record, _ = webhooks.create_webhook(
        state.database,
        state.settings,
        webhooks.NewWebhook(body.url, body.name, body.events),
        owner=project,
        idempotency=idempotency,
        before_commit=lambda record, secret: answer((record, secret)),
    )
    return answer.response(201, {"Location": f"/v1/webhooks/{record.id}", **_SECRET})


@router.get("", response_model=WebhookList)
def list_webhooks(state: State, project: Project) -> WebhookList:
    """List all of the project, without their secrets."""
    found = query.list_webhooks(state.database, project)
    return WebhookList(items=[WebhookAnswer.from_record(row) for row in found])


@router.get("/{webhook_id}", response_model=WebhookAnswer)
def get_webhook(webhook_id: Name, state: State, project: Project) -> WebhookAnswer:
    """Get one, without its secret."""
    return WebhookAnswer.from_record(query.get_webhook(state.database, webhook_id, project))


@router.delete("/{webhook_id}", status_code=204)
def delete_webhook(webhook_id: Name, state: State, project: Project) -> None:
    """Delete one with its secret and its deliveries, also those that wait."""
    webhooks.delete_webhook(state.database, webhook_id, project)


@router.post("/{webhook_id}/rotate", response_model=WebhookSecretAnswer)
def rotate_secret(webhook_id: Name, state: State, project: Project, key: Key) -> Response:
    """Give it a new secret, told here and nowhere else; for a day both sign."""
    idempotency = request_key(
        key, owner=project, route="POST /v1/webhooks/rotate", body=webhook_id.encode()
    )
    answer: Prepared[With] = Prepared(_told)
    webhooks.rotate_secret(
        state.database,
        state.settings,
        webhook_id,
        owner=project,
        idempotency=idempotency,
        before_commit=lambda record, secret: answer((record, secret)),
    )
    return answer.response(200, _SECRET)


@router.post("/{webhook_id}/enable", response_model=WebhookAnswer)
def enable_webhook(webhook_id: Name, state: State, project: Project) -> Response:
    """Send to it again after the server gave it up; twice is fine."""
    answer = Prepared(WebhookAnswer.from_record)
    webhooks.enable_webhook(state.database, webhook_id, owner=project, before_commit=answer)
    return answer.response(200)


@router.post("/{webhook_id}/ping", status_code=202, response_model=DeliveryAnswer)
def ping(webhook_id: Name, state: State, project: Project, key: Key) -> Response:
    """Send a test message, once; its delivery tells what the receiver answered."""
    idempotency = request_key(
        key, owner=project, route="POST /v1/webhooks/ping", body=webhook_id.encode()
    )
    answer: Prepared[DeliveryRecord] = Prepared(DeliveryAnswer.from_record)
    made = webhooks.ping(
        state.database, webhook_id, owner=project, idempotency=idempotency, before_commit=answer
    )
    return answer.response(202, {"Location": f"/v1/webhooks/{webhook_id}/deliveries/{made.id}"})


@router.get("/{webhook_id}/deliveries", response_model=DeliveryPage)
def list_deliveries(
    webhook_id: Name,
    state: State,
    project: Project,
    wanted: Annotated[DeliveryState | None, Query(alias="state")] = None,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
    limit: Annotated[int, Query(ge=1, le=query.MAX_PAGE)] = 50,
) -> DeliveryPage:
    """List messages to it, newest first."""
    page = query.list_deliveries(
        state.database, webhook_id, owner=project, state=wanted, cursor=cursor, limit=limit
    )
    return DeliveryPage(
        items=[DeliveryAnswer.from_record(row) for row in page.rows], next_cursor=page.next_cursor
    )


@router.get("/{webhook_id}/deliveries/{delivery_id}", response_model=DeliveryDetail)
def get_delivery(
    webhook_id: Name, delivery_id: Name, state: State, project: Project
) -> DeliveryDetail:
    """Get one message with every attempt to deliver it."""
    return DeliveryDetail.of(
        *query.get_delivery(state.database, webhook_id, delivery_id, project)
    )  # fmt: skip


@router.post(
    "/{webhook_id}/deliveries/{delivery_id}/replay", status_code=202, response_model=DeliveryAnswer
)
def replay(
    webhook_id: Name, delivery_id: Name, state: State, project: Project, key: Key
) -> Response:
    """Send a message that has ended once more: the same id and text, signed anew."""
    idempotency = request_key(
        key, owner=project, route="POST /v1/webhooks/deliveries/replay",
        body=f"{webhook_id} {delivery_id}".encode(),
    )  # fmt: skip
    answer: Prepared[DeliveryRecord] = Prepared(DeliveryAnswer.from_record)
    webhooks.replay(
        state.database, webhook_id, delivery_id, owner=project, idempotency=idempotency,
        before_commit=answer,
    )  # fmt: skip
    return answer.response(202)
