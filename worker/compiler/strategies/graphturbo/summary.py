"""What GraphTurbo did with one unit: what its report shows, and what its schedules carry as a note.

Names are the unit's own (canonical) tensor names unless said otherwise; bytes are bytes, cycles are
cycles of the machine's clock.  Source: GraphTurbo, sections 3 to 5 and Table 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec


class BufferScope(StrEnum):
    """Where a tensor lives between the layers or instances that use it."""

    LB = "lb"
    """Local buffers of the cores, one slice each."""
    GB = "gb"
    """Global buffer of the cluster."""
    HOME = "home"
    """Off-chip memory (DDR)."""


class OrderName(StrEnum):
    """Which search gave an order of instances."""

    BFS = "bfs"
    """All instances of a group before the next group's (the paper's default order)."""
    DFS = "dfs"
    """Consumers as soon as they are ready (Algorithm 3)."""
    EXACT = "exact"
    """Of least peak, where every instance feeds one other."""


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One group of layers, cut into `factor` instances along samples."""

    layers: tuple[int, ...]
    """Positions in the unit's list of layers, ascending."""
    factor: int | None
    """None: no factor makes it fit the local buffers."""
    peak_bytes: int
    """Live bytes of one instance, over all cores that share it."""


@dataclass(frozen=True, slots=True)
class OrderSummary:
    """One order of the instances that could run."""

    name: OrderName
    peak_bytes: int
    """Most bytes of instance outputs that live at once."""
    spilled_bytes: int
    """Of these outputs, what does not stay in GB."""
    chosen: bool
    """The unit runs it."""


class _Moved(msgspec.Struct, frozen=True, rename={"size_bytes": "bytes"}):
    """Written as in report.json."""


class SpillSummary(_Moved, frozen=True):
    """A tensor that was moved to a farther memory because its own was full."""

    tensor: str
    size_bytes: int
    scope: BufferScope
    """Where it went."""
    rule: str
    """Why this one, e.g. `longest live range`."""


class MovementSummary(_Moved, frozen=True):
    """Data movements of one kind: `copy` between home and GB, `exchange` of cores through GB."""

    kind: str
    count: int
    size_bytes: int
    """Of all of them together."""


@dataclass(frozen=True, slots=True)
class SectionSummary:
    """Layers of the unit that use the clusters in one way; sections follow each other."""

    name: str
    """How many layers, clusters and turns."""
    predicted_cycles: int


@dataclass(frozen=True, slots=True)
class UnitSummary:
    """One unit: a kernel, and how it came to be."""

    unit: int
    """Position in the compiled model's units."""
    label: str
    """First and last ONNX node, for a reader."""
    layers: int
    operators: int
    """After composition: what the schedule computes."""
    groups: tuple[GroupSummary, ...]
    """In topological order; empty where the unit does not run as groups."""
    orders: tuple[OrderSummary, ...]
    """One of them is chosen; empty where instances run as loops without a search."""
    tensors_by_scope: dict[BufferScope, int]
    """All memories that tensors may be placed in (Table 3 of the paper)."""
    spills: tuple[SpillSummary, ...]
    movements: tuple[MovementSummary, ...]
    is_ahead: bool
    """Weights may be fetched under earlier layers; how far, buffer room decides when lowered."""
    samples_per_cluster: int
    """n of the paper's Table 2."""
    iterations: int
    """Rounds of `samples_per_cluster` samples per cluster that make up the batch."""
    predicted_cycles: int
    """By the cost model."""
    simulated_cycles: int | None
    """None: not simulated yet."""
    sections: tuple[SectionSummary, ...] = ()
    num_handed: int = 0
    """Tensors between layers that stay in the cores' local buffers."""
    calls: int = 1
    """How often the model runs it: equal blocks share one unit."""

    @property
    def instances(self) -> int:
        """Sum of the factors; a group that could not be cut is one instance."""
        return sum(group.factor or 1 for group in self.groups)


def read_summary(note: str) -> UnitSummary:
    """The inverse of `describe`."""
    return msgspec.json.decode(note, type=UnitSummary)
