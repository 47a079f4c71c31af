"""Places and Queues become buffers with planned addresses; whole tensors become operands.

A buffer has one address, valid in every instance of its level.  Where the CORES loops around a
Place distinguish several cores attached to one instance, each such core owns one block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, lcm, prod

import numpy as np

from worker.compiler.errors import Infeasible, Shortfall
from worker.compiler.isa.program import Buffer, Operand, OperandRole
from worker.compiler.lower.issue import Lead
from worker.compiler.lower.liveness import (
    Neighbours,
    conflicts,
    crowd_bytes,
    live_intervals,
    outermost_intervals,
)
from worker.compiler.lower.order.layers import MOST_LAYERS_AHEAD, EarlyFill, distances
from worker.compiler.lower.resolve import Refs
from worker.compiler.lower.spread import spread
from worker.compiler.machine.machine import Machine
from worker.compiler.memory.allocate import Request, align_up, allocate
from worker.compiler.schedule.grid import cores_of
from worker.compiler.schedule.walk import Scope, Walk

DISTANCES = (32, 24, 16, 12, 8, *range(MOST_LAYERS_AHEAD, -1, -1))
"""Limits on how far fills go ahead, tried until addresses are found."""


@dataclass(frozen=True, slots=True)
class Planned:
    """Buffers with addresses, and what their room lets be issued early."""

    buffers: tuple[Buffer, ...]
    """Parallel to `nest.scopes`."""
    leads: Mapping[int, Lead]
    """By leaf."""


def plan_buffers(
    nest: Walk,
    refs: Sequence[Refs],
    hoisted: Sequence[str | None],
    machine: Machine,
    early: Sequence[EarlyFill] = (),
    *,
    is_spread: bool = True,
) -> Planned:
    """One buffer per scope, with addresses; `early` are the fills that may cross layers.

    Sharing addresses inside a loop makes an iteration wait for the one before, so scopes under one
    loop share only in levels that would overflow otherwise.  In a unit of several layers those that
    share are far apart in time, where there is room (`spread`): what is written to an address waits
    until what was there has been read.  Fills go as many layers ahead as the buffers leave room
    for; when no addresses are found, fewer.

    Raises:
        Infeasible: the buffers of a level that are alive together exceed its usable bytes.
    """
    shapes = [_unplaced(scope, machine) for scope in nest.scopes]
    strict = live_intervals(nest, [r.scopes() for r in refs], hoisted)
    relaxed = outermost_intervals(nest)
    near = Neighbours.of(nest, machine)
    for chosen in _choices(nest, early, strict, shapes, machine):
        since: dict[int, int] = {}
        for fill, distance in chosen:
            start = fill.free_from(distance)
            since[fill.scope] = min(since.get(fill.scope, start), start)
        found = _addresses(
            nest, shapes, (_since(relaxed, since), _since(strict, since)), machine, near,
            must=not chosen, apart=is_spread and bool(early),
        )  # fmt: skip
        if found is not None:
            buffers = tuple(_at(shape, a) for shape, a in zip(shapes, found, strict=True))
            return Planned(buffers, {fill.leaf: fill.lead(d) for fill, d in chosen})
    raise AssertionError("the last choice has no early fills and is planned or refused")


def _choices(
    nest: Walk,
    early: Sequence[EarlyFill],
    intervals: Sequence[tuple[int, int]],
    shapes: Sequence[Buffer],
    machine: Machine,
) -> Iterator[tuple[tuple[EarlyFill, int], ...]]:
    """Fills with their distances, farthest first; last of all none."""
    capacity = {level.name: level.usable_bytes for level in machine.levels[1:]}
    before: tuple[tuple[EarlyFill, int], ...] = ()
    farthest = max((fill.reach for fill in early), default=-1)
    for most in (d for d in DISTANCES if d <= farthest or d <= MOST_LAYERS_AHEAD):
        far = distances(
            early, intervals, [s.size_bytes for s in shapes], [s.memory for s in nest.scopes],
            capacity, most,
        )  # fmt: skip
        listed = {fill.leaf for fill, d in zip(early, far, strict=True) if d >= 0}
        chosen = tuple(
            (fill, d)
            for fill, d in zip(early, far, strict=True)
            if d >= 0 and (fill.after is None or fill.after in listed)
        )
        if chosen and chosen != before:
            yield chosen
        before = chosen
    yield ()


def _since(
    intervals: Sequence[tuple[int, int]], since: Mapping[int, int]
) -> tuple[tuple[int, int], ...]:
    return tuple((min(since.get(k, first), first), end) for k, (first, end) in enumerate(intervals))


def _addresses(
    nest: Walk,
    shapes: Sequence[Buffer],
    intervals: tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]],
    machine: Machine,
    near: Neighbours,
    *,
    must: bool,
    apart: bool,
) -> list[int] | None:
    """Address of every scope under the wider intervals where they fit, else under the others.

    None when a level overflows, or Infeasible when `must`.  `apart`: those that share addresses are
    moved apart in time.
    """
    address = [0] * len(shapes)
    met: dict[int, tuple[frozenset[int], ...]] = {}
    for level in machine.levels[1:]:
        members = [k for k, scope in enumerate(nest.scopes) if scope.memory == level.name]
        if not members:
            continue
        position = {k: i for i, k in enumerate(members)}
        sizes = [(shapes[k].size_bytes, _alignment(nest.scopes[k], machine)) for k in members]
        plan = None
        for way, wide in enumerate(intervals):
            is_last = way == len(intervals) - 1
            own = [wide[k] for k in members]
            if not (must and is_last):
                crowd = crowd_bytes(own, [size for size, _ in sizes], near.held[level.name])
                if crowd > level.usable_bytes:
                    continue
            if way not in met:
                met[way] = conflicts(wide, near)
            requests = [
                Request(size, align, frozenset(position[c] for c in met[way][k]))
                for k, (size, align) in zip(members, sizes, strict=True)
            ]
            plan = allocate(requests, level.usable_bytes if is_last else None)
            if plan.peak_bytes <= level.usable_bytes:
                break
        if plan is None or plan.peak_bytes > level.usable_bytes:
            if not must or plan is None:
                return None
            raise _overflow(level.name, plan.peak_bytes, level.usable_bytes,
                            [shapes[k] for k in members])  # fmt: skip
        found = plan.addresses
        if apart:
            together = near.together[np.ix_(members, members)]
            found = spread(requests, found, own, together, level.usable_bytes)
        for k, planned in zip(members, found, strict=True):
            address[k] = planned
    return address


def plan_operands(nest: Walk, refs: Sequence[Refs]) -> tuple[Operand, ...]:
    """Whole tensors bound at each call: inputs, constants, outputs, then scratch."""
    graph = nest.schedule.graph
    at_home = dict.fromkeys(
        ref.tensor for r in refs for ref in (*r.reads, r.write) if ref.scope is None
    )
    roles: dict[str, OperandRole] = {}
    for names, role in (
        (graph.inputs, OperandRole.INPUT),
        (graph.constants, OperandRole.CONSTANT),
        (graph.outputs, OperandRole.OUTPUT),
        (tuple(at_home), OperandRole.SCRATCH),
    ):
        for name in names:
            roles.setdefault(name, role)
    operands: list[Operand] = []
    for name, role in roles.items():
        tensor = graph.tensors[name]
        operands.append(Operand(name, role, str(tensor.dtype), tensor.shape, tensor.size_bytes))
    return tuple(operands)


def _alignment(scope: Scope, machine: Machine) -> int:
    return lcm(machine.level(scope.memory).align_bytes, scope.dtype.size_bytes)


def _unplaced(scope: Scope, machine: Machine) -> Buffer:
    extents = tuple(span.extent for span in scope.tile)
    slot = align_up(prod(extents) * scope.dtype.size_bytes, _alignment(scope, machine))
    blocks, stride, first = _blocks(scope, machine)
    return Buffer(
        scope.tensor, scope.memory, 0, slot, scope.copies, str(scope.dtype), extents, scope.path,
        blocks, stride, first,
    )  # fmt: skip


def _blocks(scope: Scope, machine: Machine) -> tuple[int, int, int]:
    """(private blocks per instance, core distance between them, position of the first)."""
    width = machine.num_cores // machine.level(scope.memory).instances
    local = np.unique(cores_of(scope) % width)
    first = int(local[0])
    stride = 0
    for position in local.tolist():
        stride = gcd(stride, position - first)
    if stride == 0:
        return 1, 1, first
    return (int(local[-1]) - first) // stride + 1, stride, first


def _at(buffer: Buffer, address: int) -> Buffer:
    return Buffer(
        buffer.tensor, buffer.level, address, buffer.slot_bytes, buffer.copies, buffer.dtype,
        buffer.extents, buffer.path, buffer.blocks, buffer.block_stride, buffer.first_core,
    )  # fmt: skip


def _overflow(level: str, demand: int, bound: int, buffers: Sequence[Buffer]) -> Infeasible:
    terms = sorted(((f"{b.tensor}@{b.path}", b.size_bytes) for b in buffers),
                   key=lambda term: (-term[1], term[0]))  # fmt: skip
    largest = terms[0]
    return Infeasible(
        f"buffers in {level} need {demand} bytes, {bound} are usable",
        Shortfall(
            f"memory:{level}",
            demand,
            bound,
            "bytes",
            tuple(terms),
            (
                f"Raise the usable capacity of {level} to at least {demand} bytes.",
                f"Shrink the tile of {largest[0]} ({largest[1]} bytes), or keep fewer copies.",
            ),
        ),
        stage="lower",
    )
