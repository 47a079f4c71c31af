"""All settings, and the only place that reads the environment.

Every field is `TILEWRIGHT_<NAME>`.  With nothing set the service is embedded: one process, SQLite,
an in-memory broker and local files, all below `data_dir`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.addresses import Allowed
from service.hosts import is_loopback
from service.keys import LOCAL, RATE
from service.sealing import check_key
from service.trust import Issuer
from worker.job.stages import NAMES
from worker.job.watchdog import LIMIT_S
from worker.sandbox.isolation import IsolationChoice
from worker.sandbox.sandbox import Limits

_MIB = 1024 * 1024
STAGE_LIMITS_S: Mapping[str, float] = MappingProxyType(
    {
        "ingest": 300.0,
        "simplify": 600.0,
        "convert": 1800.0,
        "partition": 1800.0,
        "schedule": 3600.0,
        "codegen": 600.0,
        "simulate": 1800.0,
        "package": 900.0,
        "verify": 1800.0,
        "report": 300.0,
    }
)
"""Far above what models of benchmarks/MODELS.md take: 21 s to compile, 10 s to verify at most."""


def _default_path() -> str:
    """Where the sandboxed child finds a C compiler; inherited from whoever starts the service."""
    return os.environ.get("PATH", os.defpath)


class Traces(BaseModel):
    """Where spans go, as the variables of OpenTelemetry say it.

    What else they say (headers, timeouts, sampling, resource) its library reads itself.
    """

    model_config = ConfigDict(frozen=True)

    endpoint: str = ""
    """URL that takes OTLP; empty: no spans."""
    protocol: str = "http/protobuf"
    exporter: str = "otlp"


def _traces() -> Traces:
    def said(*names: str) -> str:
        return next((found for name in names if (found := os.environ.get(name, "").strip())), "")

    exporter = said("OTEL_TRACES_EXPORTER") or "otlp"
    if said("OTEL_SDK_DISABLED").lower() == "true" or exporter == "none":
        return Traces()
    base = said("OTEL_EXPORTER_OTLP_ENDPOINT")
    return Traces(
        endpoint=said("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        or (f"{base.removesuffix('/')}/v1/traces" if base else ""),
        protocol=said("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
        or "http/protobuf",
        exporter=exporter,
    )


class Settings(BaseSettings):
    """Settings of one process.  Frozen; tests build their own with keyword arguments."""

    model_config = SettingsConfigDict(env_prefix="TILEWRIGHT_", frozen=True, extra="ignore")

    data_dir: Path = Field(default_factory=lambda: Path.home() / ".local" / "share" / "tilewright")
    database_url: str = Field(default="", validate_default=True)
    """Empty means SQLite at `data_dir`/tilewright.db; otherwise a postgresql:// URL."""
    broker_url: str = "memory://"
    blob_url: str = Field(default="", validate_default=True)
    """Empty means `data_dir`/blobs; `s3://bucket/prefix` needs the optional obstore package."""
    s3_endpoint: str | None = None
    s3_region: str = "us-east-1"
    queue_name: str = "tilewright"

    workers: int = Field(default=2, ge=1, le=256)
    """Jobs that run at the same time in one worker process."""
    preflight_slots: int = Field(default=2, ge=1, le=32)
    """Preflights that one server runs at a time; more are refused with Retry-After.  They have
    processes of their own, below the priority of jobs."""
    worker_pool: Literal["prefork", "threads", "solo"] = "threads"
    """Pool of a stand-alone worker; the embedded worker always uses threads.

    Jobs run in sandboxed processes of their own, so a forking pool isolates nothing more, costs
    memory, and forks beside the reconciler thread when it replaces a child.
    """

    lease_ttl_s: float = Field(default=30.0, gt=0)
    heartbeat_s: float = Field(default=10.0, gt=0)
    watch_s: float = Field(default=0.5, gt=0)
    """How often a running job looks whether it was canceled: the latency of a cancel."""
    reconcile_s: float = Field(default=0.0, ge=0)
    """Pause between reconciler rounds; 0 means 1 s embedded and 5 s scaled out."""
    redispatch_s: float = Field(default=30.0, gt=0)
    max_attempts: int = Field(default=3, ge=1)
    retry_backoff_s: float = Field(default=1.0, ge=0)
    """First pause before a retry; doubles with every attempt."""
    patience_s: float = Field(default=3600.0, ge=0)
    """How long after its first attempt a job waits out faults that are not its own: a store or a
    database that is away, a full disk.  Such an attempt does not count; later ones do."""
    help_from_s: float = Field(default=20.0, ge=0)
    """An idle worker helps a job with so many seconds of scheduling left, by its own pace; 0: no
    job is helped.  Beginning to help takes some 3 CPU seconds (decisions 0075, 0098)."""
    queue_ttl_s: float = Field(default=7 * 86400.0, gt=0)
    wall_limit_s: float = Field(default=3600.0, gt=0)
    """Longest run of one job unless the job asks for less."""
    stage_limits_s: Mapping[str, float] = Field(default_factory=lambda: {**STAGE_LIMITS_S})
    """Longest wall time of a stage, by its name, within the job's; as a JSON object, which changes
    the stages it names.  Budgets of work and bytes end most of what would take long before this."""
    strategy_limit_s: float = Field(default=LIMIT_S, gt=0)
    """Most CPU time, or time of waiting, of one step of a strategy; then it loses its unit."""
    idempotency_ttl_s: float = Field(default=86400.0, gt=0)

    memory_base_bytes: int = Field(default=8192 * _MIB, gt=0)
    memory_per_model_byte: float = Field(default=6.0, ge=0)
    file_limit_bytes: int = Field(default=16 * 1024 * _MIB, gt=0)
    output_limit_bytes: int = Field(default=4 * _MIB, gt=0)
    """Kept bytes of a job's stdout and stderr; the rest is counted and dropped."""
    process_limit: int = Field(default=512, gt=0)
    isolation: IsolationChoice = IsolationChoice.AUTO
    """How payloads are kept apart: `auto` (bubblewrap where it works), `bubblewrap` (nothing runs
    without it), `limits` (never)."""
    child_threads: int = Field(default=1, ge=1)

    max_model_bytes: int = Field(default=4096 * _MIB, gt=0)
    max_hardware_bytes: int = Field(default=2 * _MIB, gt=0)
    max_json_bytes: int = Field(default=1 * _MIB, gt=0)
    max_artifact_bytes: int = Field(default=8192 * _MIB, gt=0)
    max_active_jobs: int = Field(default=1000, ge=1)
    """Unfinished jobs of a project that has no limit of its own."""
    max_project_bytes: int = Field(default=0, ge=0)
    """Bytes of its models, arrays, results and logs that such a project may keep; 0: no limit."""
    max_sweep_items: int = Field(default=1000, ge=1)
    """Models times machines of one sweep."""
    max_active_sweeps: int = Field(default=20, ge=1)
    """Sweeps of one project that have not ended."""
    sweep_ahead: int = Field(default=4, ge=1)
    """Jobs of a sweep that wait while every worker is busy; its other items have no job yet.  What
    is submitted beside it waits for so many of its items at most."""
    keep_jobs_s: float = Field(default=0.0, ge=0)
    """Ended jobs go so many seconds after their end, with their artifacts; 0: when users delete
    them."""
    keep_deliveries_s: float = Field(default=0.0, ge=0)
    """Messages to webhooks go so many seconds after they were delivered or given up; 0: with their
    webhook or job."""
    keep_unused_s: float = Field(default=0.0, ge=0)
    """Models and arrays that no job refers to go so many seconds after they came; 0: never."""
    keep_cache_s: float = Field(default=0.0, ge=0)
    """Cache entries go when nobody has used them for so many seconds; 0: never."""
    max_cache_bytes: int = Field(default=0, ge=0)
    """Cache entries that were used longest ago go while all projects' have more bytes; 0: never."""
    keep_audit_s: float = Field(default=0.0, ge=0)
    """Rows of the audit log go so many seconds after they were written; 0: never."""
    cache_inline_bytes: int = Field(default=64 * 1024, ge=0)
    """Cached values up to this size live in their row, larger ones in the blob store."""
    cache_intake_bytes: int = Field(default=2048 * _MIB, ge=0)
    """What one job's child may store in the cache in all; beyond, its results are not kept."""

    webhook_hosts: tuple[str, ...] = ()
    """Names, addresses and networks that webhooks may reach although they are not public, and by
    http, as a JSON list: `["ci.internal", "10.2.0.0/16"]`.  A name stands for all its addresses."""
    webhook_keys: tuple[SecretStr, ...] = ()
    """Fernet keys that encrypt the secrets of webhooks in the database, as a JSON list: the first
    encrypts, all decrypt.  Without one the secrets lie there as they are."""
    webhook_timeout_s: float = Field(default=20.0, gt=0)
    """Longest time of one attempt, from looking up the name to the receiver's status line."""
    webhook_backoff_s: float = Field(default=5.0, gt=0)
    """First pause after an attempt that failed; each further one is four times as long, up to six
    hours."""
    webhook_give_up_s: float = Field(default=3 * 86400.0, gt=0)
    """A message is not tried any more so long after its event, or its replay."""
    webhook_disable_s: float = Field(default=5 * 86400.0, gt=0)
    """A webhook is disabled when a message was given up and nothing was taken for so long."""

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    allowed_hosts: tuple[str, ...] = ()
    """Names the server answers to besides loopback and `host`, as a JSON list: `["api"]`."""
    require_key: bool = False
    """Ask for an API key on loopback, too: where a proxy brings others to it.  Beyond loopback a
    server always does."""
    key_rate: str = ""
    """Requests of one key: `20/second`, `600/minute;10000/day` (all hold); empty: as many as come.
    A key may have a rate of its own."""
    project_rate: str = ""
    """The same of all keys of a project together."""
    guess_rate: str = "60/minute"
    """Keys and tokens that are none, from one address; empty: as many as come."""
    rate_store_url: str = Field(default="memory://", pattern="^(memory://|rediss?://.+)$")
    """Where requests are counted: in each process of its own, or in a Redis that all share."""
    trusted_issuers: tuple[Issuer, ...] = ()
    """CI systems whose tokens are taken beside keys, as a JSON list: see docs/ci-tokens.md."""
    session_secret: str = ""
    """Signs sessions of browsers and links that are shared: the same for all servers behind one
    address.  Empty: one that the data directory keeps."""
    share_cache: bool = False
    """Projects use each other's compile cache: what one has compiled is fast for another, which
    tells it that somebody has."""
    slow_client_s: float = Field(default=20.0, gt=0)
    """How long a client may pause within a request before its connection ends."""
    guide_dir: Path | None = None
    """Folder of the built documentation, served below /docs/guide; none: the route says how to
    build it."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: Literal["json", "console"] = "json"
    access_log: bool = False
    """A line for every request: method, path, status, milliseconds, key and project."""
    traces: Traces = Field(default_factory=_traces)
    """By default what the OTEL_* variables say: see docs/operate.md."""
    runner: str = "worker.job.job:run_job"
    """What the sandboxed child calls, as `module:function`."""
    child_path: str = Field(default_factory=_default_path)
    child_python_path: tuple[str, ...] = ()
    """Extra import roots of the child (tests put their fake payloads there)."""

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("key_rate", "project_rate", "guess_rate")
    @classmethod
    def _is_rate(cls, value: str) -> str:
        if value and RATE.fullmatch(value) is None:
            raise ValueError(f"{value!r} is no rate: N/second, N/minute, N/hour, N/day, apart by ;")
        return value

    @field_validator("webhook_hosts")
    @classmethod
    def _hosts_are_readable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        Allowed.of(value)
        return value

    @field_validator("webhook_keys")
    @classmethod
    def _keys_are_keys(cls, value: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        return tuple(map(check_key, value))

    @field_validator("trusted_issuers")
    @classmethod
    def _each_once(cls, value: tuple[Issuer, ...]) -> tuple[Issuer, ...]:
        names = [issuer.issuer for issuer in value]
        if len(set(names)) < len(names):
            raise ValueError("an issuer is named twice; it may have several rules")
        return value

    @field_validator("stage_limits_s")
    @classmethod
    def _every_stage(cls, value: Mapping[str, float]) -> Mapping[str, float]:
        for name, limit_s in value.items():
            if name not in NAMES or not limit_s > 0:
                raise ValueError(f"{name!r}: {limit_s}: stages are {', '.join(NAMES)}; limits > 0")
        return {**STAGE_LIMITS_S, **value}

    @field_validator("database_url")
    @classmethod
    def _database_default(cls, value: str, info: ValidationInfo) -> str:
        if not value:
            return f"sqlite:///{info.data['data_dir'] / 'tilewright.db'}"
        # A bare postgresql:// would pick psycopg2; this project speaks psycopg 3.
        for prefix in ("postgresql://", "postgres://"):
            if value.startswith(prefix):
                return "postgresql+psycopg://" + value.removeprefix(prefix)
        return value

    @field_validator("blob_url")
    @classmethod
    def _blob_default(cls, value: str, info: ValidationInfo) -> str:
        return value or f"file://{info.data['data_dir'] / 'blobs'}"

    @property
    def needs_key(self) -> bool:
        """Whether a server with these settings answers only to who has an API key."""
        return self.require_key or not is_loopback(self.host)

    def cache_of(self, project: str) -> str:
        """The project whose cache entries a job of a project reads and fills."""
        return LOCAL if self.share_cache else project

    @property
    def embedded(self) -> bool:
        """True when messages live in this process: API and worker must share it."""
        return self.broker_url.startswith("memory:")

    @property
    def queue(self) -> str:
        """Name of the doorbell queue.

        kombu keeps in-memory queues per process and by name, so two embedded services in one
        process (tests, `--local`) must not share a name.
        """
        if not self.embedded:
            return self.queue_name
        return f"{self.queue_name}.{sha256(str(self.data_dir).encode()).hexdigest()[:12]}"

    @property
    def reconcile_period_s(self) -> float:
        return self.reconcile_s or (1.0 if self.embedded else 5.0)

    def payload_limits(self, wall_s: float, model_bytes: int) -> Limits:
        """What one payload that reads a model of that size may use, for `wall_s` seconds."""
        memory = self.memory_base_bytes + int(self.memory_per_model_byte * model_bytes)
        return Limits(
            wall_s, memory, self.file_limit_bytes, self.process_limit, self.output_limit_bytes
        )

    @property
    def work_dir(self) -> Path:
        return self.data_dir / "work"

    @property
    def asked_dir(self) -> Path:
        """Folders of payloads that the API asks."""
        return self.data_dir / "asked"

    @property
    def build_dir(self) -> Path:
        return self.data_dir / "build"

    @property
    def spool_dir(self) -> Path:
        return self.data_dir / "spool"
