"""A toy mesh, and its links said apart from the product: pairs of routers, and who is there."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from lower_toys import flat_machine

from worker.compiler.isa.program import Resource
from worker.compiler.machine.machine import Link, LinkKind, Machine
from worker.compiler.machine.mesh import Mesh, Numbering

Place: TypeAlias = tuple[int, int]
HOME_RATE, OWN_RATE, LATENCY = 16.0, 64.0, 10
"""Of the toy: bytes a cycle of home and of a node's memory, latency of both."""
RATE, HOP, PJ = 4.0, 3, 0.25
"""Of each link of its mesh: bytes a cycle, cycles a hop, pJ for a byte and hop."""


def mesh_machine(
    rows: int = 2, columns: int = 2, ports: tuple[Place, ...] = ((0, 0),), *,
    multicast: bool = False, rate: float = RATE, numbering: Numbering = Numbering.ROWS,
) -> Machine:  # fmt: skip
    """Home behind its ports of a mesh, one scratchpad and one core at each node."""
    machine = flat_machine(rows * columns)
    home, _, own = machine.levels
    mesh = Mesh(rows, columns, ports, numbering)
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


def places(mesh: Mesh) -> list[Place]:
    """Where the ends of ways are: nodes, then ports of home."""
    routers = [(row, column) for row in range(mesh.rows) for column in range(mesh.columns)]
    if mesh.numbering is Numbering.HOME:
        nearest = {at: min((len(xy(p, at)), k) for k, p in enumerate(mesh.ports)) for at in routers}
        turn = {
            at: sum(nearest[o][1] == nearest[at][1] and (nearest[o], o) < (nearest[at], at)
                    for o in routers)
            for at in routers
        }  # fmt: skip
        routers.sort(key=lambda at: (turn[at], nearest[at][1]))
    return [*routers, *mesh.ports]


def wires_of(port: Resource, mesh: Mesh) -> tuple[tuple[object, ...], int]:
    """(what the ways of a port of the mesh occupy, hops of the longest)."""
    wires: dict[tuple[object, ...], None] = {}
    hops = 0
    at = places(mesh)
    for way in port.instances:
        begin, end = divmod(way, len(at))
        steps = xy(at[begin], at[end])
        hops = max(hops, len(steps))
        wires |= dict.fromkeys([("in", begin), *steps, ("out", end)])
    return tuple(wires), hops
