"""How far ahead each early fill is worth issuing: a coarse timeline of loads and computes.

A core's loads are in order, so a fill in front of an activation is free only while that activation
has to wait for the layer before; beyond that it delays the layer's first Compute.  This walks the
layers of a context with two clocks, one for the loads from home and one for the computes, and

- lists as many first entries of a layer in front of its activations as end its computes soonest;
- pulls the fills of later layers in front of a wait that they fit into.

Fills on an engine of their own (of a cluster's buffer) delay nothing but what else comes from home,
so they are issued as late as home's port allows (`lower.level`).

Times are estimates; they decide about order only, never about what is correct or what fits.
Measured on chains of matmuls: listing whatever fits, without this model, costs up to 11 % where
loads are the limit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from worker.compiler.heuristics import Heuristic
from worker.compiler.lower.order.layers import (
    MOST_LAYERS_AHEAD,
    EarlyFill,
    Layer,
    is_fill,
    layer_at,
)
from worker.compiler.lower.order.level import compute_cycles, leveled, repeats
from worker.compiler.lower.resolve import Refs
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Compute, LoopKind, Move
from worker.compiler.schedule.walk import Leaf, Walk

_WORTH = 0.5
"""Least gain, in fills of one entry, for listing one more entry in front of the activations."""

_SURE = 0.5
"""Part of an estimated wait that fills of later layers may take."""

_MOST_STEPS = 32
"""Entries of a layer that are played one by one; the rest run at the slower clock's pace."""


@dataclass(slots=True)
class _Work:
    """Estimated cycles of one layer."""

    whole: float = 0.0
    """Loading what is filled once."""
    entry: float = 0.0
    """Loading one entry of what streams."""
    other: float = 0.0
    """Loading everything that is not issued early."""
    compute: float = 0.0
    entries: int = 1
    copies: int = 1


def paced(
    nest: Walk,
    refs: Sequence[Refs],
    early: Sequence[EarlyFill],
    machine: Machine,
    without: Collection[Heuristic] = (),
) -> tuple[EarlyFill, ...]:
    """The fills with the entries to list first and the layers ahead that pay off.

    Without PACE or LEVEL the fills that it is about go one layer ahead, with all their entries.

    Cost: linear in leaves, plus a few dozen steps per layer.
    """
    result: dict[int, EarlyFill] = {}
    for layers, fills in _by_context(early).items():
        frames = nest.leaves[fills[0].leaf].frames
        around = fills[0].context_frames(frames)
        last = nest.ranges[around[-1].path][1] if around else len(nest.leaves)
        works = [_Work() for _ in layers]
        own = {fill.leaf for fill in fills}
        for number in range(layers[0].first_leaf, last):
            leaf, work = nest.leaves[number], works[layer_at(layers, number)]
            times = repeats([f for f in leaf.frames if f not in around])
            if isinstance(leaf.node, Compute):
                work.compute += compute_cycles(nest, leaf, machine) * times
            elif number not in own and is_fill(leaf, refs[number]):
                work.other += _fill_cycles(nest, leaf, leaf.node, machine) * times
        for fill in fills:
            if fill.shares_engine:
                _add_fill(works[fill.layer], nest, fill, machine)
        entries, distance = _walk(works)
        ahead = leveled(nest, fills, machine, last)
        for fill in fills:
            if (Heuristic.PACE if fill.shares_engine else Heuristic.LEVEL) in without:
                result[fill.leaf] = fill
                continue
            if not fill.shares_engine:
                result[fill.leaf] = replace(fill, reach=ahead[fill.leaf])
                continue
            first = min(entries[fill.layer], fill.entries) if fill.frames else 1
            reach = min(distance[fill.layer], fill.most)
            result[fill.leaf] = replace(fill, entries=first, reach=reach)
    return tuple(result[fill.leaf] for fill in early)


def _by_context(early: Sequence[EarlyFill]) -> Mapping[tuple[Layer, ...], list[EarlyFill]]:
    found: dict[tuple[Layer, ...], list[EarlyFill]] = {}
    for fill in early:
        found.setdefault(fill.layers, []).append(fill)
    return found


def _fill_cycles(nest: Walk, leaf: Leaf, move: Move, machine: Machine) -> float:
    """Cycles of one iteration on all cores, which share the ports of the source."""
    source, target = machine.level(move.src), machine.level(move.dst)
    size = (
        prod(s.extent for s in move.box) * nest.schedule.graph.tensors[move.tensor].dtype.size_bytes
    )
    cores = prod(f.trip for f in leaf.frames if f.kind is LoopKind.CORES)
    shared = size * cores / (source.read_bytes_per_cycle * source.instances)
    return max(shared, size / source.read_bytes_per_cycle, size / target.write_bytes_per_cycle)


def _add_fill(work: _Work, nest: Walk, fill: EarlyFill, machine: Machine) -> None:
    leaf = nest.leaves[fill.leaf]
    assert isinstance(leaf.node, Move)
    cycles = _fill_cycles(nest, leaf, leaf.node, machine)
    if not fill.frames:
        work.whole += cycles
        return
    copies = nest.scopes[fill.scope].copies
    work.entry += cycles
    work.copies = min(work.copies, copies) if work.entries > 1 else copies
    work.entries = max(work.entries, prod(f.trip for f in fill.frames))


def _walk(works: Sequence[_Work]) -> tuple[list[int], list[int]]:
    """Per layer: entries to list first, and how many layers ahead."""
    entries = [1] * len(works)
    distance = [1] * len(works)
    loads = computes = 0.0
    for k, work in enumerate(works):
        most = 1 if k == 0 else max(min(work.copies, work.entries), 1)
        pulled = distance[k] > 1
        options = [entries[k]] if pulled else list(range(1, most + 1))
        played = [_play(work, n, loads, computes, pulled=pulled) for n in options]
        # More entries in front only for a gain that is worth one: times are estimates.
        best = min(range(len(options)), key=lambda j: (played[j][0] + j * _WORTH * work.entry, j))
        entries[k] = options[best]
        if not pulled:
            loads += work.whole + entries[k] * work.entry
        if k:
            loads = _pull(works, k, _SURE * (computes - loads), entries, distance) + loads
        computes, loads = played[best][0], max(loads, played[best][1])
    return entries, distance


def _pull(
    works: Sequence[_Work], k: int, idle: float, entries: list[int], distance: list[int]
) -> float:
    """Give later layers the wait at the start of layer k; returns the load cycles it takes."""
    taken = 0.0
    for later in range(k + 1, min(k + MOST_LAYERS_AHEAD, len(works))):
        work = works[later]
        if distance[later] > 1:
            continue
        slots = min(work.copies, work.entries)
        need = work.whole + slots * work.entry
        if need <= 0 or taken + need > idle:
            break
        distance[later], entries[later] = later - k + 1, slots
        taken += need
    return taken


def _play(
    work: _Work, first: int, loads: float, computes: float, *, pulled: bool
) -> tuple[float, float]:
    """(end of the layer's computes, end of its loads) with `first` entries listed first."""
    if not pulled:
        loads += work.whole + first * work.entry
    loads = max(loads, computes)  # the activation: it waits for the layer before
    steps = min(work.entries, _MOST_STEPS)
    each, other = work.compute / work.entries, work.other / work.entries
    ends: list[float] = []
    for step in range(steps):
        if step >= first:
            free = ends[step - work.copies] if step >= work.copies else 0.0
            loads = max(loads, free) + work.entry
        loads += other
        computes = max(computes, loads) + each
        ends.append(computes)
    rest = (work.entries - steps) * max(work.entry + other, each)
    return computes + rest, loads + rest
