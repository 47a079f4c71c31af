"""Reductions over all rows of a sample, in two stages: over what is left of every row, then rows.

A global pool needs every row, so nothing in front of it may be cut into bands: each instance would
have to compute all of it.  Summed up per row first, it ends the bands with one small tensor, and
the layers behind it may be cut again: only the second stage needs all rows, and it is tiny.
Source: GraphTurbo, section 3.1 gives up at such an operator ("cannot be split"); rewriting it is
our own, a reassociation as in any parallel reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from worker.compiler.cost.compute import contraction
from worker.compiler.ir.affine import var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Tensor, TensorOp
from worker.compiler.ir.scalar import Read
from worker.compiler.tiling.slices.propagate import Slices, propagate, repeats_little

WINDOW = 24
"""Operators in front of a reduction that are looked at."""
_VAR = "g"


def in_two_stages(graph: Graph, clusters: int, min_bytes: int) -> Graph:
    """`graph` with two operators for every reduction that keeps those in front from being cut.

    That is one over several axes, of more than `min_bytes`, that repeats much of their work in each
    of `clusters` slices, whichever dimension of its result they follow, while by rows they repeat
    little.
    Sums change by rounding only.  Cost: a few propagations through `WINDOW` operators for each.
    """
    if clusters < 2:
        return graph
    tensors = dict(graph.tensors)
    writers: dict[str, int] = {}
    for op in graph.ops:
        name = op.write.tensor
        writers[name] = writers.get(name, 0) + 1
    ops: list[TensorOp] = []
    for k, op in enumerate(graph.ops):
        stages = None
        if writers[op.write.tensor] == 1 and _is_large(graph, op, min_bytes):
            stages = _stages(graph, k, op, clusters)
        if stages is None:
            ops.append(op)
            continue
        made, first, second = stages
        tensors[made.name] = made
        ops.extend((first, second))
    if len(ops) == len(graph.ops):
        return graph
    return Graph.build(
        tuple(ops), tuple(tensors.values()), graph.inputs, graph.outputs, graph.constants
    )


def _is_large(graph: Graph, op: TensorOp, min_bytes: int) -> bool:
    """Whether it is a plain reduction of so many bytes, with a result that is exact in between."""
    result = graph.tensors[op.write.tensor]
    if op.reduce is None or result.dtype.accumulator is not result.dtype or op.has_lookup:
        return False
    if contraction(op) is not None or any(a.kind is AxisKind.SCAN for a in op.domain):
        return False
    return sum(graph.tensors[name].size_bytes for name in op.input_names()) > min_bytes


def _stages(
    graph: Graph, position: int, op: TensorOp, clusters: int
) -> tuple[Tensor, TensorOp, TensorOp] | None:
    """What goes between the two stages, and they; None where one does as well, or two no better."""
    before = _before(graph, position, op)
    result = graph.tensors[op.write.tensor]
    for dim, extent in enumerate(result.shape):
        slices = _slices(graph, before, dim, clusters) if extent >= clusters else None
        if slices is not None and repeats_little(before, slices):
            return None
    best: tuple[int, tuple[Tensor, TensorOp, TensorOp]] | None = None
    for axis in op.reduce_axes if len(op.reduce_axes) > 1 else ():
        found = _by_rows(op, axis, result)
        made, first, _ = found
        if axis.extent < clusters or made.name in graph.tensors:
            continue
        ops = (*before[:-1], first)
        wider = replace(graph, tensors={**graph.tensors, made.name: made})
        slices = _slices(wider, ops, 0, clusters)
        if slices is not None and repeats_little(ops, slices):
            again = sum(slices.extra_points.values())
            best = (again, found) if best is None or again < best[0] else best
    return None if best is None else best[1]


def _slices(graph: Graph, ops: Sequence[TensorOp], dim: int, clusters: int) -> Slices | None:
    return propagate(graph, ops, (ops[-1].write.tensor,), dim, clusters, _VAR)


def _before(graph: Graph, position: int, op: TensorOp) -> tuple[TensorOp, ...]:
    """The last operators that it needs, and it, in the graph's order."""
    needed = set(op.input_names())
    found = [op]
    for other in reversed(graph.ops[max(0, position - WINDOW) : position]):
        if other.write.tensor in needed:
            needed.update(other.input_names())
            found.append(other)
    return tuple(reversed(found))


def _by_rows(op: TensorOp, rows: Axis, result: Tensor) -> tuple[Tensor, TensorOp, TensorOp]:
    """The tensor with a result per row, the operator that makes it, and the one that reads it."""
    name = f"{op.name}/rows"
    made = Tensor(name, (rows.extent, *result.shape), result.dtype)
    at = Access(name, (var(rows.name), *op.write.index))
    domain = tuple(replace(a, kind=AxisKind.PARALLEL) if a == rows else a for a in op.domain)
    first = replace(op, name=name, domain=domain, write=at)
    kept = tuple(a for a in op.domain if a.kind is AxisKind.PARALLEL or a == rows)
    second = replace(op, domain=kept, reads=(at,), body=Read(0))
    return made, first, second
