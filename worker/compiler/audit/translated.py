"""Whether a loop over cores does the same on each of them, a fixed step further on.

Its iterations are told by one number; "inner" ones are all but the first and the last, which edges
may cut.  Everything here is decided by bounds of affine expressions, so its cost does not grow with
what the loops run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from worker.compiler.ir.affine import Affine, FloorDiv, Mod
from worker.compiler.ir.op import Access, TensorOp
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Box, Compute, Move, Schedule, Span
from worker.compiler.schedule.walk import (
    Frame,
    Frames,
    Leaf,
    Scope,
    Walk,
    compute_scope,
    move_ends,
    reached,
)

Interval: TypeAlias = "tuple[int, int]"
"""Inclusive."""


class NotTranslated(Exception):
    """Two cores may do different things, or meet in a place."""


@dataclass(frozen=True, slots=True)
class _Reach:
    """What accesses of a tensor cover along one of its dimensions in iteration 1, inner loops and
    all, and how far the next iteration's lie from it."""

    low: int
    high: int
    step: int


def is_translated(schedule: Schedule, flat: Walk, frame: Frame, machine: Machine) -> bool:
    """Whether the iterations of `frame` are apart, and the inner ones each other's translations.

    Apart: all storage is opened inside it, in instances of memories that no two cores share, and
    what the unit writes at home is touched by one iteration only.  Translated: what a leaf touches
    moves by a fixed step from one inner iteration to the next, in storage with the tile that is
    open there, at home as far as all that touch the tensor; nothing of it is cut by an edge.
    Cost: leaves times operands.
    """
    around = [*(leaf.frames for leaf in flat.leaves), *(scope.frames for scope in flat.scopes)]
    if any(frame not in frames for frames in around):
        return False
    if any(level.instances not in (1, machine.num_cores) for level in machine.levels):
        return False
    if any(machine.level(s.memory).instances != machine.num_cores for s in flat.scopes):
        return False
    shapes = {name: tensor.shape for name, tensor in schedule.graph.tensors.items()}
    try:
        for scope in flat.scopes:
            _check_inside(scope.tile, shapes[scope.tensor], scope.frames, frame)
        for leaf in flat.leaves:
            _check_leaf(schedule, leaf, frame, shapes)
        _check_places(schedule, flat, frame, machine)
    except NotTranslated:
        return False
    return True


def step_of(expr: Affine, name: str) -> int:
    """How far an expression moves when a variable does by one.

    Raises:
        NotTranslated: that differs from place to place.
    """
    for atom, _ in expr.terms:
        if isinstance(atom, FloorDiv | Mod) and name in atom.arg.variables():
            raise NotTranslated
    return expr.coeff(name)


def _check_leaf(
    schedule: Schedule, leaf: Leaf, frame: Frame, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    node = leaf.node
    if isinstance(node, Move):
        _check_inside(node.box, shapes[node.tensor], leaf.frames, frame)
        return
    op = schedule.graph.op(node.op)
    _check_inside(node.box, [axis.extent for axis in op.domain], leaf.frames, frame)
    inner = _axes(op, node, leaf.frames, frame, (1, frame.trip - 2))
    for access in (*op.reads, op.write):
        for expr, size in zip(access.index, shapes[access.tensor], strict=True):
            if _step_along(expr, op, node, frame):
                _require(not expr.has_lookup)
                low, high, _ = expr.bounds(inner)
                _require(low >= 0 and high < size)


def _check_inside(box: Box, sizes: Sequence[int], frames: Frames, frame: Frame) -> None:
    """Spans that move with the loop are not cut in an inner iteration."""
    ranges = _ranges(frames, frame, (1, frame.trip - 2))
    for span, size in zip(box, sizes, strict=True):
        if step_of(span.start, frame.var):
            low, high, _ = span.start.bounds(ranges)
            _require(low >= 0 and high + span.extent <= size)


def _check_places(schedule: Schedule, flat: Walk, frame: Frame, machine: Machine) -> None:
    """No element at home that the unit writes is touched by two iterations; what is touched of a
    scope moves as the scope does."""
    given = {*schedule.graph.inputs, *schedule.graph.constants}
    found: dict[str, list[tuple[_Reach, ...]]] = {}
    for leaf in flat.leaves:
        for tensor, scope, reach in _touched(schedule, leaf, frame, machine):
            if scope is not None:
                for each, span in zip(reach, scope.tile, strict=True):
                    _require(each is None or each.step == step_of(span.start, frame.var))
            elif tensor not in given:
                _require(None not in reach)
                found.setdefault(tensor, []).append(tuple(r for r in reach if r is not None))
    for reaches in found.values():
        is_apart = False
        for along in zip(*reaches, strict=True):
            _require(len({reach.step for reach in along}) == 1)
            length = max(r.high for r in along) - min(r.low for r in along) + 1
            is_apart = is_apart or abs(along[0].step) >= length
        _require(is_apart)


def _touched(
    schedule: Schedule, leaf: Leaf, frame: Frame, machine: Machine
) -> Iterator[tuple[str, Scope | None, tuple[_Reach | None, ...]]]:
    """(tensor, where: None is at home, per dimension) of what a leaf reads and writes; None is all
    that there is, of an index that depends on data."""
    node = leaf.node
    if isinstance(node, Move):
        ends = move_ends(leaf, node, machine.home.name)
        assert not isinstance(ends, str), ends  # schedules are verified
        ranges = _ranges(leaf.frames, frame, (1, 1))
        box = tuple(_reach(span, ranges, frame) for span in node.box)
        for scope in (*ends.reads, ends.write):
            yield node.tensor, scope, box
        return
    op = schedule.graph.op(node.op)
    levels = reached(node.engine, machine)
    axes = _axes(op, node, leaf.frames, frame, (1, 1))
    for access in (*op.reads, op.write):
        yield (
            access.tensor, compute_scope(leaf, access.tensor, levels),
            tuple(_indexed(access, op, node, frame, axes)),
        )  # fmt: skip


def _reach(span: Span, ranges: Mapping[str, Interval], frame: Frame) -> _Reach:
    low, high, _ = span.start.bounds(ranges)
    return _Reach(low, high + span.extent - 1, step_of(span.start, frame.var))


def _indexed(
    access: Access, op: TensorOp, compute: Compute, frame: Frame, axes: Mapping[str, Interval]
) -> Iterator[_Reach | None]:
    for expr in access.index:
        if expr.has_lookup:
            yield None
            continue
        low, high, _ = expr.bounds(axes)
        yield _Reach(low, high, _step_along(expr, op, compute, frame))


def _step_along(expr: Affine, op: TensorOp, compute: Compute, frame: Frame) -> int:
    """How far an index moves from one iteration to the next."""
    steps = [
        step_of(expr, axis.name) * step
        for axis, span in zip(op.domain, compute.box, strict=True)
        if (step := step_of(span.start, frame.var))
    ]
    return sum(steps)


def _axes(
    op: TensorOp, compute: Compute, frames: Frames, frame: Frame, at: Interval
) -> dict[str, Interval]:
    """Bounds of every axis over all iterations of a compute, cut to the domain."""
    ranges = _ranges(frames, frame, at)
    found: dict[str, Interval] = {}
    for axis, span in zip(op.domain, compute.box, strict=True):
        low, high, _ = span.start.bounds(ranges)
        found[axis.name] = max(low, 0), min(high + span.extent, axis.extent) - 1
    return found


def _ranges(frames: Frames, frame: Frame, at: Interval) -> dict[str, Interval]:
    """Of every loop's variable, that of `frame` within `at`."""
    return {f.var: at if f == frame else (0, f.trip - 1) for f in frames}


def _require(holds: bool) -> None:
    if not holds:
        raise NotTranslated
