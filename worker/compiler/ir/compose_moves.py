"""Operators that only move data, and how they disappear into what writes or reads them.

A *move* copies elements from one tensor to another of the same type: reshape, transpose, slice,
expand, pad, one piece of a concatenation.  `compose.pull` folds a move into a reader; `redirect`
folds it into the operator that wrote its source, reductions included, because nothing is computed.
A reshape that merges dimensions reads through // and %; `split_axes` cuts its axes instead, so that
the same copy has linear maps and a write that merges.

Source: 2-architecture.md "The operator algebra".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from worker.compiler.ir.affine import Affine, FloorDiv, Lookup, Mod, Var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.compose import at_axes, elementwise_axes
from worker.compiler.ir.footprint import full_box
from worker.compiler.ir.op import Access, Tensor, TensorOp
from worker.compiler.ir.scalar import Read


def is_move(op: TensorOp, tensors: Mapping[str, Tensor]) -> bool:
    """True when `op` copies elements of one tensor, by static indices, without changing type."""
    if op.reduce is not None or len(op.reads) != 1 or op.body != Read(0):
        return False
    if op.domain != op.parallel_axes or op.has_lookup:
        return False
    return tensors[op.reads[0].tensor].dtype is tensors[op.write.tensor].dtype


def redirect(producer: TensorOp, move: TensorOp, tensors: Mapping[str, Tensor]) -> TensorOp | None:
    """`producer` writing its elements where `move` would copy them.

    The producer may reduce; its domain, reads and body stay.  None when the move does not walk the
    whole tensor, each element once, by plain axes (a slice, an expand, a fill): the producer's
    elements would then go nowhere or to several places.
    Precondition: `is_move(move)`, and it reads what `producer` writes.  Cost: linear in both.
    """
    source = tensors[producer.write.tensor]
    access = move.reads[0]
    if access.tensor != source.name or access.fill is not None:
        return None
    places = elementwise_axes(access.index, source.shape, move)
    if places is None:
        return None
    box = full_box(producer)
    at = {axis: producer.write.index[dim] for axis, dim in places.items()}
    index = tuple(_within(e.substitute(at), box) for e in move.write.index)
    return replace(producer, write=Access(move.write.tensor, index))


def split_axes(op: TensorOp) -> TensorOp:
    """`op` with each PARALLEL axis i of an i // d or i % d cut into (i // d, i % d) where d fits.

    The points and values stay; indices lose these divisions and gain coefficients.  Axes whose
    extent d does not divide stay, as do divisions of sums of axes.
    Cost: linear in the operator per cut; at most log2(extent) cuts an axis.
    """
    while (cut := _next_cut(op)) is not None:
        name, divisor = cut
        op = _split(op, name, divisor)
    return op


def num_divisions(op: TensorOp) -> int:
    """Number of // and % in all accesses of `op`, nested ones included."""
    return sum(1 for access in (*op.reads, op.write) for _ in _divisions(access))


def _divisions(access: Access) -> Iterator[FloorDiv | Mod]:
    stack = list(access.index)
    while stack:
        for atom, _ in stack.pop().terms:
            match atom:
                case FloorDiv(arg, _) | Mod(arg, _):
                    yield atom
                    stack.append(arg)
                case Var() | Lookup():
                    pass


def _next_cut(op: TensorOp) -> tuple[str, int] | None:
    """The first divided axis in domain order, with its smallest divisor."""
    extents = {a.name: a.extent for a in op.domain if a.kind is AxisKind.PARALLEL}
    smallest: dict[str, int] = {}
    for access in (*op.reads, op.write):
        for atom in _divisions(access):
            match atom.arg:
                case Affine(((Var(name), 1),), 0) if name in extents:
                    if 1 < atom.divisor < extents[name] and extents[name] % atom.divisor == 0:
                        smallest[name] = min(atom.divisor, smallest.get(name, atom.divisor))
    return next(((name, smallest[name]) for name in extents if name in smallest), None)


def _split(op: TensorOp, name: str, divisor: int) -> TensorOp:
    taken = {a.name for a in op.domain}
    outer, inner = _fresh(f"{name}o", taken), _fresh(f"{name}i", taken)
    domain: list[Axis] = []
    for axis in op.domain:
        if axis.name == name:
            domain += [Axis(outer, axis.extent // divisor), Axis(inner, divisor)]
        else:
            domain.append(axis)
    at = {name: Affine.of(outer) * divisor + Affine.of(inner)}
    box = {a.name: (0, a.extent - 1) for a in domain}
    accesses = [
        replace(a, index=tuple(_within(e.substitute(at), box) for e in a.index))
        for a in (*op.reads, op.write)
    ]
    return replace(
        op,
        domain=tuple(domain),
        reads=tuple(accesses[:-1]),
        write=accesses[-1],
        body=at_axes(op.body, at),
    )


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _within(expr: Affine, box: Mapping[str, tuple[int, int]]) -> Affine:
    return expr if expr.is_linear else expr.within(box)
