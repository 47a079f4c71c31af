"""Which tensors stay in the local buffers, and where the others go.

Source: GraphTurbo section 4.3 and figure 12.  Deviates: the paper leaves ties open (larger size,
then later last use, then earlier in the sequence) and knows one rule only; two more are here to
compare with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush

from worker.compiler.errors import InternalError
from worker.compiler.memory.liveness import BufferScope, LiveTensor, births, check_lives
from worker.compiler.memory.spill_search import PlacementCost, cheapest_scopes


class SpillRule(StrEnum):
    """How tensors are chosen that leave a full buffer."""

    LONGEST_LIVENESS = "longest-liveness"
    """The paper: the one that lives across most tasks."""
    LARGEST = "largest"
    """What the paper compares with: the largest one."""
    BY_COST = "by-cost"
    """Those whose slower placement costs the fewest cycles together."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a tensor is declared."""

    name: str
    scope: BufferScope


_NEXT = {BufferScope.LB: BufferScope.GB, BufferScope.GB: BufferScope.HOME}


def choose_spills(
    lives: Sequence[LiveTensor], capacity_bytes: int, rule: SpillRule
) -> tuple[int, ...]:
    """Positions, ascending, of the tensors that leave a buffer of `capacity_bytes`.

    Tasks are visited in order; while the live ones do not fit, the first by `rule` is evicted.

    Raises:
        InternalError: a negative size or a range that ends before it starts; rule BY_COST, which
            needs costs (see `place_tensors`).
    Cost: O(n log n) in tensors.
    """
    if rule is SpillRule.BY_COST:
        raise _bug("spills by cost need costs")
    check_lives(lives)
    spilled: set[int] = set()
    by_rule: list[tuple[int, int, int, int]] = []
    by_end: list[tuple[int, int]] = []
    live_bytes = 0
    for task, born in births(lives):
        while by_end and by_end[0][0] < task:
            _, gone = heappop(by_end)
            live_bytes -= 0 if gone in spilled else lives[gone].size_bytes
        for k in born:
            heappush(by_end, (lives[k].last, k))
            heappush(by_rule, _priority(lives[k], rule, k))
            live_bytes += lives[k].size_bytes
        while live_bytes > capacity_bytes and by_rule:
            k = heappop(by_rule)[-1]
            if lives[k].last >= task:
                spilled.add(k)
                live_bytes -= lives[k].size_bytes
    return tuple(sorted(spilled))


def place_tensors(
    lives: Sequence[LiveTensor],
    lb_capacity: int,
    gb_capacity: int,
    rule: SpillRule = SpillRule.LONGEST_LIVENESS,
    cost: PlacementCost | None = None,
) -> tuple[Placement, ...]:
    """Declare every tensor in the local buffer, the global one or home, in the order given.

    Capacities are in bytes, of the memories as this schedule sees them (the local buffers of all
    cores that share a tensor; 0 where there is no global buffer); home is endless.  What does not
    fit the local buffer moves to the global one, and what does not fit that moves home.  BY_COST
    instead minimises the sum of `cost`: exactly while few combinations of scopes of live tensors
    arise, otherwise by beams and exchanges; never worse than the other two rules.

    Raises:
        InternalError: as `choose_spills`; BY_COST without `cost`.
    Cost: O(n log n) for the two rules; BY_COST see `cheapest_scopes`.
    """
    check_lives(lives)
    if rule is not SpillRule.BY_COST:
        scopes = _by_rule(lives, lb_capacity, gb_capacity, rule)
    elif cost is None:
        raise _bug("spills by cost need costs")
    else:
        known = [
            _by_rule(lives, lb_capacity, gb_capacity, simple)
            for simple in (SpillRule.LONGEST_LIVENESS, SpillRule.LARGEST)
        ]
        scopes = cheapest_scopes(lives, (lb_capacity, gb_capacity), cost, known)
    return tuple(Placement(t.name, scope) for t, scope in zip(lives, scopes, strict=True))


def _priority(tensor: LiveTensor, rule: SpillRule, k: int) -> tuple[int, int, int, int]:
    """Smallest spills first."""
    length = tensor.last - tensor.first
    if rule is SpillRule.LONGEST_LIVENESS:
        return (-length, -tensor.size_bytes, -tensor.last, k)
    return (-tensor.size_bytes, -length, -tensor.last, k)


def _by_rule(
    lives: Sequence[LiveTensor], lb_capacity: int, gb_capacity: int, rule: SpillRule
) -> list[BufferScope]:
    scopes = [tensor.scope for tensor in lives]
    for scope, capacity in ((BufferScope.LB, lb_capacity), (BufferScope.GB, gb_capacity)):
        here = [k for k, s in enumerate(scopes) if s is scope]
        for k in choose_spills([lives[k] for k in here], capacity, rule):
            scopes[here[k]] = _NEXT[scope]
    return scopes


def _bug(message: str) -> InternalError:
    return InternalError("TW-INT-001", message, stage="graphturbo")
