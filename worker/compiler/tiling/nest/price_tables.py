"""One layer on given stages in arrays, as the loop of `price` reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from worker.compiler.tiling.nest.arrays import floats, ints, starts
from worker.compiler.tiling.nest.facts import Operand
from worker.compiler.tiling.nest.levels import StageFrame
from worker.compiler.tiling.nest.ports import Port, Way
from worker.compiler.tiling.nest.route import Route, ports_in_rows
from worker.compiler.tiling.nest.shared_memory import SharedMemory

FILL, CARRIED, DRAIN = 0, 1, 2
"""Kinds of moves: what is filled, sums that loops of an outer stage go on with, results."""


class PriceTables(NamedTuple):
    """One layer on given stages, in arrays.  Several that are ragged stand in one, with the place
    of the first entry of each in another (`_at`, one longer)."""

    extents: Any
    """[axes]"""
    is_summed: Any
    """[axes]: reductions."""
    stages: Any
    """[stages, (capacity, sharers)]"""
    dim_at: Any
    """Of operands: their dimensions."""
    dims: Any
    """[dimensions, (extra, limit, size of the tensor, constant of the index, place among those
    whose index is no sum of axes, or -1)]"""
    term_at: Any
    """Of dimensions: their terms."""
    terms: Any
    """[terms, (axis, factor, is subtracted)]"""
    own: Any
    """[operands, axes]: whether the box depends on them."""
    held: Any
    """[held, (stage, operand, item bytes, unit bytes, is lone, room or -1, is a strip)]"""
    moves: Any
    """[moves, (stage, operand, held, kind, item bytes, latency, set-up, reach, is read once, copies
    of the team, takes whole cycles, is counted in bursts, units need not wait for each other, comes
    early)]: by stage the drain, what is carried, and fills."""
    rates: Any
    """[moves, (bytes a cycle issued, of links that only a multicast takes, charges of a byte: three
    at the source, elsewhere)]; three: of payload, in bursts of home, in those of caches"""
    port_at: Any
    ports: Any
    """[ports, (bytes a cycle, instances, which of three bytes, where its crowds begin or -1, the
    same of multicasts or `EVERYBODY`)]"""
    crowds: Any
    """Who share the busiest of a port's instances when no, one, two ... cores ask (`Route`)."""
    turn_at: Any
    turns: Any
    """[ports of both directions, (bytes a cycle, instances, memory, is source, which bytes)]"""
    engines: Any
    """[operators]: the engine of each."""
    shared: Any
    """[operators, (memory that the engine reads from, and writes to, copies of the team,
    instances)], where transfers pass the same ports; -1: they do not."""


class PriceLayer(NamedTuple):
    """What else there is to know, in numbers."""

    home_burst: int
    cache_burst: int
    align: int
    """Bytes of home of which tensors begin at multiples."""
    result: int
    """Operand that the first operator makes, or -1."""
    result_held: int
    """Its place among those held at the innermost stage, or -1: it never has a second copy."""
    max_strips: int
    is_alone: bool
    overlaps: bool
    """Whether other layers fill what this one alone would wait for at its ends."""
    is_fed: bool
    """Whether what engines draw and return costs anything."""
    at_home: float
    per_cycle: float


class PriceScratch(NamedTuple):
    """Room for what is known of one tiling."""

    widths: Any
    """[stages, dimensions]"""
    held: Any
    """[held, (elements of a copy, copies)]"""
    sizes: Any
    """[3]: bytes of one transfer, as ports count them."""
    runs: Any
    """[4, dimensions]: of a box in its tensor: extents, strides, known of where runs begin."""
    is_moved: Any
    """[moves]"""
    fills: Any
    """[moves, (cycles of one, while no other unit fills, arrival, charge)]"""
    turned: Any
    """[ports of both directions]"""
    drains: Any
    """[stages, (cycles, while no other unit drains, of the last, charge)]"""
    levels: Any
    """[stages, (times begun, units used, output trips, steps, has second copies, drains alone)]"""
    ended: Any
    """[stages, (ports, arrival, in series so far, steps)]"""
    busy: Any
    """[engines]"""
    turns: Any
    """[memories]"""
    taken: Any
    """[memories]: by engines."""
    stamps: Any
    """[pieces of an operand]"""


class PriceTabulated:
    """Writes a layer into tables.  Cost: linear in operands, axes and stages."""

    def __init__(
        self, frame: StageFrame, ports: Sequence[Port], engines: Sequence[str],
        shared: Sequence[SharedMemory | None], names: tuple[str, ...],
    ) -> None:  # fmt: skip
        """`ports`: of every stage; `engines`: of every operator, and `shared` what ports of theirs
        transfers pass; `names`: axes of tilings, all but some of one step."""
        self._facts, self._names, self._frame = frame.facts, names, frame
        self._operands: list[Operand] = []
        self.odd: list[tuple[Operand, int]] = []
        """(operand, dimension) of indices that are no sums of axes."""
        held = [
            (k, self._number(h.operand), h.item_bytes, h.unit_bytes, h.is_lone,
             -1 if h.room is None else h.room, h.is_strip)
            for k, stand in enumerate(frame.stands) for h in stand.held
        ]  # fmt: skip
        facts = frame.facts
        self.result = -1 if facts.out is None else self._number(facts.out)
        places = [
            n for n, row in enumerate(held)
            if row[1] == self.result and row[0] == len(frame.stands) - 1 and not row[4]
        ]  # fmt: skip
        self.result_held = places[-1] if places else -1
        routes, moves = self._moves(ports)
        self.tables = self._tables(held, routes, moves, engines, shared)

    def _number(self, operand: Operand) -> int:
        """Place of an operand in the tables."""
        for number, known in enumerate(self._operands):
            if known is operand:
                return number
        self._operands.append(operand)
        return len(self._operands) - 1

    def _moves(self, ports: Sequence[Port]) -> tuple[list[Route], list[tuple[int, ...]]]:
        routes: list[Route] = []
        moves: list[tuple[int, ...]] = []
        before = 0
        for k, (port, stand) in enumerate(zip(ports, self._frame.stands, strict=True)):
            # Of slots of one tensor with places of their own the last one's counts.
            held = {h.operand.tensor: before + n for n, h in enumerate(stand.held)}
            before += len(stand.held)
            ways: list[tuple[Way, int]] = [(way, FILL) for way in port.fills]
            if port.carried is not None:
                ways.insert(0, (port.carried, CARRIED))
            if port.drain is not None:
                ways.insert(0, (port.drain, DRAIN))
            for way, kind in ways:
                operand, route = way.operand, way.route
                if operand.tensor not in held:
                    continue
                routes.append(route)
                moves.append(
                    (k, self._number(way.placed), held[operand.tensor], kind,
                     operand.dtype.size_bytes, route.latency_cycles, route.issuing[1], route.reach,
                     route.is_read_once, route.team.copies, route.is_rounded, route.is_at_home,
                     port.is_apart, way.is_early)
                )  # fmt: skip
        return routes, moves

    def _tables(
        self, held: Sequence[object], routes: Sequence[Route], moves: Sequence[object],
        engines: Sequence[str], shared: Sequence[SharedMemory | None],
    ) -> PriceTables:  # fmt: skip
        facts, names = self._facts, self._names
        dims: list[tuple[int, ...]] = []
        terms: list[list[tuple[int, int, bool]]] = []
        for operand in self._operands:
            for d, found in enumerate(operand.linear):
                odd = -1
                if found is None:
                    odd = len(self.odd)
                    self.odd.append((operand, d))
                extra, (_, most), size = operand.extra[d], operand.limits[d], operand.shape[d]
                expr = operand.index[d]
                dims.append((extra, most, size, expr.const, odd))
                terms.append(
                    [(names.index(n), factor, expr.coeff(n) < 0) for n, factor in found or ()
                     if n in names]
                )  # fmt: skip
        ports, crowds = ports_in_rows(routes)
        taken = {port for memory in shared if memory is not None for port in memory.ports}
        memories = sorted(taken.union(port.memory for route in routes for port in route.shared))
        turns = [
            [(p.rate, p.instances, memories.index(p.memory), p.is_source, p.size)
             for p in route.shared]
            for route in routes
        ]  # fmt: skip
        weights = [route.weights or ((0.0,) * 3, (0.0,) * 3) for route in routes]
        number = {name: k for k, name in enumerate(dict.fromkeys(engines))}
        return PriceTables(
            extents=ints(facts.extents[n] for n in names),
            is_summed=ints(n in facts.reduce_axes for n in names),
            stages=ints(((s.capacity_bytes, s.sharers) for s in self._frame.stages), 2),
            dim_at=starts(o.linear for o in self._operands), dims=ints(dims, 5),
            term_at=starts(terms), terms=ints((term for found in terms for term in found), 3),
            own=ints(((n in o.axes for n in names) for o in self._operands), len(names)),
            held=ints(held, 7), moves=ints(moves, 14),
            rates=floats(
                ((route.issuing[0], route.shared_rate, *at_source, *elsewhere)
                 for route, (at_source, elsewhere) in zip(routes, weights, strict=True)), 8,
            ),
            port_at=starts(ports), ports=floats((p for found in ports for p in found), 5),
            crowds=ints(crowds),
            turn_at=starts(turns), turns=floats((p for found in turns for p in found), 5),
            engines=ints(number[name] for name in engines),
            shared=ints(
                ((-1, -1, 0, 1) if memory is None
                 else (*map(memories.index, memory.ports), memory.copies, memory.instances)
                 for memory in shared), 4,
            ),
        )  # fmt: skip


def scratch_of(t: PriceTables) -> PriceScratch:
    """Room for the loop."""
    num_stages, num_moves = len(t.stages), len(t.moves)
    num_memories = int(max(t.turns[:, 2].max(initial=-1), t.shared[:, :2].max())) + 1
    rank = int(np.diff(t.dim_at).max(initial=0))
    return PriceScratch(
        widths=np.zeros((num_stages, len(t.dims)), np.int64),
        held=np.zeros((len(t.held), 2), np.int64),
        sizes=np.zeros(3),
        runs=np.zeros((4, rank), np.int64),
        is_moved=np.zeros(num_moves, np.bool_),
        fills=np.zeros((num_moves, 4)),
        turned=np.zeros(len(t.turns)),
        drains=np.zeros((num_stages, 4)),
        levels=np.zeros((num_stages, 6)),
        ended=np.zeros((num_stages, 4)),
        busy=np.zeros(int(t.engines.max()) + 1),
        turns=np.zeros(num_memories),
        taken=np.zeros(num_memories),
        stamps=np.zeros(1, np.int64),
    )
