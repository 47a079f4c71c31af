"""Small layers of independent chains run in lockstep: all first ones, then all second ones.

A layer of a few kilobytes takes no time but the latency of its loads and of its store.  One chain
after the other pays it at every layer, since transfers of a core are in order: what the next chain
loads stands behind a load that waits for this chain's store.  Level by level, all chains wait once.
Where tensors are larger the depth-first order stays, which keeps little alive.
Source: our own; GraphTurbo's order of instances (Algorithm 3) weighs memory only.
"""

from __future__ import annotations

from collections.abc import Sequence

from worker.compiler.ir.graph import Graph
from worker.compiler.tiling.layer.layers import Layer, layer_edges

SMALL_BYTES = 1 << 14
"""What a small layer writes at most."""


def in_lockstep(graph: Graph, layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """`layers` with every run of small ones ordered by level; also an order in which they can run.

    Left alone: runs in which a tensor is read before all of it is written.
    Cost: linear in layers and edges.
    """
    before: list[list[int]] = [[] for _ in layers]
    written = {op.name: graph.tensors[op.write.tensor].size_bytes for op in graph.ops}
    is_small = [sum(written[name] for name in layer.ops) <= SMALL_BYTES for layer in layers]
    for producer, consumer in layer_edges(graph, layers):
        if producer < consumer:
            before[consumer].append(producer)
        else:
            is_small[producer] = is_small[consumer] = False
    found: list[Layer] = []
    level: dict[int, int] = {}
    """Of the layers of the run so far."""

    def flush() -> None:
        found.extend(layers[k] for k in sorted(level, key=lambda k: (level[k], k)))
        level.clear()

    for k, layer in enumerate(layers):
        if is_small[k]:
            level[k] = 1 + max((level[p] for p in before[k] if p in level), default=0)
        else:
            flush()
            found.append(layer)
    flush()
    return tuple(found)
