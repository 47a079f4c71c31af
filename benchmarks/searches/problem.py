"""What every search is asked, and what it answers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256

from worker.compiler.errors import Shortfall
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.signature import canonicalize
from worker.compiler.machine.machine import Engine, Machine
from worker.compiler.options import Objective
from worker.compiler.strategies.naive.tilings import chains, layer_of
from worker.compiler.tiling.nest.branch_bound import is_bounded
from worker.compiler.tiling.nest.enumeration import Enumeration
from worker.compiler.tiling.nest.facts import Facts, granules, homes_of_sums
from worker.compiler.tiling.nest.levels import Sizes, StageFrame, levels_of
from worker.compiler.tiling.nest.measure import Measure
from worker.compiler.tiling.nest.plan import Plan, Stage, Team, stages_of
from worker.compiler.tiling.nest.price import Pricer, Prices, Tilings
from worker.compiler.tiling.nest.search import (
    MOST_LEAVES,
    loop_orders,
    measured,
    needed_units,
    ordered_plan,
    score,
    search,
)


@dataclass(frozen=True)
class Problem:
    """One layer on given stages of a machine, and by what its tilings are judged."""

    name: str
    graph: Graph
    """Canonical, of one operator."""
    facts: Facts
    engine: Engine
    stages: tuple[Stage, ...]
    """With the units that are worth waking."""
    machine: Machine
    objective: Objective

    @cached_property
    def measure(self) -> Measure:
        """What is made small: `search.score` of plans that are priced by it."""
        return Measure.of(self.objective, self.machine)

    @cached_property
    def frame(self) -> StageFrame:
        """What sizes do not change."""
        return StageFrame(self.facts, self.stages)

    @cached_property
    def pricer(self) -> Pricer:
        """What tells one tiling from another."""
        return Pricer(self.facts, self.engine, self.stages, self.machine, self.measure)

    @cached_property
    def tilings(self) -> Enumeration:
        """The space, as `tilewright certify` knows it."""
        return Enumeration(self.facts, self.stages, granules(self.facts, self.engine))

    @cached_property
    def orders(self) -> tuple[tuple[str, ...], ...]:
        """Orders of loops: every tiling stands in the best of them, whoever found it."""
        return loop_orders(self.facts)

    def plan(self, sizes: Sizes) -> Plan | None:
        """A priced tiling; None: a buffer does not fit, which is told without a price."""
        levels = levels_of(self.frame, sizes)
        if levels is None:
            return None
        return ordered_plan(self.pricer, levels, self.orders, MOST_LEAVES)

    def seeded(self, search_name: str) -> random.Random:
        """Chance of a search's own, the same in every run."""
        digest = sha256(f"{self.name} {search_name}".encode()).digest()
        return random.Random(int.from_bytes(digest[:8], "big"))


@dataclass(frozen=True, slots=True)
class Budget:
    """What a search may take."""

    tilings: int
    """That are priced at most: work, not time."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search answers."""

    plan: Plan | None
    """None: it found nothing that fits."""
    bound: float = 0.0
    """No tiling of the space is proven to be below; 0: nothing is proven."""


Search = Callable[[Problem, Budget], Outcome | None]
"""None: it does not take such problems."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A search's answer, with what it took."""

    outcome: Outcome
    tilings: int
    """Priced by `Pricer.best`, whoever asked."""
    seconds: float
    """CPU, of the process."""

    @property
    def score(self) -> float | None:
        """`search.score` of what it found."""
        plan = self.outcome.plan
        return None if plan is None else score(plan, MOST_LEAVES)


def ran(search_for: Search, problem: Problem, budget: Budget) -> Ran | None:
    """Run one search; None: it does not take the problem."""
    with counted() as prices:
        begun = time.process_time()
        outcome = search_for(replace(problem), budget)  # nothing worked out before
        seconds = time.process_time() - begun
    return None if outcome is None else Ran(outcome, prices[0], seconds)


@contextmanager
def counted() -> Iterator[list[int]]:
    """How many tilings are priced meanwhile, in a list of one."""
    found, best = [0], Pricer.best

    def counting(
        self: Pricer, tilings: Tilings, orders: Sequence[tuple[str, ...]], most: int
    ) -> Prices:
        found[0] += len(tilings.tiles)
        return best(self, tilings, orders, most)

    Pricer.best = counting  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Pricer.best = best  # type: ignore[method-assign]


def grown(problem: Problem) -> Plan | None:
    """What tiles grow into by cycles, judged by the problem's measure."""
    plan = search(problem.facts, problem.engine, problem.stages, problem.machine)
    return None if plan is None else measured(plan, problem.machine, problem.measure)


def problem_of(
    name: str, graph: Graph, machine: Machine, objective: Objective = Objective.LATENCY
) -> Problem:
    """An operator's problem on the chain of scratchpads where the old climb is at its best.

    Sums stand in registers where the engine has some, results have a second copy where there is
    room, and what links can bring to several units at once comes so: one of the spaces that the
    product searches.

    Raises:
        ValueError: the machine has no place for it, or branch and bound does not know it.
    """
    canonical = canonicalize(graph).graph
    layer = layer_of(canonical, machine)
    if isinstance(layer, Shortfall) or not is_bounded(layer.facts):
        raise ValueError(f"{name}: {layer}")
    facts = homes_of_sums(layer.facts, layer.engine, machine)[0]
    team = Team.everyone(machine, joins=any(link.multicast for link in machine.links))
    found: list[tuple[float, Problem]] = []
    for chain in chains(machine, layer.engine.memory, facts):
        stages = needed_units(facts, stages_of(machine, chain, team))
        problem = Problem(name, canonical, facts, layer.engine, stages, machine, objective)
        plan = grown(problem)
        if plan is not None:
            found.append((score(plan, MOST_LEAVES), problem))
    if not found:
        raise ValueError(f"{name}: nothing fits")
    return min(found, key=lambda entry: entry[0])[1]
