"""What an instruction brings from its engine's memory and takes there, element by element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod
from types import MappingProxyType
from typing import TypeAlias

from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Access, Tensor, TensorOp
from worker.compiler.ir.scalar import slots_read
from worker.compiler.machine.machine import Engine

HeldAs: TypeAlias = Mapping[str, DType]
"""Element types of tensors that stand in an engine's memory in another than their own."""
OWN: HeldAs = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Streams:
    """What an instruction brings from its engine's memory and takes there, element by element.

    An operand comes once for each point of the axes that its index depends on: what a window reads
    again comes again, what is the same along an axis stays in the engine.
    """

    reads: tuple[tuple[tuple[int, ...], int], ...]
    """Per operand: positions of its axes in the domain, bytes of an element."""
    result: tuple[tuple[int, ...], int] | None
    """None: it is not among these."""
    reduced: tuple[tuple[int, int], ...]
    """(position, extent in the whole operator) of the axes that are summed over."""
    feed: float
    """Bytes per cycle; 0: any."""
    drain: float

    def cycles(self, extents: tuple[int, ...], lanes: int) -> int:
        """Cycles that the busier port takes."""
        inward, outward = self.moved(extents)
        return max(
            ceil(num_bytes * lanes / rate) if rate else 0
            for num_bytes, rate in ((inward, self.feed), (outward, self.drain))
        )

    def moved(self, extents: tuple[int, ...]) -> tuple[int, int]:
        """Bytes that come in, and that go out."""
        inward = sum(prod(extents[i] for i in axes) * size for axes, size in self.reads)
        outward = 0
        if self.result is not None:
            axes, size = self.result
            outward = prod(extents[i] for i in axes) * size
            if any(extents[i] < whole for i, whole in self.reduced):
                inward += outward  # sums so far: it may be any part of them
        return inward, outward

    def per_point(self, domain: tuple[int, ...]) -> float:
        """Cycles of one point at least, in any box of an operator over `domain`."""
        points = prod(domain)
        inward, outward = (
            sum(prod(domain[i] for i in axes) * size for axes, size in streams) / points
            for streams in (self.reads, () if self.result is None else (self.result,))
        )
        ways = ((inward, self.feed), (outward, self.drain))
        return max(num_bytes / rate if rate else 0.0 for num_bytes, rate in ways)


def streams_of(
    op: TensorOp, factors: tuple[int, ...], engine: Engine, tensors: Mapping[str, Tensor],
    *, stays: bool = False, held: HeldAs = OWN,
) -> Streams:  # fmt: skip
    """What an instruction moves beside the factors and sums of an array, whatever its ports; sums
    too where the array has registers for them and no dataflow that counts them: they come and go
    with every instruction, or, as any result that `stays` in registers, do not move.

    `factors`: read slots that an array takes; none, of an operator that is no product.
    """
    is_counted = not factors or (bool(engine.accumulators) and engine.dataflow is None)
    # Where something is looked up, any slot may hold the indices.
    slots = range(len(op.reads)) if op.has_lookup else slots_read(op.body)
    reads = tuple(
        _stream(op, op.reads[slot], tensors, held)
        for slot in dict.fromkeys(slots)
        if slot not in factors
    )
    reduced = tuple(
        (k, axis.extent) for k, axis in enumerate(op.domain) if axis.kind is AxisKind.REDUCE
    )
    result = _stream(op, op.write, tensors, held) if is_counted and not stays else None
    return Streams(
        reads, result, reduced, engine.feed_bytes_per_cycle, engine.drain_bytes_per_cycle
    )


def _stream(
    op: TensorOp, access: Access, tensors: Mapping[str, Tensor], held: HeldAs
) -> tuple[tuple[int, ...], int]:
    names = axes_of(access)
    if any(e.has_lookup for e in access.index):
        names = frozenset(axis.name for axis in op.domain)  # anywhere, for each point
    axes = tuple(k for k, axis in enumerate(op.domain) if axis.name in names)
    return axes, item_size(access.tensor, tensors, held)


def item_size(tensor: str, tensors: Mapping[str, Tensor], held: HeldAs) -> int:
    """Bytes of an element as it stands in an engine's memory."""
    return (held.get(tensor) or tensors[tensor].dtype).size_bytes


def axes_of(access: Access) -> frozenset[str]:
    """Names of the axes that an access moves with."""
    return frozenset(name for expr in access.index for name in expr.variables())
