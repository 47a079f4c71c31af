"""Presets with a rate that they do not have, for tests whose sizes are of another format."""

from __future__ import annotations

from dataclasses import replace

from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import EngineKind, Machine


def with_rate(machine: Machine, name: str, dtype: DType, rate: float) -> Machine:
    """The machine whose engine `name` also executes `dtype`, `rate` MACs a cycle."""
    engines = tuple(
        replace(e, macs_per_cycle={**e.macs_per_cycle, dtype: rate}) if e.name == name else e
        for e in machine.engines
    )
    return replace(machine, engines=engines)


def with_every_format(machine: Machine) -> Machine:
    """The machine whose vector engines also execute all they do not list, at their slowest rate."""
    engines = tuple(
        replace(e, macs_per_cycle={
            **dict.fromkeys(DType, min(e.macs_per_cycle.values())), **e.macs_per_cycle,
        })
        if e.kind is EngineKind.VECTOR else e
        for e in machine.engines
    )  # fmt: skip
    return replace(machine, engines=engines)
