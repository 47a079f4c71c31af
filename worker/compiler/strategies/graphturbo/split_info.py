"""SplitInfo: into how many instances a group must be cut so that one of them fits local memory.

Source: GraphTurbo, Algorithm 1 and equation 1.  Deviations from the printed listing:
- operators of an intermediate count only after its match is tested, and one tuple per dimension is
  emitted after the loop (the listing emits one per intermediate, and none without intermediates);
- an intermediate that does not match, or is not cut evenly, leaves the dimension legal but does not
  count: it is recomputed, which the guard on recomputation limits;
- LB is the aggregate of the cores that share an instance, less a reserve for tiles of weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import TensorOp
from worker.compiler.machine.machine import EngineKind, Machine, MemoryLevel
from worker.compiler.schedule.walk import reach_memory
from worker.compiler.strategies.graphturbo.footprint import peak_bytes, peak_bytes_of_slices
from worker.compiler.strategies.graphturbo.propagate import (
    Slices,
    corresponding_dims,
    propagate,
)
from worker.compiler.strategies.graphturbo.values import SplitTuple

VAR = "g"
MAX_INSTANCES = 1 << 16
"""Of an operator: they are counted out one by one, 0.1 s for a layer's.  A program of more has a
row for each and takes minutes to lower (a file of 3 kB can ask for 2^28)."""


@dataclass(frozen=True, slots=True)
class Intermediate:
    """A tensor inside a group, as Algorithm 1 sees it.  Dimensions count from 0."""

    shape: tuple[int, ...]
    num_ops: int
    """Operators that write it."""
    dim_of: Mapping[int, int | None]
    """By dimension of the group's output: the dimension of this tensor that matches it."""


def split_values(extent: int, least: int = 1) -> Iterator[int]:
    """Numbers of instances tried for a dimension: 1, 2, 4, 8, 9, .., extent, from `least` on.

    3, 5, 6 and 7 would leave some of eight cores idle (section 3.1).
    """
    few = (v for v in (1, 2, 4) if least <= v <= extent)
    return chain(few, range(max(8, least), extent + 1))


def _from(total: int, capacity: int, extent: int) -> Iterator[int]:
    """Those of which one instance's share of `total` is within `capacity`."""
    return split_values(extent, -(-total // capacity)) if capacity > 0 else iter(())


def split_info(
    shape: Sequence[int], intermediates: Sequence[Intermediate], peak_bytes: int, lb_capacity: int
) -> tuple[SplitTuple, ...]:
    """Algorithm 1 on a group given by its output's `shape`, its intermediates and its peak.

    `peak_bytes` and `lb_capacity` need only share a unit.  At most one tuple per dimension,
    outermost first; none where no number of instances fits.
    """
    found: list[SplitTuple] = []
    for dim, extent in enumerate(shape):
        factor = next(_from(peak_bytes, lb_capacity, extent), None)
        if factor is not None:
            found.append(SplitTuple(1 + _num_cut(intermediates, dim, factor), factor, dim + 1))
    return tuple(found)


def best_split(infos: Iterable[SplitTuple]) -> SplitTuple | None:
    """Equation 1: most operators, then fewest instances, then outermost dimension; None of none."""
    return max(infos, key=lambda info: info.key, default=None)


def splits_of(
    graph: Graph,
    ops: Sequence[TensorOp],
    exits: Sequence[str],
    lb_capacity: int,
    *,
    max_recompute: float = 0.10,
) -> tuple[SplitTuple, ...]:
    """SplitInfo of a piece of a real graph: `ops` in execution order, `exits` what leaves it.

    Dimensions are those of exits[0].  Where the listing divides the peak by v, this measures one
    instance (slices with their halo, operands that are not cut whole), from the first v that the
    listing would take.  A dimension is dropped when its instances together compute more than
    `max_recompute` of the piece's points again (points of a contraction are its MACs).  Several
    outputs are cut together, so a dimension counts only if it is legal for all (section 3.6).
    Cost: dimensions x tried values x piece; values with slices of the same size are tried once.
    """
    shape = graph.tensors[exits[0]].shape
    total = peak_bytes(graph, ops)
    allowed = max_recompute * sum(op.num_points for op in ops)
    found: list[SplitTuple] = []
    for dim, extent in enumerate(shape):
        sizes: set[int] = set()
        for v in _from(total, lb_capacity, min(extent, MAX_INSTANCES)):
            size = -(-extent // v)
            if size in sizes:
                continue
            sizes.add(size)
            slices = propagate(graph, ops, exits, dim, v, VAR)
            if slices is None or sum(slices.extra_points.values()) > allowed:
                break  # more instances only repeat more
            if peak_bytes_of_slices(graph, ops, slices) <= lb_capacity:
                parts = _intermediates(graph, ops, exits[0], dim, slices if v > 1 else None)
                count = sum(op.write.tensor == exits[0] for op in ops)
                found.append(SplitTuple(count + _num_cut(parts, dim, v), v, dim + 1))
                break
    return tuple(found)


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


def _num_cut(intermediates: Sequence[Intermediate], dim: int, factor: int) -> int:
    """Operators of the intermediates that are cut evenly along with output dimension `dim`."""
    total = 0
    for part in intermediates:
        own = part.dim_of.get(dim)
        if own is not None and part.shape[own] % factor == 0:
            total += part.num_ops
    return total


def _intermediates(
    graph: Graph, ops: Sequence[TensorOp], output: str, dim: int, slices: Slices | None
) -> tuple[Intermediate, ...]:
    """The piece's other tensors; they match along the dimension in which their slices move.

    Without slices (a single instance), along the dimension that shares axes with the output's.
    """
    writers: dict[str, int] = {}
    for op in ops:
        writers[op.write.tensor] = writers.get(op.write.tensor, 0) + 1
    shared = {} if slices else corresponding_dims(ops, (output, dim))
    found: list[Intermediate] = []
    for name, count in writers.items():
        if name != output:
            own = _moving_dim(slices, name) if slices else shared.get(name)
            found.append(Intermediate(graph.tensors[name].shape, count, {dim: own}))
    return tuple(found)


def _moving_dim(slices: Slices, tensor: str) -> int | None:
    moving = (k for k, span in enumerate(slices.boxes[tensor]) if not span.start.is_const)
    return next(moving, None)
