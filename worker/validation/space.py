"""Every mapping of one operator that the brute force looks at.

Operands pass the engine's own memory only; sums stand in its registers, where it has some for
them.  A mapping is
- a tile: of every axis its extent divided by 1, 2, 3, 4, 6, 8, 12, .. (2^i and 3 x 2^i), rounded
  up, or one of these numbers itself where it divides the extent; a kernel's taps are never cut;
- cores: the tiles of one output axis, or of two, dealt out in contiguous shares;
- an order of the output loops; loops over a sum stand inside them, so that results leave once.
  Loops on which all operands depend stand outside, and of neighbours on which the same operands
  depend the order of the domain is taken: others move the same bytes, or more;
- one copy of every buffer, or two of those of operands, or of all; what no loop moves has one.
Not in the space: further levels of buffers, sums shared by cores, operands that stay while loops
around them go on although they depend on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, permutations, product
from math import lcm
from typing import NamedTuple

import numpy as np

from worker.compiler.ir.graph import Graph
from worker.compiler.machine.machine import Engine, Machine
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.tiling.nest.emit import emit
from worker.compiler.tiling.nest.facts import Operand, facts_of, homes_of_sums
from worker.compiler.tiling.nest.levels import Sizes, StageFrame, levels_of
from worker.compiler.tiling.nest.plan import Plan, stages_of
from worker.validation.estimate import (
    Batch,
    Copies,
    Estimator,
    Flags,
    Floats,
    Ints,
    Tilings,
    elements,
    product_of,
)

MAX_INSTRUCTIONS = 1_500_000
"""Of one mapping: longer programs are not in the space."""


class Mapping(NamedTuple):
    """One mapping of the space."""

    tile: tuple[tuple[str, int], ...]
    ways: tuple[tuple[str, int], ...]
    """Cores along output axes."""
    order: tuple[str, ...]
    """Output axes, the outermost loop first."""
    copies: Copies
    estimate: float
    """Cycles expected: a guess."""
    bound: float
    """Cycles that no run of it beats."""

    def __str__(self) -> str:
        tile = " ".join(f"{name}{size}" for name, size in self.tile)
        cores = " ".join(f"{name}/{number}" for name, number in self.ways)
        loops = " ".join(self.order)
        return "; ".join(
            (f"tile {tile}", *([f"cores {cores}"] if cores else []),
             *([f"loops {loops}"] if loops else []), str(self.copies))
        )  # fmt: skip


class _Group(NamedTuple):
    """Mappings that have an order and the copies in common."""

    batch: Batch
    order: tuple[str, ...]
    copies: Copies
    estimate: Floats
    bound: Floats

    def mapping(self, k: int) -> Mapping:
        return Mapping(
            tuple((name, int(size[k])) for name, size in self.batch.tile.items()),
            tuple((name, int(n[k])) for name, n in self.batch.ways.items() if n[k] > 1),
            self.order, self.copies, float(self.estimate[k]), float(self.bound[k]),
        )  # fmt: skip


def cuts(extent: int) -> tuple[int, ...]:
    """Tile sizes of an axis, the whole first.  Cost: logarithmic."""
    parts = {base << i for base in (1, 3) for i in range(extent.bit_length() + 1)}
    sizes = {-(-extent // number) for number in parts if number <= extent}
    sizes |= {number for number in parts if number <= extent and extent % number == 0}
    return tuple(sorted(sizes, reverse=True))


class Space:
    """The mappings of an operator, a graph of its own, on one engine of a machine."""

    def __init__(self, graph: Graph, machine: Machine, engine: Engine) -> None:
        (op,) = graph.ops
        self._graph = graph
        self._engine = engine
        self._home = machine.home.name
        self._facts = homes_of_sums(facts_of(op, graph.tensors), engine, machine)[0]
        out = self._facts.out
        assert out is not None, "the results of these operators are boxes"
        (self._stage,) = stages_of(machine, (machine.level(engine.memory),))
        self._operands: tuple[Operand, ...] = (*self._facts.reads, out)
        whole = frozenset(
            name
            for operand in self._operands
            for index in operand.index
            if len(index.variables()) > 1
            for name in index.variables()
            if name in self._facts.reduce_axes
        )
        self._cuts = tuple(
            (extent,) if name in whole else cuts(extent)
            for name, extent in self._facts.extents.items()
        )
        self._estimator = Estimator(graph, self._facts, engine, machine, whole)

    def mappings(self) -> tuple[Mapping, ...]:
        """All of them, in a fixed order.  Cost: linear in their number."""
        return tuple(
            group.mapping(k) for group in self._groups() for k in range(len(group.estimate))
        )

    def leading(self, number: int) -> tuple[tuple[Mapping, ...], float, int]:
        """The best by estimate, the least bound of all others (inf: none), and how many there are.

        Each number of copies has an equal share of them: it is what estimates judge worst.  Ties go
        to the first.  Cost: a few dozen array operations an order of loops.
        """
        groups = tuple(self._groups())
        if not groups:
            return (), float("inf"), 0
        estimate = np.concatenate([group.estimate for group in groups])
        bound = np.concatenate([group.bound for group in groups])
        ends = np.cumsum([len(group.estimate) for group in groups])
        kinds = np.concatenate([[list(Copies).index(g.copies)] * len(g.estimate) for g in groups])
        order = np.argsort(estimate, kind="stable")
        share = -(-number // len(Copies))
        best = np.concatenate([order[kinds[order] == kind][:share] for kind in range(len(Copies))])
        best = best[np.argsort(estimate[best], kind="stable")]
        found: list[Mapping] = []
        for place in best.tolist():
            at = int(np.searchsorted(ends, place, side="right"))
            found.append(groups[at].mapping(place - (int(ends[at - 1]) if at else 0)))
        others = np.delete(bound, best)
        return tuple(found), float(others.min(initial=np.inf)), len(estimate)

    def schedule(self, mapping: Mapping) -> Schedule:
        """The mapping written out as a tree."""
        frame = StageFrame(self._facts, (self._stage,))
        levels = levels_of(frame, Sizes((dict(mapping.tile),), False, (dict(mapping.ways),)))
        assert levels is not None, "what does not fit is not in the space"
        (level,) = levels
        copies = {
            operand.tensor: mapping.copies.of(is_result=operand is self._operands[-1])
            for operand in self._operands
            if not operand.axes.isdisjoint(level.order)
        }
        loops = level.order[: level.num_out_loops]
        order = (*mapping.order, *level.order[level.num_out_loops :])
        assert set(mapping.order) == set(loops), "the space and the tiling agree on loops"
        plan = Plan(
            self._facts,
            self._engine,
            (level._replace(order=order, copies={**level.copies, **copies}),),
            0,
            0,
        )
        return Schedule(self._graph, emit(plan, self._home), "brute-force", int(mapping.estimate))

    def _groups(self) -> Iterator[_Group]:
        extents = self._facts.extents
        grid = np.array(list(product(*self._cuts)), dtype=np.int64)
        grid = grid[self._holds(dict(zip(extents, grid.T, strict=True)))]
        tile = dict(zip(extents, grid.T, strict=True))
        number = {name: -(-extent // tile[name]) for name, extent in extents.items()}
        cycles = self._estimator.tile_cycles(tile)
        for ways, rows in self._dealt(number):
            some = {name: numbers[rows] for name, numbers in number.items()}
            trips = {n: -(-c // ways[n]) if n in ways else c for n, c in some.items()}
            tiles = {name: sizes[rows] for name, sizes in tile.items()}
            batch = Batch(tiles, some, ways, trips, cycles[rows])
            for copies in Copies:
                yield from self._ordered(batch.where(self._fits(batch, copies)), copies)

    def _holds(self, tile: Tilings) -> Flags:
        """Tilings of which one copy fits an instance that a core has alone, in programs that are
        not too long."""
        length = len(next(iter(tile.values())))
        level, registers = self._stage.level, self._facts.registers
        total: Ints = np.zeros(length, dtype=np.int64)
        found: Flags = np.ones(length, dtype=np.bool_)
        for operand in self._operands:
            size = elements(operand, tile, length) * operand.dtype.size_bytes
            if registers is not None and operand is self._facts.in_registers:
                found &= size <= registers.usable_bytes
            else:
                total += size
        tiles = product_of((-(-e // tile[n]) for n, e in self._facts.extents.items()), length)
        instructions = tiles * (1 + len(self._operands))
        found &= (total <= level.usable_bytes) & (instructions <= MAX_INSTRUCTIONS)
        return found

    def _ordered(self, batch: Batch, copies: Copies) -> Iterator[_Group]:
        axes = self._facts.out_axes
        looped = np.stack([batch.trips[name] > 1 for name in axes], axis=1)
        for pattern in np.unique(looped, axis=0).tolist():
            same = batch.where(np.all(looped == np.array(pattern), axis=1))
            loops = [name for name, is_looped in zip(axes, pattern, strict=True) if is_looped]
            for order in self._orders(loops):
                yield _Group(same, order, copies, *self._estimator.price(same, order, copies))

    def _orders(self, loops: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Orders of loops that may move different bytes."""
        used = {name: tuple(name in operand.axes for operand in self._operands) for name in loops}
        outside = tuple(name for name in loops if all(used[name]))
        inside = [name for name in loops if not all(used[name])]
        place = {name: k for k, name in enumerate(inside)}
        for order in permutations(inside):
            if all(used[a] != used[b] or place[a] < place[b] for a, b in pairwise(order)):
                yield (*outside, *order)

    def _dealt(self, count: Tilings) -> Iterator[tuple[Tilings, Ints]]:
        """(cores along axes, which tilings): one axis or two, all shares of the first, and of the
        second what cores are left.  No core is without a share of a split axis."""
        units = self._stage.units
        length = len(next(iter(count.values())))
        everyone: Ints = np.arange(length)
        yield {}, everyone
        axes = [name for name in self._facts.out_axes if self._facts.extents[name] > 1]
        for number in range(2, units + 1):
            for name in axes:
                rows = everyone[_is_even(count[name], np.full(length, number))]
                if len(rows):
                    yield {name: np.full(len(rows), number)}, rows
            for name, other in combinations(axes, 2):
                left = np.minimum(count[other], units // number)
                left = -(-count[other] // -(-count[other] // left))
                rows = everyone[_is_even(count[name], np.full(length, number)) & (left > 1)]
                if len(rows):
                    yield {name: np.full(len(rows), number), other: left[rows]}, rows

    def _fits(self, batch: Batch, copies: Copies) -> Flags:
        """Whether all buffers fit, and loops move some that have two copies, where any shall."""
        length, registers = len(batch), self._facts.registers
        total: Ints = np.zeros(length, dtype=np.int64)
        found: Flags = np.ones(length, dtype=np.bool_)
        has_two: Flags = np.full(length, copies is Copies.ONE)
        for operand in self._operands:
            inside = operand is self._facts.in_registers
            level = registers if inside and registers is not None else self._stage.level
            unit = lcm(level.align_bytes, operand.dtype.size_bytes)
            size = elements(operand, batch.tile, length) * operand.dtype.size_bytes
            moves: Flags = np.zeros(length, dtype=np.bool_)
            for name in sorted(operand.axes):
                moves |= batch.trips[name] > 1
            number = copies.of(is_result=operand is self._operands[-1])
            # With two of the result it is no mapping of the kind before.
            if number == 2 and (copies is Copies.OPERANDS or operand is self._operands[-1]):
                has_two |= moves
            taken = -(-size // unit) * unit * np.where(moves, number, 1)
            if inside:
                found &= taken <= level.usable_bytes
            else:
                total += taken
        sharers = np.minimum(self._stage.sharers, batch.cores)
        return found & has_two & (total <= self._stage.capacity_bytes // sharers)


def _is_even(count: Ints, number: Ints) -> Flags:
    """Whether tiles go around so that everyone has some."""
    found: Flags = (number <= count) & (-(-count // -(-count // number)) == number)
    return found
