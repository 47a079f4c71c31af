"""One compile job from files to files: what the sandboxed child and `--local` both run.

`run_job` chains the pure libraries (compiler, simulator, verification) and writes artifacts into
`out_dir`.  It knows no database, queue or HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from worker.compiler.cache import Cache
from worker.compiler.errors import Detail
from worker.compiler.options import CompileOptions

STAGES = (
    "ingest",
    "simplify",
    "partition",
    "schedule",
    "codegen",
    "package",
    "simulate",
    "verify",
    "report",
)


@dataclass(frozen=True, slots=True)
class JobRequest:
    """Everything a job needs, by value or path."""

    model_path: Path
    """An .onnx file, or a .zip bundle with one model and its external data."""
    model_name: str
    hardware: Mapping[str, Detail]
    """A hardware spec document, or {"preset": NAME}."""
    options: CompileOptions
    build_dir: Path
    """Where compiled kernels may be kept between jobs (content-addressed)."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What a finished job leaves in `out_dir`."""

    artifacts: tuple[tuple[str, str], ...]
    """(artifact name, file name relative to out_dir); names: report, report_html, layers, trace,
    bundle, placement, schedule, verification."""
    bundle_digest: str
    summary: Mapping[str, Detail]


class ProgressSink(Protocol):
    """Receives progress; implementations must be cheap and must not raise."""

    def stage(self, name: str, state: str) -> None:
        """`state` is `started` or `finished`."""
        ...

    def units(self, solved: int, cached: int, total: int) -> None:
        """Count schedule units: newly solved, taken from the cache, and all."""
        ...

    def artifact(self, name: str, file_name: str) -> None:
        """A stage's artifact is complete on disk (kept even if a later stage fails)."""
        ...


def run_job(
    request: JobRequest, out_dir: Path, cache: Cache, progress: ProgressSink
) -> JobOutcome:
    """Compile, simulate, verify and report one model.

    Raises:
        CompilerError: any of its subclasses; `to_problem()` is what the user sees.
    """
    raise NotImplementedError
