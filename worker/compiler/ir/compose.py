"""Composing operators: a chain through intermediate tensors becomes one operator on its ends.

Two directions, both by substituting index maps.  `pull` writes a producer's body into its reader,
at the reader's index; `absorb` writes a reader's body into a producer, at the producer's write.
The first serves producers that fill their tensor element by element (any reader); the second,
readers that walk the tensor element by element (any number of producers, such as the pieces of a
concatenation).  Neither changes a value: an intermediate's rounding to its type stays, as a cast.
`compose` applies them until no intermediate tensor can be removed.

Source: operator fusion of injective operators as in 2-architecture.md "The operator algebra".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.compiler.ir.affine import Affine, FloorDiv, Lookup, Mod, Var
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import scalar_values
from worker.compiler.ir.footprint import full_box
from worker.compiler.ir.op import Access, Tensor, TensorOp
from worker.compiler.ir.scalar import (
    Apply,
    Cast,
    Const,
    Fn,
    Index,
    Read,
    Scalar,
    Select,
    children,
    slots_read,
)
from worker.compiler.ir.scalar_type import promoted, scalar_type

_TABLE_TYPES = (DType.I8, DType.U8, DType.I16, DType.U16)
"""Types with few enough values to try a body on all of them."""


class _Slots:
    """Read slots of an operator under construction; equal accesses share one."""

    def __init__(self) -> None:
        self.reads: list[Access] = []

    def add(self, access: Access) -> int:
        if access not in self.reads:
            self.reads.append(access)
        return self.reads.index(access)


def pull(reader: TensorOp, producer: TensorOp, tensors: Mapping[str, Tensor]) -> TensorOp | None:
    """`reader` with every read of the producer's tensor replaced by the producer's body.

    None when that is not legal: the producer reduces or does not write every element exactly once
    by plain axes, its value cannot be cast as its store would, or an element of the tensor decides
    an index.  A read with a fill keeps it: as the value of the source that gives that fill where
    there is one, else by a comparison of the index.
    Cost: linear in both operators (plus 2^16 evaluations of the body for a fill).
    """
    target = tensors[producer.write.tensor]
    places = elementwise_axes(producer.write.index, target.shape, producer)
    value = _stored_value(producer, tensors)
    if places is None or value is None or producer.reduce is not None:
        return None
    box = full_box(reader)
    slots = _Slots()
    values: dict[int, Scalar] = {}
    moved: dict[int, int] = {}
    for slot, access in enumerate(reader.reads):
        if access.tensor != target.name:
            index = [_with_slots(e, moved) for e in access.index]
            if any(e is None for e in index):
                return None  # the removed tensor decides this index
            kept = tuple(e for e in index if e is not None)
            moved[slot] = slots.add(Access(access.tensor, kept, access.fill))
            values[slot] = Read(moved[slot])
            continue
        if access.fill is not None and any(e.has_lookup for e in access.index):
            return None
        at = {axis: access.index[dim] for axis, dim in places.items()}
        inlined = _inlined(producer, value, at, access, target, tensors, slots, box, moved)
        if inlined is None:
            return None
        values[slot] = inlined
    body = _with_reads(reader.body, values, {})
    return replace(reader, reads=tuple(slots.reads), body=body)


def absorb(producer: TensorOp, reader: TensorOp, tensors: Mapping[str, Tensor]) -> TensorOp | None:
    """`producer` writing what `reader` makes of its elements, where `reader` would write it.

    None when that is not legal: one of them reduces, or the reader does not read the tensor at
    exactly one place per point, by plain axes, without a fill, walking all of it.
    Cost: linear in both operators.
    """
    source = tensors[producer.write.tensor]
    value = _stored_value(producer, tensors)
    accesses = [a for a in reader.reads if a.tensor == source.name]
    if value is None or producer.reduce is not None or reader.reduce is not None:
        return None
    if len(accesses) != 1 or accesses[0].fill is not None or reader.has_lookup:
        return None
    places = elementwise_axes(accesses[0].index, source.shape, reader)
    if places is None:
        return None
    at = {axis: producer.write.index[dim] for axis, dim in places.items()}
    box = full_box(producer)
    slots = _Slots()
    slots.reads = list(producer.reads)
    values: dict[int, Scalar] = {}
    for slot, access in enumerate(reader.reads):
        if access.tensor == source.name:
            values[slot] = value
        else:
            index = tuple(_within(e.substitute(at), box) for e in access.index)
            values[slot] = Read(slots.add(Access(access.tensor, index, access.fill)))
    write = tuple(_within(e.substitute(at), box) for e in reader.write.index)
    return replace(
        producer,
        reads=tuple(slots.reads),
        write=Access(reader.write.tensor, write),
        body=_with_reads(reader.body, values, at),
    )


def compose(
    ops: Sequence[TensorOp], tensors: Mapping[str, Tensor], wanted: Collection[str]
) -> tuple[TensorOp, ...]:
    """`ops` (topologically sorted) without the intermediate tensors that can be removed.

    `wanted` tensors stay.  What cannot be removed stays too, so the result always means the same.
    Operators keep their names, except that an absorbed reader gives its name to the first of its
    producers.  Bodies that map every element to itself become plain copies.
    Cost: linear in operators times intermediates; meant for clusters of a few operators.
    """
    current = list(ops)
    for name in dict.fromkeys(op.write.tensor for op in ops):
        if name in wanted:
            continue
        writers = [op for op in current if op.write.tensor == name]
        readers = [op for op in current if any(a.tensor == name for a in op.reads)]
        current = _removed(current, writers, readers, tensors)
    return tuple(simplified(op, tensors) for op in current)


def _removed(
    current: list[TensorOp],
    writers: list[TensorOp],
    readers: list[TensorOp],
    tensors: Mapping[str, Tensor],
) -> list[TensorOp]:
    """`current` without the tensor that `writers` write and `readers` read, where possible."""
    if not readers:
        return [op for op in current if op not in writers]
    if len(writers) == 1:
        pulled = {op.name: pull(op, writers[0], tensors) for op in readers}
        if all(op is not None for op in pulled.values()):
            return [pulled.get(op.name) or op for op in current if op is not writers[0]]
    if len(readers) == 1:
        absorbed = [absorb(op, readers[0], tensors) for op in writers]
        made = [op for op in absorbed if op is not None]
        if len(made) == len(writers):
            made[0] = replace(made[0], name=readers[0].name)
            kept = [op for op in current if op not in writers]
            at = kept.index(readers[0])
            return [*kept[:at], *made, *kept[at + 1 :]]
    return current


def simplified(op: TensorOp, tensors: Mapping[str, Tensor]) -> TensorOp:
    """`op`, as a copy when its body gives back the one small integer that it reads.

    Decided by trying all values: dequantise-then-quantise with equal parameters is such a body.
    """
    slots = slots_read(op.body)
    if op.reduce is not None or len(slots) != 1 or isinstance(op.body, Read):
        return op
    dtype = tensors[op.reads[slots[0]].tensor].dtype
    if dtype is not tensors[op.write.tensor].dtype or not is_identity(op.body, slots[0], dtype):
        return op
    if op.has_lookup:
        return replace(op, body=Read(slots[0]))
    return replace(op, reads=(op.reads[slots[0]],), body=Read(0))


def is_identity(body: Scalar, slot: int, dtype: DType) -> bool:
    """Whether `body` maps every value of `dtype` read at `slot` to itself."""
    found = _table(body, slot, dtype)
    return found is not None and bool(np.array_equal(found[0], found[1]))


def _table(
    body: Scalar, slot: int, dtype: DType
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
    """(all values of `dtype`, the body of each); None for wide types and other dependences."""
    if dtype not in _TABLE_TYPES or slots_read(body) != (slot,) or _uses_index(body):
        return None
    limits = np.iinfo(str(dtype.numpy))
    wide = np.arange(limits.min, limits.max + 1).astype(promoted(dtype).numpy)
    return wide, np.broadcast_to(scalar_values(body, [wide] * (slot + 1), {}), wide.shape)


def _uses_index(body: Scalar) -> bool:
    return isinstance(body, Index) or any(_uses_index(c) for c in children(body))


def elementwise_axes(
    index: Sequence[Affine], shape: tuple[int, ...], op: TensorOp
) -> dict[str, int] | None:
    """Axis -> dimension, when each axis of `op` walks a dimension of its own from end to end.

    None otherwise, also when an axis is not PARALLEL or walks none.  Cost: linear in the rank.
    """
    extents = {a.name: a.extent for a in op.domain if a.kind is AxisKind.PARALLEL}
    places: dict[str, int] = {}
    for dim, (expr, extent) in enumerate(zip(index, shape, strict=True)):
        if expr == Affine() and extent == 1:
            continue
        match expr:
            case Affine(((Var(name), 1),), 0) if name not in places:
                if extents.get(name) != extent:
                    return None
                places[name] = dim
            case _:
                return None
    return places if len(places) == len(op.domain) else None


def _stored_value(producer: TensorOp, tensors: Mapping[str, Tensor]) -> Scalar | None:
    """What reading the producer's stored element gives, as an expression on its own reads."""
    dtype = tensors[producer.write.tensor].dtype
    kinds = tuple(tensors[a.tensor].dtype for a in producer.reads)
    kind = scalar_type(producer.body, kinds)
    wide = promoted(dtype)
    if _is_exact_copy(producer, dtype, kinds):
        return producer.body
    if kind is dtype:
        return producer.body if wide is dtype else Cast(wide, producer.body)
    if kind.is_float and not dtype.is_float:
        return None  # a store wraps where a cast saturates
    return (
        Cast(wide, Cast(dtype, producer.body)) if wide is not dtype else Cast(dtype, producer.body)
    )


def _is_exact_copy(producer: TensorOp, dtype: DType, kinds: tuple[DType, ...]) -> bool:
    """Whether every value the producer stores is one of `dtype` already: nothing is rounded."""
    match producer.body:
        case Read(slot):
            return kinds[slot] is dtype and producer.reads[slot].fill in (None, 0)
        case _:
            return False


def _inlined(
    producer: TensorOp,
    value: Scalar,
    at: Mapping[str, Affine],
    access: Access,
    target: Tensor,
    tensors: Mapping[str, Tensor],
    slots: _Slots,
    box: Mapping[str, tuple[int, int]],
    reader_slots: Mapping[int, int],
) -> Scalar | None:
    """The producer's value at `access`, its reads added to `slots`."""
    here: dict[str, Affine] = {}
    for axis, expr in at.items():
        shifted = _with_slots(expr, reader_slots)
        if shifted is None:
            return None
        here[axis] = shifted
    fill = None if access.fill is None else _fill_of_source(producer, value, access.fill, tensors)
    is_compared = access.fill is not None and fill is None
    values: dict[int, Scalar] = {}
    moved: dict[int, int] = {}
    for slot, read in enumerate(producer.reads):
        own = [_with_slots(e, moved) for e in read.index]
        index = tuple(_within(e.substitute(here), box) for e in own if e is not None)
        if len(index) != len(own):
            return None
        outside = read.fill
        if outside is None and access.fill is not None:
            if any(e.has_lookup for e in index):
                return None
            leaves = _leaves(index, tensors[read.tensor].shape, box)
            outside = (0 if fill is None else fill) if any(leaves) else None
        moved[slot] = slots.add(Access(read.tensor, index, outside))
        values[slot] = Read(moved[slot])
    result = _with_reads(value, values, here)
    if not is_compared or access.fill is None:
        return result
    kind = promoted(target.dtype)
    constant = float(access.fill) if kind.is_float else int(access.fill)
    for expr, extent, leaves_here in zip(
        access.index, target.shape, _leaves(access.index, target.shape, box), strict=True
    ):
        if leaves_here:
            inside = Apply(
                Fn.AND,
                (
                    Apply(Fn.GE, (Index(expr), Const(0, DType.I64))),
                    Apply(Fn.LT, (Index(expr), Const(extent, DType.I64))),
                ),
            )
            result = Select(inside, result, Const(constant, kind))
    return result


def _leaves(
    index: Sequence[Affine], shape: tuple[int, ...], box: Mapping[str, tuple[int, int]]
) -> list[bool]:
    """Per dimension, whether the index can be outside the tensor."""
    found = []
    for expr, extent in zip(index, shape, strict=True):
        low, high, _ = expr.bounds(box)
        found.append(low < 0 or high >= extent)
    return found


def _fill_of_source(
    producer: TensorOp, value: Scalar, fill: float | int, tensors: Mapping[str, Tensor]
) -> int | None:
    """A source element whose value is `fill`, when the producer reads one small integer there."""
    if len(producer.reads) != 1 or producer.reads[0].fill is not None:
        return None
    source, target = tensors[producer.reads[0].tensor], tensors[producer.write.tensor]
    if producer.reads[0].index != producer.write.index or source.shape != target.shape:
        return None
    found = _table(value, 0, source.dtype)
    if found is None:
        return None
    hits = np.flatnonzero(found[1] == fill)
    return int(found[0][hits[0]]) if hits.size else None


def _within(expr: Affine, box: Mapping[str, tuple[int, int]]) -> Affine:
    return expr if expr.is_linear else expr.within(box)


def _with_slots(expr: Affine, moved: Mapping[int, int]) -> Affine | None:
    """`expr` with lookups renumbered; None when a lookup's slot is gone."""
    if not expr.has_lookup:
        return expr
    result = Affine((), expr.const)
    for atom, coeff in expr.terms:
        match atom:
            case Lookup(slot):
                if slot not in moved:
                    return None
                part: Affine | None = Affine(((Lookup(moved[slot]), 1),), 0)
            case FloorDiv(arg, divisor):
                inner = _with_slots(arg, moved)
                part = None if inner is None else inner.floordiv(divisor)
            case Mod(arg, divisor):
                inner = _with_slots(arg, moved)
                part = None if inner is None else inner.mod(divisor)
            case Var():
                part = Affine(((atom, 1),), 0)
        if part is None:
            return None
        result = result + part * coeff
    return result


def at_axes(body: Scalar, at: Mapping[str, Affine]) -> Scalar:
    """`body` with the axes of its `Index` nodes replaced.  Cost: linear in the body."""
    return _with_reads(body, {slot: Read(slot) for slot in slots_read(body)}, at)


def _with_reads(body: Scalar, values: Mapping[int, Scalar], at: Mapping[str, Affine]) -> Scalar:
    """`body` with reads replaced by `values` and axes by `at`."""
    match body:
        case Read(slot):
            return values[slot]
        case Index(expr):
            return Index(expr.substitute(at))
        case Apply(fn, args):
            return Apply(fn, tuple(_with_reads(a, values, at) for a in args))
        case Cast(dtype, arg):
            return Cast(dtype, _with_reads(arg, values, at))
        case Select(cond, a, b):
            return Select(
                _with_reads(cond, values, at),
                _with_reads(a, values, at),
                _with_reads(b, values, at),
            )
        case _:
            return body
