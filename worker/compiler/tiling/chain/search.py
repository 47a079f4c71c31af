"""Tiles and cores for a row chain: candidates in closed form, the cheapest prediction wins."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf, prod
from typing import TypeAlias

from worker.compiler.ir.axis import AxisKind
from worker.compiler.machine.machine import Engine, Machine, MemoryLevel
from worker.compiler.tiling.align import buffer_bytes
from worker.compiler.tiling.chain.cost import (
    Busy,
    Flow,
    Timing,
    predict,
    timing_of,
)
from worker.compiler.tiling.chain.cut import Cut, Held, Rows, cut_rows, divides
from worker.compiler.tiling.chain.facts import Chain
from worker.compiler.tiling.chain.plan import (
    MAX_RECOMPUTED,
    ChainPlan,
    Split,
    footprint_bytes,
    held_dtype,
    is_allowed,
)
from worker.compiler.tiling.factors import divisors

MAX_ROW_AXES = 4
"""Axes that rows are made of; inner ones stay whole."""
MAX_FIRST_TILES = 8
"""Smallest tiles tried per axis."""
MAX_LEAVES = 4096
"""Executed instructions above which a plan is charged for their number."""


def row_axes(chain: Chain) -> tuple[Rows, ...]:
    """Axes of the anchor that tiles may be cut along, in their smallest tiles.

    Outermost of the result first, at most MAX_ROW_AXES; an axis may need the ones before it cut.
    """
    anchor = chain.anchor
    order = [name for expr in anchor.write.index for name in expr.variables()]
    limit = MAX_FIRST_TILES if divides(chain) else 1
    found: list[Rows] = []
    for name in dict.fromkeys(order):
        extent = chain.slice_of(anchor, name).extent
        if anchor.axis(name).kind is not AxisKind.PARALLEL or len(found) == MAX_ROW_AXES:
            continue
        # One row, or more where the operators only agree on groups of them.
        for tile in [d for d in divisors(extent) if d < extent][:limit]:
            rows = Rows(name, tile, extent // tile)
            if _is_cut(chain, rows) or (found and _is_inner(chain, (*found, rows))):
                found.append(rows)
                break
    return tuple(found)


def _is_inner(chain: Chain, rows: tuple[Rows, ...]) -> bool:
    """True when the last of `rows` can be cut inside of the others."""
    cut = cut_rows(chain, rows)
    return cut is not None and is_allowed(chain, cut, tuple(Split(1, row.count) for row in rows))


def _is_cut(chain: Chain, rows: Rows) -> bool:
    cut = cut_rows(chain, (rows,))
    if cut is None:
        return False
    total = sum(op.num_points for op in chain.ops)
    again = sum(part.op.num_points for part in cut.ops if not part.rows)
    return again <= MAX_RECOMPUTED * total


def rows_of_size(chain: Chain, axis: str, tile: int) -> Rows:
    """One axis of the anchor in tiles of a size."""
    return Rows(axis, tile, -(-chain.slice_of(chain.anchor, axis).extent // tile))


@lru_cache(maxsize=64)
def _cuts_of(chain: Hashable) -> dict[tuple[Rows, ...], Cut | None]:
    """Cuts of a chain found so far: where its operands live and who runs it makes no difference."""
    return {}


@dataclass(frozen=True, slots=True)
class _Question:
    """What decides the plan of a chain besides the chain."""

    key: Hashable
    """Locations, engines, memory, cores, groups and bytes."""
    machine: Machine = field(hash=False)


_Answer: TypeAlias = "tuple[ChainPlan | None, Cut | None]"


@lru_cache(maxsize=64)
def _answers_of(chain: Hashable) -> dict[_Question, _Answer]:
    """Plans of a chain found so far: sections that overlap, and hand-overs, ask for them again."""
    return {}


def _written_out(chain: Chain) -> Hashable:
    """All that decides the cuts of a chain."""
    names = dict.fromkeys(n for op in chain.ops for n in (*op.input_names(), op.write.tensor))
    return (
        chain.ops, tuple(chain.tensors[n] for n in names),
        tuple(chain.slices[op.name] for op in chain.ops), chain.leaving,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Search:
    """Tries tiles and splits."""

    chain: Chain
    engines: Mapping[str, Engine]
    level: MemoryLevel
    location_of: Mapping[str, str]
    machine: Machine
    num_cores: int
    num_groups: int

    def run(self, budget_bytes: int) -> _Answer:
        """The best plan, and the cut of the smallest footprint."""
        engines = tuple((name, engine.name) for name, engine in self.engines.items())
        key = (
            tuple(sorted(self.location_of.items())), engines, self.level.name, self.num_cores,
            self.num_groups, budget_bytes,
        )  # fmt: skip
        question = _Question(key, self.machine)
        known = _answers_of(_written_out(self.chain))
        if question not in known:
            known[question] = self._searched(budget_bytes)
        return known[question]

    def _searched(self, budget_bytes: int) -> _Answer:
        best: ChainPlan | None = None
        lowest = inf
        least: tuple[int, Cut] | None = None
        known = _cuts_of(_written_out(self.chain))
        for rows in self._tiles():
            if rows not in known:
                known[rows] = cut_rows(self.chain, rows)
            cut = known[rows]
            if cut is None or not self._is_served(cut):
                continue
            each = tuple(Split(1, row.count) for row in rows)
            if not is_allowed(self.chain, cut, each, self._private):
                continue
            single = footprint_bytes(self.chain, cut, self.location_of, self.level, {})
            if least is None or single < least[0]:
                least = (single, cut)
            if single > budget_bytes:
                continue
            held = {h.tensor: held_dtype(self.chain, h.tensor) for h in (*cut.fetched, *cut.made)}
            timing = timing_of(
                cut, self.engines, self.chain.tensors, self._flows(cut), held, self.machine
            )
            for splits in self._splits(cut):
                found = self._plan(cut, splits, budget_bytes, timing, lowest)
                if found is not None:
                    lowest, best = found
        return best, None if least is None else least[1]

    def is_placed(self, held: Held) -> bool:
        """False for what already is in the local buffer."""
        return self.location_of.get(held.tensor) != self.level.name

    def held_bytes(self, held: Held, copies: int) -> int:
        """Bytes of the Place of one tensor."""
        extents = tuple(span.extent for span in held.box)
        return buffer_bytes(extents, held_dtype(self.chain, held.tensor), self.level, copies)

    @property
    def _private(self) -> frozenset[str]:
        """Results that stay in a buffer."""
        home = self.machine.home.name
        return frozenset(n for n in self.chain.leaving if self.location_of.get(n, home) != home)

    def _is_served(self, cut: Cut) -> bool:
        """Tables are at home, and nothing padded is expected in a Place of someone else's."""
        home = self.machine.home.name
        if any(self.location_of.get(name, home) != home for name in cut.at_home):
            return False
        return all(self.is_placed(h) or h.fill is None for h in cut.fetched)

    def _tiles(self) -> list[tuple[Rows, ...]]:
        """One row axis in tiles, inner rows whole, outer rows in smallest steps, or whole as well.

        Of the outer rows all, the outermost, or none are in steps.
        """
        axes = row_axes(self.chain)
        found: dict[tuple[Rows, ...], None] = {(): None}
        for k, least in enumerate(axes):
            found.setdefault(axes[: k + 1])
            outers = dict.fromkeys((axes[:k], axes[: min(k, 1)], ()))
            extent = self.chain.slice_of(self.chain.anchor, least.axis).extent
            for tile in self._sizes(extent):
                if tile < extent:
                    row = rows_of_size(self.chain, least.axis, tile)
                    found.update(dict.fromkeys((*outer, row) for outer in outers))
        return list(found)

    def _sizes(self, extent: int) -> list[int]:
        """Tile sizes worth trying: divisors, and even shares of each core's part."""
        sizes = set(divisors(extent)[-16:]) | set(divisors(extent)[:8])
        for cores in divisors(self.num_cores):
            share = -(-extent // cores)
            sizes.update(-(-share // parts) for parts in (1, 2, 3, 4, 6, 8))
        return sorted(sizes)

    def _splits(self, cut: Cut) -> list[tuple[Split, ...]]:
        """Ways to share the tiles out over cores: one axis first, what is left to the others."""
        counts = [row.count for row in cut.rows]
        found: dict[tuple[int, ...], None] = {}
        for first in range(len(counts)):
            for ways in self._ways(cut, first, self.num_cores):
                chosen = [1] * len(counts)
                chosen[first] = ways
                for k in range(len(counts)):
                    if k != first:
                        left = self.num_cores // prod(chosen)
                        chosen[k] = self._ways(cut, k, left)[-1]
                found.setdefault(tuple(chosen))
        found.setdefault((1,) * len(counts))
        return [
            tuple(Split(w, -(-count // w)) for w, count in zip(chosen, counts, strict=True))
            for chosen in found
        ]

    def _ways(self, cut: Cut, k: int, limit: int) -> list[int]:
        count = cut.rows[k].count
        if k in cut.must_divide:
            return [d for d in divisors(count) if d <= limit]
        tried = {min(count, d) for d in divisors(limit)}
        return sorted({-(-count // -(-count // ways)) for ways in tried})

    def _flows(self, cut: Cut) -> tuple[tuple[Flow, ...], tuple[Flow, ...]]:
        """What is fetched and what is stored."""
        home, tensors = self.machine.home.name, self.chain.tensors
        into = tuple(
            Flow.of(h, self.location_of.get(h.tensor, home), tensors[h.tensor], self.machine)
            for h in cut.fetched
            if self.is_placed(h)
        )
        out = tuple(
            Flow.of(h, self.location_of.get(h.tensor, home), tensors[h.tensor], self.machine)
            for h in cut.made
            if self.is_placed(h) and h.tensor in self.chain.leaving
        )
        return into, out

    def _plan(
        self,
        cut: Cut,
        splits: tuple[Split, ...],
        budget_bytes: int,
        timing: Timing,
        lowest: float,
    ) -> tuple[float, ChainPlan] | None:
        """(cost, plan) of one split if that is below `lowest`.

        The cost charges for the number of instructions.
        """
        for k in cut.must_divide:
            extent = self.chain.slice_of(self.chain.anchor, cut.rows[k].axis).extent
            if extent % cut.rows[k].tile or cut.rows[k].count % splits[k].ways:
                return None
        looped = {k for k, split in enumerate(splits) if split.trips > 1}
        for overlaps in (True, False):
            cycles, cost = self._cost(timing, splits, overlaps=overlaps and bool(looped))
            if cost >= lowest or not is_allowed(self.chain, cut, splits, self._private):
                return None
            number = 2 if overlaps else 1
            copies = {
                flow.held.tensor: number if looped.intersection(flow.held.rows) else 1
                for flow in (*timing.fetched, *timing.stored)
            }
            size = footprint_bytes(self.chain, cut, self.location_of, self.level, copies)
            if size <= budget_bytes:
                break
        else:
            return None
        engines = tuple((name, engine.name) for name, engine in self.engines.items())
        return cost, ChainPlan(
            self.chain, cut, splits, engines, self.level.name, dict(self.location_of),
            self.machine.home.name, copies, size, int(cycles),
        )  # fmt: skip

    def _cost(
        self, timing: Timing, splits: tuple[Split, ...], *, overlaps: bool
    ) -> tuple[float, float]:
        """(predicted cycles, these charged for the number of instructions)."""
        ways = prod(split.ways for split in splits)
        cycles, leaves = predict(
            timing, tuple(split.trips for split in splits), Busy(ways, self.num_groups),
            self.level.name, self.machine, overlaps=overlaps,
        )  # fmt: skip
        return cycles, cycles * max(1.0, leaves * ways / MAX_LEAVES) + leaves * 1e-3
