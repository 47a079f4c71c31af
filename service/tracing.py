"""Spans of requests, attempts at jobs and their stages, for who runs the service.

Off, and nothing imported, unless the standard OTEL_* variables name where to send them by OTLP
over HTTP.  A span has ids, times, states and error codes: never a path that somebody typed, a
name, a message, or anything of a model.  Spans that nobody takes are dropped; no work waits.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from service.errors import LeaseLost
from service.log import get_logger

if TYPE_CHECKING:
    from service.settings import Settings
    from service.store.records import JobRecord

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
CLOSE_S = 3.0
"""How long the last spans may take to leave when a process ends."""
Attribute = str | int | float | bool


def parent_of(header: str | None) -> str | None:
    """The `traceparent` of a request, if it is one of W3C Trace Context, version 00."""
    return header if header is not None and _TRACEPARENT.fullmatch(header) else None


def standing(settings: Settings) -> str:
    """`on`, `off`, or why what was asked for does not happen; names no credentials."""
    wanted = settings.traces
    if not wanted.endpoint:
        return "off"
    if wanted.exporter != "otlp":
        return f"off: OTEL_TRACES_EXPORTER={wanted.exporter} is none of otlp and none"
    if wanted.protocol != "http/protobuf":
        return f"off: OTLP by {wanted.protocol} is not spoken here, only by http/protobuf"
    if urlsplit(wanted.endpoint).scheme not in {"http", "https"}:
        return "off: the OTLP endpoint is no http or https URL"
    for name in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
        if not _is_there(name):
            return f"off: {name} is not installed (pip install 'tilewright[otel]')"
    return "on"


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of a parent
        return False


class Tracing:
    """The spans of one process."""

    def __init__(self, settings: Settings) -> None:
        """Opens nothing: a pool that forks must do so before the sender's thread is there."""
        self._settings = settings
        self.standing = standing(settings)
        self._lock = threading.Lock()
        self._provider: Any = None

    def request(self, method: str, traceparent: str | None) -> Span:
        """The span of a request from now on, below that of the client if it has one."""
        if self.standing != "on":
            return OFF
        return self._start(method, "SERVER", traceparent, {"http.request.method": method})

    def attempt(self, job: JobRecord, number: int, worker: str) -> AttemptSpans:
        """The spans of one attempt at a job, below that of the request which submitted it."""
        if self.standing != "on":
            return AttemptSpans(OFF)
        attributes: dict[str, Attribute] = {
            "tilewright.job.id": job.id,
            "tilewright.project": job.owner,
            "tilewright.model.id": job.model_id,
            "tilewright.hardware.id": job.hardware_id,
            "tilewright.attempt": number,
            "tilewright.worker": worker,
        }
        if number == 1 and job.started is not None:
            attributes["tilewright.queued_s"] = round(job.started - job.created, 3)
        if job.sweep_id is not None:
            attributes["tilewright.sweep.id"] = job.sweep_id
        return AttemptSpans(self._start("job", "CONSUMER", job.traceparent, attributes))

    def _start(
        self, name: str, kind: str, traceparent: str | None, attributes: dict[str, Attribute]
    ) -> Span:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = parent_of(traceparent)
        carrier = {} if parent is None else {"traceparent": parent}
        tracer = self._opened().get_tracer("tilewright")
        # Without an attached context of ours, a new root has to be asked for by an empty one.
        context = TraceContextTextMapPropagator().extract(carrier, Context())
        made = tracer.start_span(name, context, SpanKind[kind], attributes)
        return Span(made, tracer)

    def _opened(self) -> Any:
        with self._lock:
            if self._provider is None:
                self._provider = self._open()
            return self._provider

    def _open(self) -> Any:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        wanted = self._settings.traces
        resource = Resource.create()  # reads OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "tilewright"}))
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(wanted.endpoint)))
        return provider

    def close(self) -> None:
        """Send what is left, for CLOSE_S at most: a receiver that is away keeps no process."""
        with self._lock:
            provider, self._provider = self._provider, None
        if provider is None:
            return
        closing = threading.Thread(target=provider.shutdown, name="spans", daemon=True)
        closing.start()
        closing.join(CLOSE_S)
        if closing.is_alive():
            get_logger().warning("spans lost", seconds=CLOSE_S)


class Span:
    """One span, or none where tracing is off."""

    __slots__ = ("_span", "_tracer")

    def __init__(self, span: Any, tracer: Any) -> None:
        self._span = span
        self._tracer = tracer

    @property
    def traceparent(self) -> str | None:
        """How what it leads to names it, as of W3C Trace Context."""
        if self._span is None:
            return None
        found = self._span.get_span_context()
        return f"00-{found.trace_id:032x}-{found.span_id:016x}-{int(found.trace_flags):02x}"

    def below(self, name: str, attributes: dict[str, Attribute]) -> Span:
        """Start a child."""
        if self._span is None:
            return OFF
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(self._span, Context())
        return Span(self._tracer.start_span(name, context, attributes=attributes), self._tracer)

    def rename(self, name: str) -> None:
        """Call it what it turned out to be."""
        if self._span is not None:
            self._span.update_name(name)

    def put(self, attributes: Mapping[str, Attribute | None]) -> None:
        """Set attributes; None: there is nothing to say."""
        if self._span is not None:
            self._span.set_attributes({k: v for k, v in attributes.items() if v is not None})

    def fault(self, code: str) -> None:
        """Mark it as failed, with a code and nothing else."""
        if self._span is None:
            return
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attribute("error.type", code)
        self._span.set_status(Status(StatusCode.ERROR))

    def end(self) -> None:
        """It ends now."""
        if self._span is not None:
            self._span.end()


OFF = Span(None, None)


class AttemptSpans:
    """The span of an attempt, and those of its stages, one at a time."""

    def __init__(self, job: Span) -> None:
        self._job = job
        self._stage = OFF
        self._name = ""

    def stage(self, name: str, state: str) -> None:
        """Follow what the payload announces."""
        if state == "started":
            self._stage.end()
            self._stage = self._job.below(f"stage {name}", {"tilewright.stage": name})
            self._name = name
        elif name == self._name:
            self._close()

    def units(self, solved: int, cached: int, total: int) -> None:
        """How much of the work was there already."""
        self._job.put({
            "tilewright.units.solved": solved, "tilewright.units.cached": cached,
            "tilewright.units.total": total,
        })  # fmt: skip

    def used(self, cpu_s: float | None, max_rss_bytes: int | None) -> None:
        """What it took."""
        self._job.put({"tilewright.cpu_s": cpu_s, "tilewright.max_rss_bytes": max_rss_bytes})

    def outcome(self, outcome: str, code: str | None = None) -> None:
        """How it ended; with a `code`, by a fault, that of the open stage too."""
        self._job.put({"tilewright.outcome": outcome})
        if code is not None:
            self._stage.fault(code)
            self._job.fault(code)
        self._close()

    def _close(self) -> None:
        self._stage.end()
        self._stage, self._name = OFF, ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.outcome("lost" if issubclass(kind, LeaseLost) else "crashed", kind.__name__)
        self._close()
        self._job.end()
