"""Looking at tilings of the space as they come: all of them, or some by chance."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from benchmarks.searches.problem import Budget, Outcome, Problem
from worker.compiler.tiling.nest.enumeration import EVERY_ROUNDING
from worker.compiler.tiling.nest.levels import Sizes
from worker.compiler.tiling.nest.plan import Plan
from worker.compiler.tiling.nest.search import MOST_LEAVES, score

P = 0.1
"""How likely a candidate is looked at, on each of two levels: KAPLA's random search R (the paper's
evaluation) takes no less than 0.1 on each, lest nothing valid is left."""
LOOKED_AT = 64
"""Times the budget: what does not fit costs no price."""
WHOLE = 1 << 14
"""Spaces of so many splits and trips are enumerated."""


def exhaustive(problem: Problem, budget: Budget) -> Outcome | None:
    """Every tiling, where the space is small: what it finds is the best, and so its own bound."""
    del budget
    every = problem.tilings.all(WHOLE)
    if every is None:
        return None
    sizes = (one for numbers in every for one in problem.tilings.tiled(numbers))
    plan = best_of(problem, sizes, None)
    return Outcome(plan, 0.0 if plan is None else score(plan, MOST_LEAVES))


def random_draws(problem: Problem, budget: Budget) -> Outcome:
    """Ways and trips each taken with probability `P`, ways to round and buffer with `P` again.

    Spaces that are too large to walk over are drawn from instead, each power of two of ways and of
    trips as likely (`Enumeration.drawn`), until the budget is priced: the first probability is what
    share of the space that comes to.  What is drawn twice is looked at twice.
    """
    rng = problem.seeded("random")

    def walked() -> Iterator[Sizes]:
        every = problem.tilings.all(WHOLE)
        if every is None:
            some = problem.tilings.drawn(rng)
        else:
            some = iter([numbers for numbers in every if rng.random() < P])
        for numbers in some:
            for rounding, double in product(EVERY_ROUNDING, (True, False)):
                if rng.random() < P:
                    sizes = problem.tilings.sized(numbers, rounding, double=double)
                    if sizes is not None:
                        yield sizes

    return Outcome(best_of(problem, walked(), budget.tilings))


def best_of(problem: Problem, some: Iterator[Sizes], most: int | None) -> Plan | None:
    """The best, the first of equals; `most`: tilings that are priced, of `LOOKED_AT` times as many
    that are looked at."""
    best, least, priced = None, float("inf"), 0
    for number, sizes in enumerate(some):
        if most is not None and (priced >= most or number >= LOOKED_AT * most):
            break
        plan = problem.plan(sizes)
        if plan is None:
            continue
        priced += 1
        if (cost := score(plan, MOST_LEAVES)) < least:
            best, least = plan, cost
    return best
