"""What every tiling of a box of tilings costs at least, for many boxes at once.

A tiling says for every stage and axis into how many parts units split it (ways) and how many tiles
each unit has of it, one after the other (trips).  A box has a lowest and a highest number for
each.  Whatever stands in the price (`price.Pricer`) grows with one of these, for all others as they
are: what a tile holds falls with all ways and trips, how often it is brought rises with trips,
who waits for a port rises with ways.  So prices of lowest trips, lowest ways and smallest tiles are
below all in the box.  Where one factor falls while another rises the product is also bounded by
what has to be moved or computed in all: every unit brings what its share touches, and ports that
units share all that anybody brings.  That makes wide boxes tight.

Below the price by what it leaves out besides: bursts (bytes are payload), sums that come back,
folds of arrays, who is late to a port.

Source: our own; admissible bounds as in branch and bound at large.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

import numpy as np

from worker.compiler.jit import loop_for
from worker.compiler.machine.bursts import burst_units
from worker.compiler.machine.machine import Machine
from worker.compiler.tiling.nest.arrays import Floats, Ints
from worker.compiler.tiling.nest.box_loop import floors
from worker.compiler.tiling.nest.box_tables import Layer, Scratch, Tabulated
from worker.compiler.tiling.nest.levels import StageFrame
from worker.compiler.tiling.nest.price import Pricer
from worker.compiler.tiling.nest.search import MOST_LEAVES

SLACK = 1e-12
"""What sums in another order may be off by."""
_STEPS = 400
"""What one box takes, in steps of a usual loop (`jit.INTERPRETED_STEPS`)."""


class BoxFloor:
    """Least costs of boxes of tilings of one layer."""

    def __init__(
        self, frame: StageFrame, pricer: Pricer, machine: Machine, most: int = MOST_LEAVES,
        names: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        """`most`: executed leaves, as of `search.score`; `names` as of `Tabulated`."""
        facts, stages = frame.facts, frame.stages
        found = Tabulated(frame, pricer, names)
        self._tables = t = found.tables
        home_burst, cache_burst = burst_units(machine)
        self._layer = Layer(
            num_units=prod(stage.units for stage in stages), result=found.result,
            home_burst=home_burst, cache_burst=cache_burst, align=machine.home.align_bytes,
            is_beside=facts.is_overlapped, is_alone=facts.is_alone,
            is_charged=bool(pricer.measure.ports),
            at_home=float(pricer.at_home), per_cycle=float(pricer.measure.per_cycle),
            most_leaves=float(most), slack=SLACK,
        )  # fmt: skip
        dimensions = int(np.diff(t.dim_at).max(initial=0))
        self._scratch = Scratch(
            np.zeros((6, len(stages), len(t.extents)), np.int64),
            np.zeros((5, len(stages)), np.int64),
            np.zeros((len(t.moves), 9)), np.zeros((len(t.moves), 3)),
            np.zeros((4, dimensions), np.int64), np.zeros(int(t.paces[:, 1].max()) + 1),
            np.zeros(int(t.turns[:, 2].max(initial=-1)) + 1),
            np.zeros((2, t.group.shape[1]), np.int64),
        )  # fmt: skip

    def of(self, low: Ints, high: Ints, limit: float = inf) -> Floats:
        """The least score [boxes] that `search.score` gives a tiling between `low` and `high`
        [boxes, ways or trips, stages, axes]; inf where nothing fits, or all has `limit` or more."""
        tiles = np.zeros((low.shape[0], low.shape[-1]), np.int64)
        return np.asarray(self._run(low, high, tiles, limit).min(axis=1))

    def of_tilings(self, numbers: Ints, tiles: Ints) -> Floats:
        """The same of single tilings with two copies and with one [tilings, 2], and with bursts.

        `numbers`: ways and trips [tilings, 2, stages, axes]; `tiles` of the innermost stage
        [tilings, axes].
        """
        return self._run(numbers, numbers, tiles, inf)

    def _run(self, low: Ints, high: Ints, tiles: Ints, limit: float) -> Floats:
        out = np.zeros((len(low), 2))
        loop = loop_for(floors, _STEPS * len(out))
        loop(low, high, tiles, limit, out, self._tables, self._layer, self._scratch)
        return out
