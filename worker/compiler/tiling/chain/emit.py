"""A planned row chain written out as a schedule tree.

CORES loops over shares of the row axes, TIME loops over the tiles of a share.  What does not move
with the inner loops stands outside of them: small operands are fetched, and operators without the
row are computed, once for all.  At each depth the Places are nested around one sequence: fetches,
then operators in graph order, each followed by the store of its result.
"""

from __future__ import annotations

from collections.abc import Mapping

from worker.compiler.ir.affine import Affine, var
from worker.compiler.schedule.nodes import (
    Box,
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
from worker.compiler.tiling.chain.cut import Held, row_var
from worker.compiler.tiling.chain.plan import ChainPlan, repeats_of


def emit_chain(plan: ChainPlan, prefix: str, *, recompute: bool = False) -> Node:
    """The tree of a plan; its loop variables are `prefix` + c0, t0, c1, .. per row axis.

    It stands inside the loops that the slices' starts name and the Places of `plan.resident`.
    `recompute` says that instances share points that the slices alone do not show (operators that
    every instance computes whole).
    Cost: linear in the chain.
    """
    number = {k: _tile_number(plan, k, prefix) for k in range(len(plan.splits))}
    values = {row_var(k): expr for k, expr in number.items()}
    body = _depth(plan, 0, values, prefix, recompute)
    stride = 1
    loops: list[tuple[str, int, int]] = []
    for k in reversed(range(len(plan.splits))):
        ways = plan.splits[k].ways
        if ways > 1:
            loops.append((f"{prefix}c{k}", ways, stride))
            stride *= ways
    for name, ways, step in loops:
        body = Loop(name, ways, LoopKind.CORES, body, step)
    return body


def _tile_number(plan: ChainPlan, k: int, prefix: str) -> Affine:
    split = plan.splits[k]
    number = Affine()
    if split.ways > 1:
        number = number + var(f"{prefix}c{k}") * split.trips
    if split.trips > 1:
        number = number + var(f"{prefix}t{k}")
    return number


def _depth(
    plan: ChainPlan, depth: int, values: Mapping[str, Affine], prefix: str, recompute: bool
) -> Node:
    """Everything inside the first `depth` row loops."""
    parts: list[Node] = []
    places: list[Held] = []
    for held in plan.cut.fetched:
        if plan.depth(held.rows) == depth and _is_placed(plan, held.tensor):
            places.append(held)
            source = plan.location_of.get(held.tensor, plan.home)
            box = _at(held.box, values)
            parts.append(Move(held.tensor, source, plan.memory, box, held.fill))
    engines = dict(plan.engines)
    here = [part for part in plan.cut.ops if plan.depth(part.rows) == depth]
    results = {held.tensor: held for held in plan.cut.made}
    for part in here:
        again = recompute or part.has_halo or plan.chain.overlaps(part.op)
        again = again or repeats_of(part.rows, plan.splits) > 1
        box = _at(part.box, values)
        parts.append(Compute(part.op.name, box, engines[part.op.name], None, recompute=again))
        name = part.op.write.tensor
        is_last = all(p.op.write.tensor != name for p in here[here.index(part) + 1 :])
        if not _is_placed(plan, name) or not is_last:
            continue
        places.append(results[name])
        if name in plan.chain.leaving:
            target = plan.location_of.get(name, plan.home)
            parts.append(Move(name, plan.memory, target, _at(results[name].box, values)))
    if depth < len(plan.splits):
        inner = _depth(plan, depth + 1, values, prefix, recompute)
        if plan.splits[depth].trips > 1:
            inner = Loop(f"{prefix}t{depth}", plan.splits[depth].trips, LoopKind.TIME, inner)
        if inner != Seq(()):
            parts.append(inner)
    return _placed(plan, places, values, _flat(parts))


def _flat(parts: list[Node]) -> Node:
    return parts[0] if len(parts) == 1 else Seq(tuple(parts))


def _placed(plan: ChainPlan, places: list[Held], values: Mapping[str, Affine], body: Node) -> Node:
    reduced = {op.write.tensor for op in plan.chain.ops if op.reduce is not None}
    for held in reversed(places):
        stored = plan.storage(held.tensor)
        wide = stored if stored is not plan.chain.tensors[held.tensor].dtype else None
        init = Init.IDENTITY if held.tensor in reduced else Init.UNDEFINED
        copies = plan.copies.get(held.tensor, 1)
        box = _at(held.box, values)
        body = Place(held.tensor, plan.memory, box, copies, body, wide, init)
    return body


def _is_placed(plan: ChainPlan, tensor: str) -> bool:
    return plan.location_of.get(tensor) != plan.memory


def _at(box: Box, values: Mapping[str, Affine]) -> Box:
    return tuple(Span(span.start.substitute(values), span.extent) for span in box)
