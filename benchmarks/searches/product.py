"""The product's own searches: branch and bound, and the climb that it begins with."""

from __future__ import annotations

from benchmarks.searches.problem import Budget, Outcome, Problem, grown
from worker.compiler.errors import Shortfall
from worker.compiler.strategies.naive.descriptor import NaiveOptions
from worker.compiler.strategies.naive.tilings import layer_of, offers
from worker.compiler.tiling.nest.branch_bound import search_all
from worker.compiler.tiling.nest.search import MOST_LEAVES, measured, score


def ours(problem: Problem, budget: Budget) -> Outcome:
    """Branch and bound from what the climb finds, and walks, as `naive` does it.

    Its work is limited by constants of its own, in boxes, steps and priced tilings, whatever the
    budget; it seldom prices as many as that.
    """
    del budget
    plan = grown(problem)
    if plan is None:
        return Outcome(None)
    found, proof = search_all(problem.facts, problem.engine, problem.stages, problem.machine, plan)
    return Outcome(found, proof.bound)


def climb(problem: Problem, budget: Budget) -> Outcome:
    """The hill climb alone, which ends by itself after some hundred prices."""
    del budget
    return Outcome(grown(problem))


def of_every_space(problem: Problem) -> float:
    """`search.score` of the best that `naive` offers of the layer, on whatever chain of memories,
    with sums in registers or not, with one copy of the result or two."""
    machine = problem.machine
    layer = layer_of(problem.graph, machine)
    assert not isinstance(layer, Shortfall), "there would be no problem"
    return min(
        score(measured(plan, machine, problem.measure), MOST_LEAVES)
        for offered in offers(layer, machine, NaiveOptions(), (problem.objective,))
        for plan in offered.plans
    )
