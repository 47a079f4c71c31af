"""Finding tiles: start from what fills the engine, grow what helps, stop when nothing fits.

Coordinate ascent over (stage, axis): a size grows while the prediction falls and every buffer fits.
Deterministic; about a hundred predictions per operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from worker.compiler.cost.compute import work
from worker.compiler.machine.machine import Engine, Machine
from worker.compiler.tiling.candidates import grown
from worker.compiler.tiling.factors import divisors, largest_divisor
from worker.compiler.tiling.nest.facts import Facts, granules
from worker.compiler.tiling.nest.levels import Sizes, StageFrame, levels_of
from worker.compiler.tiling.nest.measure import Measure
from worker.compiler.tiling.nest.plan import LevelPlan, Plan, Stage, is_placed
from worker.compiler.tiling.nest.price import Pricer, Prices

MAX_LEAVES = 150_000
"""Executed leaves that a layer of a unit of many should stay below: its program lists them all, and
beyond, lowering and simulation dominate."""
MOST_LEAVES = 2_000_000
"""The same of a kernel of one layer: its program has loops, but the audit looks at all that runs, a
million in 1.5 CPU s (decisions 0037, 0053)."""
MIN_BYTES_PER_CORE = 1024
MIN_WORK_PER_CORE = 4096


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
        self.stages = stages
        self._frame = StageFrame(facts, stages)
        self._orders = loop_orders(facts)
        self._pricer = Pricer(facts, engine, stages, machine)
        self._known: dict[tuple[object, ...], Plan | None] = {}

    def plan(self, sizes: Sizes) -> Plan | None:
        """Complete sizes to a plan, or None when a buffer does not fit."""
        key = (sizes.double, *(size for tile in sizes.tiles for size in tile.values()))
        if key not in self._known:
            levels = levels_of(self._frame, sizes)
            found = None if levels is None else ordered_plan(self._pricer, levels, self._orders)
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


def score(plan: Plan, most: int = MAX_LEAVES) -> float:
    """What the plan was searched by, more where it has more than `most` leaves."""
    measure, leaves = plan.measure, plan.num_leaves
    cost = measure.cost(plan.predicted_cycles, plan.charge) * max(1.0, leaves / most)
    return cost + leaves * 1e-3 * measure.per_cycle


def _first(
    facts: Facts, engine: Engine, stages: tuple[Stage, ...], *, smallest: bool, double: bool
) -> Sizes:
    sizes = dict.fromkeys(facts.extents, 1) if smallest else granules(facts, engine)
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


def ordered_plan(
    pricer: Pricer,
    levels: Sequence[LevelPlan],
    orders: Sequence[tuple[str, ...]],
    most: int = MAX_LEAVES,
) -> Plan:
    """The plan with the best of some `orders` of loops (`loop_orders`)."""
    return ordered_plans(pricer, [levels], orders, most)[0]


def ordered_plans(
    pricer: Pricer,
    written: Sequence[Sequence[LevelPlan]],
    orders: Sequence[tuple[str, ...]],
    most: int = MAX_LEAVES,
) -> list[Plan]:
    """The same of several tilings.  Cost: less for each than one by one."""
    if not written:
        return []
    found = pricer.best(pricer.tilings(written), orders, most)
    return [plan_at(pricer, levels, orders, found, k) for k, levels in enumerate(written)]


def plan_at(
    pricer: Pricer, levels: Sequence[LevelPlan], orders: Sequence[tuple[str, ...]], found: Prices,
    k: int,
) -> Plan:  # fmt: skip
    """The plan of one of the tilings that were priced, written out as `levels`."""
    order = orders[int(found.order[k])]
    ordered = [_ordered(level, order) for level in levels]
    return Plan(
        pricer.facts, pricer.engine,
        tuple(
            level if level.order == order else level._replace(order=order)
            for level, order in zip(levels, ordered, strict=True)
        ),
        int(found.cycles[k]), int(found.leaves[k]), float(found.charge[k]), pricer.measure,
    )  # fmt: skip


def _ordered(level: LevelPlan, order: tuple[str, ...]) -> tuple[str, ...]:
    """The level's loops with its output loops in another order."""
    out = level.num_out_loops
    if out < 2:
        return level.order
    loops = level.order[:out]
    return (*(a for a in order if a in loops), *level.order[out:])


def measured(plan: Plan, machine: Machine, measure: Measure) -> Plan:
    """The same tiling, judged by another measure."""
    stages = [level.stage for level in plan.levels]
    pricer = Pricer(plan.facts, plan.engine, stages, machine, measure)
    charge = float(pricer.ordered(plan.levels, MOST_LEAVES).charge[0])
    return replace(plan, charge=charge, measure=measure)


def loop_orders(facts: Facts) -> tuple[tuple[str, ...], ...]:
    """Orders of the output axes worth trying: each read's own axes outermost, so that it stays."""
    axes = facts.out_axes
    found = {axes: None}
    if len(facts.fetched) > 1:
        for operand in facts.fetched:
            own = tuple(a for a in axes if a in operand.axes)
            found.setdefault((*own, *(a for a in axes if a not in own)))
    return tuple(found)


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
