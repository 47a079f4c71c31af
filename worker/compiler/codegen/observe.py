"""Copies of what a kernel computes for itself, for whoever checks it.

The observed form of a kernel is its plain form plus, after every Compute that writes an observed
tensor, a copy of the points just computed into a whole tensor at home, and a mark for each.  Points
that are computed again (partial sums, overlapping tiles) are copied again: the last one stays.
"""

from __future__ import annotations

from contextlib import ExitStack

from worker.compiler.codegen.ctext import Writer, index_text
from worker.compiler.codegen.expr import convert, load, store
from worker.compiler.codegen.ports import Point
from worker.compiler.codegen.storage import Storage
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.axis import AxisKind


def emit_copy(writer: Writer, point: Point, whole: Storage, marks: str) -> None:
    """Write the copy of the points of one Compute into `whole`, and 1 into `marks` at each.

    `marks` is the C identifier of one byte an element.  A reduction's points are its outputs.
    """
    port = point.write
    offset = Affine()
    for expr, stride in zip(port.coordinate, whole.strides, strict=True):
        offset = offset + expr * stride
    with ExitStack() as stack:
        for axis in point.axes:
            if axis.kind is not AxisKind.REDUCE:
                stack.enter_context(writer.loop(axis.name, axis.count))
        held = load(f"{port.pointer}[{index_text(port.moving, point.ranges)}]", port.storage.dtype)
        value = convert(held, port.storage.dtype, whole.dtype)
        at = writer.fresh("at")
        writer.line(f"const int64_t {at} = {index_text(offset, point.ranges)};")
        element = store(value, whole.dtype, whole.dtype)
        writer.line(f"(({whole.element_type} *){whole.pointer})[{at}] = {element};")
        writer.line(f"{marks}[{at}] = 1;")
