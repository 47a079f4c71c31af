"""What moving tiles between two memories takes: ports, who shares them, what bytes are charged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, TypeAlias

from worker.compiler.isa.program import PASSED
from worker.compiler.machine.bursts import counted_at
from worker.compiler.machine.dma import dma_engine, issuing_rate
from worker.compiler.machine.links import crossing_of, links_between, multicast_between
from worker.compiler.machine.machine import Link, Machine, MemoryLevel
from worker.compiler.tiling.nest.measure import LATENCY, Measure
from worker.compiler.tiling.nest.plan import Team

EVERYBODY = -2
"""Of a port, in tables of loops: whatever is served, each unit has a transfer of its own there."""

Weights: TypeAlias = tuple[float, float, float]
"""What a byte of each of `Sizes` is charged."""


class SharedPort(NamedTuple):
    """A port that serves more than transfers one way: of a cache, or of a memory at an end that is
    half duplex or serves engines."""

    memory: int
    """`port_number`"""
    rate: float
    instances: int
    """That the working teams are attached to."""
    size: int
    """Which of `Sizes` passes it."""
    is_source: bool
    """Whether bytes leave it, once for all that one read serves."""


def port_number(level: MemoryLevel, machine: Machine, *, writes: bool) -> int:
    """A number of a port of a level: one for both directions, unless it has one for each."""
    number = machine.level_index(level.name)
    apart = writes and level.serves_engines and not level.half_duplex
    return number + len(machine.levels) * apart


@dataclass(frozen=True, slots=True)
class Route:
    """A way between two memories."""

    ports: tuple[tuple[float, int], ...]
    """(bytes per cycle, instances the working teams are attached to) of every level and link
    passed."""
    crowds: tuple[tuple[int, ...], ...]
    """Of each port: [cores + 1] who share the busiest instance when the first so many units ask;
    empty: as many as come out when they are shared out evenly."""
    trunks: tuple[tuple[int, ...] | None, ...]
    """Of each port that a multicast passes once, how many share the busiest instance when so many
    are on their way: [cores + 1, `mesh.TREE_SIZES`], or empty, as above.  None: it passes the ports
    of its receivers, or there is none."""
    latency_cycles: int
    """With setting the transfer up, and its signal."""
    issuing: tuple[float, int]
    """(bytes per cycle at most, cycles of a transfer at least) of the engine that issues it."""
    team: Team
    shared: tuple[SharedPort, ...]
    reach: int
    """Neighbouring cores that one read of its source may serve: all behind a cache, which brings in
    for all what it brings in; those that a multicast reaches; else one."""
    shared_rate: float
    """Bytes per cycle of links that only a multicast takes."""
    counts: tuple[int, ...]
    """Which of `Sizes` each port passes."""
    is_at_home: bool
    """Whether an end of it is at home."""
    weights: tuple[Weights, Weights] | None
    """At the source, and elsewhere; None where nothing is charged."""

    @property
    def is_read_once(self) -> bool:
        """Whether one transfer serves several; else each has a part of what they bring in."""
        return self.shared_rate < inf or not self.is_rounded

    @property
    def is_rounded(self) -> bool:
        """Whether transfers take whole cycles.  Layers that overlap have large tiles, and are
        priced as they were: what rounding changes there was not measured."""
        return not self.team.overlaps

    @staticmethod
    def between(
        machine: Machine, src: str, dst: str, team: Team, measure: Measure = LATENCY
    ) -> Route:
        names = machine.route(src, dst)
        passed: list[MemoryLevel] = [machine.level(name) for name in names]
        links = links_between(machine, src, dst)
        crowds: dict[int, tuple[int, ...]] = {}
        trunks: dict[int, tuple[int, ...]] = {}
        ports = [(m.read_bytes_per_cycle, team.instances(m)) for m in passed[:-1]]
        ports += [(k.bytes_per_cycle, _instances(k, machine, team)) for k in links]
        crossing = crossing_of(machine, src, dst)
        if crossing is not None:
            inner = max((machine.level(src), machine.level(dst)), key=machine.levels.index)
            rate, mesh = crossing.link.bytes_per_cycle, crossing.link.mesh
            assert mesh is not None
            own = max(1, mesh.num_nodes * team.copies // team.of)
            ports += [(rate, own), (rate, len(mesh.ports))]
        ports.append((passed[-1].write_bytes_per_cycle, team.instances(passed[-1])))
        if crossing is not None:  # home has a port at each of its routers: the same who share those
            outer, many = 0 if inner == passed[-1] else len(ports) - 1, ports[-2][1]
            ports[outer] = ports[outer][0] / many, many
            shared_by = _by_units(crossing.crowds, machine, inner)
            crowds = {outer: shared_by, len(ports) - 2: shared_by}
        latency = max(m.latency_cycles for m in passed)
        latency = max([latency, *(k.latency_cycles for k in links)])
        if crossing is not None:
            latency += crossing.latency_cycles
        is_outward = machine.level_index(src) > machine.level_index(dst)
        engine = dma_engine(machine, src if is_outward else dst, outward=is_outward)
        issuing = issuing_rate(engine, latency), engine.setup_cycles
        reach, shared_rate = 1, inf
        if src == machine.home.name and len(names) > 2:
            reach = machine.num_cores
        elif team.joins and not is_outward and (found := multicast_between(machine, src, dst)):
            reach = found.reach
            if crossing is not None:
                trunks = {0: (), len(ports) - 2: crossing.trees}
            shared_rate = min(
                [k.bytes_per_cycle / max(1, k.shared_by) for k in found.links]
                or [crossing.link.bytes_per_cycle if crossing is not None else inf]
            )
        latency += engine.setup_cycles + machine.engine_signal_cycles
        counts = [PASSED.index(counted_at(level, machine)) for level in passed]
        rates = [*ports[: len(passed) - 1], ports[-1]]
        shared = tuple(
            SharedPort(
                port_number(level, machine, writes=k == len(passed) - 1), *rates[k], counts[k],
                k == 0,
            )
            for k, level in enumerate(passed)
            if level.half_duplex or level.serves_engines or 0 < k < len(passed) - 1
        )  # fmt: skip
        is_at_home = machine.home.name in (src, dst)
        weights = [[0.0] * 3, [0.0] * 3]
        for k, (name, count) in enumerate(zip(names, counts, strict=True)):
            way = "write" if k == len(names) - 1 else "read"
            weights[k > 0][count] += measure.ports.get((name, way), 0.0)
        counts[-1:-1] = [PASSED.index("bytes")] * (len(ports) - len(passed))
        weights[1][0] += sum(measure.ports.get((k.name, "link"), 0.0) for k in links)
        if crossing is not None:
            per_hop = measure.ports.get((crossing.link.name, "link"), 0.0)
            weights[1][0] += crossing.mean_hops * per_hop
        (a, b, c), (d, e, f) = weights
        return Route(
            tuple(ports), tuple(crowds.get(k, ()) for k in range(len(ports))),
            tuple(trunks.get(k) for k in range(len(ports))), latency, issuing, team, shared,
            reach, shared_rate, tuple(counts), is_at_home,
            ((a, b, c), (d, e, f)) if measure.ports else None,
        )  # fmt: skip


def _by_units(crowds: tuple[int, ...], machine: Machine, level: MemoryLevel) -> tuple[int, ...]:
    """Of numbers of nodes those of numbers of units, which have one transfer each: neighbours stand
    on one node where it has several of the level's instances, or more units ask than there are."""
    nodes = len(crowds) - 1
    found = []
    for units in range(machine.num_cores + 1):
        each = max(level.instances // nodes, -(-units // nodes), 1)
        found.append(min(units, each * crowds[min(nodes, -(-units // each))]))
    return tuple(found)


def _instances(link: Link, machine: Machine, team: Team) -> int:
    """Links that the working teams are attached to: one for some instances of the faster level."""
    faster = max((machine.level(link.src), machine.level(link.dst)), key=machine.levels.index)
    return max(1, team.instances(faster) // max(1, link.shared_by))


def ports_in_rows(
    routes: Sequence[Route],
) -> tuple[list[list[tuple[float, int, int, int, int]]], list[int]]:
    """Ports of every route as tables of loops have them, and the crowds that they point into:
    (bytes per cycle, instances, which of `Sizes`, where its crowds begin or -1, the same of
    multicasts or `EVERYBODY`)."""
    crowds: list[int] = []
    begins: dict[tuple[int, ...] | None, int] = {(): -1, None: EVERYBODY}
    rows: list[list[tuple[float, int, int, int, int]]] = []

    def place(crowd: tuple[int, ...] | None) -> int:
        if crowd not in begins:
            begins[crowd] = len(crowds)
            crowds.extend(crowd or ())
        return begins[crowd]

    for route in routes:
        rows.append([])
        for (rate, many), count, crowd, trunk in zip(
            route.ports, route.counts, route.crowds, route.trunks, strict=True
        ):
            rows[-1].append((rate, many, count, place(crowd), place(trunk)))
    return rows, crowds
