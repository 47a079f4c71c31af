"""Give every interpreted node a host part of its own: cut host parts around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

import onnx_ir

from worker.compiler.control.nodes import graphs_of, outer_reads
from worker.compiler.frontend.edit import constant_of
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.partition.plan import HOST, Part


def isolate(model: OnnxModel, parts: Sequence[Part], nodes: Set[str]) -> tuple[Part, ...]:
    """`parts` with each host part cut so that a node of `nodes` (names) stands alone in its part.

    Cost: linear in the parts that are cut.
    """
    if not nodes:
        return tuple(parts)
    order = list(model.ir.graph)
    results = {v.name for v in model.ir.graph.outputs}
    found: list[Part] = []
    for part in parts:
        is_cut = part.target == HOST and any(order[k].name in nodes for k in part.nodes)
        if not is_cut or len(part.nodes) == 1:
            found.append(part)
            continue
        found += [_piece(part, run, order, results) for run in _runs(part.nodes, order, nodes)]
    return tuple(found)


def _runs(
    members: Sequence[int], order: Sequence[onnx_ir.Node], alone: Set[str]
) -> Iterator[tuple[int, ...]]:
    run: list[int] = []
    for k in members:
        if order[k].name in alone:
            if run:
                yield tuple(run)
            yield (k,)
            run = []
        else:
            run.append(k)
    if run:
        yield tuple(run)


def _piece(
    part: Part, members: tuple[int, ...], order: Sequence[onnx_ir.Node], results: Set[str | None]
) -> Part:
    inside = {order[k] for k in members}
    inputs: dict[str, None] = {}
    outputs: dict[str, None] = {}
    for k in members:
        reads = [v for v in order[k].inputs if v is not None]
        for graph in graphs_of(order[k]):
            reads += outer_reads(graph)
        for value in reads:
            if value.producer() not in inside and constant_of(value) is None and value.name:
                inputs.setdefault(value.name)
        for value in order[k].outputs:
            if value.name and (
                value.name in results or any(use.node not in inside for use in value.uses())
            ):
                outputs.setdefault(value.name)
    return replace(part, nodes=members, inputs=tuple(inputs), outputs=tuple(outputs))
