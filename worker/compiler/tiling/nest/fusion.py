"""Which pointwise operators may follow an operator inside its kernel.

A fused group is a first operator whose result is placed, and pointwise operators behind it.  Each
of them reads results of the group element by element, so one tile of the first operator's result
is all it needs, and the tile of its own result is the same box: the loops of the first operator
serve the whole group and nothing between the operators leaves the scratchpad.

Only the last result may leave the group.  Hence no path can leave it and come back, and placing
the group where its last operator was keeps the order of execution legal.
Source: BYOC, section 3.1.1 (a composite is one operator of the hardware).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from worker.compiler.cost.compute import engines_of
from worker.compiler.ir.affine import Affine, var
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Tensor, TensorOp
from worker.compiler.ir.region import Cuts, is_view
from worker.compiler.machine.machine import Engine, Machine
from worker.compiler.schedule.stages import Group
from worker.compiler.schedule.walk import reach_memory
from worker.compiler.tiling.nest.facts import Facts, Operand, Pointwise, facts_of, operand_of


def fused_groups(
    graph: Graph, machine: Machine, together: Sequence[tuple[str, ...]]
) -> tuple[Group, ...]:
    """Groups of the whole graph: of each tuple the longest beginning that fuses, the rest alone.

    An operator that several tuples name belongs to the first.  A group stands at the position of
    its last operator.  Cost: quadratic in the length of a tuple, linear in the graph.

    Raises:
        KeyError: a tuple names an operator that the graph does not have.
    """
    cuts = Cuts.of(graph)
    last_of: dict[str, tuple[str, ...]] = {}
    claimed: set[str] = set()
    for names in together:
        if claimed.isdisjoint(names):
            chosen = _longest(cuts, machine, tuple(dict.fromkeys(names)))
            if chosen:
                claimed.update(chosen)
                last_of[chosen[-1]] = chosen
    return tuple(
        Group(last_of.get(op.name, (op.name,)))
        for op in graph.ops
        if op.name not in claimed or op.name in last_of
    )


def _longest(cuts: Cuts, machine: Machine, names: tuple[str, ...]) -> tuple[str, ...]:
    """The longest beginning (in graph order) of two or more operators that fuses; () if none."""
    ordered = tuple(sorted(names, key=lambda name: cuts.position[name]))
    for end in range(len(ordered), 1, -1):
        piece = cuts.piece(ordered[:end])
        engines = _engines(piece, machine)
        if engines is not None and fused_facts(piece, engines) is not None:
            return ordered[:end]
    return ()


def _engines(piece: Graph, machine: Machine) -> Mapping[str, Engine] | None:
    """The engine of each operator, if all of them address one memory."""
    found = engines_of(piece.ops, piece.tensors, machine)
    if isinstance(found, str):
        return None
    memories = {reach_memory(engine.name, machine) for engine in found.values()}
    return found if len(memories) == 1 else None


def fused_facts(piece: Graph, engines: Mapping[str, Engine]) -> Facts | None:
    """Facts of a group, or None when its operators do not make one kernel.

    `piece` holds the operators of the group alone, so what else reads their results shows in its
    outputs.  Cost: linear in the group.
    """
    first = piece.ops[0]
    if any(a.kind is AxisKind.SCAN for a in first.domain):
        return None
    if len(piece.ops) < 2 or any(is_view(op, piece.tensors) for op in piece.ops):
        return None
    facts = facts_of(first, piece.tensors)
    if facts.out is None or _points(facts) != piece.tensors[first.write.tensor].num_elems:
        return None
    made = [first.write.tensor]
    outside: dict[str, list[Access]] = {}
    epilogue: list[Pointwise] = []
    for op in piece.ops[1:]:
        dims = _dims(op, made, piece.tensors)
        if dims is None:
            return None
        where = {
            axis.name: Affine() if dim is None else facts.out.index[dim]
            for axis, dim in zip(op.domain, dims, strict=True)
        }
        for access in op.reads:
            if access.tensor not in made:
                index = tuple(e.substitute(where) for e in access.index)
                outside.setdefault(access.tensor, []).append(replace(access, index=index))
        dtype = piece.tensors[op.write.tensor].dtype
        out = replace(facts.out, tensor=op.write.tensor, dtype=dtype)
        epilogue.append(Pointwise(op, engines[op.name], out, dims))
        made.append(op.write.tensor)
    used = {access.tensor for op in piece.ops[1:] for access in op.reads}
    if piece.outputs != (made[-1],) or not used.issuperset(made[:-1]):
        return None
    late = _late(facts, outside, piece.tensors)
    if late is None:
        return None
    names = {operand.tensor for operand in late}
    reads = tuple(operand for operand in facts.reads if operand.tensor not in names)
    return replace(facts, reads=reads, epilogue=tuple(epilogue), late=late)


def _points(facts: Facts) -> int:
    """Elements that the first operator writes."""
    total = 1
    for name in facts.out_axes:
        total *= facts.extents[name]
    return total


def _dims(
    op: TensorOp, made: Sequence[str], tensors: Mapping[str, Tensor]
) -> tuple[int | None, ...] | None:
    """The dimension that each axis of a pointwise operator runs along, None for one step.

    None for the whole: it is not pointwise, or it does not read results of the group exactly where
    it writes its own.
    """
    if op.reduce is not None or op.domain != op.parallel_axes:
        return None
    shape = tensors[made[0]].shape
    if tensors[op.write.tensor].shape != shape:
        return None
    inner = [access for access in op.reads if access.tensor in made]
    written = _settled(op, op.write)
    if not inner or any(_settled(op, access) != written for access in inner):
        return None
    dim_of: dict[str, int] = {}
    for dim, (expr, size) in enumerate(zip(written, shape, strict=True)):
        names = expr.variables()
        if size == 1 and expr == Affine():
            continue
        if len(names) != 1 or expr != var(names[0]) or names[0] in dim_of:
            return None
        if op.axis(names[0]).extent != size:
            return None
        dim_of[names[0]] = dim
    if any(a.extent > 1 and a.name not in dim_of for a in op.domain):
        return None
    return tuple(dim_of.get(axis.name) for axis in op.domain)


def _settled(op: TensorOp, access: Access) -> tuple[Affine, ...]:
    """Its index with axes of one step taken out."""
    still = {axis.name: Affine() for axis in op.domain if axis.extent == 1}
    return tuple(expr if expr.has_lookup else expr.substitute(still) for expr in access.index)


def _late(
    facts: Facts, outside: Mapping[str, Sequence[Access]], tensors: Mapping[str, Tensor]
) -> tuple[Operand, ...] | None:
    """Operands of the epilogue over the first operator's axes; None if one cannot be placed.

    A Place is found by the name of its tensor, so what the first operator reads of the same tensor
    must fit into the same one.
    """
    found: list[Operand] = []
    for name, accesses in outside.items():
        shared = (*(a for a in facts.op.reads if a.tensor == name), *accesses)
        operand = operand_of(shared[0], shared, tensors, facts.extents)
        if operand is None or operand.axes.intersection(facts.reduce_axes):
            return None
        found.append(operand)
    return tuple(found)
