"""Bindings worth trying for a run of layers, and what each is worth before tiles are chosen.

Algorithm 4 binds a tensor by `plain`: cores go to its dimensions from the outermost inwards.  Some
dimensions may be barred from it (the paper's annotations); here each choice of barred dimensions
gives one candidate, and the walk of `cut_run` says whether it reaches all layers of the run.
Source: GraphTurbo, section 3.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING

from worker.compiler.cost.compute import engine_cycles
from worker.compiler.ir.op import TensorOp
from worker.compiler.strategies.graphturbo.binding import plain
from worker.compiler.strategies.graphturbo.handover_cut import (
    Binding,
    LayerRun,
    RunCut,
    Share,
    cut_run,
)
from worker.compiler.strategies.graphturbo.handover_facts import (
    handed_over,
    handed_tensors,
    local_buffer,
)
from worker.compiler.tiling.factors import divisors
from worker.compiler.tiling.slices.footprint import piece_outputs

if TYPE_CHECKING:
    from worker.compiler.strategies.graphturbo.unit_plan import Planner

MAX_BARRED = 2
"""Leading dimensions that are barred from the cores, at most."""
MIN_USED = 0.75
"""Part of a cluster's cores that a binding has to keep busy."""
HANDED_ROOM = 0.75
"""Part of LB that what is handed over may take; the rest is for tiles."""
_LAYER_CYCLES = 100
"""Latencies of one layer that nothing hides."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A run that could hand tensors over, with an estimate of its cycles."""

    run: LayerRun
    estimate: float


def candidates(planner: Planner, first: int, last: int) -> Iterator[Candidate]:
    """Ways to cut layers first .. last - 1 over the cores.  Cost: a propagation for each."""
    local = local_buffer(planner, range(first, last))
    if local is None:
        return
    ops = _ops_of(planner, first, last)
    around = planner.around(first)
    exits = piece_outputs(planner.graph, ops)
    if not exits:
        return
    shape = list(planner.graph.tensors[exits[0]].shape)
    if around.slices is not None:
        box = around.slices.boxes[exits[0]]
        shape = [min(s.extent, size) for s, size in zip(box, shape, strict=True)]
    for factors in bindings(tuple(shape), planner.site.spread.cores):
        found: RunCut | None = None
        for binding in with_turns(factors, shape):
            cut = cut_run(planner.graph, ops, around, binding)
            if cut is None:
                break
            tensors = handed_tensors(planner, LayerRun(first, last, cut), local)
            most = max(
                sum(h.size_bytes for h in tensors if h.first <= k <= h.last)
                for k in range(first, last)
            )
            if most <= HANDED_ROOM * local.usable_bytes:
                found = cut
                break
        if found is not None:
            run = LayerRun(first, last, found)
            yield Candidate(run, _estimate(planner, run))


def bindings(shape: tuple[int, ...], cores: int) -> tuple[tuple[int, ...], ...]:
    """Factors per dimension: `plain` with some of the leading dimensions barred."""
    found: dict[tuple[int, ...], None] = {}
    dims = [d for d, size in enumerate(shape) if size > 1]
    for number in range(min(MAX_BARRED, len(dims)) + 1):
        for barred in combinations(dims[: MAX_BARRED + 1], number):
            factors = plain(shape, cores, frozenset(barred))
            if prod(factors) >= MIN_USED * cores:
                found.setdefault(factors)
    return tuple(found)


def with_turns(factors: Sequence[int], shape: Sequence[int]) -> Iterator[Binding]:
    """The binding with more and more turns: along samples first, then along what is shared out."""
    ways = [factors[d] if d < len(factors) else 1 for d in range(len(shape))]
    trips = [1] * len(shape)
    yield _binding(ways, trips)
    for dim in (0, *(d for d, n in enumerate(ways) if n > 1 and d > 0)):
        for number in divisors(shape[dim] // ways[dim])[1:]:
            trips[dim] = number
            yield _binding(ways, trips)


def _binding(ways: Sequence[int], trips: Sequence[int]) -> Binding:
    return tuple(
        Share(d, w, t) for d, (w, t) in enumerate(zip(ways, trips, strict=True)) if w * t > 1
    )


def _estimate(planner: Planner, run: LayerRun) -> float:
    """Cycles of a run: per layer the slowest of computing and of what passes the ports."""
    site, cut = planner.site, run.cut
    assert site.buffer is not None
    local = site.machine.level(planner.engines[planner.layers[run.first].ops[0]].memory)
    rate = site.buffer.read_bytes_per_cycle / site.spread.cores
    near = frozenset(handed_over(planner, run.first, run.last))
    instances = planner.around(run.first).count
    total = 0.0
    for k in range(run.first, run.last):
        busy: dict[str, float] = {}
        shared = copied = 0.0
        for name in planner.layers[k].ops:
            op, engine = planner.uses.op(name), planner.engines[name]
            extents = tuple(s.extent for s in cut.domains[name])
            cycles = engine_cycles(op, extents, engine, planner.graph.tensors)
            busy[engine.name] = busy.get(engine.name, 0.0) + cycles
        for tensor in dict.fromkeys(planner.uses.touched(k)):
            used = planner.uses.users(tensor)
            size = planner.graph.tensors[tensor].size_bytes
            if tensor in planner.graph.constants:
                shared += size
            elif tensor in near:
                copied += size / instances / (cut.cores * cut.trips)
            elif any(n != k for n in used) or tensor in planner.graph.outputs or k not in used:
                shared += size / instances / (cut.cores * cut.trips)
        slowest = max(busy.values())
        ports = shared / rate + copied / local.write_bytes_per_cycle
        total += max(slowest, ports) + _LAYER_CYCLES
    return total * cut.trips


def _ops_of(planner: Planner, first: int, last: int) -> list[TensorOp]:
    """Operators of layers first .. last - 1, in order."""
    return [planner.uses.op(n) for layer in planner.layers[first:last] for n in layer.ops]
