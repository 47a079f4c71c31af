"""Legality of the ways that transfers take over a mesh."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from worker.compiler.errors import VerifyError
from worker.compiler.isa.program import Opcode, Resource, UnitProgram
from worker.compiler.machine.links import is_on, meshes, node_of
from worker.compiler.machine.machine import Link, Machine

HOME = -1
"""Instead of nodes: an end that is reached by a port of home."""


def check_way(place: str, resource: Resource, machine: Machine) -> None:
    """A port of a mesh is a way over it, of several all from one beginning.

    Raises:
        VerifyError: it is none.
    """
    link = meshes(machine).get(resource.level)
    if link is None or link.mesh is None:
        return
    mesh, ways = link.mesh, resource.instances
    if not 0 <= ways[0] <= ways[-1] < mesh.num_ways:
        raise VerifyError(
            "lower", place, "instance",
            f"{ways[-1]} is none of the {mesh.num_ways} ways over {link.name}",
        )  # fmt: skip
    if mesh.ends(ways[0])[0] != mesh.ends(ways[-1])[0]:
        raise VerifyError("lower", place, "instance", "ways of several beginnings")


def check_ways(unit: UnitProgram, machine: Machine) -> None:
    """Of a program without loops: each transfer that crosses a mesh takes the way from where it
    reads to all where it writes, alone by the port of home next to its node, a multicast by any; no
    other instruction takes one.

    Raises:
        VerifyError: the first that does not.
    Cost: linear in instructions; Python over different transfers.
    """
    rows = unit.instructions
    for link in meshes(machine).values():
        named = rows["resource"]
        is_way = np.array([r.level == link.name for r in unit.resources] + [False])[named]
        count = np.sum(named >= 0, axis=1)
        last = np.take_along_axis(named, np.maximum(count - 1, 0)[:, None], axis=1)[:, 0]
        way = np.where(is_way, named, -1).max(axis=1, initial=-1)
        is_transfer = ~np.isin(rows["opcode"], [int(Opcode.COMPUTE), int(Opcode.SYNC)])
        wrong = is_way.sum(axis=1) > is_transfer  # computes take none, transfers one
        kinds, which = np.unique(
            np.stack([named[:, 0], way, last], axis=1), axis=0, return_inverse=True
        )
        fits = np.array([_fits(kind, unit, link, machine) for kind in kinds.tolist()], dtype=bool)
        if len(kinds):
            wrong = wrong | (is_transfer & ~fits[which.ravel()])
        _refuse(wrong, link.name)


def _refuse(wrong: npt.NDArray[np.bool_], name: str) -> None:
    if wrong.any():
        raise VerifyError(
            "lower", f"instruction {int(np.argmax(wrong))}", "way",
            f"not the way over {name} from where it reads to where it writes",
        )  # fmt: skip


def _fits(kind: list[int], unit: UnitProgram, link: Link, machine: Machine) -> bool:
    """Whether a way (-1: none) is that between the ports of a transfer."""
    first, way, last = kind
    if first < 0 or last < 0:
        return way < 0
    begins, ends = (_nodes(unit.resources[port], link, machine) for port in (first, last))
    mesh = link.mesh
    assert mesh is not None
    if begins == ends:
        return way < 0  # it stays on its node, or at home
    if way < 0:
        return False
    found = [mesh.ends(each) for each in unit.resources[way].instances]
    begin, reached = found[0][0], [end for _, end in found]
    at_home = [
        mesh.num_nodes + k for k in unit.resources[first if begins == [HOME] else last].instances
    ]
    if begins == [HOME]:
        is_next = len(ends) > 1 or begin == mesh.port_of(ends[0])
        return [begin] == at_home and is_next and reached == ends
    if ends == [HOME]:
        return [begin] == begins and reached == at_home == [mesh.port_of(begin)]
    return [begin] == begins and reached == ends


def _nodes(port: Resource, link: Link, machine: Machine) -> list[int]:
    """Where the instances of a port stand, each node once, in order."""
    if not is_on(machine, link, port.level):
        return [HOME]
    nodes = node_of(machine, link, port.level, np.array(port.instances))
    return list(dict.fromkeys(nodes.tolist()))
