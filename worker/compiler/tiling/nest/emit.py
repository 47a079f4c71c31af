"""A plan written out as a schedule tree.

At each stage: CORES loops over the chunks of the split axes, TIME loops in the plan's order, every
operand placed (and fetched) just inside the last loop its box depends on, the result placed between
the output loops and the reduction loops, stored after the latter.  The epilogue of a fused group
stands where the store was: its operators walk over the tile in strips, what is between them has a
Place of one strip each, and the last result has a whole tile, which is stored at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from worker.compiler.ir.affine import Affine, var
from worker.compiler.schedule.nodes import (
    Compute,
    Init,
    Loop,
    LoopKind,
    Move,
    Node,
    Place,
    Seq,
    Span,
)
from worker.compiler.tiling.nest.facts import Operand
from worker.compiler.tiling.nest.plan import Plan, memory_of, source_of

Starts = Mapping[str, Affine]


def emit(
    plan: Plan, home: str, at: Starts | None = None, prefix: str = "", *, recompute: bool = False
) -> Node:
    """The tree of a plan.  Loop variables are named by kind, stage and axis: c0_a1, t0_a1.

    `home` is the machine's home level; `at` says where the planned part of the domain stands, per
    axis (nothing: at 0), and `prefix` keeps the variables of several nests in one tree apart.
    `recompute`: other parts of the domain may overlap this one (halo).
    """
    starts = {name: Affine() if at is None else at[name] for name in plan.facts.extents}
    return _stage(_Writer(plan, home, prefix, recompute), 0, starts, carries=False)


@dataclass(frozen=True, slots=True)
class _Writer:
    plan: Plan
    home: str
    prefix: str
    recompute: bool

    def far_end(self, tensor: str, k: int) -> str:
        """Memory that stage `k` exchanges a tensor with."""
        stages = tuple(level.stage for level in self.plan.levels)
        return source_of(self.plan.facts, tensor, stages, k, self.home)


def _stage(writer: _Writer, k: int, starts: Starts, *, carries: bool) -> Node:
    """Stage `k` for the tile of the stage before, standing at `starts`.

    `carries`: the outer tile already holds partial sums, so the inner tile starts from them.
    """
    level = writer.plan.levels[k]
    now = dict(starts)
    split: list[tuple[str, int, int]] = []
    stride = level.stage.stride
    for name in reversed(list(level.splits)):
        core = f"{writer.prefix}c{k}_{name}"
        split.append((core, level.splits[name], stride))
        stride *= level.splits[name]
        now[name] = now[name] + var(core) * (level.tile[name] * level.trips[name])
    for name in level.order:
        now[name] = now[name] + var(f"{writer.prefix}t{k}_{name}") * level.tile[name]
    body = _loops(writer, k, now, carries)
    for core, trip, step in split:
        body = Loop(core, trip, LoopKind.CORES, body, step)
    return body


def _loops(writer: _Writer, k: int, now: Starts, carries: bool) -> Node:
    plan = writer.plan
    facts, level = plan.facts, plan.levels[k]
    inside = len(level.order) > level.num_out_loops
    node: Node = _innermost(writer, k, now, carries or inside)
    for depth in reversed(range(len(level.order) + 1)):
        for operand in facts.reads:
            if level.depth(operand) == depth:
                node = _fetched(writer, k, operand, now, node)
        if depth == level.num_out_loops and facts.out is not None:
            if facts.epilogue and k + 1 == len(plan.levels):
                node = _fused(writer, k, facts.out, now, node)
            else:
                node = _result(writer, k, now, node, carries)
        for operand in facts.late:
            if level.depth(operand) == depth and not _is_fetched_late(writer.plan, k, operand):
                node = _fetched(writer, k, operand, now, node)
        if depth:
            name = level.order[depth - 1]
            node = Loop(f"{writer.prefix}t{k}_{name}", level.trips[name], LoopKind.TIME, node)
    return node


def _innermost(writer: _Writer, k: int, now: Starts, carries: bool) -> Node:
    plan = writer.plan
    if k + 1 < len(plan.levels):
        return _stage(writer, k + 1, now, carries=carries)
    tile = plan.levels[k].tile
    box = tuple(Span(now[a.name], tile[a.name]) for a in plan.facts.op.domain)
    return Compute(plan.facts.op.name, box, plan.engine.name, recompute=writer.recompute)


def _fetched(writer: _Writer, k: int, operand: Operand, now: Starts, inner: Node) -> Node:
    facts, level = writer.plan.facts, writer.plan.levels[k]
    if operand.tensor not in level.elems:
        return inner
    box = operand.box(now, level.tile, facts.extents)
    memory = level.stage.level.name
    move = Move(operand.tensor, writer.far_end(operand.tensor, k), memory, box, operand.fill)
    parts = (move, *inner.parts) if isinstance(inner, Seq) else (move, inner)
    return Place(operand.tensor, memory, box, level.copies[operand.tensor], Seq(parts))


def _is_fetched_late(plan: Plan, k: int, operand: Operand) -> bool:
    """Whether a tile of what the epilogue alone reads comes behind the loops of the sum, not in
    front: there it would be fetched a tile ahead and wait for the epilogue of the tile before, and
    in the same queue the next tiles of the sum behind it."""
    level = plan.levels[k]
    is_last = k + 1 == len(plan.levels)
    return bool(plan.facts.epilogue) and is_last and level.depth(operand) == level.num_out_loops


def _fused(writer: _Writer, k: int, out: Operand, now: Starts, inner: Node) -> Node:
    """The first operator's result around its loops, then the epilogue on the same tile."""
    facts, level = writer.plan.facts, writer.plan.levels[k]
    along, number = facts.strips(level.tile)
    memory, strip = level.stage.level.name, f"{writer.prefix}e{k}"
    node: Node | None = None
    for step in reversed(facts.epilogue):
        box = whole = step.out.box(now, level.tile, facts.extents)
        if number > 1:
            size = box[along].extent // number
            cut = Span(box[along].start + var(strip) * size, size)
            box = (*box[:along], cut, *box[along + 1 :])
        over = tuple(Span(Affine(), 1) if dim is None else box[dim] for dim in step.dim_of_axis)
        compute = Compute(step.op.name, over, step.engine.name, recompute=writer.recompute)
        if node is None:
            node = compute
        else:
            copies = level.copies[step.out.tensor]
            node = Place(step.out.tensor, memory, box, copies, Seq((compute, node)))
    assert node is not None
    if number > 1:
        node = Loop(strip, number, LoopKind.TIME, node)
    stored = facts.epilogue[-1].out.tensor
    if stored in level.elems:
        node = Seq((node, Move(stored, memory, writer.far_end(stored, k), whole)))
        node = Place(stored, memory, whole, level.copies[stored], node)
    for operand in facts.late:
        if _is_fetched_late(writer.plan, k, operand):
            node = _fetched(writer, k, operand, now, node)
    parts: tuple[Node, ...] = inner.parts if isinstance(inner, Seq) else (inner,)
    box = out.box(now, level.tile, facts.extents)
    wide = out.dtype if facts.tensors[out.tensor].dtype is not out.dtype else None
    init = Init.IDENTITY if facts.accumulates else Init.UNDEFINED
    copies = level.copies[out.tensor]
    memory = memory_of(facts, out, level.stage, is_last=True)
    return Place(out.tensor, memory, box, copies, Seq((*parts, node)), wide, init)


def _result(writer: _Writer, k: int, now: Starts, inner: Node, carries: bool) -> Node:
    facts, level = writer.plan.facts, writer.plan.levels[k]
    out = facts.stored
    assert out is not None
    if out.tensor not in level.elems:
        return inner
    box = out.box(now, level.tile, facts.extents)
    is_last = k + 1 == len(writer.plan.levels)
    memory = memory_of(facts, out, level.stage, is_last=is_last)
    target = writer.far_end(out.tensor, k)
    parts: tuple[Node, ...] = inner.parts if isinstance(inner, Seq) else (inner,)
    if carries:
        parts = (Move(out.tensor, target, memory, box), *parts)
    parts = (*parts, Move(out.tensor, memory, target, box))
    wide = out.dtype if facts.tensors[out.tensor].dtype is not out.dtype else None
    starts_fresh = facts.accumulates and not carries and not facts.epilogue
    init = Init.IDENTITY if starts_fresh else Init.UNDEFINED
    return Place(out.tensor, memory, box, level.copies[out.tensor], Seq(parts), wide, init)
