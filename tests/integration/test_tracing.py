"""Spans: one tree from a request through the job's attempts to the stages, over processes.

The receiver of OTLP is real, and decodes with OpenTelemetry's own messages.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from api_fixtures import Serve
from service_workers import Worker
from webhook_receiver import Receiver, receiver, status

from service.cli.demo import EXAMPLE
from service.settings import Settings, Traces
from service.tracing import CLOSE_S, Tracing, parent_of, standing
from worker.job.stages import NAMES

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("opentelemetry.exporter") is None,
    reason="OpenTelemetry's exporter is not installed (tilewright[otel])",
)
CALLER = f"00-{'a1' * 16}-{'b2' * 8}-01"


@dataclass(frozen=True, slots=True)
class Seen:
    """A span as it arrived."""

    name: str
    trace: str
    id: str
    parent: str
    kind: int
    failed: bool
    seconds: float
    attributes: dict[str, Any]
    service: str


class Collector:
    """What came to an OTLP endpoint."""

    def __init__(self, taken: Receiver) -> None:
        self.taken = taken
        self.traces = Traces(endpoint=f"http://127.0.0.1:{taken.port}/v1/traces")

    def spans(self) -> list[Seen]:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        found = []
        for got in list(self.taken.got):
            assert got.path == "/v1/traces"
            request = ExportTraceServiceRequest.FromString(got.body)
            for part in request.resource_spans:
                names = {a.key: a.value.string_value for a in part.resource.attributes}
                found += [
                    Seen(
                        span.name, span.trace_id.hex(), span.span_id.hex(),
                        span.parent_span_id.hex(), span.kind, span.status.code == 2,
                        (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                        {a.key: _value(a.value) for a in span.attributes}, names["service.name"],
                    )
                    for scope in part.scope_spans
                    for span in scope.spans
                ]  # fmt: skip
        return found

    def wait(self, holds: Callable[[list[Seen]], bool], timeout_s: float = 30.0) -> list[Seen]:
        deadline = time.monotonic() + timeout_s
        while not holds(found := self.spans()):
            assert time.monotonic() < deadline, [span.name for span in found]
            time.sleep(0.05)
        return found


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")  # by default spans leave every 5 s
    with receiver() as taken:
        taken.answers = [status(200)]
        yield Collector(taken)


def ended(job: str) -> Callable[[list[Seen]], bool]:
    return lambda spans: any(
        s.name == "job" and s.attributes["tilewright.job.id"] == job for s in spans
    )


def test_a_job_is_one_tree_over_api_and_worker(
    serve: Serve, collector: Collector, redis_url: str,
    workers: Callable[[Settings], Worker],
) -> None:  # fmt: skip
    served = serve(
        "worker.job.job:run_job", worker=False, traces=collector.traces, broker_url=redis_url,
        memory_base_bytes=4 << 30,
    )  # fmt: skip
    workers(served.settings).start()
    model = served.client.upload_model(EXAMPLE, name="secret-name")
    response = served.http.post(
        "/v1/jobs",
        json={"model": model["id"], "hardware": "kapla-16x16", "label": "secret-label"},
        headers={"traceparent": CALLER},
    )
    job = response.json()["id"]
    assert served.ended(job, 120)["state"] == "succeeded"
    spans = collector.wait(ended(job))

    request = next(s for s in spans if s.name == "POST /v1/jobs")
    assert (request.trace, request.parent) == ("a1" * 16, "b2" * 8)
    assert request.kind == 2  # a server's
    assert request.attributes["http.response.status_code"] == 202
    assert request.attributes["tilewright.request.id"] == response.headers["x-request-id"]
    attempt = next(s for s in spans if s.name == "job")
    assert (attempt.trace, attempt.parent) == (request.trace, request.id)
    assert attempt.attributes["tilewright.outcome"] == "succeeded"
    assert attempt.attributes["tilewright.units.total"] > 0
    assert attempt.attributes["tilewright.cpu_s"] > 0
    assert {request.service, attempt.service} == {"tilewright"}
    stages = [s for s in spans if s.name.startswith("stage ")]
    assert [s.attributes["tilewright.stage"] for s in stages] == list(NAMES)
    assert {(s.trace, s.parent) for s in stages} == {(attempt.trace, attempt.id)}
    assert not any(s.failed for s in spans)
    assert 0 < sum(s.seconds for s in stages) <= attempt.seconds

    # Nothing that somebody named, nor of the model: not in any byte that left.
    sent = b"".join(got.body for got in collector.taken.got)
    text = EXAMPLE.read_bytes()
    for secret in (b"secret-name", b"secret-label", b"kapla-16x16"):
        assert secret not in sent
    assert not any(node.encode() in sent for node in _nodes(text))


def _nodes(model: bytes) -> list[str]:
    import onnx

    return [name for node in onnx.load_from_string(model).graph.node if len(name := node.name) > 4]


def test_a_refusal_marks_job_and_stage(serve: Serve, collector: Collector) -> None:
    served = serve("refuse", traces=collector.traces)
    job = served.submit()["id"]
    assert served.ended(job)["state"] == "failed"
    spans = collector.wait(ended(job))
    attempt = next(s for s in spans if s.name == "job")
    assert attempt.failed
    assert attempt.attributes["error.type"] == "TW-MODEL-004"
    assert attempt.attributes["tilewright.outcome"] == "failed"
    assert attempt.attributes["tilewright.project"] == "local"
    assert b"conv_1" not in b"".join(got.body for got in collector.taken.got)


def test_an_open_stage_fails_with_its_job(collector: Collector, make_settings: Any) -> None:
    tracing = Tracing(make_settings(traces=collector.traces))
    with tracing.attempt(_job(CALLER), 2, "w") as spans:
        spans.stage("ingest", "started")
        spans.stage("schedule", "started")  # an old payload may not say that one ended
        spans.outcome("crashed", "TW-X")
    with pytest.raises(ZeroDivisionError), tracing.attempt(_job(None), 1, "w"):
        raise ZeroDivisionError
    tracing.close()
    first, second, attempt, other = collector.spans()
    assert (first.failed, second.failed, attempt.failed) == (False, True, True)
    assert second.attributes["error.type"] == "TW-X"
    assert first.parent == second.parent == attempt.id
    assert attempt.parent == "b2" * 8
    assert attempt.attributes["tilewright.attempt"] == 2
    assert other.attributes["error.type"] == "ZeroDivisionError"
    assert other.parent == ""  # nobody asked: a tree of its own
    assert other.trace != attempt.trace


def test_attempts_that_crash_stand_side_by_side(serve: Serve, collector: Collector) -> None:
    served = serve("killed_once", traces=collector.traces)
    job = served.submit()["id"]
    assert served.ended(job)["state"] == "succeeded"
    spans = collector.wait(lambda found: sum(s.name == "job" for s in found) == 2)
    first, second = (s for s in spans if s.name == "job")
    assert (first.attributes["tilewright.outcome"], first.failed) == ("crashed", True)
    assert (second.attributes["tilewright.outcome"], second.failed) == ("succeeded", False)
    assert first.parent == second.parent
    assert "tilewright.queued_s" in first.attributes
    assert "tilewright.queued_s" not in second.attributes


def test_probes_and_what_was_typed_are_not_told(serve: Serve, collector: Collector) -> None:
    served = serve(worker=False, traces=collector.traces)
    served.http.get("/healthz")
    served.http.get("/v1/jobs", params={"label": "secret"})
    served.http.get("/ui/shared/secret-proof")
    served.http.get("/secret/nowhere")
    spans = collector.wait(lambda found: len(found) >= 3)
    assert [s.name for s in spans][:1] == ["GET /v1/jobs"]
    assert "GET" in [s.name for s in spans]
    assert not any("health" in s.name for s in spans)
    assert b"secret" not in b"".join(got.body for got in collector.taken.got)


def test_a_receiver_that_is_away_holds_nobody_up(serve: Serve, make_settings: Any) -> None:
    away = Traces(endpoint="http://127.0.0.1:9/v1/traces")
    served = serve(traces=away)
    assert served.ended(served.submit()["id"])["state"] == "succeeded"
    tracing = Tracing(make_settings(traces=away))
    tracing.request("GET", None).end()
    began = time.monotonic()
    tracing.close()
    assert time.monotonic() - began < CLOSE_S + 1


@pytest.mark.parametrize(
    ("environment", "endpoint", "says"),
    [
        ({}, "", "off"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "http://c:4318/v1/traces", "on"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/x/"}, "http://c:4318/x/v1/traces", "on"),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318",
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://d/t",
            },
            "http://d/t",
            "on",
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "TRUE"},
            "",
            "off",
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}, "", "off"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "zipkin"},
            "http://c/v1/traces",
            "off: OTEL_TRACES_EXPORTER=zipkin",
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "http://c/v1/traces",
            "off: OTLP by grpc",
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "c:4318"},
            "c:4318/v1/traces",
            "off: the OTLP endpoint is no http",
        ),
    ],
    ids=["none", "base", "path", "own", "disabled", "no-exporter", "zipkin", "grpc", "no-url"],
)  # fmt: skip
def test_standard_variables_decide(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], endpoint: str, says: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert settings.traces.endpoint == endpoint
    found = standing(settings)
    assert found == says if says in {"on", "off"} else found.startswith(says)


def test_without_the_library_it_says_so_and_works(
    serve: Serve, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "service.tracing.find_spec", lambda name: None if "otlp" in name else found(name)
    )
    served = serve(traces=collector.traces)
    assert served.ended(served.submit()["id"])["state"] == "succeeded"
    checks = served.http.get("/readyz").json()["checks"]
    assert "tilewright[otel]" in checks["traces"]
    assert collector.spans() == []


@pytest.mark.parametrize(
    "header",
    ["", "x", CALLER.upper(), CALLER[:-1], CALLER + "-1", f"00-{'0' * 32}-{'b2' * 8}-01",
     f"00-{'a1' * 16}-{'0' * 16}-01"],
)  # fmt: skip
def test_what_is_no_traceparent_is_no_parent(header: str) -> None:
    assert parent_of(header) is None
    assert parent_of(CALLER) == CALLER


def test_spans_off_keep_the_callers_trace(serve: Serve) -> None:
    """For the log, and for workers that do send spans."""
    from service.jobs.query import get_job

    served = serve(worker=False)
    assert served.http.get("/readyz").status_code == 503  # there is no worker
    made = {}
    for name, header in (("good", CALLER), ("bad", "00-nonsense")):
        body = {"model": served.model()["id"], "hardware": "kapla-16x16"}
        answer = served.http.post("/v1/jobs", json=body, headers={"traceparent": header})
        made[name] = answer.json()["id"]
    clone = served.http.post(
        f"/v1/jobs/{made['bad']}/clone", headers={"traceparent": CALLER}
    ).json()["id"]
    kept = {name: get_job(served.services.database, job).traceparent for name, job in made.items()}
    assert kept == {"good": CALLER, "bad": None}
    assert get_job(served.services.database, clone).traceparent == CALLER


def _job(traceparent: str | None) -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(
        id="job_1", owner="local", model_id="m", hardware_id="h", sweep_id=None, created=1.0,
        started=None, traceparent=traceparent,
    )  # fmt: skip
