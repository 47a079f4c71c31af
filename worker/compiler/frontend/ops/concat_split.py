"""Concat (offset writes) and Split (offset reads)."""

from __future__ import annotations

from worker.compiler.frontend.ops.call import Call, Expression
from worker.compiler.frontend.ops.reduce import normal_axis
from worker.compiler.frontend.ops.refusal import Refusal, shape_mismatch
from worker.compiler.rejection import ReasonCode


def concat(call: Call) -> None:
    """Concat: one copy per operand; empty operands vanish."""
    if call.num_inputs == 0:
        raise shape_mismatch("Concat of nothing")
    shapes = [call.shape(k) for k in range(call.num_inputs)]
    rank = len(shapes[0])
    axis = normal_axis(call.attrs.integer("axis"), rank)
    if any(len(s) != rank or _but(s, axis) != _but(shapes[0], axis) for s in shapes):
        raise shape_mismatch(f"Concat of {shapes} along {axis}")
    kinds = {call.dtype(k) for k in range(call.num_inputs)}
    if len(kinds) > 1:
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, "Concat of different types")
    total = sum(s[axis] for s in shapes)
    out = call.output(0, (*shapes[0][:axis], total, *shapes[0][axis + 1 :]), call.dtype(0))
    offset = 0
    for k, shape in enumerate(shapes):
        if shape[axis] == 0:
            continue
        x = call.tensor(k)
        nest = call.nest()
        index = list(nest.axes("i", shape))
        value = nest.read(x, index)
        index[axis] = index[axis] + offset
        nest.write(out, index, value)
        offset += shape[axis]


def _but(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def split(call: Call) -> None:
    """Split by given lengths, or into equal parts with a shorter last one."""
    x = call.tensor(0)
    axis = normal_axis(call.attrs.integer("axis", 0), len(x.shape))
    extent, count = x.shape[axis], len(call.node.outputs)
    lengths = call.attrs.integers("split")
    if lengths is None and call.has_input(1):
        lengths = call.integers(1)
    parts = call.attrs.integer("num_outputs", count)
    if parts != count:
        raise shape_mismatch(f"Split into {parts} parts with {count} outputs")
    if lengths is None:
        step = -(-extent // count)
        lengths = tuple(max(min(step, extent - k * step), 0) for k in range(count))
    if len(lengths) != count or sum(lengths) != extent or min(lengths) < 0:
        raise shape_mismatch(f"Split of {extent} into {lengths} for {count} outputs")
    offset = 0
    for k, length in enumerate(lengths):
        # a piece without elements needs a reader to be worth a refusal
        if call.node.outputs[k].name and (length or call.uses_output(k)):
            out = call.output(k, (*x.shape[:axis], length, *x.shape[axis + 1 :]), x.dtype)
            nest = call.nest()
            index = list(nest.axes("i", out.shape))
            where = [e + offset if d == axis else e for d, e in enumerate(index)]
            nest.write(out, index, nest.read(x, where))
        offset += length


EXPRESSIONS: dict[str, Expression] = {"Concat": concat, "Split": split}
