"""Ports of a memory that its engines share with transfers.

A level that says so (`serves_engines`) passes what its engines draw and return through the ports of
transfers: its read port what they draw, its write port what they return, a half-duplex one both in
turn.  An instruction takes them when it starts, for as long as its bytes need there, and keeps its
engine no less long.
"""

from __future__ import annotations

from math import ceil

from worker.compiler.machine.bursts import counted_at
from worker.compiler.machine.machine import Engine, Machine, MemoryLevel

ENGINE_WAYS = {"drawn": "read", "returned": "write"}
"""Columns of an instruction that say what passes, two of `isa.program.PASSED`, and the directions
of the ports that it passes."""


def shared_memory(engine: Engine, machine: Machine) -> MemoryLevel | None:
    """The memory whose ports a compute engine shares with transfers; None: it has its own."""
    level = machine.level(engine.memory)
    return level if level.serves_engines else None


def ends_of(level: MemoryLevel) -> tuple[tuple[str, float, str], ...]:
    """(direction, bytes per cycle, column) of the ports that engines of a level take."""
    rates = level.read_bytes_per_cycle, level.write_bytes_per_cycle
    return tuple(
        (way, rate, column) for (column, way), rate in zip(ENGINE_WAYS.items(), rates, strict=True)
    )


def serves_an_engine(level: str, counted: str, machine: Machine) -> bool:
    """Whether a port of a level (or link) that counts a column is an engine's way through it."""
    found = next((m for m in machine.levels if m.name == level), None)
    return found is not None and found.serves_engines and counted != counted_at(found, machine)


def taken_cycles(level: MemoryLevel, drawn: int, returned: int) -> tuple[int, int]:
    """Cycles of the read and of the write port of an instance that one instruction takes."""
    return (
        ceil(drawn / level.read_bytes_per_cycle), ceil(returned / level.write_bytes_per_cycle)
    )  # fmt: skip
