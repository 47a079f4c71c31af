"""The service about itself; and what holds for every route."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
import schemathesis
from api_fixtures import Serve, Served, assert_problem, onnx_bytes
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from prometheus_client.parser import text_string_to_metric_families
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from service.api import request_id
from service.api.describe import PARAMETERS
from service.store.local_blobs import LocalBlobStore
from service.store.records import BlobRef
from worker.compiler.error_catalog import ERROR_CATALOG


def test_error_catalogue_is_served(serve: Serve) -> None:
    http = serve(worker=False).http
    items = http.get("/v1/errors").json()["items"]
    assert [item["code"] for item in items] == list(ERROR_CATALOG)
    assert http.get("/v1/errors/tw-spec-001").json()["code"] == "TW-SPEC-001"
    assert_problem(http.get("/v1/errors/TW-NOPE-001"), 404, "TW-SVC-001")


def test_ready_only_while_a_worker_lives(serve: Serve) -> None:
    assert serve().http.get("/readyz").json()["checks"]["workers_alive"] == 1


def test_not_ready_says_what_fails(serve: Serve) -> None:
    http = serve(worker=False).http
    problem = assert_problem(http.get("/v1/readyz"), 503, "TW-SVC-005")
    assert [finding["pointer"] for finding in problem["errors"]] == ["/workers_alive"]
    assert http.get("/healthz").json() == {"status": "ok"}
    assert http.get("/v1/version").json()["api"] == "v1"


def test_metrics_come_from_the_tables(serve: Serve) -> None:
    served = serve()
    served.ended(served.submit()["id"])
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(served.http.get("/metrics").text)
        for sample in family.samples
    }
    assert found["tilewright_jobs", "succeeded"] == 1
    assert found["tilewright_cache_entries", "schedule"] == 3
    assert found["tilewright_workers_alive",] == 1
    assert found["tilewright_attempts_total", "succeeded"] == 1


def test_metrics_say_how_long_jobs_took(serve: Serve) -> None:
    """Of one that ran: at most the largest bucket, and no less than it took."""
    served = serve()
    job = served.ended(served.submit()["id"])
    families = {
        family.name: family
        for family in text_string_to_metric_families(served.http.get("/metrics").text)
    }
    took = {
        "tilewright_job_wait_seconds": job["started"] - job["created"],
        "tilewright_job_run_seconds": job["finished"] - job["started"],
    }
    for name, seconds in took.items():
        counts, rest = {}, {}
        for sample in families[name].samples:
            if sample.name.endswith("_bucket"):
                counts[float(sample.labels["le"])] = sample.value
            else:
                rest[sample.name.removeprefix(f"{name}_")] = sample.value
        assert counts == {limit: float(seconds <= limit) for limit in counts}
        assert rest["count"] == counts[float("inf")] == 1
        assert rest["sum"] == pytest.approx(seconds, abs=1e-5)


def test_requests_are_logged_where_asked(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[dict[str, Any]] = []

    class Log:
        def info(self, event: str, **fields: Any) -> None:
            assert event == "request"
            lines.append(fields)

    monkeypatch.setattr(request_id, "get_logger", Log)
    serve(worker=False).http.get("/v1/jobs")
    assert not lines
    serve(worker=False, access_log=True).http.get("/v1/nothing")
    deadline = time.monotonic() + 10
    while not lines and time.monotonic() < deadline:  # written when the answer is out
        time.sleep(0.01)
    [line] = lines
    assert line.pop("ms") >= 0
    assert line == {
        "method": "GET", "path": "/v1/nothing", "status": 404, "key": None, "project": "local",
    }  # fmt: skip


def test_everything_is_described(serve: Serve) -> None:
    """Every property and parameter of the API's description has a sentence; none is for nothing."""
    document = serve(worker=False).http.get("/openapi.json").json()
    properties = [
        (name, key, held)
        for name, schema in document["components"]["schemas"].items()
        for key, held in schema.get("properties", {}).items()
    ]
    assert len(properties) > 150
    for name, key, held in properties:
        text = held.get("description", "")
        assert text.endswith((".", "?")), (name, key)
    parameters = [
        parameter
        for methods in document["paths"].values()
        for operation in methods.values()
        for parameter in operation.get("parameters", ())
    ]
    assert {p["name"] for p in parameters} == set(PARAMETERS)
    assert all(p["description"] for p in parameters)


def test_a_parameter_that_is_not_there_is_refused(serve: Serve) -> None:
    """A misspelt filter would filter nothing."""
    http = serve(worker=False).http
    for path, known in (("/v1/jobs", "strategy"), ("/v1/models", "cursor"), ("/healthz", None)):
        problem = assert_problem(http.get(path, params={"strtegy": "x"}), 422, "TW-SVC-004")
        assert problem["pointer"] == "query:strtegy"
        assert problem["limit"] == [] if known is None else known in problem["limit"]
    assert http.get("/v1/jobs", params={"strategy": "naive", "since": "0"}).status_code == 200
    assert_problem(http.get("/v1/jobs", params={"since": "x"}), 422, "TW-SVC-004")


def test_request_id_is_echoed_or_made(serve: Serve) -> None:
    http = serve(worker=False).http
    given_id = http.get("/healthz", headers={"X-Request-ID": "abc-1"})
    assert given_id.headers["x-request-id"] == "abc-1"
    hostile = http.get("/healthz", headers={"X-Request-ID": "a b\t<x>"})
    assert len(hostile.headers["x-request-id"]) == 32


def test_wrong_methods_and_paths_are_problems(serve: Serve) -> None:
    http = serve(worker=False).http
    assert_problem(http.get("/nothing"), 404, "TW-SVC-001")
    response = http.put("/v1/jobs")
    assert_problem(response, 405, "TW-SVC-013")
    assert "POST" in response.headers["allow"]


def test_database_faults_are_transient(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlalchemy.exc import OperationalError

    from service.jobs import query

    served = serve(worker=False)

    def fail(*_: object, **__: object) -> None:
        raise OperationalError("SELECT 1", {}, Exception("secret path"))

    monkeypatch.setattr(query, "list_models", fail)
    response = served.http.get("/v1/models")
    problem = assert_problem(response, 503, "TW-SVC-005")
    assert problem["retryable"] is True
    assert int(response.headers["retry-after"]) > 0
    assert "secret" not in response.text


def test_unexpected_exceptions_tell_nothing_but_the_request_id(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    from service.jobs import query

    served = serve(worker=False)

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret path")

    monkeypatch.setattr(query, "list_models", fail)
    response = served.http.get("/v1/models")
    assert_problem(response, 500, "TW-INT-001")
    assert "secret" not in response.text


def test_docs_page_loads_nothing_from_elsewhere(serve: Serve) -> None:
    page = serve(worker=False).http.get("/docs").text
    assert "/v1/jobs/{job_id}" in page
    assert "src=" not in page
    assert "http://" not in page
    assert "https://" not in page


def test_every_operation_documents_its_problems(serve: Serve) -> None:
    document = serve(worker=False).http.get("/openapi.json").json()
    operations = [op for methods in document["paths"].values() for op in methods.values()]
    assert len(operations) > 30
    for operation in operations:
        assert "application/problem+json" in operation["responses"]["4XX"]["content"]
    assert "ProblemAnswer" in document["components"]["schemas"]


def test_api_process_imports_no_model_libraries() -> None:
    heavy = ("onnx", "numpy", "onnxruntime", "numba", "scipy", "onnx_ir")
    code = f"import sys, service.api.app\nprint([m for m in {heavy!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)
SLOW_PATHS = frozenset({"/v1/jobs/{job_id}/events", "/v1/models/{model_id}/preflight"})
"""An event stream has no end to compare; preflight starts a process."""


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_generated_requests_never_break_the_contract(serve: Serve, mode: GenerationMode) -> None:
    served: Served = serve(worker=False, max_active_jobs=5)
    job = served.submit()
    known = {"job_id": job["id"], "model_id": job["model"], "hardware_id": job["hardware"]}
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    seen: Counter[int] = Counter()
    tried = 0
    for result in schema.get_all_operations():
        operation: Any = cast("Any", result).ok()
        if operation.path in SLOW_PATHS:
            continue
        tried += 1

        @seed(1)
        @settings(
            max_examples=settings().max_examples // 10,
            deadline=None,
            phases=[Phase.explicit, Phase.generate],
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def probe(case: Any) -> None:
            for name in ("Prefer", "prefer"):
                (case.headers or {}).pop(name, None)  # a held request only costs time
            if sum(seen.values()) % 2 and case.method != "DELETE":
                case.path_parameters |= {k: known[k] for k in case.path_parameters if k in known}
            response = case.call(timeout=20)
            seen[response.status_code] += 1
            if response.status_code == 503 and "readyz" in case.path:
                return
            case.validate_response(response, checks=list(CHECKS))
            if response.status_code >= 400:
                assert response.json()["code"] in ERROR_CATALOG

        try:
            probe()
        except Unsatisfiable:
            assert mode is GenerationMode.NEGATIVE  # nothing to get wrong in this operation
    assert tried > 30
    assert {404, 422} <= set(seen)
    assert sum(seen.values()) > tried // 2


def test_a_body_that_is_not_json_is_explained_without_a_pointer(serve: Serve) -> None:
    response = serve().http.post(
        "/v1/jobs", content=b'{"model" 1}', headers={"Content-Type": "application/json"}
    )
    document = response.json()
    assert (response.status_code, document["code"]) == (422, "TW-SVC-004")
    assert "not JSON" in document["detail"]
    assert "character 9" in document["detail"]
    assert document["errors"] == []


def test_a_full_disk_passes(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told as what it is, and who tries again when there is room is served."""
    served = serve()

    def full(store: LocalBlobStore, spooled: Path, ref: BlobRef) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(LocalBlobStore, "adopt", full)
        refused = served.http.post("/v1/models?name=fake", content=onnx_bytes())
        body = assert_problem(refused, 503, "TW-SVC-030")
    assert body["retryable"] and int(refused.headers["retry-after"]) > 0
    assert served.model()["name"] == "fake"
