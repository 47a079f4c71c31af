"""The loop nest of one operator: what every peer's mapping is written from.

A nest is what a kernel does, read off its schedule and simplified by nothing: loops outer to
inner, in time or over cores; where each operand has a buffer, between which loops, how large; and
the box of one instruction.  Dimensions are the operator's axes of more than one step.

Footprints, fills and steps count what the tree says.  Edge tiles are clipped when they run, so in
a ragged nest (tiles do not divide an extent) the counts are upper bounds: `ragged` names its dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import TypeAlias

from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import Engine

Terms: TypeAlias = "tuple[tuple[int, int], ...]"
"""(position of a dimension, coefficient >= 1) whose sum, with an offset, indexes a tensor."""


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension of the operator."""

    name: str
    extent: int
    is_reduced: bool


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that the operator reads or writes: one affine index per tensor dimension."""

    tensor: str
    index: tuple[Terms, ...]
    offsets: tuple[int, ...]
    """Constant part of each index; below 0 where the operator reads padding."""
    shape: tuple[int, ...]
    dtype: DType

    def is_moved_by(self, dim: int) -> bool:
        """Whether another step of a dimension reads or writes other elements."""
        return any(dim == position for terms in self.index for position, _ in terms)

    def widths(self, tile: Sequence[int]) -> tuple[int, ...]:
        """Elements along each tensor dimension that a tile of the operator touches."""
        return tuple(1 + sum(c * (tile[d] - 1) for d, c in terms) for terms in self.index)

    @property
    def is_padded(self) -> bool:
        """Whether it is read outside of its tensor (before its start)."""
        return any(offset < 0 for offset in self.offsets)


@dataclass(frozen=True, slots=True)
class NestLoop:
    """One loop over a dimension."""

    dim: int
    trip: int
    is_spatial: bool
    """Its iterations run on different cores at the same time."""
    stride: int = 0
    """Distance in core numbers between two of them."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A buffer of one operand in one memory."""

    operand: int
    """Position in `LoopNest.operands`."""
    memory: str
    source: str
    """Memory that it is filled from, or drained to."""
    depth: int
    """Loops around it: it is filled (or drained) once per iteration of these."""
    extents: tuple[int, ...]
    copies: int
    dtype: DType
    """Of what is stored: wider than the tensor's where sums are kept."""
    is_read_back: bool
    """The result only: what an earlier iteration left outside is brought in again."""

    @property
    def num_elems(self) -> int:
        """Of one copy."""
        return prod(self.extents)


@dataclass(frozen=True, slots=True)
class LoopNest:
    """One operator of one kernel as a nest."""

    kernel: str
    part: int
    """Of a kernel that runs several nests one after the other; else 0."""
    op: str
    nodes: tuple[str, ...]
    """The user's nodes that the kernel serves."""
    dims: tuple[Dim, ...]
    operands: tuple[Operand, ...]
    """Reads in slot order, then the result."""
    loops: tuple[NestLoop, ...]
    """Outer to inner."""
    holds: tuple[Hold, ...]
    """As in the tree, outer to inner."""
    engine: Engine
    rate: float
    """MACs or elementary operations per cycle, in the operator's number format."""
    tile: tuple[int, ...]
    """Box of one instruction, per dimension."""
    roles: Roles | None
    """Of an operator that multiplies and sums; None for pools and pointwise operators."""

    @property
    def name(self) -> str:
        """Unique in a bundle."""
        return f"{self.kernel}.{self.part}" if self.part else self.kernel

    @property
    def result(self) -> Operand:
        return self.operands[-1]

    @property
    def num_points(self) -> int:
        """Points of the operator's domain: its multiply-accumulates, if it has any."""
        return prod(dim.extent for dim in self.dims)

    def tile_inside(self, depth: int) -> tuple[int, ...]:
        """Steps of each dimension that run inside the first `depth` loops."""
        tile = list(self.tile)
        for loop in self.loops[depth:]:
            tile[loop.dim] *= loop.trip
        return tuple(tile)

    @property
    def ragged(self) -> tuple[str, ...]:
        """Dimensions that the tiles overhang."""
        covered = self.tile_inside(0)
        return tuple(d.name for d, n in zip(self.dims, covered, strict=True) if n != d.extent)

    def fills(self, hold: Hold) -> int:
        """How often a buffer is filled (the result's: drained), over all cores."""
        return prod(loop.trip for loop in self.loops[: hold.depth])

    def is_stationary(self, hold: Hold) -> bool:
        """Whether a buffer lives as long as what it holds: the loop around it moves its operand.

        Peers count a tile as kept while only other dimensions step; a tree may drop it earlier.
        """
        operand = self.operands[hold.operand]
        around = [x for x in self.loops[: hold.depth] if x.trip > 1 and not x.is_spatial]
        return not around or operand.is_moved_by(around[-1].dim)

    def holds_of(self, operand: int) -> tuple[Hold, ...]:
        """Buffers of one operand, outer to inner."""
        return tuple(hold for hold in self.holds if hold.operand == operand)


@dataclass(frozen=True, slots=True)
class Roles:
    """Dimensions of a sum of products by the operands they move; positions in `LoopNest.dims`."""

    rows: tuple[int, ...]
    """Left factor and result (m)."""
    columns: tuple[int, ...]
    """Right factor and result (n)."""
    depth: tuple[int, ...]
    """Summed over (k)."""
    batch: tuple[int, ...]
    """Both factors and the result."""
    left: int
    """Operand that is the left factor."""
    right: int


class Reason(StrEnum):
    """Why a kernel has no form: in a nest at all, or in one peer."""

    FUSED = "fused"
    """Several operators share loops or buffers."""
    PIPE = "pipe"
    """Stages that run side by side."""
    NO_OPERATOR = "no-operator"
    """It moves bytes only."""
    INDEX = "index"
    """A tensor is indexed by values, remainders or backwards."""
    TILING = "tiling"
    """Its loops are no nest over the operator's dimensions."""
    BUFFERS = "buffers"
    """Its buffers do not follow the nest."""
    OPERATOR = "operator"
    """The peer has no such operator."""
    RAGGED = "ragged"
    """Tiles overhang an extent."""
    ARRAY = "array"
    """The instruction does not fill the array in whole factors."""
    CORES = "cores"
    """The split over cores has no form."""
    MEMORIES = "memories"
    """The way through the memories has no form."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A kernel, or a part of one, that is left out."""

    kernel: str
    part: int
    ops: tuple[str, ...]
    nodes: tuple[str, ...]
    reason: Reason
    message: str
    """One sentence: what it does that has no form."""

    @property
    def name(self) -> str:
        """As `LoopNest.name`."""
        return f"{self.kernel}.{self.part}" if self.part else self.kernel


@dataclass(frozen=True, slots=True)
class NoForm:
    """What a room says of the nest it was given; whoever asked adds which one it is."""

    reason: Reason
    message: str

    def of(self, nest: LoopNest) -> Refusal:
        """The refusal of a nest for this reason."""
        return Refusal(nest.kernel, nest.part, (nest.op,), nest.nodes, self.reason, self.message)
