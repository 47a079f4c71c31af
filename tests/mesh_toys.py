"""A toy mesh, and its links said apart from the product: pairs of routers, and who is there."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from lower_toys import flat_machine

from worker.compiler.isa.program import Resource
from worker.compiler.machine.machine import Link, LinkKind, Machine
from worker.compiler.machine.mesh import Mesh

Place: TypeAlias = tuple[int, int]
HOME_RATE, OWN_RATE, LATENCY = 16.0, 64.0, 10
"""Of the toy: bytes a cycle of home and of a node's memory, latency of both."""
RATE, HOP, PJ = 4.0, 3, 0.25
"""Of each link of its mesh: bytes a cycle, cycles a hop, pJ for a byte and hop."""


def mesh_machine(
    rows: int = 2, columns: int = 2, ports: tuple[Place, ...] = ((0, 0),), *,
    multicast: bool = False, rate: float = RATE,
) -> Machine:  # fmt: skip
    """Home behind its ports of a mesh, one scratchpad and one core at each node."""
    machine = flat_machine(rows * columns)
    home, _, own = machine.levels
    mesh = Mesh(rows, columns, ports)
    noc = Link("noc", "L1", "L1", LinkKind.NOC, rate, HOP, PJ, multicast=multicast, mesh=mesh)
    return replace(machine, levels=(home, own), links=(noc,))


def xy(begin: Place, end: Place) -> list[tuple[Place, Place]]:
    """Pairs of routers from one to another: first within the row."""
    at, found = begin, []
    while at != end:
        if at[1] != end[1]:
            to = at[0], at[1] + (1 if end[1] > at[1] else -1)
        else:
            to = at[0] + (1 if end[0] > at[0] else -1), at[1]
        found.append((at, to))
        at = to
    return found


def wires_of(port: Resource, mesh: Mesh) -> tuple[tuple[object, ...], int]:
    """(what the ways of a port of the mesh occupy, hops of the longest)."""
    wires: dict[tuple[object, ...], None] = {}
    hops = 0
    ends = mesh.rows * mesh.columns + len(mesh.ports)
    for way in port.instances:
        begin, end = divmod(way, ends)
        routers = [
            divmod(e, mesh.columns) if e < mesh.rows * mesh.columns
            else mesh.ports[e - mesh.rows * mesh.columns]
            for e in (begin, end)
        ]  # fmt: skip
        steps = xy(routers[0], routers[1])
        hops = max(hops, len(steps))
        wires |= dict.fromkeys([("in", begin), *steps, ("out", end)])
    return tuple(wires), hops
