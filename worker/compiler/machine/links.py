"""Which explicit links a transfer between two levels takes, alone or for several receivers.

A mesh lies between home, with what else all cores share, and the level that it joins with the
faster ones, and between instances of these.  A way over it is a number (`mesh.Mesh.way`): ports of
its noc bear these as their instances, of a multicast that of its first receiver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy.typing as npt

from worker.compiler.machine.machine import Link, Machine, MemoryLevel
from worker.compiler.machine.mesh import Mesh, home_traffic, tree_crowds

Ints: TypeAlias = "npt.NDArray[Any]"


class Multicast(NamedTuple):
    """A way on which what is read once arrives at several instances of a faster level."""

    links: tuple[Link, ...]
    reach: int
    """Neighbouring cores that one transfer may serve: all, or those of a cluster."""


def links_between(machine: Machine, src: str, dst: str) -> tuple[Link, ...]:
    """Links from `src` to `dst`, meshes apart; without any, those declared the other way (half
    duplex)."""
    plain = [link for link in machine.links if link.mesh is None]
    found = tuple(link for link in plain if (link.src, link.dst) == (src, dst))
    return found or tuple(link for link in plain if (link.dst, link.src) == (src, dst))


def meshes(machine: Machine) -> Mapping[str, Link]:
    """The nocs of a machine that are meshes, by name."""
    return {link.name: link for link in machine.links if link.mesh is not None}


def mesh_between(machine: Machine, src: str, dst: str) -> Link | None:
    """The mesh that transfers from level `src` to level `dst` may cross: all of them where one of
    the two lies at home, else those between instances that stand on different nodes."""
    for link in meshes(machine).values():
        at = machine.level_index(link.src)
        if max(machine.level_index(src), machine.level_index(dst)) >= at:
            return link
    return None


def is_on(machine: Machine, link: Link, level: str) -> bool:
    """Whether instances of a level stand on the nodes of a mesh; else it is reached by its ports
    of home."""
    return machine.level_index(level) >= machine.level_index(link.src)


def num_ports_of(level: MemoryLevel, machine: Machine) -> int:
    """Ports one way that transfers of a level take: one an instance; of what lies behind a mesh one
    at each router of home, which serves its part of the level's rate."""
    behind = [
        len(link.mesh.ports) for link in machine.links
        if link.mesh is not None and not is_on(machine, link, level.name)
    ]  # fmt: skip
    return max([level.instances, *behind])


def node_of(machine: Machine, link: Link, level: str, instance: Ints) -> Ints:
    """The nodes of instances of a level that stands on a mesh."""
    assert link.mesh is not None
    found: Ints = instance * link.mesh.num_nodes // machine.level(level).instances
    return found


def wires(links: Mapping[str, Link], name: str, instances: range) -> tuple[Sequence[int], int, int]:
    """(numbers of what is occupied, how often a byte is charged, cycles until its other end) of
    ports of a link or a level: of a mesh those of all links of its ways, hops, and the latency of
    the longest way; else themselves, each once, and none."""
    link = links.get(name)
    if link is None or link.mesh is None:
        return instances, len(instances), 0
    taken, hops, longest = _crossed(link.mesh, instances)
    return taken, hops, longest * link.latency_cycles


@lru_cache(maxsize=1 << 16)
def _crossed(mesh: Mesh, ways: range) -> tuple[tuple[int, ...], int, int]:
    """(links, hops, hops of the longest) of ways that are taken together."""
    return mesh.links(ways), mesh.hops(ways), mesh.longest(ways)


class Crossing(NamedTuple):
    """What transfers of nodes between home and them meet on a mesh, for predictions."""

    link: Link
    """Each node has one of its own; the busiest are as many as home has ports, at most."""
    crowds: tuple[int, ...]
    """[nodes + 1] Who share the busiest link when the first so many nodes transfer."""
    trees: tuple[int, ...]
    """Multicasts from home that share the busiest link (`mesh.tree_crowds`); none: ()."""
    mean_hops: float
    latency_cycles: int
    """Of the longest way."""


def crossing_of(machine: Machine, src: str, dst: str) -> Crossing | None:
    """The mesh that lies between home and a level on its nodes; None where the two are on one
    side, and what crosses between nodes, which nothing that is predicted does."""
    link = mesh_between(machine, src, dst)
    if link is None or link.mesh is None or is_on(machine, link, src) == is_on(machine, link, dst):
        return None
    found = home_traffic(link.mesh, outward=is_on(machine, link, src))
    return Crossing(
        link, found.crowds,
        tree_crowds(link.mesh, machine.num_cores) if link.multicast else (),
        found.hops / link.mesh.num_nodes, found.longest * link.latency_cycles,
    )  # fmt: skip


def multicast_between(machine: Machine, src: str, dst: str) -> Multicast | None:
    """How a multicast travels from level `src` to instances of `dst`, a faster one; None where no
    link on the way can do that.

    The links between the two, if there are any; else a mesh, or a noc of `dst`, which join the
    instances of one cluster.
    """
    links, mesh = links_between(machine, src, dst), mesh_between(machine, src, dst)
    if links:
        is_shared = all(link.multicast for link in (*links, *([mesh] if mesh else ())))
        return Multicast(links, machine.num_cores) if is_shared else None
    if mesh is not None and not is_on(machine, mesh, src):
        reach = machine.num_cores // machine.num_clusters
        return Multicast((), reach) if mesh.multicast else None
    nocs = tuple(link for link in links_between(machine, dst, dst) if link.multicast)
    return Multicast(nocs[:1], machine.num_cores // machine.num_clusters) if nocs else None
