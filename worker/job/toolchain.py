"""Versions that decide results; apart from `job`, which imports the whole compiler."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from worker.compiler.codegen.kernel import CODEGEN_VERSION
from worker.compiler.errors import Detail
from worker.compiler.ir.signature import IR_VERSION
from worker.compiler.judge.entrants import took_part
from worker.compiler.lower.lower import LOWER_VERSION
from worker.compiler.options import CompileOptions
from worker.simulator.run import SIMULATOR_VERSION


def toolchain(options: CompileOptions) -> dict[str, Detail]:
    """What results of these options depend on: part of the report and the bundle."""
    try:
        release = version("tilewright")
    except PackageNotFoundError:
        release = "0+source"
    return {
        "version": release,
        "ir": IR_VERSION,
        "lower": LOWER_VERSION,
        "codegen": CODEGEN_VERSION,
        "simulator": SIMULATOR_VERSION,
        "strategies": {
            row.name: {"version": row.version, "distribution": row.distribution}
            for row in took_part(options)
        },
    }
