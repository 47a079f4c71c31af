"""Layers: an anchor operator with the pointwise operators that follow it, or one operator alone.

A matrix-like operator is an anchor; the pointwise operators that alone read its result, one after
the other, run on its tile while that is in the local buffer.  Everything else is a layer of its
own here; vector operators are chained over rows by `row_chain`.
Source: GraphTurbo, sections 1.1 (a layer has at most one operator with weights) and 4.1 (the
anchor decides the tiles, the others follow by bound inference).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from worker.compiler.cost.compute import contraction
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import TensorOp
from worker.compiler.ir.region import Cuts
from worker.compiler.machine.machine import Machine
from worker.compiler.tiling.chain.plan_chain import row_chains
from worker.compiler.tiling.nest.fusion import fused_groups


@dataclass(frozen=True, slots=True)
class Layer:
    """Operators that run as one loop nest, in graph order."""

    ops: tuple[str, ...]
    is_chain: bool
    """Vector operators over common rows, instead of an anchor with its epilogue."""


def form_layers(
    graph: Graph, machine: Machine, *, chains: bool = True, alone: Collection[str] = ()
) -> tuple[Layer, ...]:
    """Every operator in one layer; layers in an order in which they can run.

    Without `chains`, vector operators stay alone (kernels of layer-wise compilers).  Anchors named
    in `alone` get no epilogue.
    Cost: near-linear in the graph.
    """
    cuts = Cuts.of(graph)
    anchors = (op for op in graph.ops if op.name not in alone)
    lines = [line for op in anchors if len(line := _line(cuts, op)) > 1]
    groups = [tuple(group.ops) for group in fused_groups(graph, machine, lines)]
    layers: list[Layer] = []
    run: list[TensorOp] = []

    def flush() -> None:
        if run and chains:
            layers.extend(
                Layer(tuple(op.name for op in part), is_chain=True)
                for part in row_chains(graph, tuple(run), machine)
            )
        else:
            layers.extend(Layer((op.name,), is_chain=False) for op in run)
        run.clear()

    for names in groups:
        op = cuts.op(names[0])
        if len(names) == 1 and contraction(op) is None:
            run.append(op)
            continue
        flush()
        layers.append(Layer(names, is_chain=False))
    flush()
    return tuple(layers)


def _line(cuts: Cuts, op: TensorOp) -> tuple[str, ...]:
    """A contraction and the operators that follow it in a straight line."""
    if contraction(op) is None:
        return ()
    names = [op.name]
    made = op.write.tensor
    while made not in cuts.outputs:
        readers = cuts.readers.get(made, ())
        if len(readers) != 1:
            break
        follower = cuts.op(readers[0])
        if follower.reduce is not None:
            break
        names.append(follower.name)
        made = follower.write.tensor
    return tuple(names)


def layer_edges(graph: Graph, layers: Sequence[Layer]) -> tuple[tuple[int, int], ...]:
    """(producer, consumer) pairs of layers, ascending, each once."""
    by_name = {op.name: op for op in graph.ops}
    writer: dict[str, list[int]] = {}
    for number, layer in enumerate(layers):
        for name in layer.ops:
            tensor = by_name[name].write.tensor
            writer.setdefault(tensor, []).append(number)
    edges: dict[tuple[int, int], None] = {}
    for number, layer in enumerate(layers):
        for name in layer.ops:
            for tensor in by_name[name].input_names():
                for producer in writer.get(tensor, ()):
                    if producer != number:
                        edges.setdefault((producer, number))
    return tuple(sorted(edges))
