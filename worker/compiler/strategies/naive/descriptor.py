"""What is known of the naive strategy before it is loaded."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from worker.compiler.descriptors import StrategyDescriptor


class Tiles(StrEnum):
    """How tiles, and the split over cores, are found."""

    GROWN = "grown"
    """Axis by axis, from what fills the engine."""
    BOUNDED = "bounded"
    """By branch and bound over all splits and trips, from those that tiles grow into (decision
    0058)."""


class Idea(StrEnum):
    """What `without` can turn off, one by one; `benchmarks/ABLATION.md` says what each earns."""

    JOINED = "joined"
    """Tiles for cores that a multicast serves together, beside those for cores that load alone."""
    MEASURES = "measures"
    """Tiles by what the objective sums up, beside those by cycles."""
    REGISTERS = "registers"
    """Tiles whose sums stand in registers, beside those that have them in memory."""
    CHAINS = "chains"
    """The best tiles on every chain of memories where they are near, not on the best alone."""
    ONE_TEAM = "one_team"
    """Tiles of one kind alone, where those of the other can hardly be better: cores that share no
    operand are not served together, and where being served is far better, none loads alone."""
    SHORT = "short"
    """Where one transfer serves several cores, the best tiling of a short program, too."""
    ALONE = "alone"
    """Tiles whose result has one copy, beside those that have two or none of anything."""
    WALKS = "walks"
    """Walks over single tilings, where branch and bound ends far from what may be there."""


class NaiveOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What users may ask of the strategy."""

    tiles: Tiles = Tiles.BOUNDED
    without: tuple[Idea, ...] = ()
    """Ideas that are left out; given in any order, kept sorted, each once."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "without", tuple(sorted(set(self.without))))


DESCRIPTOR = StrategyDescriptor(
    name="naive",
    version="19",
    help="one operator, or one fused composite, per kernel",
    implementation="worker.compiler.strategies.naive.strategy:NAIVE",
    options=NaiveOptions,
    summary="worker.compiler.strategies.naive.summary:NaiveSummary",
    columns="worker.compiler.strategies.naive.summary:columns",
    page="worker.compiler.strategies.naive.summary:blocks",
    text="worker.compiler.strategies.naive.summary:blocks",
    estimate="worker.compiler.strategies.naive.estimate:estimate",
    check="worker.compiler.strategies.naive.check:check",
    is_last_resort=True,
)
