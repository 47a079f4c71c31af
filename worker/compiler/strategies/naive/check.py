"""Checks what a certificate says of a kernel, by looking at tilings one by one.

Nothing of the search is used: no floors, no boxes, no arrays.  Small spaces are enumerated, of
large ones a thousand tilings are drawn, each priced as it is (`tiling/nest/price.py`).
"""

from __future__ import annotations

import random
from itertools import islice
from math import inf

from worker.compiler.errors import Shortfall
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.strategies.base import Checked
from worker.compiler.strategies.naive.certificate import Certificate
from worker.compiler.strategies.naive.tilings import layer_of
from worker.compiler.tiling.nest.enumeration import Enumeration
from worker.compiler.tiling.nest.facts import granules
from worker.compiler.tiling.nest.levels import StageFrame, levels_of
from worker.compiler.tiling.nest.price import Pricer
from worker.compiler.tiling.nest.search import (
    MOST_LEAVES,
    loop_orders,
    needed_units,
    ordered_plan,
    score,
)

WHOLE = 4096
"""Spaces of so many splits and trips are enumerated."""
DRAWN = 1000
"""Combinations of ways and trips that are drawn at most of each other space, and tilings that fit
with which it ends."""
SLACK = 1e-3
"""Notes give three digits behind the point."""


def check(schedule: Schedule, machine: Machine) -> Checked | None:
    """Whether no tiling that is looked at is better than the bound; None: nothing was certified.

    Deterministic: what is drawn follows from the schedule.
    Cost: some hundred microseconds a tiling.

    Raises:
        ValueError, KeyError: the note names a space that is none on this machine.
    """
    found = next(filter(None, map(Certificate.said, schedule.notes)), None)
    if found is None:
        return None
    unit = schedule.graph
    layer = layer_of(unit, machine)
    if isinstance(layer, Shortfall):
        raise ValueError(f"no kernel of this machine: {layer}")
    facts, engine = layer
    least, number, is_whole = inf, 0, True
    for space in found.spaces:
        placed, stages = space.placed(facts, machine)
        stages = needed_units(placed, stages)
        frame = StageFrame(placed, stages)
        pricer = Pricer(placed, engine, stages, machine)
        tilings = Enumeration(placed, stages, granules(placed, engine))
        every = tilings.all(WHOLE)
        is_whole &= every is not None
        rng = random.Random(f"{space} {placed.extents}")
        most = number + DRAWN
        for numbers in islice(tilings.drawn(rng), DRAWN) if every is None else every:
            if every is None and number >= most:
                break
            for sizes in tilings.tiled(numbers):
                levels = levels_of(frame, sizes)
                if levels is None:
                    continue
                plan = ordered_plan(pricer, levels, loop_orders(placed), MOST_LEAVES)
                least, number = min(least, score(plan, MOST_LEAVES)), number + 1
    return Checked(
        best=found.best, bound=found.bound, least=least, tilings=number, is_whole=is_whole,
        holds=found.is_ordered(SLACK) and least >= found.bound - SLACK,
    )  # fmt: skip
