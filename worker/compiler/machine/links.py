"""Which explicit links a transfer between two levels takes, alone or for several receivers."""

from __future__ import annotations

from typing import NamedTuple

from worker.compiler.machine.machine import Link, Machine


class Multicast(NamedTuple):
    """A way on which what is read once arrives at several instances of a faster level."""

    links: tuple[Link, ...]
    reach: int
    """Neighbouring cores that one transfer may serve: all, or those of a cluster."""


def links_between(machine: Machine, src: str, dst: str) -> tuple[Link, ...]:
    """Links from `src` to `dst`; without any, those declared the other way (half duplex)."""
    found = tuple(link for link in machine.links if (link.src, link.dst) == (src, dst))
    return found or tuple(link for link in machine.links if (link.dst, link.src) == (src, dst))


def multicast_between(machine: Machine, src: str, dst: str) -> Multicast | None:
    """How a multicast travels from level `src` to instances of `dst`, a faster one; None where no
    link on the way can do that.

    The links between the two, if there are any; else a noc of `dst`, which joins the instances of
    one cluster.
    """
    links = links_between(machine, src, dst)
    if links:
        is_shared = all(link.multicast for link in links)
        return Multicast(links, machine.num_cores) if is_shared else None
    nocs = tuple(link for link in links_between(machine, dst, dst) if link.multicast)
    return Multicast(nocs[:1], machine.num_cores // machine.num_clusters) if nocs else None
