"""The load of a mesh in the report."""

from __future__ import annotations

import msgspec

from worker.compiler.errors import Detail
from worker.compiler.machine.links import meshes
from worker.compiler.machine.machine import Machine
from worker.report.mesh_map import Loaded, MeshLoad
from worker.simulator.results import ModelSimulation


def mesh_loads(machine: Machine, whole: ModelSimulation) -> tuple[MeshLoad, ...]:
    """Of the machine's mesh; empty without one."""
    found = []
    for link in meshes(machine).values():
        mesh = link.mesh
        assert mesh is not None
        links = tuple(
            Loaded(
                *mesh.joins(load.link), load.bytes, load.busy_cycles,
                round(100 * load.busy_cycles / max(whole.cycles, 1), 3),
            )
            for load in whole.mesh
        )  # fmt: skip
        found.append(
            MeshLoad(link.name, mesh.rows, mesh.columns, mesh.ports, links, mesh.numbering.value)
        )
    return tuple(found)


def mesh_section(machine: Machine, whole: ModelSimulation) -> list[Detail]:
    """The same as a report has it."""
    found: list[Detail] = msgspec.to_builtins(mesh_loads(machine, whole))
    return list(found)
