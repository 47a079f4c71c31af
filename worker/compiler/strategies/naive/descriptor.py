"""What is known of the naive strategy before it is loaded."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from worker.compiler.descriptors import StrategyDescriptor


class Tiles(StrEnum):
    """How tiles, and the split over cores, are found."""

    GROWN = "grown"
    """Axis by axis, from what fills the engine."""
    GRIDS = "grids"
    """In grids over all splits, beside those that tiles grow into (decision 0053)."""


class NaiveOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What users may ask of the strategy."""

    tiles: Tiles = Tiles.GRIDS


DESCRIPTOR = StrategyDescriptor(
    name="naive",
    version="11",
    help="one operator, or one fused composite, per kernel",
    implementation="worker.compiler.strategies.naive.strategy:NAIVE",
    options=NaiveOptions,
    is_last_resort=True,
)
