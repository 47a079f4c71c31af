"""What takes time in Tilewright and has no form in any peer."""

from __future__ import annotations

from worker.compiler.export.nest import LoopNest
from worker.compiler.machine.dma import is_limited
from worker.compiler.machine.machine import Machine


def untimed(nest: LoopNest, machine: Machine) -> tuple[str, ...]:
    """Sentences for a report of an export: why Tilewright's cycles are more."""
    found = []
    if nest.engine.startup_cycles:
        found.append("start-up of the engine, per instruction, is left out")
    if any(map(is_limited, machine.engines)):
        found.append("transfers are set up, or wait for room on their way, in Tilewright alone")
    if any(level.serves_engines for level in machine.levels):
        found.append("engines and transfers share ports of a memory in Tilewright alone")
    if any(level.burst_bytes > 1 for level in machine.levels):
        found.append("bursts of home and caches are moved whole in Tilewright, bytes here")
    if machine.engine_signal_cycles or (machine.signal_cycles and machine.num_cores > 1):
        found.append("signals between cores or engines take time in Tilewright and none here")
    return tuple(found)
