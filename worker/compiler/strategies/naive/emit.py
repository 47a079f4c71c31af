"""A plan written out as a schedule tree.

At each stage: CORES loops over the chunks of the split axes, TIME loops in the plan's order, every
operand placed (and fetched) just inside the last loop its box depends on, the result placed between
the output loops and the reduction loops, stored after the latter.  The epilogue of a fused group
stands where the store was: its operators walk over the tile in strips, what is between them has a
Place of one strip each, and the last result has a whole tile, which is stored at once.
"""

from __future__ import annotations

from collections.abc import Mapping

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
from worker.compiler.strategies.naive.facts import Facts, Operand
from worker.compiler.strategies.naive.plan import LevelPlan, Plan

Starts = Mapping[str, Affine]


def emit(plan: Plan) -> Node:
    """The tree of a plan.  Loop variables are named by kind, stage and axis: c0_a1, t0_a1."""
    starts = {name: Affine() for name in plan.facts.extents}
    return _stage(plan, 0, starts, carries=False)


def _stage(plan: Plan, k: int, starts: Starts, *, carries: bool) -> Node:
    """Stage `k` for the tile of the stage before, standing at `starts`.

    `carries`: the outer tile already holds partial sums, so the inner tile starts from them.
    """
    level = plan.levels[k]
    now = dict(starts)
    split: list[tuple[str, int, int]] = []
    stride = level.stage.stride
    for name in reversed(list(level.splits)):
        split.append((f"c{k}_{name}", level.splits[name], stride))
        stride *= level.splits[name]
        now[name] = now[name] + var(f"c{k}_{name}") * (level.tile[name] * level.trips[name])
    for name in level.order:
        now[name] = now[name] + var(f"t{k}_{name}") * level.tile[name]
    body = _loops(plan, k, now, carries)
    for name, trip, step in split:
        body = Loop(name, trip, LoopKind.CORES, body, step)
    return body


def _loops(plan: Plan, k: int, now: Starts, carries: bool) -> Node:
    facts, level = plan.facts, plan.levels[k]
    inside = len(level.order) > level.num_out_loops
    node: Node = _innermost(plan, k, now, carries or inside)
    for depth in reversed(range(len(level.order) + 1)):
        for operand in facts.reads:
            if level.depth(operand) == depth:
                node = _fetched(facts, level, operand, now, node)
        if depth == level.num_out_loops and facts.out is not None:
            if facts.epilogue and k + 1 == len(plan.levels):
                node = _fused(facts, level, facts.out, now, node, f"e{k}")
            else:
                node = _result(facts, level, now, node, carries)
        for operand in facts.late:
            if level.depth(operand) == depth:
                node = _fetched(facts, level, operand, now, node)
        if depth:
            name = level.order[depth - 1]
            node = Loop(f"t{k}_{name}", level.trips[name], LoopKind.TIME, node)
    return node


def _innermost(plan: Plan, k: int, now: Starts, carries: bool) -> Node:
    if k + 1 < len(plan.levels):
        return _stage(plan, k + 1, now, carries=carries)
    tile = plan.levels[k].tile
    box = tuple(Span(now[a.name], tile[a.name]) for a in plan.facts.op.domain)
    return Compute(plan.facts.op.name, box, plan.engine.name)


def _fetched(facts: Facts, level: LevelPlan, operand: Operand, now: Starts, inner: Node) -> Node:
    box = operand.box(now, level.tile, facts.extents)
    memory = level.stage.level.name
    move = Move(operand.tensor, level.stage.source, memory, box, operand.fill)
    parts = (move, *inner.parts) if isinstance(inner, Seq) else (move, inner)
    return Place(operand.tensor, memory, box, level.copies[operand.tensor], Seq(parts))


def _fused(
    facts: Facts, level: LevelPlan, out: Operand, now: Starts, inner: Node, strip: str
) -> Node:
    """The first operator's result around its loops, then the epilogue on the same tile."""
    along, number = facts.strips(level.tile)
    memory, source = level.stage.level.name, level.stage.source
    node: Node | None = None
    for step in reversed(facts.epilogue):
        box = whole = step.out.box(now, level.tile, facts.extents)
        if number > 1:
            size = box[along].extent // number
            cut = Span(box[along].start + var(strip) * size, size)
            box = (*box[:along], cut, *box[along + 1 :])
        over = tuple(Span(Affine(), 1) if dim is None else box[dim] for dim in step.dim_of_axis)
        compute = Compute(step.op.name, over, step.engine.name)
        if node is None:
            node = compute
        else:
            copies = level.copies[step.out.tensor]
            node = Place(step.out.tensor, memory, box, copies, Seq((compute, node)))
    assert node is not None
    if number > 1:
        node = Loop(strip, number, LoopKind.TIME, node)
    stored = facts.epilogue[-1].out.tensor
    node = Seq((node, Move(stored, memory, source, whole)))
    node = Place(stored, memory, whole, level.copies[stored], node)
    parts: tuple[Node, ...] = inner.parts if isinstance(inner, Seq) else (inner,)
    box = out.box(now, level.tile, facts.extents)
    wide = out.dtype if facts.tensors[out.tensor].dtype is not out.dtype else None
    init = Init.IDENTITY if facts.accumulates else Init.UNDEFINED
    copies = level.copies[out.tensor]
    return Place(out.tensor, memory, box, copies, Seq((*parts, node)), wide, init)


def _result(facts: Facts, level: LevelPlan, now: Starts, inner: Node, carries: bool) -> Node:
    out = facts.stored
    assert out is not None
    box = out.box(now, level.tile, facts.extents)
    memory, source = level.stage.level.name, level.stage.source
    parts: tuple[Node, ...] = inner.parts if isinstance(inner, Seq) else (inner,)
    if carries:
        parts = (Move(out.tensor, source, memory, box), *parts)
    parts = (*parts, Move(out.tensor, memory, source, box))
    wide = out.dtype if facts.tensors[out.tensor].dtype is not out.dtype else None
    starts_fresh = facts.accumulates and not carries and not facts.epilogue
    init = Init.IDENTITY if starts_fresh else Init.UNDEFINED
    return Place(out.tensor, memory, box, level.copies[out.tensor], Seq(parts), wide, init)
