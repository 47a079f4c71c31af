"""How far ahead fills of a buffer outside of the cores are worth issuing: home's spare time.

Such fills have an engine of their own, so they keep no activation waiting; but home's port is
shared and serves who is ready first, so a fill that is issued long before it is needed delays those
that are needed now.  Here every fill is issued as late as it may be: from the last layer to the
first, a fill takes what home's port has to spare in the layer before its own, then in the one
before that.  Where weights are more than their layer's time can bring, they spread over the layers
in front; where they are not, nothing is held longer than it must be.  A layer whose weights come
late however early they are asked for counts as that much longer, their latency apart: latencies run
side by side.

This is the latest schedule of transfers with deadlines on one machine.  Times are estimates; they
decide about order only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from worker.compiler.cost.compute import engine_cycles
from worker.compiler.lower.order.layers import EarlyFill, layer_at
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Compute, LoopKind, Move
from worker.compiler.schedule.walk import Frame, Leaf, Walk

MOST_LAYERS_LEVELED = 32
"""Layers that such a fill is issued ahead at most."""


def leveled(
    nest: Walk, fills: Sequence[EarlyFill], machine: Machine, end: int
) -> Mapping[int, int]:
    """Layers ahead by leaf, for the fills of one context that have an engine of their own.

    `end` is the leaf behind the context.  Cost: linear.
    """
    own = {fill.leaf: fill for fill in fills if not fill.shares_engine}
    if not own:
        return {}
    layers = next(iter(own.values())).layers
    around = next(iter(own.values())).context_frames(nest.leaves[next(iter(own))].frames)
    demand = dict.fromkeys(own, 0.0)
    busy: list[dict[str, float]] = [{} for _ in layers]
    home = machine.home.name
    for number in range(layers[0].first_leaf, end):
        leaf, layer = nest.leaves[number], layer_at(layers, number)
        times = repeats([f for f in leaf.frames if f not in around])
        match leaf.node:
            case Compute(engine=engine):
                _add(busy[layer], engine, compute_cycles(nest, leaf, machine) * times)
            case Move() as move:
                for level, cycles in _ports(nest, leaf, move, machine):
                    _add(busy[layer], level, cycles * times)
                    if number in own and level == home:
                        entries = max(prod(f.trip for f in own[number].frames), 1)
                        demand[number] = cycles * times * own[number].entries / entries
                        _add(busy[layer], level, -demand[number])
            case _:
                raise AssertionError("leaves move or compute")
    spare = [max(times.values(), default=0.0) - times.get(home, 0.0) for times in busy]
    order = sorted(own, key=lambda n: (own[n].layer, n))
    latency = machine.home.latency_cycles
    jobs = [(own[n].layer, demand[n] + latency) for n in order]
    # Latencies run side by side: what is late because of them alone makes no layer longer.
    loads = [(own[n].layer, demand[n]) for n in order]
    starts = latest_starts(stretched(spare, loads), jobs)
    return {
        n: min(own[n].layer - start, MOST_LAYERS_LEVELED)
        for n, start in zip(order, starts, strict=True)
    }


def stretched(spare: Sequence[float], jobs: Sequence[tuple[int, float]]) -> list[float]:
    """The time of each period, longer where it ends with waiting for a job.

    `spare` and `jobs` as for `latest_starts`.  What comes late anyway shall not come first of all,
    in front of what the first periods need.
    Cost: linear.
    """
    found = list(spare)
    left, at = 0.0, 0
    for deadline, need in jobs:
        left += sum(found[at:deadline]) - need
        at = max(at, deadline)
        if left < 0 and at > 0:
            found[at - 1] -= left
            left = 0.0
    return found


def latest_starts(spare: Sequence[float], jobs: Sequence[tuple[int, float]]) -> list[int]:
    """The latest period in which each job may begin, for one machine that takes jobs in order.

    `jobs` are (period before which it must be done, time), by deadline; `spare` is the time of
    each period.  A job that cannot be done in time begins in period 0.
    Cost: linear.
    """
    left = list(spare)
    found = [0] * len(jobs)
    at = len(spare)
    for k in reversed(range(len(jobs))):
        deadline, need = jobs[k]
        at = min(at + 1, deadline)  # not behind the job after it
        while True:
            at -= 1
            taken = min(need, left[at])
            left[at] -= taken
            need -= taken
            if need <= 0 or at == 0:
                break
        found[k] = at
    return found


def _add(times: dict[str, float], name: str, cycles: float) -> None:
    times[name] = times.get(name, 0.0) + cycles


def repeats(frames: Sequence[Frame]) -> int:
    """Iterations of the loops that repeat in time."""
    return prod(f.trip for f in frames if f.is_repeating)


def compute_cycles(nest: Walk, leaf: Leaf, machine: Machine) -> float:
    """Cycles of one iteration on its engine."""
    compute = leaf.node
    assert isinstance(compute, Compute)
    graph = nest.schedule.graph
    op = graph.op(compute.op)
    extents = tuple(min(s.extent, a.extent) for s, a in zip(compute.box, op.domain, strict=True))
    lanes = prod(f.trip for f in leaf.frames if f.is_folded)
    return float(engine_cycles(op, extents, machine.engine(compute.engine), graph.tensors, lanes))


def _ports(
    nest: Walk, leaf: Leaf, move: Move, machine: Machine
) -> tuple[tuple[str, float], tuple[str, float]]:
    """Cycles that one iteration on all cores keeps the ports of its two levels busy."""
    item = nest.schedule.graph.tensors[move.tensor].dtype.size_bytes
    cores = prod(f.trip for f in leaf.frames if f.kind is LoopKind.CORES)
    size = prod(s.extent for s in move.box) * item * cores
    source, target = machine.level(move.src), machine.level(move.dst)
    return (
        (source.name, size / (source.read_bytes_per_cycle * min(source.instances, cores))),
        (target.name, size / (target.write_bytes_per_cycle * min(target.instances, cores))),
    )
