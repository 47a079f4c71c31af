"""What users ask for: kinds of jobs and of sweeps whose outcome is always the same, and a plan.

A plan follows from its seed: jobs, some of which their users cancel, sweeps, some of which are
canceled and resumed, and uploads of files that nobody has sent before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random

import onnx

from benchmarks.random_models import BLOCKS, Model
from service.cli.demo import EXAMPLE

_BLOCKS = ("plain", "residual", "excited")
"""One of each makes a small model."""
_CANCELED = 0.05
_SWEEPS = 0.08
_UPLOADS = 0.1
PADDING_CHARS = 400_000
"""Of an uploaded file: several chunks, which a fault may part."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A job that many submit: its outcome is always the same."""

    name: str
    model: Path
    hardware: str
    options: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SweepKind:
    """A sweep that many submit."""

    name: str
    models: tuple[Path, ...]
    hardware: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    base: str | None = None
    vary: str | None = None
    """One field of `base` and its values."""

    @property
    def num_items(self) -> int:
        """Models times machines."""
        varied = 0 if self.vary is None else self.vary.count(",") + 1
        return len(self.models) * (len(self.hardware) + varied)


class Fate(StrEnum):
    """What the user of a sweep does with it."""

    LEFT = "left alone"
    CANCELED = "canceled"
    RESUMED = "canceled and resumed"


@dataclass(frozen=True, slots=True)
class JobTask:
    """Submit a job."""

    kind: Kind
    is_canceled: bool


@dataclass(frozen=True, slots=True)
class SweepTask:
    """Submit a sweep."""

    kind: SweepKind
    fate: Fate


@dataclass(frozen=True, slots=True)
class UploadTask:
    """Send a file in chunks."""

    padding: str


Task = JobTask | SweepTask | UploadTask


@dataclass(frozen=True, slots=True)
class Work:
    """All that may be asked for."""

    jobs: tuple[Kind, ...]
    sweeps: tuple[SweepKind, ...]


def work(folder: Path) -> Work:
    """Small models by several strategies on several chips; their files are written to `folder`."""
    blocks = []
    for name in _BLOCKS:
        path = folder / f"{name}.onnx"
        path.write_bytes(_of_one_block(name))
        blocks.append(path)
    refused = folder / "refused.onnx"
    refused.write_bytes(_of_no_operator())
    naive = (("strategy", "naive"), ("verify", "none"))
    jobs = []
    for model in (EXAMPLE, *blocks):
        for hardware, strategy in (("kapla-edge", "naive"), ("simba", "graphturbo")):
            options = (("strategy", strategy), ("verify", "none"))
            jobs.append(Kind(f"{model.stem} {strategy}", model, hardware, options))
    jobs.append(Kind("verified", EXAMPLE, "kapla-edge", (("strategy", "naive"),)))
    jobs.append(Kind("refused", refused, "kapla-edge", (("strategy", "naive"),)))
    plain, residual, excited = blocks
    capacity = "/levels/GBUF/capacity_bytes"
    sweeps = (
        SweepKind("listed", (EXAMPLE, plain), ("kapla-edge", "simba"), naive),
        SweepKind("varied", (residual, excited), (), naive, "kapla-edge",
                  f"{capacity}=16KiB,32KiB,64KiB"),
        SweepKind("some refused", (plain, refused), (), naive, "kapla-edge", "num_cores=x1,x0.5"),
    )  # fmt: skip
    return Work(tuple(jobs), sweeps)


def _of_one_block(name: str) -> bytes:
    m = Model(len(name))
    m.shapes["x"] = (1, 4, 8, 8)
    (block,) = (block for block in BLOCKS if block.__name__ == name)
    return bytes(m.finished("x", [block(m, "x")]).SerializeToString())


def _of_no_operator() -> bytes:
    """A model that is refused: an operator that nobody knows."""
    model = onnx.load(EXAMPLE)
    model.graph.node[0].op_type = "NoSuchOperator"
    return bytes(model.SerializeToString())


def padded(padding: str) -> bytes:
    """A model's file that nobody else has: `padding` makes it large, and changes no result."""
    model = onnx.load(EXAMPLE)
    model.metadata_props.add(key="padding", value=padding)
    return bytes(model.SerializeToString())


def planned(found: Work, count: int, seed: int) -> list[Task]:
    """Tasks that make `count` jobs, the items of sweeps counted; the first is a resumed sweep."""
    random = Random(f"{seed}.plan")
    tasks: list[Task] = []
    while (left := count - num_jobs(tasks)) > 0:
        fitting = [kind for kind in found.sweeps if kind.num_items <= left]
        if fitting and (not tasks or random.random() < _SWEEPS):
            fate = random.choice(list(Fate)) if tasks else Fate.RESUMED
            tasks.append(SweepTask(random.choice(fitting), fate))
        elif random.random() < _UPLOADS:
            tasks.append(UploadTask(random.randbytes(PADDING_CHARS // 2).hex()))
        else:
            tasks.append(JobTask(random.choice(found.jobs), random.random() < _CANCELED))
    return tasks


def num_jobs(tasks: Sequence[Task]) -> int:
    """Jobs and items of sweeps."""
    return sum(
        task.kind.num_items if isinstance(task, SweepTask) else isinstance(task, JobTask)
        for task in tasks
    )
