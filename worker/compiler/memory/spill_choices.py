"""Ways to choose which tensors stay at home when a buffer nearer by cannot hold everything.

The paper's rule looks at live ranges only; the other minimises what spills cost home's port.  Both
are planned with the tiles they lead to, and predicted cycles choose: a spill also changes the tiles
of all layers that use the tensor, which no cost of a tensor alone can say.
Source: GraphTurbo section 4.3; the choice by cost is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from worker.compiler.memory.liveness import LiveTensor
from worker.compiler.memory.spill import SpillRule, choose_spills
from worker.compiler.memory.spill_search import cheapest_spills

SpillChoice = tuple[SpillRule, frozenset[str]]
"""A rule, and the tensors it leaves at home."""


def spill_choices(
    lives: Sequence[LiveTensor], room: int, home_bytes: Callable[[str, bool], int]
) -> tuple[SpillChoice, ...]:
    """The paper's choice for `room` bytes of GB first, then the one of least traffic if it differs.

    `home_bytes(tensor, is_spilled)`: bytes that the tensor moves through home's port.
    Cost: as `choose_spills`; where something is spilled, as `cheapest_spills` too.
    """
    chosen = choose_spills(lives, room, SpillRule.LONGEST_LIVENESS)
    paper = frozenset(lives[k].name for k in chosen)
    if not paper:
        return ((SpillRule.LONGEST_LIVENESS, paper),)

    def cost(tensor: LiveTensor, is_spilled: bool) -> int:
        return home_bytes(tensor.name, is_spilled)

    cheap = frozenset(lives[k].name for k in cheapest_spills(lives, room, cost))
    if cheap == paper:
        return ((SpillRule.LONGEST_LIVENESS, paper),)
    return ((SpillRule.LONGEST_LIVENESS, paper), (SpillRule.BY_COST, cheap))
