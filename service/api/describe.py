"""What the OpenAPI document says beside what routes and schemas say of themselves."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from service.api.callers import scope_of

PARAMETERS: Mapping[str, str] = MappingProxyType(
    {
        "model_id": "Id of a model.",
        "hardware_id": "Id of a hardware spec.",
        "upload_id": "Id of an unfinished upload.",
        "job_id": "Id of a job.",
        "project_name": "A project, by its name.",
        "sweep_id": "Id of a sweep.",
        "sweep": "Only jobs of the sweep with this id.",
        "key_id": "Id of an API key.",
        "link_id": "Id of a link that was shared.",
        "days": "How many days it is good.",
        "webhook_id": "Id of a webhook.",
        "delivery_id": "Id of a message to it, as its `webhook-id` header has it.",
        "sha256": "Digest of the bytes, in hexadecimal.",
        "signature": "Digest of a cache key.",
        "code": "A code of the catalogue, in any case.",
        "name": "Name to store it under.",
        "digest": "`sha256:` and the digest of the body; another body is refused.",
        "project": "Only what callers of this project did.",
        "key": "Only what came with this key, by its id.",
        "route": "Only this route: method and path as this document has them, `POST /v1/jobs`.",
        "subject": "Only what changed the thing with this id.",
        "outcome": "Only what ended so.",
        "cursor": "Where to go on: `next_cursor` of the page before.",
        "limit": "At most so many.",
        "kind": "Only entries of this kind.",
        "job": "Only entries that this job filled.",
        "base": "Job id, SWEEP:NUMBER for an item of a sweep, or a label: its youngest job that"
        " succeeded.",
        "head": "Another of these, which is compared with the base.",
        "state": "Only what is in this state; of jobs and sweeps may be repeated.",
        "label": "Only what has this label.",
        "model": "Only jobs on the model with this id.",
        "hardware": "Id of a hardware spec; where a model is checked, or its preset's name.",
        "strategy": "Only jobs that asked for this strategy; `auto` is what was asked by default.",
        "since": "Only from this time on, in seconds since the epoch.",
        "until": "Only from before this time, in seconds since the epoch.",
        "set": "NAME=N: what a symbolic dimension of the model stands for; may be repeated.",
        "Idempotency-Key": "Repeats of a request with the same key and body give the first answer.",
        "Upload-Offset": "How many bytes have arrived: where the body goes on.",
        "Last-Event-ID": "Number of the last event that was seen: the stream goes on behind it.",
        "if-none-match": "Entity tag of what the client has: a 304 says that it is still right.",
        "prefer": "`wait=N` holds the answer at most N seconds.",
    }
)
"""By name, wherever it is a parameter."""
_KEY_SCHEME = {"key": {"type": "http", "scheme": "bearer", "description": "An API key."}}


def describe(document: dict[str, Any]) -> None:
    """Add descriptions of parameters, and which operations a key may be needed for."""
    document["components"]["securitySchemes"] = _KEY_SCHEME
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for parameter in operation.get("parameters", ()):
                parameter.setdefault("description", PARAMETERS.get(parameter["name"], ""))
            scope = scope_of(method.upper(), path)
            if scope is not None:
                # Without one where the server listens on loopback alone.
                operation["security"] = [{"key": []}, {}]
                operation["x-scope"] = str(scope)
