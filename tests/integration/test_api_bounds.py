"""Every text, list and mapping that a request may carry has a largest size, in the API's schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from api_fixtures import PRESET, Serve

from service.api.app import create_app
from service.settings import Settings

Schema = dict[str, Any]
SIZED_TEXT = {"maxLength", "enum", "const"}
STREAMED = {"binary"}
"""Formats of bodies that go to disk, under a limit of their own (`max_model_bytes`)."""


def unbounded(schema: Schema, document: Schema, place: str) -> Iterator[str]:
    """Places of a schema that allow any number of characters, items or members."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        yield from unbounded(document["components"]["schemas"][name], document, f"{place}({name})")
        return
    for way in ("anyOf", "oneOf", "allOf"):
        for number, choice in enumerate(schema.get(way, ())):
            yield from unbounded(choice, document, f"{place}|{number}")
    kind = schema.get("type")
    if kind == "string" and not SIZED_TEXT & set(schema):
        fixed = str(schema.get("pattern", "")).endswith("{64}$")
        if schema.get("format") not in STREAMED and not fixed:
            yield f"{place}: text without maxLength"
    if kind == "array":
        if "maxItems" not in schema:
            yield f"{place}: list without maxItems"
        yield from unbounded(schema.get("items", {}), document, f"{place}[]")
    if kind == "object":
        if schema.get("additionalProperties") is not False and "maxProperties" not in schema:
            yield f"{place}: mapping without maxProperties"
        for name, inner in schema.get("properties", {}).items():
            yield from unbounded(inner, document, f"{place}/{name}")


def requests(document: Schema) -> Iterator[tuple[str, Schema]]:
    """(place, schema) of every parameter and body."""
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            for parameter in operation.get("parameters", ()):
                where = f"{verb} {path} {parameter['in']}:{parameter['name']}"
                yield where, parameter["schema"]
            for media, body in operation.get("requestBody", {}).get("content", {}).items():
                if media != "multipart/form-data":  # streamed; fields that are no file are skipped
                    yield f"{verb} {path} {media}", body["schema"]


def test_every_request_is_bounded(tmp_path: Any) -> None:
    settings = Settings(data_dir=tmp_path)
    from service.store.session import migrate

    migrate(settings.database_url)
    document = create_app(settings).openapi()
    found = [place for where, schema in requests(document)
             for place in unbounded(schema, document, where)]  # fmt: skip
    assert len(list(requests(document))) > 40
    assert found == []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"anyOf": [{"type": "null"}, {"type": "string"}]},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "maxItems": 3, "items": {"type": "string"}},
        {"type": "object", "additionalProperties": {}},
        {"type": "object", "additionalProperties": False, "properties": {"x": {"type": "string"}}},
        {"$ref": "#/components/schemas/x"},
    ],
)
def test_what_is_unbounded_would_be_found(schema: Schema) -> None:
    document = {"components": {"schemas": {"x": {"type": "object"}}}}
    assert list(unbounded(schema, document, "here"))


def test_too_much_of_anything_is_refused(serve: Serve) -> None:
    served = serve(worker=False)
    body = {"model": served.model()["id"], "hardware": PRESET}
    many = {f"k{number}": 1 for number in range(2000)}
    for change in (
        {"options": {"symbols": many}},
        {"options": many},
        {"hardware": many},
        {"hardware": "x" * 300},
        {"label": "x" * 101},
    ):
        response = served.http.post("/v1/jobs", json={**body, **change})
        assert response.status_code in {404, 422}, change
    for path, query in (
        ("/v1/jobs", {"state": ["queued"] * 100}),
        ("/v1/jobs/" + "x" * 300, {}),
        ("/v1/models/m/preflight", {"hardware": PRESET, "set": ["a=1"] * 1001}),
        ("/v1/models/m/preflight", {"hardware": PRESET, "set": ["a" * 300 + "=1"]}),
    ):
        assert served.http.get(path, params=query).status_code == 422, path
    assert served.http.get("/v1/jobs").json()["items"] == []
