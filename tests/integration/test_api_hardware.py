"""Hardware over HTTP: presets, schema, lint, store."""

from __future__ import annotations

import json

import pytest
import vendor_operators
import yaml
from api_fixtures import PRESET, Serve, assert_problem

from worker.compiler.machine import (
    canonical_document,
    digest,
    load_machine,
    preset_document,
    preset_names,
)

MY_CHIP = {
    "schema_version": 1,
    "name": "mine",
    "inherits": PRESET,
    "levels": [{"name": "GBUF", "capacity_bytes": 65536}],
}


def test_presets_and_schema_are_listed(serve: Serve) -> None:
    http = serve(worker=False).http
    items = http.get("/v1/hardware/presets").json()["items"]
    names = [item["name"] for item in items]
    assert PRESET in names
    assert names == sorted(names)
    assert all(item["description"] for item in items)
    schema = http.get("/v1/hardware/schema").json()
    assert schema["$schema"].startswith("https://json-schema.org/")


def test_spec_is_stored_once_with_inheritance_resolved(serve: Serve) -> None:
    http = serve(worker=False).http
    first = http.post("/v1/hardware", json=MY_CHIP)
    assert first.status_code == 201
    spec = first.json()
    assert "inherits" not in spec["document"]
    sizes = {row["name"]: row["capacity_bytes"] for row in spec["document"]["levels"]}
    assert sizes["GBUF"] in (65536, {"value": 65536})
    as_yaml = yaml.safe_dump(MY_CHIP)
    again = http.post("/v1/hardware", content=as_yaml, headers={"Content-Type": "application/yaml"})
    assert (again.status_code, again.json()["id"]) == (200, spec["id"])
    assert http.get(first.headers["location"]).json() == spec
    assert [row["id"] for row in http.get("/v1/hardware").json()["items"]] == [spec["id"]]


def test_definitions_of_a_vendors_operators_travel_with_the_spec(serve: Serve) -> None:
    http = serve(worker=False).http
    first = http.post("/v1/hardware", json=vendor_operators.spec())
    assert first.status_code == 201, first.text
    stored = first.json()
    assert stored["document"]["operators"] == vendor_operators.operators()
    other = vendor_operators.spec()
    other["operators"][2]["definition"] = vendor_operators.SQUARE.replace(
        "Mul (x, x)", "Mul (x, x) "
    )
    assert (
        http.post("/v1/hardware", json=other).json()["machine_digest"] != stored["machine_digest"]
    )
    other["operators"][2]["definition"] = vendor_operators.SQUARE.replace(
        "Mul (x, x)", "Mull (x, x)"
    )
    refused = http.post("/v1/hardware", json=other)
    problem = assert_problem(refused, 422, "TW-SPEC-002")
    assert problem["errors"][0]["pointer"] == "/operators/2/definition"
    assert "does not exist in opset 13" in problem["errors"][0]["message"]


def test_name_changes_the_id_but_not_the_machine(serve: Serve) -> None:
    http = serve(worker=False).http
    one = http.post("/v1/hardware", json=MY_CHIP).json()
    two = http.post("/v1/hardware", json={**MY_CHIP, "name": "other"}).json()
    assert one["id"] != two["id"]
    assert one["machine_digest"] == two["machine_digest"]


def test_refusal_lists_every_finding_with_a_pointer(serve: Serve) -> None:
    http = serve(worker=False).http
    bad = {
        **MY_CHIP,
        "clock_hz": -1,
        "levels": [{"name": "GBUF", "read_bytes_per_cycle": 0}],
        "x": 1,
    }
    problem = assert_problem(http.post("/v1/hardware", json=bad), 422, "TW-SPEC-001")
    pointers = {finding["pointer"] for finding in problem["errors"]}
    assert {"/clock_hz", "/x"} <= pointers
    assert any(pointer.startswith("/levels/0") for pointer in pointers)
    assert all(finding["message"] for finding in problem["errors"])
    assert http.get("/v1/hardware").json()["items"] == []


def test_lint_reports_without_storing(serve: Serve) -> None:
    http = serve(worker=False).http
    good = http.post("/v1/hardware/lint", json=MY_CHIP).json()
    assert (good["valid"], good["errors"]) == (True, [])
    assert len(good["machine_digest"]) == 64
    bad = http.post("/v1/hardware/lint", json={**MY_CHIP, "clock_hz": "fast"}).json()
    assert (bad["valid"], bad["machine_digest"]) == (False, None)
    assert bad["errors"][0]["pointer"] == "/clock_hz"
    assert http.get("/v1/hardware").json()["items"] == []


def test_unreadable_specs_are_refused(serve: Serve) -> None:
    http = serve(worker=False).http
    for body in (b"", b"[1, 2]", b"\xff\xfe", b"a: [", b"1: {2: 3}\n2001-01-01: x"):
        response = http.post("/v1/hardware", content=body)
        assert response.status_code == 422, (body, response.text)
        assert_problem(response, 422, response.json()["code"])
        assert response.json()["code"].startswith("TW-SPEC-")


def test_a_job_takes_an_id_a_preset_or_a_document(serve: Serve) -> None:
    served = serve(worker=False)
    stored = served.http.post("/v1/hardware", json=MY_CHIP).json()
    by_id = served.submit(hardware=stored["id"])
    by_document = served.submit(hardware=MY_CHIP)
    assert by_id["hardware"] == by_document["hardware"] == stored["id"]
    by_name = served.submit(hardware=PRESET)
    by_object = served.submit(hardware={"preset": PRESET})
    assert by_name["hardware"] == by_object["hardware"] != stored["id"]
    body = {"model": by_id["model"], "hardware": {**MY_CHIP, "x": 1}}
    assert_problem(served.http.post("/v1/jobs", json=body), 422, "TW-SPEC-001")


@pytest.mark.parametrize("name", preset_names())
def test_storing_a_spec_with_sorted_keys_keeps_its_machine(name: str) -> None:
    document = canonical_document(preset_document(name))
    stored = json.loads(json.dumps(document, sort_keys=True))
    assert digest(load_machine(stored)) == digest(load_machine(document))
    assert load_machine(stored) == load_machine(document)
