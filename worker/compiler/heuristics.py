"""Heuristics that every strategy's programs go through, each with a switch.

What a heuristic earns is a row of `benchmarks/ABLATION.md`; a strategy's own are among its options.
Switches that decide about lowering travel in the schedule, so that whoever lowers it later, from a
cache or from a bundle, gets the same program.
"""

from __future__ import annotations

from enum import StrEnum


class Heuristic(StrEnum):
    """What `without` of the options can turn off."""

    AHEAD = "ahead"
    """Lowering: fills of a layer are issued while earlier layers compute."""
    PACE = "pace"
    """Lowering: a coarse timeline decides how many entries, and how many layers, ahead."""
    LEVEL = "level"
    """Lowering: fills that have an engine of their own are spread over home's spare time."""
    SPREAD = "spread"
    """Lowering: addresses are used again as late as possible."""
    TILES = "tiles"
    """Lowering: a tensor on chip is protected tile by tile, not as a whole."""
    TIME_ORDER = "time_order"
    """Lowering: program order follows simulated time."""
    MULTICAST = "multicast"
    """Lowering: loads of the same bytes on several cores are one transfer where a link can do so,
    and the kernel gains."""
    HALVES = "halves"
    """Judge: groups that do not fit, or lose to a kernel per operator, are tried in halves."""
    MIXTURES = "mixtures"
    """Judge: programs may mix the kernels of several strategies."""


LOWERING = frozenset(
    {
        Heuristic.AHEAD,
        Heuristic.PACE,
        Heuristic.LEVEL,
        Heuristic.SPREAD,
        Heuristic.TILES,
        Heuristic.TIME_ORDER,
        Heuristic.MULTICAST,
    }
)
"""Those that a schedule carries."""
