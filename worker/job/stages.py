"""Every stage of a job, in order: the compiler's, then what is done with its program."""

from __future__ import annotations

from worker.compiler.stages import COMPILER, Stage

STAGES = (
    *COMPILER,
    Stage(
        "simulate", "worker.job.job:simulated", ("codegen",),
        "worker.job.simulation:Simulated", "worker.job.texts:simulated",
        "worker.job.checks:simulated",
    ),
    Stage(
        "package", "worker.job.job:packaged", ("codegen", "simulate"),
        "worker.job.job:Packaged", "worker.job.texts:packaged", "worker.job.checks:packaged",
    ),
    Stage(
        "verify", "worker.job.job:verified", ("codegen", "package"),
        "worker.report.document:Verification", "worker.job.texts:verified",
    ),
    Stage(
        "report", "worker.job.job:reported", ("codegen", "simulate", "package", "verify"),
        "worker.job.request:JobOutcome", "worker.job.texts:reported", "worker.job.checks:reported",
    ),
)  # fmt: skip
AFTER = "after_"
"""Begins the names of artifacts with what `--print-after` asked for."""
NAMES = tuple(stage.name for stage in STAGES)
"""What a job announces, in this order."""
