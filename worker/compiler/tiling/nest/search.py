"""Finding tiles: start from what fills the engine, grow what helps, stop when nothing fits.

Coordinate ascent over (stage, axis): a size grows while the prediction falls and every buffer fits.
Deterministic; about a hundred predictions per operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from worker.compiler.cost.compute import work
from worker.compiler.machine.machine import Engine, Machine
from worker.compiler.tiling.candidates import grown
from worker.compiler.tiling.factors import divisors, largest_divisor
from worker.compiler.tiling.nest.facts import Facts, granules
from worker.compiler.tiling.nest.plan import (
    LevelPlan,
    Plan,
    Stage,
    footprint_terms,
    is_placed,
    placed_at,
    predict,
)

MAX_LEAVES = 150_000
"""Executed leaves a unit should stay below: beyond, lowering and simulation dominate."""
MAX_SPLIT_AXES = 3
MIN_BYTES_PER_CORE = 1024
MIN_WORK_PER_CORE = 4096


@dataclass(frozen=True, slots=True)
class Sizes:
    """A point of the search: tile sizes per stage, and whether operands are double-buffered."""

    tiles: tuple[Mapping[str, int], ...]
    double: bool
    ways: tuple[Mapping[str, int], ...] | None = None
    """Ways each output axis is split over the units of each stage, where that is given; else it
    follows from the tiles."""


def search(
    facts: Facts,
    engine: Engine,
    stages: tuple[Stage, ...],
    machine: Machine,
) -> Plan | None:
    """The best plan found, or None when even single steps do not fit.

    Cost: about (stages x axes x doublings) predictions.
    """
    if not stages:
        return None
    climber = _Climber(facts, engine, needed_units(facts, stages), machine)
    for double in (True, False):
        for smallest in (False, True):
            sizes = _first(facts, engine, climber.stages, smallest=smallest, double=double)
            plan = climber.plan(sizes)
            if plan is not None:
                tried = [climber.climb(sizes, plan, route) for route in _routes(facts)]
                return min(tried, key=score)
    return None


@dataclass(frozen=True, slots=True)
class _Route:
    """Which axes to grow first, and whether to exhaust one before the next."""

    axes: tuple[str, ...]
    exhaust: bool


def _routes(facts: Facts) -> tuple[_Route, ...]:
    """Ways up: reductions first (fewest partial sums), or all axes in turn (square tiles)."""
    inner_first = tuple(reversed(facts.out_axes))
    if not facts.reduce_axes:
        return (_Route(inner_first, exhaust=True),)
    return (
        _Route((*facts.reduce_axes, *inner_first), exhaust=True),
        _Route((*inner_first, *facts.reduce_axes), exhaust=False),
    )


class _Climber:
    """Ways up for one layer; what was predicted once is remembered."""

    def __init__(
        self, facts: Facts, engine: Engine, stages: tuple[Stage, ...], machine: Machine
    ) -> None:
        self.facts = facts
        self.engine = engine
        self.stages = stages
        self.machine = machine
        self._known: dict[tuple[object, ...], Plan | None] = {}

    def plan(self, sizes: Sizes) -> Plan | None:
        """Complete sizes to a plan, or None when a buffer does not fit."""
        key = (sizes.double, *(size for tile in sizes.tiles for size in tile.values()))
        if key not in self._known:
            levels = levels_of(self.facts, self.stages, sizes)
            found = None
            if levels is not None:
                found = ordered_plan(self.facts, self.engine, levels, self.machine)
            self._known[key] = found
        return self._known[key]

    def climb(self, sizes: Sizes, plan: Plan, route: _Route) -> Plan:
        """Grow axis after axis until nothing helps."""
        while True:
            before = score(plan)
            for k in reversed(range(len(self.stages))):
                for name in route.axes:
                    sizes, plan = self._grow(sizes, plan, k, name, route.exhaust)
            if score(plan) >= before:
                return plan

    def _grow(
        self, sizes: Sizes, plan: Plan, stage: int, name: str, exhaust: bool
    ) -> tuple[Sizes, Plan]:
        """Grow one axis at one stage while that lowers the prediction (looking two steps ahead).

        Without `exhaust`, by one step only.
        """
        trial = sizes
        misses = 0
        while misses < 2:
            larger = _larger(self.facts, trial, stage, name)
            if larger is None:
                break
            trial = larger
            found = self.plan(trial)
            if found is None:
                break
            if score(found) < score(plan):
                sizes, plan, misses = trial, found, 0
                if not exhaust:
                    break
            else:
                misses += 1
        return sizes, plan


def score(plan: Plan) -> float:
    excess = max(1.0, plan.num_leaves / MAX_LEAVES)
    return plan.predicted_cycles * excess + plan.num_leaves * 1e-3


def _first(
    facts: Facts, engine: Engine, stages: tuple[Stage, ...], *, smallest: bool, double: bool
) -> Sizes:
    sizes = dict.fromkeys(facts.extents, 1) if smallest else granules(facts, engine.array)
    for name in facts.extents:
        if name in facts.whole:
            sizes[name] = facts.extents[name]
        elif name in facts.single or any(
            sizes[b] < facts.extents[b] for b in facts.below.get(name, ())
        ):
            sizes[name] = 1
        elif name in facts.exact:
            sizes[name] = largest_divisor(facts.extents[name], sizes[name])
    outer = dict(sizes)
    stored = facts.stored
    if facts.epilogue or (
        stored is not None
        and not all(is_placed(facts.base.get(stored.tensor, ""), s) for s in stages)
    ):
        # The epilogue needs complete sums, so no stage but the innermost loops over a reduction;
        # nor is there a place for partial sums where the result lives outside of the nest.
        for name in facts.reduce_axes:
            outer[name] = -(-facts.extents[name] // sizes[name]) * sizes[name]
    return Sizes((*(outer for _ in stages[1:]), sizes), double)


def _larger(facts: Facts, sizes: Sizes, stage: int, name: str) -> Sizes | None:
    """Sizes with axis `name` grown at `stage` (and outer stages kept multiples of it)."""
    if name in facts.single or name in facts.whole:
        return None
    tiles = [dict(t) for t in sizes.tiles]
    extent = facts.extents[name]
    old = tiles[stage][name]
    if old >= extent:
        return None
    if any(tiles[stage][b] < facts.extents[b] for b in facts.below.get(name, ())):
        return None
    is_exact = name in facts.exact
    if stage == len(tiles) - 1 or is_exact:
        new = grown(old, extent, exact=is_exact)
        inner = tiles[stage + 1][name] if stage + 1 < len(tiles) else 1
        while new % inner and new < extent:
            new = grown(new, extent, exact=True)
    else:
        inner = tiles[stage + 1][name]
        new = min(old * 2, -(-extent // inner) * inner)
    if new <= old:
        return None
    tiles[stage][name] = new
    for outer in reversed(range(stage)):
        below = tiles[outer + 1][name]
        if tiles[outer][name] % below:
            size = -(-tiles[outer][name] // below) * below
            if is_exact:
                size = next((d for d in divisors(extent) if d >= size and d % below == 0), extent)
            tiles[outer][name] = size
    return Sizes(tuple(tiles), sizes.double)


def levels_of(facts: Facts, stages: tuple[Stage, ...], sizes: Sizes) -> list[LevelPlan] | None:
    """Sizes written out per stage, or None when a buffer does not fit."""
    levels: list[LevelPlan] = []
    outer: Mapping[str, int] = facts.extents
    for k, stage in enumerate(stages):
        level = _level(facts, stage, sizes, k, outer)
        is_last = k == len(stages) - 1
        terms = footprint_terms(facts, stage, level.tile, level.copies, is_last=is_last)
        budget = stage.capacity_bytes // min(stage.sharers, max(1, level.units_used))
        if sum(size for _, size in terms) > budget:
            return None
        levels.append(level)
        outer = level.tile
    return levels


def ordered_plan(
    facts: Facts, engine: Engine, levels: Sequence[LevelPlan], machine: Machine
) -> Plan:
    """The plan with the best order of loops."""
    best: Plan | None = None
    tried: set[tuple[tuple[str, ...], ...]] = set()
    for order in loop_orders(facts):
        ordered = tuple(_ordered(level, order) for level in levels)
        key = tuple(level.order for level in ordered)
        if key in tried:  # axes without loops stand in any order
            continue
        tried.add(key)
        cycles, leaves = predict(facts, engine, ordered, machine)
        plan = Plan(facts, engine, ordered, cycles, leaves)
        if best is None or score(plan) < score(best):
            best = plan
    assert best is not None, "there is at least one order"
    return best


def _ordered(level: LevelPlan, order: tuple[str, ...]) -> LevelPlan:
    """The level with its output loops in another order."""
    out = level.num_out_loops
    loops = tuple(a for a in order if a in level.order[:out])
    new = (*loops, *level.order[out:])
    return level if new == level.order else replace(level, order=new)


def loop_orders(facts: Facts) -> tuple[tuple[str, ...], ...]:
    """Orders of the output axes worth trying: each read's own axes outermost, so that it stays."""
    found = {facts.out_axes: None}
    if len(facts.fetched) > 1:
        for operand in facts.fetched:
            own = tuple(a for a in facts.out_axes if a in operand.axes)
            found.setdefault((*own, *(a for a in facts.out_axes if a not in own)))
    return tuple(found)


def _level(
    facts: Facts,
    stage: Stage,
    sizes: Sizes,
    k: int,
    outer: Mapping[str, int],
) -> LevelPlan:
    tile = sizes.tiles[k]
    counts = {a: -(-outer[a] // tile[a]) for a in facts.extents}
    splittable = [a for a in facts.out_axes if counts[a] > 1 and a not in facts.whole]
    must_divide = facts.out_axes if k else facts.exact
    if sizes.ways is not None:
        splits = _given(sizes.ways[k], splittable, counts, frozenset(must_divide))
    else:
        splits = _split(splittable, counts, stage.units, frozenset(must_divide))
    trips = {a: -(-counts[a] // splits.get(a, 1)) for a in facts.extents}
    out_loops = tuple(a for a in facts.out_axes if trips[a] > 1)
    reduce_loops = tuple(a for a in facts.reduce_axes if trips[a] > 1)
    order = (*out_loops, *reduce_loops)
    looped = frozenset(order)
    is_last = k == len(sizes.tiles) - 1
    placed = placed_at(facts, stage, is_last=is_last)
    copies = {o.tensor: 2 if sizes.double and looped & o.axes else 1 for o in placed}
    # What the epilogue makes and uses up on one engine gains nothing from a second copy.
    copies.update((step.out.tensor, 1) for step in facts.epilogue[:-1])
    elems = {o.tensor: prod(facts.placed_widths(o, tile, is_last=is_last)) for o in placed}
    if facts.epilogue and facts.out is not None and is_last and not facts.is_overlapped:
        for name in (facts.out.tensor, facts.epilogue[-1].out.tensor):
            copies[name] = 1
    return LevelPlan(stage, tile, counts, splits, trips, order, len(out_loops), copies, elems)


def needed_units(facts: Facts, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Stages without the cores not worth waking: tiny operators stay on few."""
    last = facts.epilogue[-1].op if facts.epilogue else facts.op
    names = dict.fromkeys(
        (*facts.op.input_names(), *(o.tensor for o in facts.late), last.write.tensor)
    )
    size = sum(facts.tensors[n].size_bytes for n in names)
    amount = work(facts.op, facts.op.num_points)
    amount += sum(work(step.op, step.op.num_points) for step in facts.epilogue)
    useful = max(1, ceil(max(size / MIN_BYTES_PER_CORE, amount / MIN_WORK_PER_CORE)))
    return tuple(replace(stage, units=min(stage.units, useful)) for stage in stages)


def _given(
    ways: Mapping[str, int], axes: list[str], counts: Mapping[str, int], exact: frozenset[str]
) -> dict[str, int]:
    """The split that was asked for, as far as there are tiles."""
    found: dict[str, int] = {}
    for name in axes:
        number = min(ways.get(name, 1), counts[name])
        if name in exact:
            number = largest_divisor(counts[name], number)
        if number > 1:
            found[name] = number
    return found


def _split(
    axes: list[str], counts: Mapping[str, int], units: int, exact: frozenset[str]
) -> dict[str, int]:
    """Split tiles over units along up to three axes, outer axes first, evening out the remainders.

    Tries each axis as the first to be split and keeps the way that leaves the fewest tiles to the
    busiest unit.
    """
    best: dict[str, int] = {}
    best_trips = prod(counts[a] for a in axes)
    for first in axes[:4]:
        left = units
        chosen: dict[str, int] = {}
        for name in (first, *(a for a in axes if a != first)):
            if left < 2 or len(chosen) == MAX_SPLIT_AXES:
                break
            ways = min(counts[name], left)
            if name in exact:
                ways = largest_divisor(counts[name], ways)
            else:
                ways = -(-counts[name] // -(-counts[name] // ways))
            if ways > 1:
                chosen[name] = ways
                left //= ways
        trips = prod(-(-counts[a] // chosen.get(a, 1)) for a in axes)
        if trips < best_trips:
            best, best_trips = chosen, trips
    return {a: best[a] for a in axes if a in best}
