"""Versions that decide results; apart from `job`, which imports the whole compiler."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from worker.compiler.codegen.kernel import CODEGEN_VERSION
from worker.compiler.errors import Detail
from worker.compiler.ir.signature import IR_VERSION
from worker.compiler.judge.entrants import took_part
from worker.compiler.lower.lower import LOWER_VERSION
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions
from worker.compiler.vendors import STREAM, engines, oracles, serializers
from worker.simulator.run import SIMULATOR_VERSION


def toolchain(options: CompileOptions, machine: Machine | None = None) -> dict[str, Detail]:
    """What results of these options on a machine depend on: part of the report and the bundle.

    Serializers, engines and oracles are those that it names; of no machine, all that are installed.
    """
    targets = () if machine is None else machine.targets
    asked = {
        i.question.oracle
        for engine in (() if machine is None else machine.engines)
        for i in engine.intrinsics
        if i.question is not None
    }
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
        "serializers": {
            row.name: {
                "version": row.version,
                "distribution": row.distribution,
                "format": row.format,
                "format_version": row.format_version,
            }
            for row in serializers().values()
            if machine is None or row.name in (STREAM, *(t.serializer for t in targets))
        },
        "engines": {
            row.name: {"version": row.version, "distribution": row.distribution}
            for row in engines().values()
            if machine is None or row.name in {t.engine for t in targets}
        },
        "oracles": {
            row.name: {"version": row.version, "distribution": row.distribution}
            for row in oracles().values()
            if machine is None or row.name in asked
        },
    }
