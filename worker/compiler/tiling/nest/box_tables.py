"""One layer on given stages in arrays, as the loop of `box_floor` reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from worker.compiler.cost.compute import EngineRate
from worker.compiler.cost.folds import Extents, granule
from worker.compiler.tiling.nest.arrays import Floats, Ints, floats, ints, starts
from worker.compiler.tiling.nest.facts import Facts, Operand
from worker.compiler.tiling.nest.levels import StageFrame
from worker.compiler.tiling.nest.price import Pricer
from worker.compiler.tiling.nest.route import Route, ports_in_rows
from worker.compiler.tiling.nest.search import loop_orders

ANYHOW, WHOLE, SINGLE = 0, 1, 2
"""How an axis may be cut."""


class Tables(NamedTuple):
    """One layer on given stages, in arrays.  Several that are ragged stand in one, with the place
    of the first entry of each in another (`_at`, one longer)."""

    extents: Any
    """[axes]"""
    cuts: Any
    """[axes]: how each may be cut."""
    is_summed: Any
    """[axes]: reductions."""
    orders: Any
    """[orders, axes]: axes by place, outermost first."""
    stages: Any
    """[stages, (capacity, sharers)]"""
    dim_at: Any
    """Of operands: their dimensions."""
    dims: Any
    """[dimensions, (extra, limit, size of the tensor, constant of the index)]"""
    term_at: Any
    """Of dimensions: their terms, by rising factor."""
    terms: Any
    """[terms, (axis, factor, is subtracted)]"""
    own: Any
    """[operands, axes]: whether the box depends on them."""
    whole: Any
    """[operands]: elements of it that are touched at least."""
    held: Any
    """[held, (stage, operand, item bytes, unit bytes, is lone, room or -1)]"""
    moves: Any
    """[moves, (stage, operand, item bytes, is outward, units are in step, latency, set-up, reach,
    is read once, copies of the team, begins or ends at home)]: fills by stage in their order,
    drains."""
    rates: Any
    """[moves, (bytes a cycle issued, charges of a byte: three at the source, elsewhere)]; three: of
    payload, in bursts of home, in those of caches"""
    port_at: Any
    ports: Any
    """[ports, (bytes a cycle, instances, which of three bytes, where its crowds begin or -1, the
    same of multicasts or `EVERYBODY`)]"""
    crowds: Any
    """Who share the busiest of a port's instances when no, one, two ... cores ask (`Route`)."""
    turn_at: Any
    turns: Any
    """[ports of both directions, (bytes a cycle, instances, memory, is source, which bytes)]"""
    paces: Any
    """[engines' work, (start-up, engine, is an array, folds, of the result's box)]: the first
    operator's, then those of its epilogue."""
    speeds: Any
    """[work, (speed, plain operations a point, special ones, their speed, feed, drain)]"""
    cells: Any
    """[work, (rows, columns, depth)]"""
    group: Any
    """[work, box]: 0 to 3 of rows, columns, depth, batch; -1: the box has no such axis."""
    dim_of: Any
    """[work, box]: dimension of the first result along which the box's axis runs, or -1."""
    stream_at: Any
    streams: Any
    """[streams, box + 2]: whether it has the axis; bytes of an element; is it the result."""
    least: Any
    """[work]: cycles of all of it on one core, starts left out."""


class Layer(NamedTuple):
    """What else there is to know, in numbers."""

    num_units: int
    home_burst: int
    cache_burst: int
    align: int
    """Bytes of home of which tensors begin at multiples."""
    result: int
    """Operand that the first operator makes, or -1."""
    is_beside: bool
    """Whether the epilogue of one tile may run beside the sums of the next."""
    is_alone: bool
    is_charged: bool
    """Whether bytes cost anything."""
    at_home: float
    per_cycle: float
    most_leaves: float
    slack: float


class Scratch(NamedTuple):
    """Room for what is known of one box."""

    sizes: Any
    """[6, stages, axes]: smallest tiles, largest shares, rounds, parts, smallest trips, ways."""
    stages: Any
    """[5, stages]: times begun, units outside, units used, of them inside; whether any operand has
    a second copy, if it may."""
    moved: Any
    """[moves, 9]"""
    amounts: Any
    """[moves, 3]: bytes of one transfer, as ports count them"""
    runs: Any
    """[4, dimensions]: of a box in its tensor: extents, strides, known of where runs begin"""
    busy: Any
    """[engines]"""
    turns: Any
    """[memories]"""
    box: Any
    """[2, box]"""


class Tabulated:
    """Writes a layer into tables.  Cost: linear in operands, axes and stages."""

    def __init__(
        self, frame: StageFrame, pricer: Pricer, names: Sequence[str] | None = None
    ) -> None:
        """`names`: axes of boxes, all but some of one step (`long_axes`); None: all."""
        self.frame, self.pricer, self.facts = frame, pricer, frame.facts
        self.names = tuple(frame.facts.extents if names is None else names)
        self._operands: list[Operand] = []
        self.tables = self._make()
        self.result = -1 if self.facts.out is None else self._number(self.facts.out)
        """Operand that the first operator makes."""

    def _number(self, operand: Operand) -> int:
        """Place of an operand in the tables."""
        for number, known in enumerate(self._operands):
            if known is operand or known == operand:
                return number
        self._operands.append(operand)
        return len(self._operands) - 1

    def _make(self) -> Tables:
        facts, names, stands = self.facts, self.names, self.frame.stands
        held = [
            (k, self._number(h.operand), h.item_bytes, h.unit_bytes, h.is_lone,
             -1 if h.room is None else h.room)
            for k, stand in enumerate(stands) for h in stand.held if not h.is_strip
        ]  # fmt: skip
        if facts.out is not None:
            self._number(facts.out)
        routes: list[Route] = []
        moves: list[tuple[int, ...]] = []
        for k, (port, stand) in enumerate(zip(self.pricer.ports, stands, strict=True)):
            placed = {h.operand.tensor for h in stand.held}
            ways = [(way.operand, way.route, False) for way in port.fills]
            if port.drain is not None:
                ways.append((port.drain.operand, port.drain.route, True))
            for operand, route, is_outward in ways:
                if operand.tensor in placed:
                    routes.append(route)
                    moves.append(
                        (k, self._number(operand), operand.dtype.size_bytes, is_outward,
                         not port.is_apart, route.latency_cycles, route.issuing[1], route.reach,
                         route.is_read_once, route.team.copies, route.is_at_home)
                    )  # fmt: skip
        # Orders that differ in axes of one step only are one.
        axes = dict.fromkeys(
            tuple(names.index(n) for n in (*order, *facts.reduce_axes) if n in names)
            for order in loop_orders(facts)
        )
        dims = [
            (extra, most, size, expr.const)
            for o in self._operands
            for extra, (_, most), size, expr in zip(
                o.extra, o.limits, o.shape, o.index, strict=True
            )
        ]
        terms = [
            sorted(
                ((names.index(n), factor, expr.coeff(n) < 0)
                 for n, factor in found or () if n in names),
                key=lambda term: term[1],
            )
            for o in self._operands for found, expr in zip(o.linear, o.index, strict=True)
        ]  # fmt: skip
        extents = [facts.extents[n] for n in names]
        ports, crowds = ports_in_rows(routes)
        turns = [
            [(p.rate, p.instances, p.memory, p.is_source, p.size) for p in route.shared]
            for route in routes
        ]
        weights = [route.weights or ((0.0,) * 3, (0.0,) * 3) for route in routes]
        engines = self._engines()
        return Tables(
            ints(extents),
            ints(
                WHOLE if n in facts.whole else SINGLE if n in facts.single else ANYHOW
                for n in names
            ),
            ints(n in facts.reduce_axes for n in names),
            ints(axes, len(names)),
            ints(((s.capacity_bytes, s.sharers) for s in self.frame.stages), 2),
            starts(o.linear for o in self._operands), ints(dims, 4),
            starts(terms), ints((t for found in terms for t in found), 3),
            ints(((n in o.axes for n in names) for o in self._operands), len(names)),
            ints(_touched(o, facts) for o in self._operands),
            ints(held, 6), ints(moves, 11),
            floats(
                ((route.issuing[0], *at_source, *elsewhere)
                 for route, (at_source, elsewhere) in zip(routes, weights, strict=True)), 7,
            ),
            starts(ports), floats((p for found in ports for p in found), 5), ints(crowds),
            starts(turns), floats((t for found in turns for t in found), 5),
            *engines,
        )  # fmt: skip

    def _engines(self) -> tuple[Ints | Floats, ...]:
        """Tables of what engines do: the first operator, then its epilogue."""
        facts, pricer = self.facts, self.pricer
        work: list[tuple[EngineRate, Sequence[int | None] | None]] = [(pricer.pace, None)]
        names = [pricer.engine.name]
        for step, pace in pricer.after:
            work.append((pace, step.dim_of_axis))
            names.append(step.engine.name)
        width = max(len(self.names), *(len(dims or ()) for _, dims in work))
        number = {name: k for k, name in enumerate(dict.fromkeys(names))}
        whole = tuple(facts.extents.values())
        long = [k for k, name in enumerate(facts.extents) if name in self.names]
        paces, speeds, cells, groups, dims_of, least = [], [], [], [], [], []
        streams: list[list[list[int]]] = []
        for name, (pace, dims) in zip(names, work, strict=True):
            roles, passed = pace.roles, pace.streams
            is_described = pace.folding is not None or pace.rows is not None
            paces.append(
                (pace.startup_cycles, number[name], roles is not None, is_described,
                 dims is not None)
            )  # fmt: skip
            plain, special = pace.ops
            feed, drain = (0.0, 0.0) if passed is None else (passed.feed, passed.drain)
            speeds.append((pace.speed, plain, special, pace.special_speed, feed, drain))
            # What rows fill, no cut of one axis says: a box takes its points at full speed.
            side = Extents(1, 1, 1) if pace.rows else granule(pace.array, None)
            side = side if pace.folding is None else pace.folding.cells
            cells.append(tuple(side))
            # Positions in the domain, of the first operator those of boxes.
            domain = range(width) if dims is not None else long
            group = [-1] * width
            if roles is not None:
                for kind, members in enumerate(
                    (roles.rows, roles.columns, roles.depth, roles.batch)
                ):
                    for place, i in enumerate(domain):
                        if i in members:
                            group[place] = kind
            groups.append(group)
            along = [-1 if d is None else d for d in dims or ()]
            dims_of.append(along + [-1] * (width - len(along)))
            rows: list[list[int]] = []
            if passed is not None:
                results = [] if passed.result is None else [passed.result]
                for is_result, found in ((0, passed.reads), (1, results)):
                    for members, size in found:
                        has = [int(i in members) for i in domain]
                        rows.append(has + [0] * (width - len(has)) + [size, is_result])
            streams.append(rows)
            least.append(pace.least(whole) if dims is None else 0)
        return (
            ints(paces, 5), floats(speeds, 6), ints(cells, 3), ints(groups, width),
            ints(dims_of, width), starts(streams),
            ints((row for found in streams for row in found), width + 2), floats(least),
        )  # fmt: skip


def _touched(operand: Operand, facts: Facts) -> int:
    """Elements that some point reads, at least: as `box_loop` says of a part."""
    found = 1
    for terms, (_, most) in zip(operand.linear, operand.limits, strict=True):
        run, is_run = 1, True
        for name, factor in sorted(terms or (), key=lambda term: term[1]):
            extent = facts.extents[name]
            if is_run and factor <= run:
                run += factor * (extent - 1)
            elif is_run:
                run *= extent
                is_run = extent == 1
        found *= min(run, most)
    return found
