"""Layers of equal structure: tiles depend on shapes and indices, not on what tensors are called.

A layer is written with its tensors numbered by first use, searched in that form, and the plan is
given the names back.  So the repeated blocks of a network are searched once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

from worker.compiler.ir.op import Access, Origin, TensorOp
from worker.compiler.tiling.nest.facts import Facts, Operand
from worker.compiler.tiling.nest.plan import Plan

_NOWHERE = Origin((), "")


def numbered(facts: Facts) -> tuple[Facts, Hashable]:
    """The layer with numbers for names, and a key that equal layers share.

    The key says everything a search for tiles may ask of `facts`.  Cost: linear in the operators.
    """
    names = _numbers(facts)
    op = _op(facts.op, names)
    epilogue = tuple(
        replace(step, op=_op(step.op, names), out=_operand(step.out, names))
        for step in facts.epilogue
    )
    moved = (*facts.fetched, *(() if facts.stored is None else (facts.stored,)))
    # Where a tensor lives that never leaves the nest makes no difference.
    around = {names[o.tensor]: facts.base[o.tensor] for o in moved if o.tensor in facts.base}
    tensors = {n: replace(facts.tensors[old], name=n) for old, n in names.items()}
    found = replace(
        facts,
        op=op,
        tensors=tensors,
        reads=tuple(_operand(o, names) for o in facts.reads),
        late=tuple(_operand(o, names) for o in facts.late),
        out=None if facts.out is None else _operand(facts.out, names),
        epilogue=epilogue,
        base=around,
        early=frozenset(names[t] for t in facts.early if t in names),
        padded_locals=frozenset(names[t] for t in facts.padded_locals if t in names),
    )
    key = (
        op, tuple(tensors.values()), tuple(found.extents.items()), found.reads, found.late,
        found.at_home, found.out, found.accumulates, found.exact, found.single, found.whole,
        tuple(found.below.items()),
        tuple((step.op, step.engine.name, step.out, step.dim_of_axis) for step in epilogue),
        found.max_strips, found.is_overlapped, tuple(sorted(around.items())), found.early,
        found.padded_locals,
    )  # fmt: skip
    return found, key


def named(plan: Plan, facts: Facts) -> Plan:
    """The plan of a numbered layer as the plan of `facts`, which that layer was made from."""
    old = {number: name for name, number in _numbers(facts).items()}

    def back(values: Mapping[str, int]) -> Mapping[str, int]:
        return {old[number]: value for number, value in values.items()}

    own = replace(
        facts, max_strips=plan.facts.max_strips, is_overlapped=plan.facts.is_overlapped,
        registers=plan.facts.registers,
    )  # fmt: skip
    levels = tuple(
        level._replace(copies=back(level.copies), elems=back(level.elems)) for level in plan.levels
    )
    return replace(plan, facts=own, levels=levels)


def _numbers(facts: Facts) -> dict[str, str]:
    """A number for every tensor, by first use."""
    found: dict[str, str] = {}
    for op in (facts.op, *(step.op for step in facts.epilogue)):
        for access in (*op.reads, op.write):
            found.setdefault(access.tensor, f"t{len(found)}")
    return found


def _operand(operand: Operand, names: Mapping[str, str]) -> Operand:
    return replace(operand, tensor=names[operand.tensor])


def _op(op: TensorOp, names: Mapping[str, str]) -> TensorOp:
    def access(old: Access) -> Access:
        return replace(old, tensor=names[old.tensor])

    return replace(
        op,
        name=names[op.write.tensor],
        reads=tuple(access(a) for a in op.reads),
        write=access(op.write),
        origin=_NOWHERE,
    )
