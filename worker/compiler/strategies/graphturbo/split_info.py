"""Into how many instances a group must be cut, along samples, so that one fits the local buffers.

Source: GraphTurbo, Algorithm 1.  Deviations from the printed listing:
- groups are cut along samples only, so that nothing is chosen among dimensions (equation 1): the
  clusters that run them hold samples;
- where the listing divides the peak by v, one instance is measured, with what it computes again;
- LB is the aggregate of the cores that share an instance, less a reserve for tiles of weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import TensorOp
from worker.compiler.machine.machine import EngineKind, Machine, MemoryLevel
from worker.compiler.schedule.walk import reach_memory
from worker.compiler.tiling.slices.footprint import peak_bytes, peak_bytes_of_slices
from worker.compiler.tiling.slices.propagate import propagate

VAR = "g"
MAX_INSTANCES = 1 << 16
"""Of an operator: they are counted out one by one, 0.1 s for a layer's.  A program of more has a
row for each and takes minutes to lower (a file of 3 kB can ask for 2^28)."""
MAX_RECOMPUTE = 0.10
"""Points that the instances of a group may compute again, as a part of its own."""


def split_values(extent: int, least: int = 1) -> Iterator[int]:
    """Numbers of instances tried for a dimension: 1, 2, 4, 8, 9, .., extent, from `least` on.

    3, 5, 6 and 7 would leave some of eight cores idle (section 3.1).
    """
    few = (v for v in (1, 2, 4) if least <= v <= extent)
    return chain(few, range(max(8, least), extent + 1))


def _from(total: int, capacity: int, extent: int) -> Iterator[int]:
    """Those of which one instance's share of `total` is within `capacity`."""
    return split_values(extent, -(-total // capacity)) if capacity > 0 else iter(())


def factor_of(
    graph: Graph, ops: Sequence[TensorOp], exits: Sequence[str], lb_capacity: int
) -> int | None:
    """The fewest instances of a piece of which one fits `lb_capacity`; None where none does.

    `ops` in execution order, `exits` what leaves the piece.  Numbers are tried from the first on of
    which one instance's share of the peak would fit; None also where they together compute more
    than MAX_RECOMPUTE of the points again (points of a contraction are its MACs), or where an
    output has no samples.
    Cost: tried values x piece; values with slices of the same size are tried once.
    """
    shape = graph.tensors[exits[0]].shape
    if not shape:
        return None
    allowed = MAX_RECOMPUTE * sum(op.num_points for op in ops)
    sizes: set[int] = set()
    for v in _from(peak_bytes(graph, ops), lb_capacity, min(shape[0], MAX_INSTANCES)):
        size = -(-shape[0] // v)
        if size in sizes:
            continue
        sizes.add(size)
        slices = propagate(graph, ops, exits, 0, v, VAR)
        if slices is None or sum(slices.extra_points.values()) > allowed:
            return None  # more instances only repeat more
        if peak_bytes_of_slices(graph, ops, slices) <= lb_capacity:
            return v
    return None


def lb_capacity(machine: Machine, *, weight_reserve: float = 0.25) -> int:
    """Bytes of local buffers that one instance may fill: those of all cores of a cluster.

    `weight_reserve` is the part kept for tiles of weights ("a small, fixed size", section 2.2).
    """
    level = local_level(machine)
    share = level.usable_bytes * level.instances // num_clusters(machine)
    return int(share * (1.0 - weight_reserve))


def local_level(machine: Machine) -> MemoryLevel:
    """LB: where the first matrix engine (else the first vector engine) finds its operands."""
    engines = (*machine.engines_of(EngineKind.MATRIX), *machine.engines_of(EngineKind.VECTOR))
    return machine.level(reach_memory(engines[0].name, machine))


def num_clusters(machine: Machine) -> int:
    """How many groups of cores have a global buffer of their own; 1 where there is none.

    The global buffer (GB) is the fastest scratchpad beyond LB that several cores share.
    """
    local = machine.level_index(local_level(machine).name)
    shared = [
        level.instances
        for level in machine.scratchpads
        if machine.level_index(level.name) < local and level.instances < machine.num_cores
    ]
    return shared[-1] if shared else 1
