"""Simulated annealing over ways, trips, rounding and second copies.

A tiling's neighbours differ in one number of ways or trips (twice, half, one more or less), in a
factor that went from one such number to another, of the same axis or of two, in one axis that is
drawn anew, in how tiles are rounded, or in whether operands have two copies.  Orders of loops are
no state: every tiling is priced in its best one, here as anywhere.

A worse neighbour is taken with probability (old score / new score)^(1 / T), so that it counts how
many times as bad it is.  T falls geometrically over the budget.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from benchmarks.searches.problem import Budget, Outcome, Problem
from worker.compiler.tiling.nest.enumeration import EVERY_ROUNDING, Axis, Numbers
from worker.compiler.tiling.nest.plan import Plan
from worker.compiler.tiling.nest.search import MOST_LEAVES, score

HOTTEST, COLDEST = 0.1, 0.01
"""Temperatures, as logarithms of a ratio of scores: decision 0062 has what others find."""
MOST_MOVES = 64
"""Times as many as the budget's tilings: neighbours that are no tilings cost no price."""


@dataclass(frozen=True, slots=True)
class _State:
    """A tiling of the space."""

    numbers: Numbers
    rounding: int
    double: bool


def annealing(problem: Problem, budget: Budget) -> Outcome:
    """The best tiling on one walk that begins at the first drawn one that fits."""
    rng = problem.seeded("annealing")
    drawn = problem.tilings.drawn(rng)
    best: Plan | None = None
    state, cost, least, priced = None, float("inf"), float("inf"), 0
    for _ in range(MOST_MOVES * budget.tilings):
        if priced >= budget.tilings:
            break
        if state is None:
            moved: _State | None = _State(next(drawn), 1, double=False)
        else:
            moved = _neighbour(problem, state, rng)
        if moved is None or moved == state:
            continue
        sizes = problem.tilings.sized(moved.numbers, moved.rounding, double=moved.double)
        plan = None if sizes is None else problem.plan(sizes)
        if plan is None:
            continue
        heat = HOTTEST * (COLDEST / HOTTEST) ** (priced / budget.tilings)
        priced += 1
        found = score(plan, MOST_LEAVES)
        if found < least:
            best, least = plan, found
        if found <= cost or rng.random() < (cost / found) ** (1 / heat):
            state, cost = moved, found
    return Outcome(best)


def _neighbour(problem: Problem, state: _State, rng: random.Random) -> _State | None:
    """A tiling beside another; None: what came up is none."""
    kind = rng.randrange(16)
    if kind == 0:
        return replace(state, double=not state.double)
    if kind == 1:
        return replace(state, rounding=rng.choice(EVERY_ROUNDING))
    names = list(state.numbers)
    name = rng.choice(names)
    changed: dict[str, Axis] = {}
    if kind == 2:
        changed[name] = problem.tilings.drawn_axis(name, rng)
    elif kind < 8:
        flat = _flat(state.numbers[name])
        place = rng.randrange(len(flat))
        flat[place] = rng.choice(
            [2 * flat[place], flat[place] // 2, flat[place] + 1, flat[place] - 1]
        )
        changed[name] = _axis(flat)
    else:
        other = name if kind < 12 else rng.choice(names)
        taken, given = _flat(state.numbers[name]), _flat(state.numbers[other])
        given = taken if other == name else given
        place = rng.randrange(len(taken))
        factor = rng.choice([2, 3, taken[place]])
        taken[place] = -(-taken[place] // factor)
        to = place if other != name else rng.randrange(len(given))
        given[to] *= factor
        changed[name], changed[other] = _axis(taken), _axis(given)
    numbers = {**state.numbers, **changed}
    if any(min(pair) < 1 for axis in changed.values() for pair in axis):
        return None
    if not all(problem.tilings.is_real(name, axis) for name, axis in changed.items()):
        return None
    return (
        replace(state, numbers=numbers)
        if problem.tilings.has_units(tuple(numbers.values()))
        else None
    )


def _flat(axis: Axis) -> list[int]:
    return [number for pair in axis for number in pair]


def _axis(flat: list[int]) -> Axis:
    return tuple(zip(flat[::2], flat[1::2], strict=True))
