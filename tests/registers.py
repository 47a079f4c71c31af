"""Machines whose engines sum up in registers."""

from __future__ import annotations

from dataclasses import replace

from worker.compiler.machine.machine import Engine, EngineKind, Machine, Managed, MemoryLevel

COMPUTE = (EngineKind.MATRIX, EngineKind.VECTOR)


def with_registers(machine: Machine, capacity_bytes: int) -> Machine:
    """With so many bytes of them in every core, and ports of their memory's width in front of the
    engines, as a document that says no more gets them."""
    registers = MemoryLevel(
        "REG", capacity_bytes, machine.num_cores, 64.0, 32.0, 1, 0.125, 0.25, Managed.REGISTER, 4
    )

    def keeping(engine: Engine) -> Engine:
        if engine.kind not in COMPUTE:
            return engine
        level = machine.level(engine.memory)
        share = level.instances / machine.num_cores
        return replace(
            engine, accumulators="REG",
            feed_bytes_per_cycle=engine.feed_bytes_per_cycle or level.read_bytes_per_cycle * share,
            drain_bytes_per_cycle=engine.drain_bytes_per_cycle
            or level.write_bytes_per_cycle * share,
        )  # fmt: skip

    return replace(
        machine, levels=(*machine.levels, registers),
        engines=tuple(keeping(engine) for engine in machine.engines),
    )  # fmt: skip
