"""From groups to instances: which piece of a consumer reads which pieces of a producer.

A group of factor f is f equal instances; each factor is a multiple of the next group's, so that
piece j of a consumer reads pieces [j*r, (j+1)*r) of a producer with r times as many.
Source: GraphTurbo section 3.3 and figure 6.  Deviates: the paper's sentence calls an edge redundant
when the output *is* used; the figure and the rest of the section say the opposite, which is done.
"""

from __future__ import annotations

from collections.abc import Sequence

from worker.compiler.errors import InternalError
from worker.compiler.strategies.graphturbo.values import Instance, InstanceGraph


def instance_graph(
    factors: Sequence[int], output_bytes: Sequence[int], edges: Sequence[tuple[int, int]]
) -> InstanceGraph:
    """Split every group into its instances and inherit the edges that carry data.

    `factors` and `output_bytes` (of the whole group's output) are by group, in topological order;
    `edges` are (producer, consumer).  Bytes are shared out equally, rounded up, so that instances
    of a group are homogeneous.

    Raises:
        InternalError: an edge against the order, or factors of its ends that do not divide.
    Cost: linear in instances and their edges.
    """
    first = [sum(factors[:group]) for group in range(len(factors))]
    producers: list[list[int]] = [[] for _ in range(sum(factors))]
    for producer, consumer in sorted(edges):
        if producer >= consumer or factors[producer] % factors[consumer]:
            raise InternalError(
                "TW-INT-001",
                f"group {consumer} of factor {factors[consumer]} reads group {producer} of factor "
                f"{factors[producer]}",
                stage="graphturbo",
            )
        ratio = factors[producer] // factors[consumer]
        for j in range(factors[consumer]):
            start = first[producer] + j * ratio
            producers[first[consumer] + j].extend(range(start, start + ratio))
    instances = tuple(Instance(group, k) for group, f in enumerate(factors) for k in range(f))
    sizes = tuple(-(-output_bytes[i.group] // factors[i.group]) for i in instances)
    return InstanceGraph(instances, tuple(map(tuple, producers)), sizes)
