"""Candidate trims of regions: which units stay on the accelerator, solved as minimum cuts.

Exact in every cut: work of both sides, every value's transfers (once per direction), one launch per
region.  Not in the cut: invocations of host parts, which depend on the order; the caller counts
them when it tries a candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from worker.compiler.partition.balance import ON_HOST, Balance
from worker.compiler.partition.mincut import CutProblem
from worker.compiler.partition.quotient import reverse


class Closure(Enum):
    """Which units may leave: keeps a trimmed region convex without looking at paths."""

    FREE = auto()
    HEAD = auto()
    """A unit leaves only with everything of the region before it."""
    TAIL = auto()
    """A unit leaves only with everything of the region behind it."""


class Trimmer:
    """Solves cuts over one program."""

    def __init__(self, balance: Balance) -> None:
        self._balance = balance
        self._before = reverse(balance.successors)

    def best(self, free: Sequence[int], side: Sequence[int], closure: Closure) -> tuple[int, ...]:
        """The units of `free` that stay on the accelerator in a cheapest cut, everything else
        staying as in `side`.

        Cost: one maximum flow over the free units and the values they touch.
        """
        if not free:
            return ()
        balance = self._balance
        item_of = {unit: k for k, unit in enumerate(free)}
        problem = CutProblem(len(free))
        for unit, item in item_of.items():
            problem.costs_on_source_side(item, balance.accelerator[unit])
            problem.costs_on_sink_side(item, balance.host[unit])
            for other in balance.successors[unit]:
                if other not in item_of:
                    continue
                if closure is Closure.HEAD:
                    problem.implies(item, item_of[other])
                elif closure is Closure.TAIL:
                    problem.implies(item_of[other], item)
            for needed in balance.needs.get(unit, ()):
                if needed in item_of:
                    problem.implies(item, item_of[needed])
        self._add_launches(problem, item_of)
        touched = dict.fromkeys(number for unit in free for number in balance.values_of[unit])
        for number in touched:
            self._add_value(problem, number, item_of, side)
        stays = problem.solve()
        return tuple(unit for unit, item in item_of.items() if stays[item])

    def hull(self, kept: Sequence[int], region: Sequence[int]) -> tuple[int, ...]:
        """`kept` and everything of the (convex) region on paths between two kept units."""
        inside = set(region)
        ahead = self._reached(kept, inside, self._balance.successors)
        behind = self._reached(kept, inside, self._before)
        return tuple(u for u in region if u in ahead and u in behind)

    def _reached(
        self, start: Sequence[int], inside: set[int], edges: Sequence[Sequence[int]]
    ) -> set[int]:
        found = set(start)
        stack = list(start)
        while stack:
            for other in edges[stack.pop()]:
                if other in inside and other not in found:
                    found.add(other)
                    stack.append(other)
        return found

    def _add_launches(self, problem: CutProblem, item_of: dict[int, int]) -> None:
        balance = self._balance
        launch: dict[int, int] = {}
        for unit, item in item_of.items():
            region = balance.region_of[unit]
            if region in balance.launch_of and balance.runs_kernel[unit]:
                if region not in launch:
                    launch[region] = problem.new_item()
                    problem.costs_on_source_side(launch[region], balance.launch_of[region])
                problem.implies(item, launch[region])

    def _add_value(
        self, problem: CutProblem, number: int, item_of: dict[int, int], side: Sequence[int]
    ) -> None:
        value = self._balance.values[number]
        users = [item_of[u] for u in value.consumers if u in item_of]
        maker = item_of.get(value.producer)
        if not users and maker is None:
            return
        fixed = [side[u] for u in value.consumers if u not in item_of]
        on_host = any(region == ON_HOST for region in fixed)
        on_accelerator = any(region != ON_HOST for region in fixed)
        made_on_host = maker is None and (value.producer < 0 or side[value.producer] == ON_HOST)
        if not made_on_host:  # it may have to come out
            if value.is_output or on_host:
                if maker is not None:
                    problem.costs_on_source_side(maker, value.cycles)
            elif users:
                out = problem.new_item()
                for user in users:
                    problem.implies(out, user)
                if maker is None:
                    problem.costs_on_sink_side(out, value.cycles)
                else:
                    problem.costs_when_split(maker, out, value.cycles)
        if made_on_host or maker is not None:  # it may have to go in
            if on_accelerator:
                if maker is not None:
                    problem.costs_on_sink_side(maker, value.cycles)
            elif users:
                into = problem.new_item()
                for user in users:
                    problem.implies(user, into)
                if maker is None:
                    problem.costs_on_source_side(into, value.cycles)
                else:
                    problem.costs_when_split(into, maker, value.cycles)
