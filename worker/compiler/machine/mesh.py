"""A mesh of nodes: who stands where, and which links a way over it takes.

Routers stand in rows and columns, a node at each.  Nodes are numbered along the rows, or from home:
the nearest to each of its ports in turn, so that the first few work beside it, and beside all of
its ports.  A way goes along its row first and then along a column (XY, which has no deadlocks),
through the link by which its beginning enters its router and the one by which its end leaves it.
Home is attached at `ports`, behind the nodes in the numbering of what a way may begin or end at;
everybody uses the nearest one.  Ways are numbers, so that a row of a program names one however long
it is.
Source: W. J. Dally, B. Towles, Principles and Practices of Interconnection Networks (2004), ch. 8.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import chain, zip_longest
from math import ceil
from operator import ge, mul
from typing import NamedTuple

EAST, WEST, SOUTH, NORTH, IN, OUT = range(6)
"""Links of a router, in the order of their numbers; `IN` and `OUT` are those of its own memory.
Routers are numbered by rows."""
_OF_NODE = 6


class Numbering(StrEnum):
    """Where the nodes of a mesh stand."""

    ROWS = "rows"
    """Node n at row n // columns, column n % columns."""
    HOME = "home"
    """The nearest to each port of home in turn, of equally near ones by rows."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """Nodes in rows and columns."""

    rows: int
    columns: int
    ports: tuple[tuple[int, int], ...]
    """(row, column) of the routers that home is attached to; at least one."""
    numbering: Numbering = Numbering.ROWS

    @property
    def num_nodes(self) -> int:
        return self.rows * self.columns

    @property
    def num_ends(self) -> int:
        """Nodes, and ports of home behind them."""
        return self.num_nodes + len(self.ports)

    @property
    def num_ways(self) -> int:
        return self.num_ends**2

    def router(self, end: int) -> tuple[int, int]:
        """(row, column) of a node or of a port of home."""
        if end < self.num_nodes:
            return divmod(_spots(self)[end], self.columns)
        return self.ports[end - self.num_nodes]

    def distance(self, begin: int, end: int) -> int:
        """Hops from router to router."""
        a, b = self.router(begin), self.router(end)
        return abs(a[0] - b[0]) + abs(a[1] - b[1])

    def port_of(self, node: int) -> int:
        """The nearest port of home, as an end; of equals the one listed first."""
        return _nearest(self)[node]

    @property
    def beside(self) -> Mapping[int, int]:
        """The ports of home that nodes use, as ends, and of each the first node that does."""
        return {port: _nearest(self).index(port) for port in sorted(set(_nearest(self)))}

    def way(self, begin: int, end: int) -> int:
        """Number of the way between two ends."""
        return begin * self.num_ends + end

    def ends(self, way: int) -> tuple[int, int]:
        return divmod(way, self.num_ends)

    def hops(self, ways: Iterable[int]) -> int:
        """Links between routers that some ways take together, each once."""
        between = _OF_NODE * self.num_nodes
        return sum(link < between and link % _OF_NODE < IN for link in self.links(ways))

    def longest(self, ways: Iterable[int]) -> int:
        """Hops of the longest of some ways."""
        return max(self.distance(*self.ends(way)) for way in ways)

    def links(self, ways: Iterable[int]) -> tuple[int, ...]:
        """Numbers of the links that some ways take together, each once, ascending: a tree where
        they begin at one end."""
        return tuple(sorted({link for way in ways for link in _links(self, way)}))

    def joins(self, link: int) -> tuple[tuple[int, int], tuple[int, int], str]:
        """The routers that a link leads from and to; of one that hangs something on its router, it
        twice and `from memory`, `to memory`, `from home` or `to home`; else nothing."""
        between = _OF_NODE * self.num_nodes
        if link >= between:
            port, is_out = divmod(link - between, 2)
            return self.ports[port], self.ports[port], "to home" if is_out else "from home"
        node, side = divmod(link, _OF_NODE)
        row, column = here = divmod(node, self.columns)
        if side in (IN, OUT):
            return here, here, "to memory" if side == OUT else "from memory"
        down, right = {EAST: (0, 1), WEST: (0, -1), SOUTH: (1, 0), NORTH: (-1, 0)}[side]
        return here, (row + down, column + right), ""

    def home_way(self, node: int, *, outward: bool) -> int:
        """The way of a node from home, or `outward`, to it."""
        ends = node, self.port_of(node)
        return self.way(*ends) if outward else self.way(*reversed(ends))


class HomeTraffic(NamedTuple):
    """Ways of nodes from home, or to it, together."""

    crowds: tuple[int, ...]
    """[nodes + 1] Ways that take the busiest link when the first so many nodes have one each."""
    hops: int
    """Of the ways of all nodes, one by one."""
    longest: int
    """Hops of the longest."""


@cache
def home_traffic(mesh: Mesh, *, outward: bool) -> HomeTraffic:
    """When every node has one way.  Cost: linear in their links, once."""
    ways = [mesh.home_way(node, outward=outward) for node in range(mesh.num_nodes)]
    taken: Counter[int] = Counter()
    crowds = [0]
    for way in ways:
        links = _links(mesh, way)
        taken.update(links)
        crowds.append(max(crowds[-1], *(taken[link] for link in links)))
    hops = [mesh.distance(*mesh.ends(way)) for way in ways]
    return HomeTraffic(tuple(crowds), sum(hops), max(hops))


TREE_SIZES = 17
"""Of trees that are told apart: of up to 1, 2, 4 ... receivers.  A way is a number of four bytes,
so that no mesh has more than 2 ** 16 nodes."""


@cache
def tree_crowds(mesh: Mesh, most: int) -> tuple[int, ...]:
    """[(most + 1) * TREE_SIZES] Trees that take the busiest link, rounded up, when so many leave
    the ports of home in turn, each to so many receivers that stand anywhere.

    A tree of r receivers takes a link that s of the n nodes are behind with the probability
    1 - (1 - s / n) ** r.  Source: our own; who works together follows from splits that differ by
    operator, and is spread over the mesh where nodes are numbered from home.
    Cost: links of a tree for each port, most and sizes, once.
    """
    behind: dict[int, list[int]] = {}
    """Of each link, nodes that the tree from each port reaches by it."""
    roots = list(mesh.beside)
    for number, root in enumerate(roots):
        for node in range(mesh.num_nodes):
            for link in _links(mesh, mesh.way(root, node)):
                behind.setdefault(link, [0] * len(roots))[number] += 1
    between = {tuple(own) for link, own in behind.items() if mesh.joins(link)[2] != "to memory"}
    worst = [
        own for own in sorted(between)
        if not any(other != own and all(map(ge, other, own)) for other in between)
    ]  # fmt: skip
    found: list[int] = []
    parts = [
        [[1 - (1 - nodes / mesh.num_nodes) ** 2**size for nodes in own] for own in worst]
        for size in range(TREE_SIZES)
    ]
    for number in range(most + 1):
        trees = [-(-max(0, number - k) // len(roots)) for k in range(len(roots))]
        found += [
            ceil(max(sum(map(mul, part, trees)) for part in by_link) - 1e-9) for by_link in parts
        ]
    return tuple(found)


@cache
def _spots(mesh: Mesh) -> tuple[int, ...]:
    """[nodes] The number of the router that each stands at."""
    routers = range(mesh.num_nodes)
    if mesh.numbering is Numbering.ROWS:
        return tuple(routers)
    beside: list[list[tuple[int, int]]] = [[] for _ in mesh.ports]
    for router in routers:
        row, column = divmod(router, mesh.columns)
        far = [abs(row - at) + abs(column - across) for at, across in mesh.ports]
        beside[far.index(min(far))].append((min(far), router))
    rounds = zip_longest(*(sorted(each) for each in beside))
    return tuple(each[1] for each in chain.from_iterable(rounds) if each is not None)


@cache
def _nearest(mesh: Mesh) -> tuple[int, ...]:
    """[nodes] The port of home that each uses."""
    ports = range(mesh.num_nodes, mesh.num_ends)
    return tuple(
        min(ports, key=lambda port: (mesh.distance(port, node), port))
        for node in range(mesh.num_nodes)
    )


@cache
def _links(mesh: Mesh, way: int) -> tuple[int, ...]:
    """The links of one way, from its beginning to its end."""
    begin, end = mesh.ends(way)
    (row, column), (last_row, last_column) = mesh.router(begin), mesh.router(end)
    found = [_own(mesh, begin, IN)]
    while column != last_column:
        step = 1 if last_column > column else -1
        found.append(_OF_NODE * (row * mesh.columns + column) + (EAST if step > 0 else WEST))
        column += step
    while row != last_row:
        step = 1 if last_row > row else -1
        found.append(_OF_NODE * (row * mesh.columns + column) + (SOUTH if step > 0 else NORTH))
        row += step
    return (*found, _own(mesh, end, OUT))


def _own(mesh: Mesh, end: int, side: int) -> int:
    """The link between an end and its router."""
    if end < mesh.num_nodes:
        return _OF_NODE * _spots(mesh)[end] + side
    return _OF_NODE * mesh.num_nodes + 2 * (end - mesh.num_nodes) + (side == OUT)
