"""Slice and Pad: offset, strided and reflected reads."""

from __future__ import annotations

from itertools import product as cartesian
from math import prod

import numpy as np

from worker.compiler.frontend.ops.body import call as apply
from worker.compiler.frontend.ops.body import less, lit, select
from worker.compiler.frontend.ops.call import Call, Expression, Operand
from worker.compiler.frontend.ops.index_table import check_table, fit, runs
from worker.compiler.frontend.ops.reduce import normal_axis
from worker.compiler.frontend.ops.refusal import shape_mismatch, unsupported_attribute
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Tensor
from worker.compiler.ir.scalar import Const, Fn, Index

_MAX_PIECES = 9
"""A mirrored Pad becomes at most this many affine copies (two mirrored dimensions); beyond that,
index tables."""
_TO_THE_END = (2**31 - 1, 2**63 - 1)
"""Ends that ONNX Runtime takes for "all of it" in either direction, against ONNX's text."""


def slice_(call: Call) -> None:
    """Slice with any steps, parameters as inputs (opset 10 on) or attributes."""
    x = call.tensor(0)
    rank = len(x.shape)
    if call.attrs.has("starts"):
        starts, ends = call.attrs.integers("starts") or (), call.attrs.integers("ends") or ()
        axes, steps = call.attrs.integers("axes"), None
    else:
        starts, ends = call.integers(1), call.integers(2)
        axes = call.integers(3) if call.has_input(3) else None
        steps = call.integers(4) if call.has_input(4) else None
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise shape_mismatch(f"Slice from {starts} to {ends} along {axes} by {steps}")
    cuts = [range(n) for n in x.shape]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        d = normal_axis(axis, rank)
        if step < 0 and end in _TO_THE_END:
            raise unsupported_attribute(
                f"Slice backwards to {end}, which runtimes read differently; end at {-end} instead"
            )
        cuts[d] = _cut(start, end, step, x.shape[d])
    out = call.output(0, tuple(len(c) for c in cuts), x.dtype)
    nest = call.nest()
    index = nest.axes("i", out.shape)
    where = [e * cut.step + cut.start for e, cut in zip(index, cuts, strict=True)]
    nest.write(out, index, nest.read(x, where))


def _cut(start: int, end: int, step: int, extent: int) -> range:
    """Positions sliced: like Python's, but a start before the front is the front."""
    first = min(max(start + extent if start < 0 else start, 0), extent)
    past = min(max(end + extent if end < 0 else end, -1), extent)
    if step > 0:
        return range(first, max(past, 0), step)
    return range(min(first, extent - 1), past, step)


def pad(call: Call) -> None:
    """Pad in every mode; negative pads crop."""
    x = call.tensor(0)
    mode = call.attrs.choice("mode", "constant", ("constant", "reflect", "edge", "wrap"))
    before, after = _pads(call, len(x.shape))
    shape = tuple(n + b + a for n, b, a in zip(x.shape, before, after, strict=True))
    value = _value(call, x)
    out = call.output(0, shape, x.dtype)
    if mode == "constant":
        _pad_constant(call, out, x, before, value)
    elif mode == "wrap":
        nest = call.nest()
        index = nest.axes("i", shape)
        where = [(e - b).mod(n) for e, b, n in zip(index, before, x.shape, strict=True)]
        nest.write(out, index, nest.read(x, where))
    else:
        check_table("Pad", max(shape, default=0))
        tables = [
            _mirror(n, b, extent, is_edge=mode == "edge")
            for n, b, extent in zip(x.shape, before, shape, strict=True)
        ]
        copy_by_tables(call, out, x, tables)


def _pads(call: Call, rank: int) -> tuple[list[int], list[int]]:
    given = call.attrs.integers("pads") or call.attrs.integers("paddings")
    given = call.integers(1) if given is None else given
    axes = tuple(range(rank))
    if call.has_input(3):
        axes = tuple(normal_axis(a, rank) for a in call.integers(3))
    if len(given) != 2 * len(axes):
        raise shape_mismatch(f"Pad with {len(given)} pads for {len(axes)} axes")
    before, after = [0] * rank, [0] * rank
    for k, axis in enumerate(axes):
        before[axis], after[axis] = given[k], given[len(axes) + k]
    return before, after


def _value(call: Call, x: Tensor) -> Operand:
    if call.attrs.has("value"):
        return lit(call.attrs.real("value", 0.0), x.dtype)
    return call.operand(2) if call.has_input(2) else lit(0, x.dtype)


def _pad_constant(call: Call, out: Tensor, x: Tensor, before: list[int], value: Operand) -> None:
    nest = call.nest()
    index = nest.axes("i", out.shape)
    where = [e - b for e, b in zip(index, before, strict=True)]
    if isinstance(value, Const):
        nest.write(out, index, nest.read(x, where, value.value))
        return
    body = nest.read(x, where, lit(0, x.dtype).value)
    outside = nest.read(value, (0,) * len(value.shape))
    for e, n, extent in zip(where, x.shape, out.shape, strict=True):
        if n != extent:
            is_inside = apply(
                Fn.AND,
                apply(Fn.GE, Index(e), lit(0, DType.I64)),
                less(Index(e), lit(n, DType.I64)),
            )
            body = select(is_inside, body, outside)
    nest.write(out, index, body)


def _mirror(extent: int, before: int, padded: int, *, is_edge: bool) -> list[int]:
    """Source index of every padded position, by repeating or reflecting the border."""
    if is_edge:
        return [min(max(i - before, 0), extent - 1) for i in range(padded)]
    period = max(2 * (extent - 1), 1)
    folded = [(i - before) % period for i in range(padded)]
    return [min(f, period - f) if extent > 1 else 0 for f in folded]


def copy_by_tables(call: Call, out: Tensor, x: Tensor, tables: list[list[int]]) -> Tensor:
    """Emit out[i...] = x[table0[i0], table1[i1], ...] as affine copies or by looking tables up."""
    cuts = [runs(table) for table in tables]
    if prod(len(c) for c in cuts) > _MAX_PIECES:
        return _copy_by_lookup(call, out, x, tables)
    for piece in cartesian(*cuts):
        nest = call.nest()
        index = nest.axes("i", [run.length for run in piece])
        value = nest.read(
            x, [e * run.slope + run.first for e, run in zip(index, piece, strict=True)]
        )
        nest.write(out, [e + run.start for e, run in zip(index, piece, strict=True)], value)
    return out


def _copy_by_lookup(call: Call, out: Tensor, x: Tensor, tables: list[list[int]]) -> Tensor:
    nest = call.nest()
    index = nest.axes("i", out.shape)
    where: list[Affine] = []
    for d, (table, e) in enumerate(zip(tables, index, strict=True)):
        found = fit(table, e)
        if found is None:
            found = nest.lookup(table_constant(call, f"index{d}", table), (e,))
        where.append(found)
    return nest.write(out, index, nest.read(x, where))


def table_constant(call: Call, suffix: str, table: list[int]) -> Tensor:
    """A table of indices as a derived constant."""
    return call.constant(suffix, (len(table),), DType.I64, lambda: np.asarray(table, np.int64))


def center_crop_pad(call: Call) -> None:
    """CenterCropPad: crop or zero-pad around the centre."""
    x = call.tensor(0)
    rank = len(x.shape)
    given = call.attrs.integers("axes")
    axes = tuple(range(rank)) if given is None else tuple(normal_axis(a, rank) for a in given)
    target = call.integers(1)
    if len(target) != len(axes):
        raise unsupported_attribute(f"CenterCropPad of axes {axes} to {target}")
    shape = list(x.shape)
    offsets = [0] * rank
    for axis, extent in zip(axes, target, strict=True):
        grown = extent - x.shape[axis]
        shape[axis] = extent
        offsets[axis] = grown // 2 if grown > 0 else -((-grown) // 2)
    out = call.output(0, tuple(shape), x.dtype)
    _pad_constant(call, out, x, offsets, lit(0, x.dtype))


EXPRESSIONS: dict[str, Expression] = {
    "Slice": slice_,
    "Pad": pad,
    "CenterCropPad": center_crop_pad,
}
