"""What every link of a mesh carries, and how long it is held."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from worker.compiler.clock.run import Timing
from worker.compiler.isa.program import UnitProgram
from worker.compiler.machine.links import meshes
from worker.compiler.machine.machine import Machine
from worker.simulator.results import LinkLoad


def mesh_load(program: UnitProgram, machine: Machine, run: Timing) -> tuple[LinkLoad, ...]:
    """Links that carry anything, by number; empty without a mesh.

    A transfer holds every link of its way as long as it passes.  Cost: linear in the links of the
    program's ways.
    """
    of = meshes(machine)
    found: list[tuple[tuple[LinkLoad, ...], int]] = []
    for number, port in enumerate(program.resources):
        link = of.get(port.level)
        if link is None or link.mesh is None or not run.resource_bytes[number]:
            continue
        one = int(run.resource_bytes[number]), int(run.resource_busy[number])
        found.append((tuple(LinkLoad(k, *one) for k in link.mesh.links(port.instances)), 1))
    return summed_load(found)


def summed_load(parts: Iterable[tuple[Sequence[LinkLoad], int]]) -> tuple[LinkLoad, ...]:
    """Loads that come so many times each, link by link."""
    table: dict[int, tuple[int, int]] = {}
    for loads, times in parts:
        for load in loads:
            num_bytes, busy = table.get(load.link, (0, 0))
            table[load.link] = num_bytes + times * load.bytes, busy + times * load.busy_cycles
    return tuple(LinkLoad(link, *table[link]) for link in sorted(table) if table[link][0])
