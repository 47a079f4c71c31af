"""How much memory the activations of a piece need when its operators run in order.

What a piece reads from outside counts from the beginning to its last use, what it makes from the
operator that first writes it, what leaves it to the end.  Weights are not counted: they pass
through a small buffer of their own (GraphTurbo, section 2.2).
Source: the `peak` of GraphTurbo's Algorithm 1; the paper names no rules, those here reproduce the
samples per cluster that it prints for TVM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import TensorOp
from worker.compiler.schedule.nodes import Box
from worker.compiler.tiling.slices.propagate import Slices


def peak_bytes(graph: Graph, ops: Sequence[TensorOp], *, in_place: bool = True) -> int:
    """Most bytes live at once when `ops` (a piece of `graph`, in execution order) run one by one.

    With `in_place`, an operator without reduction writes over an operand of equal shape and element
    size that it reads at the very elements it writes and that nothing needs later (residual adds,
    activations, softmax).
    Cost: linear in the graph.
    """
    sizes = {name: t.size_bytes for name, t in graph.tensors.items()}
    return _peak(graph, ops, sizes, {}, in_place=in_place)


def peak_bytes_of_slices(graph: Graph, ops: Sequence[TensorOp], slices: Slices) -> int:
    """Like `peak_bytes`, for one instance: each tensor takes the part of it that its box holds.

    A box wider than the tensor counts as the tensor.  Two tensors share memory only where their
    boxes are equal.
    """
    sizes: dict[str, int] = {}
    for name, box in slices.boxes.items():
        tensor = graph.tensors[name]
        size = tensor.dtype.size_bytes
        for span, extent in zip(box, tensor.shape, strict=True):
            size *= min(span.extent, extent)
        sizes[name] = size
    return _peak(graph, ops, sizes, slices.boxes, in_place=True)


def piece_outputs(graph: Graph, ops: Sequence[TensorOp]) -> tuple[str, ...]:
    """Tensors that `ops` write and that are outputs of the graph, read outside, or read by no one.

    In the order in which they are written, each once.  Cost: linear in the graph.
    """
    inside = {op.name for op in ops}
    outside = {t for op in graph.ops if op.name not in inside for t in op.input_names()}
    outside.update(graph.outputs)
    read = {t for op in ops for t in op.input_names()}
    written = dict.fromkeys(op.write.tensor for op in ops)
    return tuple(name for name in written if name in outside or name not in read)


def _peak(
    graph: Graph,
    ops: Sequence[TensorOp],
    sizes: Mapping[str, int],
    boxes: Mapping[str, Box],
    *,
    in_place: bool,
) -> int:
    last_use = {
        name: k for k, op in enumerate(ops) for name in (*op.input_names(), op.write.tensor)
    }
    last_use.update(dict.fromkeys(piece_outputs(graph, ops), len(ops)))
    constants = frozenset(graph.constants)
    written = {op.write.tensor for op in ops}
    live = {
        name: sizes[name]
        for op in ops for name in op.input_names()
        if name not in written and name not in constants
    }  # fmt: skip
    now = peak = sum(live.values())
    for k, op in enumerate(ops):
        target = op.write.tensor
        fresh = target not in live
        if fresh:
            live[target] = sizes[target]
            now += sizes[target]
        dying = [
            name for name in (*op.input_names(), target) if name in live and last_use[name] == k
        ]
        shared = in_place and fresh and any(
            _may_overwrite(graph, op, name, boxes)
            for name in dying if name not in constants
        )  # fmt: skip
        peak = max(peak, now - (sizes[target] if shared else 0))
        for name in dict.fromkeys(dying):
            now -= live.pop(name)
    return peak


def _may_overwrite(graph: Graph, op: TensorOp, name: str, boxes: Mapping[str, Box]) -> bool:
    """True when `op` may write its result over operand `name`."""
    target = op.write.tensor
    old, new = graph.tensors[name], graph.tensors[target]
    return (
        name != target
        and op.reduce is None
        and old.shape == new.shape
        and old.dtype.size_bytes == new.dtype.size_bytes
        and boxes.get(name) == boxes.get(target)
        and all(a.index == op.write.index for a in op.reads if a.tensor == name)
    )
