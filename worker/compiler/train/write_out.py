"""Operators that are differentiated as others: written out before the backward pass is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import onnx_ir

from worker.compiler.errors import ModelError
from worker.compiler.frontend.limits import Limits
from worker.compiler.train.emit import Emitter, replace
from worker.compiler.train.recurrent import recurrent
from worker.compiler.train.rules.site import NoRule, Site

_Writer = Callable[[Site], Sequence[onnx_ir.Value | None]]


def _local_response(site: Site) -> Sequence[onnx_ir.Value | None]:
    """LRN: x / (bias + alpha mean(x x))^beta, the mean over a window of channels with zeros around
    them.  ONNX divides the sum by the size of the window at the borders, too."""
    emit, x = site.emit, site.x()
    shape, size = site.shape(), site.integer("size", 1)
    flat = emit.reshape(emit.op("Mul", x, x), (shape[0], 1, shape[1], prod(shape[2:])))
    before = (size - 1) // 2
    mean = emit.op(
        "AveragePool", flat, kernel_shape=[size, 1], pads=[before, 0, size - 1 - before, 0],
        count_include_pad=1,
    )  # fmt: skip
    scaled = emit.op("Mul", emit.reshape(mean, shape), emit.real(site.number("alpha", 1e-4), x))
    base = emit.op("Add", scaled, emit.real(site.number("bias", 1.0), x))
    return [emit.op("Mul", x, emit.op("Pow", base, emit.real(-site.number("beta", 0.75), x)))]


def _norm(site: Site) -> Sequence[onnx_ir.Value | None]:
    """LpNormalization: x over its 1- or 2-norm along an axis; 0 where that is 0, and no slope in
    what it is divided by."""
    emit, x = site.emit, site.x()
    axes = emit.ints(site.axis(-1))
    is_sum = site.integer("p", 2) == 1
    total = emit.op("ReduceL1" if is_sum else "ReduceSumSquare", x, axes, keepdims=1)
    is_zero = emit.op("Equal", total, emit.real(0, x))
    total = emit.op("Where", is_zero, emit.real(1, x), total)
    return [emit.op("Div", x, total if is_sum else emit.op("Sqrt", total))]


_WRITERS: Mapping[str, _Writer] = {
    "GRU": recurrent, "LRN": _local_response, "LSTM": recurrent, "LpNormalization": _norm,
    "RNN": recurrent,
}  # fmt: skip
WRITTEN_OUT = frozenset(_WRITERS)
"""Operators of the standard domain that this module writes with others."""


def write_out(emit: Emitter, passed: Sequence[onnx_ir.Node], reasons: dict[str, str]) -> int:
    """Replace those of `passed` that can be; give their number.

    Why one cannot be goes into `reasons`, by its name.  New nodes lie behind the others; sort
    afterwards.

    Raises:
        ModelError: TW-MODEL-014 at the node that makes the model too large.
    """
    count, most = 0, Limits().max_nodes
    for node in passed:
        if node.domain != "" or node.op_type not in WRITTEN_OUT:
            continue
        emit.begin(str(node.name))
        try:
            made = _WRITERS[node.op_type](Site(node, emit, (), frozenset()))
        except NoRule as refusal:
            reasons[str(node.name)] = str(refusal)
            continue
        replace(emit.graph, node, made)
        count += 1
        if len(emit.graph) > most:
            raise ModelError(
                "TW-MODEL-014", f"the model has more than {most} nodes once it is written out",
                node=node.name, limit=most, actual=len(emit.graph),
            )  # fmt: skip
    return count
