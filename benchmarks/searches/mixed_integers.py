"""CoSA's mixed-integer program as a search, and one with a better idea of time.

Source: Huang et al., "CoSA: Scheduling by Constrained Optimization for Spatial Accelerators",
ISCA 2021; weights as in its published code.  Deviates: a prime's occurrences are counted, where
CoSA has a binary for each (which says the same more than once); a program for each order of loops
that is tried, where CoSA's has ranks; buffers are shared as they fill (`Program.cut`), where CoSA
gives every operand a share beforehand; windows overlap; and of the optima of all orders, with one
copy of operands and with two, the best by price counts.

`cosa` has CoSA's objective, in which there are no rates and no latencies.  `milp` has the slowest
of what is computed and moved.  What neither can say: parts that are not exact (a prime extent is
cut whole or not at all), tiles rounded up, sums of times (several operands through one port, first
fills and last drains, what one copy waits for), bursts, folds that are not full, energy, idle units
that leave their buffers to others, units that a multicast serves in part, and where tensors end
beside their padding.
"""

from __future__ import annotations

from math import inf

from benchmarks.searches.problem import Budget, Outcome, Problem
from benchmarks.searches.program import Aim, Program
from worker.compiler.tiling.nest.plan import Plan
from worker.compiler.tiling.nest.search import MOST_LEAVES, score


def cosa(problem: Problem, budget: Budget) -> Outcome:
    """By CoSA's objective.  At small size: tens of programs of about a hundred variables."""
    return _priced(problem, budget, Aim.PRODUCT)


def milp(problem: Problem, budget: Budget) -> Outcome:
    """By the slowest of computing and moving.  At the same size."""
    return _priced(problem, budget, Aim.SLOWEST)


def _priced(problem: Problem, budget: Budget, aim: Aim) -> Outcome:
    """The best by price of the optima of all orders, with two copies of operands and with one."""
    best: Plan | None = None
    least, priced = inf, 0
    for order in problem.orders:
        for double in (True, False):
            numbers = Program(problem, order, aim, double=double).fitting()
            sizes = None if numbers is None else problem.tilings.sized(numbers, 1, double=double)
            if sizes is None or priced >= budget.tilings:
                continue
            plan = problem.plan(sizes)
            if plan is not None:
                priced += 1
                if (cost := score(plan, MOST_LEAVES)) < least:
                    best, least = plan, cost
    return Outcome(best)
