"""What goes into one compile job and what comes out: the contract between worker and payload.

Apart from `worker.job.job`, which implements it, because that imports the whole compiler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from worker.compiler.errors import Detail
from worker.compiler.options import CompileOptions
from worker.compiler.stages import UNWATCHED, Watch


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
    calibration_path: Path | None = None
    """The .npz whose digest `options.calibration` names."""
    inputs_path: Path | None = None
    """An .npz with the inputs of the verification; None: seeded random ones."""
    watch: Watch = UNWATCHED
    """What a developer looks at; no result depends on it."""
    link_path: Path | None = None
    """The kernel library whose digest `options.link` names."""
    is_helping: bool = False
    """Whether it is there for the cache alone: another process runs the same job."""


def request_document(
    model: Path,
    name: str,
    hardware: Mapping[str, Detail],
    options: Mapping[str, Detail],
    calibration: Path | None,
    build: Path,
    out: Path,
    inputs: Path | None = None,
    watch: Watch = UNWATCHED,
    part: Mapping[str, Detail] | None = None,
    link: Path | None = None,
    *,
    is_helping: bool = False,
) -> dict[str, Detail]:
    """A request as `worker.children.sandbox_child` reads it from a file.

    `part`: chips that are estimated with the program, as `worker.explore.part` writes it.
    """
    return {
        "model_path": str(model),
        "model_name": name,
        "hardware": dict(hardware),
        "options": dict(options),
        "build_dir": str(build),
        "calibration_path": None if calibration is None else str(calibration),
        "inputs_path": None if inputs is None else str(inputs),
        "out_dir": str(out),
        "watch": watch.to_json(),
        "link_path": None if link is None else str(link),
        "is_helping": is_helping,
        "part": None if part is None else dict(part),
    }


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What a finished job leaves in `out_dir`."""

    artifacts: tuple[tuple[str, str], ...]
    """(artifact name, file name relative to out_dir); names: report, report_html, layers, trace,
    bundle, placement, schedule, graph, and `after_STAGE` of stages that were printed."""
    bundle_digest: str
    """Empty: the job was stopped before there was a bundle."""
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


class NoProgress:
    """Takes progress and keeps nothing."""

    def stage(self, name: str, state: str) -> None:
        """Forget it."""
        del name, state

    def units(self, solved: int, cached: int, total: int) -> None:
        """Forget it."""
        del solved, cached, total

    def artifact(self, name: str, file_name: str) -> None:
        """Forget it."""
        del name, file_name
