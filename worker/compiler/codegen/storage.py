"""Where a tensor's elements are, at one place of the tree: pointer, strides, first element."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from worker.compiler.codegen.ctext import STORAGE_TYPE
from worker.compiler.ir.affine import Affine, Interval, const
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Tensor
from worker.compiler.schedule.nodes import Box


@dataclass(frozen=True, slots=True)
class Storage:
    """A whole tensor at home, or the slot of a buffer that is in use."""

    tensor: str
    level: str
    pointer: str
    """C identifier, `unsigned char *`."""
    dtype: DType
    extents: tuple[int, ...]
    starts: tuple[Affine, ...]
    """Tensor coordinate of element 0, over C identifiers."""
    buffer: int
    """Index into the program's buffers; -1 - k for operand k."""
    fills: tuple[float | int, ...] = ()
    """Fill values of the Moves into it: its margin outside the tensor holds them."""

    @property
    def is_home(self) -> bool:
        return self.buffer < 0

    @property
    def strides(self) -> tuple[int, ...]:
        """Row-major, in elements."""
        return tuple(prod(self.extents[d + 1 :]) for d in range(len(self.extents)))

    @property
    def element_type(self) -> str:
        """C type of a stored element."""
        return STORAGE_TYPE[self.dtype]


def at_home(tensor: Tensor, level: str, operand: int) -> Storage:
    """Storage of operand number `operand`."""
    return Storage(
        tensor.name, level, f"h{operand}", tensor.dtype, tensor.shape,
        tuple(const(0) for _ in tensor.shape), -1 - operand,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Clipped:
    """A span clipped to its extent, as C sees it."""

    start: Affine
    """Before clipping."""
    extent: int
    """Before clipping."""
    low: Affine
    """First coordinate inside: `start` itself when that is provably inside, else an identifier."""
    count: str
    """C text of the number of coordinates inside (may be <= 0 at run time)."""
    static_count: int | None
    """The same as a number, when known."""


@dataclass(frozen=True, slots=True)
class Enclosing:
    """What encloses a node of the tree."""

    variables: dict[str, Affine]
    """Loop variable -> C identifier."""
    ranges: dict[str, Interval]
    """Inclusive range of every C identifier used in index expressions."""
    core: Affine
    entries: Affine
    """Iterations of the TIME, UNROLL and Pipe loops so far, per core: chooses slots of copies."""
    storages: tuple[Storage, ...]
    """Innermost last."""

    def box_start(self, start: Affine) -> Affine:
        return start.substitute(self.variables)

    def find(self, tensor: str, *levels: str) -> Storage | None:
        """Innermost storage of a tensor, in one of `levels` when given."""
        for storage in reversed(self.storages):
            if storage.tensor == tensor and (not levels or storage.level in levels):
                return storage
        return None


def starts_of(tile: Box, scope: Enclosing) -> tuple[Affine, ...]:
    """Starts of a tile over C identifiers."""
    return tuple(scope.box_start(span.start) for span in tile)
