"""Where a section is planned: its machine, its parts, and what was planned before.

Source: GraphTurbo, sections 3.3 and 3.4.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

from worker.compiler.machine.machine import Machine, MemoryLevel
from worker.compiler.strategies.graphturbo.values import Instance
from worker.compiler.tiling.layer.plan_layer import Tiles
from worker.compiler.tiling.nest.facts import Facts
from worker.compiler.tiling.nest.plan import Team
from worker.compiler.tiling.slices.propagate import Slices

WEIGHT_RESERVE = 0.25
"""Part of GB kept for weights on their way to the cores."""
TileKey: TypeAlias = (
    "tuple[tuple[str, ...], tuple[str, ...], bool, tuple[object, ...], Spread, int, bool]"
)
"""(operators, operands in GB, whole chip, domains, spread, free quarters of GB, whether it
reserves room for weights)."""


@dataclass(frozen=True, slots=True)
class Part:
    """A group of layers that is cut into instances together."""

    layers: tuple[int, ...]
    """Positions in the section's list of layers, ascending."""
    slices: Slices | None
    """What one instance computes; None: everything."""
    trips: int
    """Instances of this part inside one instance of the next part (of the cluster, if last)."""


def instance_var(part: int) -> str:
    """Variable of a part's `Slices`: the number of the instance."""
    return f"g{part}"


@dataclass(frozen=True, slots=True)
class Spread:
    """Which cores work: `clusters` clusters of `cores` cores side by side."""

    clusters: int
    cores: int


@dataclass(frozen=True, slots=True)
class Site:
    """Where a section is planned."""

    machine: Machine
    buffer: MemoryLevel | None
    spread: Spread
    parts: tuple[Part, ...]
    tiles: dict[TileKey, Tiles | None]
    """What was planned before, for all sections of a unit."""
    prefetch: bool = True
    """Weights of a layer are fetched under the layers before."""
    facts: dict[tuple[str, ...], Facts | None] = field(default_factory=dict)
    """What tiling knows of operators alone and of layers, for all sections of a unit."""
    floors: dict[TileKey, float] = field(default_factory=dict)
    """What layers take at least whose tiles are not known, for all sections of a unit."""
    order: tuple[Instance, ...] = ()
    """As in `SectionPlan`."""
    spills_by_cost: bool = True
    """Whether spills are also chosen by cost, beside the paper's rule."""

    @property
    def cluster(self) -> Team:
        """The cores of one cluster, in every cluster that works."""
        return Team(
            self.spread.cores, self.spread.clusters, self.machine.num_cores // self.spread.cores
        )

    @property
    def room(self) -> int:
        """Bytes of GB for tensors."""
        return 0 if self.buffer is None else int(self.buffer.usable_bytes * (1 - WEIGHT_RESERVE))

    @property
    def factors(self) -> tuple[int, ...]:
        """Of every part, the instances that one cluster runs: each a multiple of the next."""
        return tuple(map(self.runs, range(len(self.parts))))

    def runs(self, part: int) -> int:
        """Instances of a part that one cluster runs."""
        return prod(p.trips for p in self.parts[part:])
