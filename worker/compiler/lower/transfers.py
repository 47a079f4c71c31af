"""How a transfer travels: its engine, the ports and links it occupies, its latency.

Resources, in order: read port of the source instance, read ports of caches crossed, explicit links
between the two levels, write port of the destination instance.  What the outermost cache holds
travels without the port of home (`cached`); what several cores bring into it together takes each a
part of that port's time (`shared`).  A multicast takes the same as a load, each port once, and
where it is a noc of the destination that may multicast, the noc's of each receiver.
What crosses a mesh takes one resource for its whole way, in front of the destination's port; home
has a port at each of its routers then, which serves its part of home's rate.
A compute takes the ports of its engine's memory where these serve engines, too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from worker.compiler.errors import VerifyError
from worker.compiler.isa.program import MAX_RESOURCES, PASSED, Resource, hop_cycles
from worker.compiler.lower.grid import Ints
from worker.compiler.machine.bursts import counted_at
from worker.compiler.machine.dma import dma_engine
from worker.compiler.machine.engine_ports import ends_of
from worker.compiler.machine.links import (
    is_on,
    links_between,
    mesh_between,
    meshes,
    multicast_between,
    node_of,
)
from worker.compiler.machine.machine import Link, Machine, MemoryLevel
from worker.compiler.machine.mesh import Mesh


@dataclass(frozen=True, slots=True)
class Path:
    """What all transfers between two levels have in common."""

    engine: str
    latency_cycles: int
    ports: tuple[tuple[int, str], ...]
    """(first resource number, end) of each occupied port; `src`, `core` or `dst` chooses whose
    instance counts, `way` a way over the mesh between the two, `router` the port of a level behind
    the mesh at the router of that way."""
    divisors: tuple[int, ...]
    """Instances of the level per instance of the port (links may be shared)."""
    levels: tuple[str, ...]
    """Level whose instance numbers the port."""
    cache: str | None = None
    """The outermost cache crossed on the way from or to home."""
    cached_latency_cycles: int = 0
    """Of what is found there."""
    reach: int = 1
    """Neighbouring cores that one transfer may serve."""
    mesh: Link | None = None
    """What it crosses."""


Kind: TypeAlias = int | str | tuple[str, str] | tuple[int]
"""Of resources that are numbered by node (`Routes._first_way`)."""


class Routes:
    """All ports of a machine, numbered, and the paths between its levels."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.count = 0
        """How many resources there are, those of sharers and of several as far as in use."""
        self._first: dict[tuple[str, str], int] = {}
        self._engine_first: dict[tuple[str, str], int] = {}
        self._several: dict[tuple[int, int, int], int] = {}
        self._sets: dict[int, tuple[int, int, int]] = {}
        self._groups: list[tuple[int, str, str, float, bool, str]] = []
        for level in machine.levels:
            for direction, rate in (
                ("read", level.read_bytes_per_cycle),
                ("write", level.write_bytes_per_cycle),
            ):
                self._add(
                    level.name, direction, level.instances, rate, is_half=level.half_duplex,
                    counted=counted_at(level, machine),
                )  # fmt: skip
        self._ways: dict[Kind, int] = {}
        self._ways_of: dict[int, Kind] = {}
        for link in machine.links:
            if link.mesh is not None:
                continue
            faster = machine.level(_faster_end(link, machine)).instances
            self._add(link.name, "link", -(-faster // max(link.shared_by, 1)), link.bytes_per_cycle)
        for level in machine.levels:
            if level.serves_engines:
                for direction, rate, counted in ends_of(level):
                    self._engine_first[level.name, direction] = self.count
                    self._add(
                        level.name, direction, level.instances, rate, is_half=level.half_duplex,
                        counted=counted,
                    )  # fmt: skip
        self.num_ports = self.count
        """How many ports there are; ways over a mesh, which no cache stands beside, apart."""
        self._shared: dict[int, int] = {1: 0}
        """Sharers -> number of the first port that they share."""

    def path(self, src: str, dst: str, *, outward: bool | None = None) -> Path:
        """Path from level `src` to level `dst`.

        `outward` chooses the engine when both are the same level.
        Raises:
            VerifyError: a route occupies more ports than an instruction can name.
        """
        return self._path(src, dst, links_between(self.machine, src, dst), 1, outward=outward)

    def shared_path(self, src: str, dst: str) -> Path | None:
        """Path of a multicast from level `src` into several instances of `dst`, a faster one; None
        where no link on the way can do that.

        Raises: as `path`.
        """
        found = multicast_between(self.machine, src, dst)
        return None if found is None else self._path(src, dst, found.links, found.reach)

    def _path(
        self, src: str, dst: str, links: tuple[Link, ...], reach: int, *,
        outward: bool | None = None,
    ) -> Path:  # fmt: skip
        machine = self.machine
        route = machine.route(src, dst)
        i, j = machine.level_index(src), machine.level_index(dst)
        mesh = mesh_between(machine, src, dst)
        if mesh is not None and reach > 1 and is_on(machine, mesh, src):
            mesh = None  # a multicast to cores of the node
        ports = [self._end(src, "read", mesh)]
        divisors, levels = [1], [src]
        for cache in route[1:-1]:
            ports.append((self._first[cache, "read"], "core"))
            divisors.append(1)
            levels.append(cache)
        for link in links:
            ports.append((self._first[link.name, "link"], "src" if i > j else "dst"))
            divisors.append(max(link.shared_by, 1))
            levels.append(_faster_end(link, machine))
        if mesh is not None:
            ports.append((-1, "way"))
            divisors.append(1)
            levels.append(dst)
        ports.append(self._end(dst, "write", mesh))
        divisors.append(1)
        levels.append(dst)
        if len(ports) > MAX_RESOURCES:
            raise VerifyError(
                "lower", f"{src}->{dst}", "resources",
                f"a transfer occupies {len(ports)} ports, an instruction names {MAX_RESOURCES}",
            )  # fmt: skip
        delays = [link.latency_cycles for link in links]
        inside = [machine.level(name).latency_cycles for name in route if name != machine.home.name]
        latency = max(machine.level(name).latency_cycles for name in route)
        outermost = min(route[1:-1], key=machine.level_index, default=None)
        is_out = outward if i == j and outward is not None else i > j
        inner = src if i > j else dst
        engine = dma_engine(machine, inner, outward=is_out)
        return Path(
            engine.name, max(latency, *delays, 0), tuple(ports), tuple(divisors), tuple(levels),
            outermost if machine.home.name in (src, dst) else None, max(*inside, *delays, 0), reach,
            mesh,
        )  # fmt: skip

    def _end(self, level: str, direction: str, mesh: Link | None) -> tuple[int, str]:
        """The port at an end of a path."""
        if mesh is not None and not is_on(self.machine, mesh, level):
            return -1, "router"
        return self._first[level, direction], "src" if direction == "read" else "dst"

    def resource_numbers(
        self, path: Path, core: Ints, src_instance: Ints, dst_instance: Ints
    ) -> list[Ints]:
        """Resource number of each port of `path`, for transfers of the given instances."""
        numbers: list[Ints] = []
        for (first, whose), divisor, level in zip(
            path.ports, path.divisors, path.levels, strict=True
        ):
            match whose:
                case "src":
                    instance = src_instance
                case "dst":
                    instance = dst_instance
                case "way":
                    numbers.append(self._crossing(path, src_instance, dst_instance))
                    continue
                case "router":
                    numbers.append(self._at_router(path, level, src_instance, dst_instance))
                    continue
                case _:
                    count = self.machine.level(level).instances
                    instance = core * count // self.machine.num_cores
            numbers.append(first + instance // divisor)
        if path.mesh is not None and (numbers[-2] < 0).any():  # what stays on its node is last
            stays = numbers[-2] < 0
            numbers[-2], numbers[-1] = (
                np.where(stays, numbers[-1], numbers[-2]), np.where(stays, -1, numbers[-1])
            )  # fmt: skip
        return numbers

    def _crossing(self, path: Path, src_instance: Ints, dst_instance: Ints) -> Ints:
        """Resource number of the way of each transfer, -1 where it stays on its node.

        Those of home, and those of one displacement, are numbered by their node: what cores do
        alike steps by one.
        """
        machine, link = self.machine, path.mesh
        assert link is not None and link.mesh is not None
        ends = [
            node_of(machine, link, level, instance) if is_on(machine, link, level) else None
            for level, instance in (
                (path.levels[0], src_instance), (path.levels[-1], dst_instance)
            )
        ]  # fmt: skip
        begin, end = ends
        if begin is None or end is None:
            node = end if begin is None else begin
            assert node is not None
            return self._first_way("in" if begin is None else "out", link.mesh) + node
        apart = np.asarray((end - begin) % link.mesh.num_nodes)
        first = np.full(link.mesh.num_nodes, -1, dtype=np.int64)
        for each in np.unique(apart).tolist():
            if each:
                first[each] = self._first_way(each, link.mesh)
        found: Ints = np.where(apart == 0, -1, first[apart] + begin)
        return found

    def _at_router(self, path: Path, level: str, src_instance: Ints, dst_instance: Ints) -> Ints:
        """Resource number of the port of a level behind the mesh, numbered by node as ways are."""
        link, is_in = path.mesh, level == path.levels[0]
        assert link is not None and link.mesh is not None
        inner, instance = (
            (path.levels[-1], dst_instance) if is_in else (path.levels[0], src_instance)
        )
        node = node_of(self.machine, link, inner, instance)
        return self._first_way((level, "read" if is_in else "write"), link.mesh) + node

    def tree(self, path: Path, instances: Ints, begun: dict[int, int]) -> dict[str, Ints]:
        """Resource numbers of a multicast from behind a mesh, by what chooses them (`Path.ports`).

        Of the ports of home where the fewest trees have `begun`, which is counted, it begins at the
        one from which its own takes the fewest hops: else all would begin where their first
        receivers are.
        """
        link = path.mesh
        assert link is not None and link.mesh is not None
        mesh = link.mesh
        nodes = node_of(self.machine, link, path.levels[-1], instances)

        def rank(port: int) -> tuple[int, int, int]:
            hops = mesh.hops(mesh.way(port, node) for node in nodes.tolist())
            return begun.get(port, 0), hops, port

        beside = mesh.beside
        port = min(beside, key=rank)
        begun[port] = begun.get(port, 0) + 1
        router = self._first_way((path.levels[0], "read"), mesh) + beside[port]
        return {"router": np.array([router]), "way": self._first_way((port,), mesh) + nodes}

    def _first_way(self, kind: Kind, mesh: Mesh) -> int:
        """Number of what node 0 takes: of its way `in` from home, `out` to it, from a port of home
        (port,), or to the node so far on; or (level, direction), of the port by which its way from
        or to home begins or ends."""
        if kind not in self._ways:
            self._ways[kind] = self.count
            self._ways_of[self.count] = kind
            self.count += mesh.num_nodes
        return self._ways[kind]

    def _way(self, first: int, node: int) -> Resource:
        """The way of a node."""
        kind = self._ways_of[first]
        link = next(iter(meshes(self.machine).values()))
        mesh = link.mesh
        assert mesh is not None
        if isinstance(kind, tuple) and len(kind) == 2:
            level = self.machine.level(kind[0])
            rate = level.read_bytes_per_cycle if kind[1] == "read" else level.write_bytes_per_cycle
            return Resource(
                level.name, mesh.port_of(node) - mesh.num_nodes, kind[1], rate / len(mesh.ports),
                level.half_duplex, counted=counted_at(level, self.machine),
            )  # fmt: skip
        if isinstance(kind, tuple):
            way = mesh.way(kind[0], node)
        elif isinstance(kind, int):
            way = mesh.way(node, (node + kind) % mesh.num_nodes)
        else:
            way = mesh.home_way(node, outward=kind == "out")
        return Resource(link.name, way, "link", link.bytes_per_cycle)

    def engine_numbers(
        self, memory: MemoryLevel, core: Ints, drawn: Ints, returned: Ints
    ) -> tuple[Ints, ...]:
        """Resource numbers that instructions of engines of `memory` take, those of ports that they
        need first, then -1.  Empty where its engines have ports of their own."""
        if not memory.serves_engines:
            return ()
        instance = core * memory.instances // self.machine.num_cores
        read, write = (
            np.where(size > 0, self._engine_first[memory.name, way] + instance, -1)
            for way, size in (("read", drawn), ("write", returned))
        )
        return np.where(read < 0, write, read), np.where(read < 0, -1, write)

    def shared(self, numbers: Ints, sharers: Ints) -> Ints:
        """Resources of the same ports for transfers that so many cores carry out together."""
        used = [int(sharers)] if sharers.ndim == 0 else np.unique(sharers).tolist()
        for each in used:
            if each not in self._shared:
                self._shared[each] = self.count
                self.count += self.num_ports
        shifts = [self._shared[each] for each in used]
        if len(used) == 1:
            return numbers + shifts[0]
        return numbers + np.array(shifts, dtype=np.int64)[np.searchsorted(used, sharers)]

    def several(self, first: int, count: int, step: int) -> int:
        """Number of the resource that stands for `count` ports from `first` on, of one kind."""
        if count == 1:
            return first
        key = first, count, step
        if key not in self._several:
            self._several[key] = self.count
            self._sets[self.count] = key
            self.count += 1
        return self._several[key]

    def resource(self, number: int) -> Resource:
        """Port `number`, the share of one, or the ports that it stands for."""
        if number in self._sets:
            first, count, step = self._sets[number]
            return replace(self.resource(first), count=count, step=step)
        ways = max((first for first in self._ways_of if first <= number), default=None)
        if ways is not None:
            return self._way(ways, number - ways)
        base, sharers = max((at, n) for n, at in self._shared.items() if at <= number)
        number -= base
        at = bisect_right(self._groups, number, key=lambda group: group[0]) - 1
        first, name, direction, rate, is_half, counted = self._groups[at]
        return Resource(
            name, number - first, direction, rate, is_half, sharers, counted=counted
        )  # fmt: skip

    def port_cycles(self, passed: Sequence[Ints], ports: Sequence[Ints]) -> Ints:
        """Cycles of the slowest of the resources that transfers take, of numbers of which -1
        is none; `passed`: of each, by the columns `PASSED`."""
        resources = self.resources()
        rates = np.array([r.payload_per_cycle for r in resources] + [np.inf])
        column = np.array([PASSED.index(r.counted) for r in resources] + [0])
        needs = [
            np.ceil(np.choose(column[numbers], passed) / rates[numbers]) for numbers in ports
        ]  # fmt: skip
        slowest: Ints = np.max(np.broadcast_arrays(*needs), axis=0).astype(np.int64)
        return slowest

    def hop_cycles(self, ports: Sequence[Ints]) -> Ints:
        """Latency of the hops of transfers that take these resources (-1: none)."""
        hops = hop_cycles(self.resources(), meshes(self.machine))
        return np.asarray(sum(hops[numbers] for numbers in ports))

    def resources(self) -> tuple[Resource, ...]:
        """Every resource so far."""
        return tuple(self.resource(number) for number in range(self.count))

    def _add(
        self, name: str, direction: str, instances: int, rate: float, *, is_half: bool = False,
        counted: str = "bytes",
    ) -> None:  # fmt: skip
        self._first.setdefault((name, direction), self.count)
        self._groups.append((self.count, name, direction, rate, is_half, counted))
        self.count += instances


def _faster_end(link: Link, machine: Machine) -> str:
    src, dst = machine.level_index(link.src), machine.level_index(link.dst)
    return link.src if src > dst else link.dst
