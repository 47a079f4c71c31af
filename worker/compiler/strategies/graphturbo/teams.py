"""Which layers of a section run on one cluster and which on the whole chip.

A single sample keeps one cluster busy while its tensors stay in that cluster's global buffer; a
layer with much work and small tensors gains more from all clusters although it exchanges through
home.  A shortest path over the layers weighs both, with the tensors alive at a change of team as
the price of the change; the plans that result, and the two pure ones, are then compared whole.
Source: our own (the paper always gives clusters samples of their own).
"""

from __future__ import annotations

from math import inf

from worker.compiler.strategies.graphturbo.floors import engine_floor, least_cycles
from worker.compiler.strategies.graphturbo.section_plan import SectionPlan
from worker.compiler.strategies.graphturbo.unit_plan import Planner

_CHANGE_CYCLES = 1000
"""Latency of a change of team: drain, round trip through home."""


def team_plans(
    planner: Planner, clusters: int, limit: float = inf, *, is_mixed: bool = True
) -> tuple[SectionPlan, ...]:
    """The plans worth comparing for layers that are not cut into instances; `is_mixed`: also one
    that changes teams.

    Those predicted to take more than `limit` cycles may be left out.
    """
    number = len(planner.layers)
    if _least(planner) > limit:
        return ()
    chip, cluster = (True,) * number, (False,) * number
    ways: list[tuple[bool, ...] | None] = [cluster]
    if planner.site.buffer is None:
        ways = [chip]
    elif clusters > 1:
        ways = [cluster, chip, _shortest(planner, limit) if is_mixed else None]
    chosen = dict.fromkeys(way for way in ways if way is not None)
    plans = (planner.plan(way, limit=limit) for way in chosen)
    return tuple(plan for plan in plans if plan is not None)


def _least(planner: Planner) -> int:
    """Cycles that every plan takes at least, whoever runs which layer."""
    everything = frozenset(planner.graph.tensors)
    return sum(
        min(
            least_cycles(planner, n, planner.near(n, everything), False),
            least_cycles(planner, n, (), True),
        )
        for n in range(len(planner.layers))
    )


def _shortest(planner: Planner, limit: float) -> tuple[bool, ...] | None:
    """The assignment of least predicted cycles, tensors in GB wherever both ends are clusters.

    None where that is more than `limit`.
    """
    home = planner.site.machine.home
    everything = frozenset(planner.graph.tensors)
    cost: dict[bool, tuple[float, tuple[bool, ...]]] = {False: (0.0, ()), True: (0.0, ())}
    floors = [
        {team: engine_floor(planner, number, team) for team in (False, True)}
        for number in range(len(planner.layers))
    ]
    rest = sum(min(floor.values()) for floor in floors)
    for number, floor in enumerate(floors):
        rest -= min(floor.values())
        alive = _alive_bytes(planner, number)
        change = 2 * alive / home.read_bytes_per_cycle + _CHANGE_CYCLES
        now: dict[bool, tuple[float, tuple[bool, ...]]] = {}
        for team in (False, True):
            ways = [
                (total + (change if before is not team and number else 0), path)
                for before, (total, path) in cost.items()
            ]
            total, path = min(ways)
            if total + floor[team] + rest > limit:
                continue
            tiles = planner.tiles(number, everything, team)
            if tiles is not None:
                now[team] = (total + tiles.predicted_cycles, (*path, team))
        if not now:
            return None
        cost = now
    return min(cost.values())[1]


def _alive_bytes(planner: Planner, number: int) -> int:
    """Bytes of tensors made before layer `number` (or given) that it or a later one reads."""
    return sum(
        planner.size(t)
        for t, used in planner.uses.readers.items()
        if t not in planner.graph.constants
        and max(used) >= number
        and max(planner.uses.writers.get(t, [-1])) < number
        and (t in planner.uses.writers or min(used) < number)
    )
