"""Which tensors leave a buffer that cannot hold all, by rules that look at live ranges only.

Source: GraphTurbo section 4.3 and figure 12.  Deviates: the paper leaves ties open (larger size,
then later last use, then earlier in the sequence) and knows one rule only; two more are here, of
which BY_COST has a search of its own (`spill_search`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from heapq import heappop, heappush

from worker.compiler.errors import InternalError
from worker.compiler.memory.liveness import LiveTensor, births, check_lives


class SpillRule(StrEnum):
    """How tensors are chosen that leave a full buffer."""

    LONGEST_LIVENESS = "longest-liveness"
    """The paper: the one that lives across most tasks."""
    LARGEST = "largest"
    """What the paper compares with: the largest one."""
    BY_COST = "by-cost"
    """Those whose slower placement costs least together."""


def choose_spills(
    lives: Sequence[LiveTensor], capacity_bytes: int, rule: SpillRule
) -> tuple[int, ...]:
    """Positions, ascending, of the tensors that leave a buffer of `capacity_bytes`.

    Tasks are visited in order; while the live ones do not fit, the first by `rule` is evicted.

    Raises:
        InternalError: a negative size or a range that ends before it starts; rule BY_COST, which
            needs costs (see `cheapest_spills`).
    Cost: O(n log n) in tensors.
    """
    if rule is SpillRule.BY_COST:
        raise InternalError("TW-INT-001", "spills by cost need costs")
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


def _priority(tensor: LiveTensor, rule: SpillRule, k: int) -> tuple[int, int, int, int]:
    """Smallest spills first."""
    length = tensor.last - tensor.first
    if rule is SpillRule.LONGEST_LIVENESS:
        return (-length, -tensor.size_bytes, -tensor.last, k)
    return (-tensor.size_bytes, -length, -tensor.last, k)
