"""The schedule tree: when, where and in which order a unit's operators run.

Six node kinds.  Loops belong to the tree, not to an operator, so operators can share them (fusion).
Boxes are spans whose starts are affine in the enclosing loop variables; a box is clipped to its
tensor or domain, so edge tiles need no special nodes.

Semantics (sequential meaning; `interpret` is its executable form):
- Loop runs its body for var = 0 .. trip-1.  CORES: iteration i of all enclosing CORES loops runs on
  core sum(var * core_stride), concurrently.  LANES: spatial inside one engine.  UNROLL: like TIME.
- Seq runs parts in order.
- Pipe runs, for var = 0 .. trip-1, every stage in order; in time, stages overlap, each on its own
  cores (`core_offset`), held back only by the queues' depths.
- Place makes a buffer for `tile` of a tensor in one memory, alive for its body.  Inside the body,
  reads and writes of the tensor in that box go to the innermost Place whose memory the instruction
  names or whose engine reaches; `copies` = 2 double-buffers across iterations of the loop right
  around the Place.  `init=IDENTITY` starts the buffer at the reduce identity of the op that writes
  the tensor; otherwise it starts undefined (poisoned).  Element (i, j, ..) of the tensor sits at
  (i - start_i, j - start_j, ..) of the row-major buffer of the *unclipped* extents.
- Move copies a box of a tensor between two memories (home, enclosing Places, Queues).  Moving to a
  Place with `fill` given writes fill where the box leaves the tensor (hardware zero padding).
  It converts when the two buffers' dtypes differ (drain of an accumulator).
- Compute runs the operator's body on `box` of its domain, reading and accumulating in the innermost
  enclosing buffers of its operands, or in the home level where none encloses it.
  For a reduce op it combines into what the buffer holds (which must have been initialised).
  A read from a buffer of another dtype (an accumulator) converts to the tensor's, as a drain does.
Source: 2-architecture.md "The schedule"; Place, Move, Loop cover GraphTurbo's scopes, Welder's
tiles, KAPLA's directives; Pipe covers Kitsune's queues.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from worker.compiler.heuristics import Heuristic
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class Span:
    """Half-open [start, start + extent); start is affine in loop variables."""

    start: Affine
    extent: int


Box: TypeAlias = "tuple[Span, ...]"


class LoopKind(StrEnum):
    TIME = "time"
    CORES = "cores"
    LANES = "lanes"
    UNROLL = "unroll"


class Init(StrEnum):
    UNDEFINED = "undefined"
    IDENTITY = "identity"


@dataclass(frozen=True, slots=True)
class Loop:
    var: str
    trip: int
    kind: LoopKind
    body: Node
    core_stride: int = 0
    """CORES only: distance in core ids between consecutive iterations (>= 1)."""


@dataclass(frozen=True, slots=True)
class Seq:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Place:
    tensor: str
    memory: str
    tile: Box
    copies: int
    body: Node
    dtype: DType | None = None
    """Storage type; None means the tensor's.  Accumulators of 16-bit floats are F32."""
    init: Init = Init.UNDEFINED


@dataclass(frozen=True, slots=True)
class Move:
    tensor: str
    src: str
    dst: str
    box: Box
    fill: float | int | None = None


@dataclass(frozen=True, slots=True)
class Compute:
    op: str
    box: Box
    """One span per axis of the op's domain, in domain order; () for a rank-0 domain."""
    engine: str
    intrinsic: str | None = None
    recompute: bool = False
    """True: points of this box may also be computed elsewhere (declared halo recomputation)."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A ring of `depth` tiles between stages of a Pipe; tile may use the pipe's variable."""

    tensor: str
    memory: str
    tile: Box
    depth: int
    producer: int
    consumers: tuple[int, ...]
    dtype: DType | None = None
    init: Init = Init.UNDEFINED


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a Pipe; its CORES loops count from `core_offset`."""

    body: Node
    core_offset: int


@dataclass(frozen=True, slots=True)
class Pipe:
    var: str
    trip: int
    stages: tuple[Stage, ...]
    queues: tuple[Queue, ...]


Node: TypeAlias = "Loop | Seq | Pipe | Place | Move | Compute"


@dataclass(frozen=True, slots=True)
class Schedule:
    """A complete schedule of one unit (a canonical graph) on one machine."""

    graph: Graph
    root: Node
    strategy: str
    predicted_cycles: int
    without: tuple[Heuristic, ...] = ()
    """What lowering leaves out, sorted."""
    notes: tuple[str, ...] = ()
    """What the strategy says about its choices, one line each; compiling does not read it."""
