"""Energy predicted for a schedule: operations, and bytes through every port they cross."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from worker.compiler.cost.compute import compute_dtype, work
from worker.compiler.cost.traffic import traffic_bytes
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Compute, Schedule
from worker.compiler.schedule.walk import walk


@dataclass(frozen=True, slots=True)
class EnergyTerm:
    """Picojoules of one cause."""

    item: str
    """`engine:NAME`, `level:NAME`, `link:NAME` or `static`."""
    pj: float


def predicted_energy(schedule: Schedule, machine: Machine, cycles: int) -> tuple[EnergyTerm, ...]:
    """Engines, levels, links, and static power over `cycles`, in a fixed order."""
    terms: dict[str, float] = {}
    engine_of = {
        leaf.node.op: leaf.node.engine
        for leaf in walk(schedule).leaves
        if isinstance(leaf.node, Compute)
    }
    for name, engine_name in engine_of.items():
        op = schedule.graph.tensor_op(name)
        engine = machine.engine(engine_name)
        per_op = (engine.op_energy_pj or {}).get(compute_dtype(op, schedule.graph.tensors), 0.0)
        item = f"engine:{engine_name}"
        terms[item] = terms.get(item, 0.0) + per_op * work(op, op.num_points)
    for (src, dst), size in traffic_bytes(schedule, machine).items():
        for item, pj in _route_energy(machine, src, dst):
            terms[item] = terms.get(item, 0.0) + pj * size
    terms["static"] = machine.static_power_w * cycles / machine.clock_hz * 1e12
    return tuple(EnergyTerm(item, pj) for item, pj in terms.items())


def _route_energy(machine: Machine, src: str, dst: str) -> list[tuple[str, float]]:
    path = machine.route(src, dst)
    found = [(f"level:{path[0]}", machine.level(path[0]).read_energy_pj_per_byte)]
    for name in path[1:-1]:
        level = machine.level(name)
        both = level.read_energy_pj_per_byte + level.write_energy_pj_per_byte
        found.append((f"level:{name}", both))
    found.append((f"level:{path[-1]}", machine.level(path[-1]).write_energy_pj_per_byte))
    for a, b in pairwise(path):
        link = next((k for k in machine.links if {k.src, k.dst} == {a, b}), None)
        if link is not None:
            found.append((f"link:{link.name}", link.energy_pj_per_byte))
    return found
