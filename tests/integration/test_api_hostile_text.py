"""Text and numbers that no row, header or answer can hold: refused, and nothing is stored."""

from __future__ import annotations

from typing import Any

import pytest
from api_fixtures import Serve, assert_problem, onnx_bytes


@pytest.mark.parametrize(
    "body",
    [
        '{"model": "m", "hardware": "a100", "options": {"symbols": {"\\ud800": 5}}}',
        '{"model": "\\ud800", "hardware": "a100"}',
        '{"model": "m", "hardware": {"name": "\\udfff"}}',
        '{"model": "m", "hardware": "a100", "label": "x\\ud800"}',
        '{"model": "m", "hardware": "a100", "\\ud800": 1}',
        '{"model": "m", "hardware": "a100", "priority": ' + "9" * 5000 + "}",
        "[" * 50_000,
        *('{"model": "m", "hardware": {"x": ' + "[" * n + "]" * n + "}}" for n in (900, 945, 955)),
        *('{"model": "m", "hardware": ' + '{"a":' * n + "1" + "}" * n + "}" for n in (945, 980)),
    ],
    ids=["symbol", "model", "spec", "label", "field", "digits", "depth", *"12345"],
)
def test_a_hostile_job_is_refused_and_not_stored(serve: Serve, body: str) -> None:
    http = serve(worker=False).http
    response = http.post(
        "/v1/jobs", content=body.encode(), headers={"Content-Type": "application/json"}
    )
    assert 400 <= response.status_code < 500, response.text
    assert response.headers["content-type"].startswith("application/problem+json")
    assert http.get("/v1/jobs").json()["items"] == []


@pytest.mark.parametrize(
    ("path", "query", "headers"),
    [
        ("/v1/jobs", {"cursor": "9" * 400}, {}),
        ("/v1/jobs", {"cursor": "WyJuYW4iLCJ4Il0"}, {}),  # ["nan","x"]
        ("/v1/jobs", {"cursor": "WyIweDFwOTk5OTk5OSIsIngiXQ"}, {}),  # ["0x1p9999999","x"]
        ("/v1/jobs/job_x/events", {}, {"Last-Event-ID": "9" * 19}),
        ("/v1/jobs/job_x/events", {}, {"Last-Event-ID": "٣"}),
        ("/v1/models/m/preflight", {"hardware": "a100", "set": "N=" + "9" * 5000}, {}),
        ("/v1/models/m/preflight", {"hardware": "a100", "set": "N=²"}, {}),
    ],
    ids=["cursor", "nan", "overflow", "event digits", "event script", "set digits", "set script"],
)
def test_a_hostile_query_is_refused(
    serve: Serve, path: str, query: dict[str, Any], headers: dict[str, str]
) -> None:
    encoded = {name: value.encode() for name, value in headers.items()}
    response = serve(worker=False).http.get(path, params=query, headers=encoded)
    assert 400 <= response.status_code < 500, response.text
    assert response.headers["content-type"].startswith("application/problem+json")


def test_a_range_of_thousands_of_digits_is_no_range(serve: Serve) -> None:
    http = serve(worker=False).http
    model = http.post("/v1/models", content=onnx_bytes()).json()
    found = http.get(f"/v1/artifacts/{model['sha256']}", headers={"Range": f"bytes=0-{'9' * 5000}"})
    assert found.status_code in (200, 404)


def test_a_spec_bomb_is_refused_while_the_api_answers(serve: Serve) -> None:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{k}: &a{k} {{<<: [{', '.join([f'*a{k - 1}'] * 9)}]}}" for k in range(1, 11)]
    http = serve(worker=False).http
    response = http.post(
        "/v1/hardware/lint", content="\n".join(lines), headers={"Content-Type": "application/yaml"}
    )
    assert_problem(response, 422, "TW-SPEC-004")
    assert http.get("/healthz").status_code == 200
