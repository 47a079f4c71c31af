"""Bytes that an engine draws from its own memory and returns to it, instruction by instruction.

What `folds.py` and `Streams` time where a spec describes the ports is counted here whether it does
or not: it costs energy in any case.  An array whose dataflow nobody describes is taken to keep the
sums of one fold: each of its operands comes once for every fold of the other's extent, and sums
leave when an instruction ends.  A product on a vector engine is an array of one cell: nobody says
which registers would spare it a read of both factors for every multiply-accumulate.  (Its ports,
where a spec states them, are timed as if something did: `Streams`.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from worker.compiler.cost.compute import (
    Contraction,
    compute_dtype,
    contraction,
    item_bytes,
    rows_of,
    sizes,
)
from worker.compiler.cost.folds import Folding, folding
from worker.compiler.cost.row_stationary import RowStationary
from worker.compiler.cost.streams import OWN, HeldAs, Streams, streams_of
from worker.compiler.ir.op import Tensor, TensorOp
from worker.compiler.machine.array_bus import taken_per_mac
from worker.compiler.machine.dataflow import Dataflow, Stationary
from worker.compiler.machine.machine import Engine, EngineKind

_UNKNOWN = Dataflow(Stationary.OUTPUT, is_systolic=False)


@dataclass(frozen=True, slots=True)
class Feeds:
    """What instructions of one operator move on one engine: all that is needed besides the box."""

    streams: Streams
    array: tuple[Folding, Contraction] | RowStationary | None
    """Of a product."""
    per_mac: int = 0
    """Bytes that a cell of an array takes for a multiply-accumulate; 0: nobody says."""

    def inside(self, extents: tuple[int, ...], lanes: int = 1) -> int:
        """Bytes that the lines of an array carry for one instruction: what crosses its edge, and
        what its cells take (`machine/array_bus.py`); 0: nobody says how it is fed.

        Cost: linear in the domain's rank.
        """
        if not self.per_mac and not isinstance(self.array, RowStationary):
            return 0
        taken = self.per_mac * prod(extents)
        if isinstance(self.array, RowStationary):
            taken = self.array.moved(extents).heard
        return sum(self.of(extents, lanes)) + taken * lanes

    def of(self, extents: tuple[int, ...], lanes: int = 1) -> tuple[int, int]:
        """(bytes drawn, bytes returned) by one instruction over a box of `extents`.

        `lanes` boxes of that size run side by side in the engine as one instruction.
        Cost: linear in the domain's rank.
        """
        if not prod(extents):
            return 0, 0
        drawn, returned = self.streams.moved(extents)
        if isinstance(self.array, RowStationary):
            moved = self.array.moved(extents)
            drawn, returned = drawn + moved.drawn, returned + moved.returned
        elif self.array is not None:
            folds, roles = self.array
            size, batch = sizes(extents, roles)
            inward, outward = folds.moved(size, batch)
            drawn, returned = drawn + inward, returned + outward
        return drawn * lanes, returned * lanes


def feeds_of(
    op: TensorOp, engine: Engine, tensors: Mapping[str, Tensor], *, stays: bool = False,
    held: HeldAs = OWN,
) -> Feeds:  # fmt: skip
    """What `engine` moves for `op`: worth keeping where many boxes are asked for.

    `stays`: its sums stand in registers of the engine (`register:NAME` of the ledger has them).
    `held` as of `compute.pace_of`.
    """
    roles = contraction(op)
    factors = () if roles is None else roles.slots
    stands = stays or roles is not None
    streams = streams_of(op, factors, engine, tensors, stays=stands, held=held)
    if roles is None:
        return Feeds(streams, None)
    items = item_bytes(op, roles, tensors, stays=stays, held=held)
    rows = rows_of(op, roles, engine, 1.0, items)
    if rows is not None:
        return Feeds(streams, rows)
    per_mac = taken_per_mac(engine, compute_dtype(op, tensors))
    array = engine.array if engine.kind is EngineKind.MATRIX else ()
    described = replace(engine, array=array, dataflow=engine.dataflow or _UNKNOWN)
    depth = prod(op.domain[k].extent for k in roles.depth)
    folds = folding(described, 1.0, items, depth)
    assert folds is not None
    return Feeds(streams, (folds, roles), per_mac)
