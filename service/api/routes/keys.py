"""API keys: make, list, revoke.  For who may do anything, or has a key of the scope `admin`, or, in
its own project and no further than itself, of the scope `keys`."""

from __future__ import annotations

from fastapi import APIRouter, Response

from service.api.answers import Prepared
from service.api.callers import Project, Sender
from service.api.deps import Key, Name, State
from service.api.idempotency import request_key
from service.api.schemas.key import KeyAnswer, KeyList, KeyRequest, NewKeyAnswer, RoleRequest
from service.jobs import keys
from service.store.records import KeyRecord

router = APIRouter(prefix="/v1/keys", tags=["keys"])
DAY_S = 86400.0


@router.post("", status_code=201, response_model=NewKeyAnswer)
def create_key(
    body: KeyRequest, state: State, sender: Sender, project: Project, key: Key
) -> Response:
    """Make a key.  Its text is in this answer and nowhere else: a repeat by `Idempotency-Key` is a
    409."""
    idempotency = request_key(
        key, owner=project, route="POST /v1/keys", body=body.model_dump_json().encode()
    )
    answer: Prepared[tuple[KeyRecord, str]] = Prepared(
        lambda made: NewKeyAnswer(**KeyAnswer.from_record(made[0]).model_dump(), key=made[1])
    )
    record, _ = keys.create_key(
        state.database,
        project=body.project or project,
        name=body.name,
        scopes=body.allowed,
        lasts_s=None if body.days is None else body.days * DAY_S,
        rate=body.rate,
        by=sender,
        idempotency=idempotency,
        before_commit=lambda record, text: answer((record, text)),
    )
    headers = {"Location": f"/v1/keys/{record.id}", "Cache-Control": "no-store"}
    return answer.response(201, headers)


@router.get("", response_model=KeyList)
def list_keys(state: State, sender: Sender) -> KeyList:
    """List keys by project, without their secrets; with the scope `keys` one's own project's."""
    found = keys.list_keys(state.database, sender)
    return KeyList(items=[KeyAnswer.from_record(row) for row in found])


@router.put("/{key_id}/role", response_model=KeyAnswer)
def set_role(key_id: Name, body: RoleRequest, state: State, sender: Sender) -> Response:
    """Let a key do what a role says, and nothing else; servers that have just seen it go on for
    some seconds."""
    answer: Prepared[KeyRecord] = Prepared(KeyAnswer.from_record)
    keys.set_role(state.database, key_id, body.role, answer, sender)
    return answer.response(200)


@router.delete("/{key_id}", status_code=204)
def revoke_key(key_id: Name, state: State, sender: Sender) -> None:
    """End a key; servers that have just seen it go on for some seconds."""
    keys.revoke_key(state.database, key_id, sender)
