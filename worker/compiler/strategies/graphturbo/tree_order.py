"""The order of least peak when every instance feeds one other: exact, at any size.

A chain of groups whose factors divide is such a graph (figure 6), and so is any reduction.  The
best order need not finish one branch before the next, so depth first search can be beaten.

Source: J. Liu, "An application of generalized tree pebbling to sparse matrix factorization", 1987;
GraphTurbo itself stops at depth first search.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from worker.compiler.strategies.graphturbo.values import InstanceGraph


@dataclass(frozen=True, slots=True)
class _Segment:
    """Part of an order that climbs to a highest point and then falls to a lowest one."""

    hill: int
    """Most bytes live within it."""
    valley: int
    """Bytes live when it ends."""
    instances: tuple[int, ...]


def tree_order(graph: InstanceGraph) -> tuple[int, ...] | None:
    """An order of least peak bytes, or None when some output is read by several instances.

    Peak counts an output while the inputs of its task are held; the output of an instance that
    nothing reads is released with its task.  Instances must be listed in topological order.

    Cost: O(n * (depth + log n)) for n instances.
    """
    num_readers = [0] * len(graph.producers)
    for some in graph.producers:
        for j in some:
            num_readers[j] += 1
    if any(num > 1 for num in num_readers):
        return None
    orders: list[list[_Segment]] = []
    for i, some in enumerate(graph.producers):
        size = graph.output_bytes[i]
        inputs = sum(graph.output_bytes[j] for j in some)
        own = _Segment(inputs + size, size if num_readers[i] else 0, (i,))
        orders.append(_decomposed([*_merged([orders[j] for j in some]), own]))
        for j in some:
            orders[j] = []
    roots = [orders[i] for i, num in enumerate(num_readers) if num == 0]
    return tuple(i for segment in _merged(roots) for i in segment.instances)


def _merged(branches: Sequence[list[_Segment]]) -> list[_Segment]:
    """Interleave branches, steepest descent first, with the bytes of all branches together.

    Within a branch hills fall and valleys rise, so sorting keeps its segments in order.
    """
    ranked = sorted(
        ((s.valley - s.hill, b, n) for b, some in enumerate(branches) for n, s in enumerate(some))
    )
    held = [0] * len(branches)
    base = 0
    result: list[_Segment] = []
    for _, b, n in ranked:
        segment = branches[b][n]
        base -= held[b]
        result.append(_Segment(base + segment.hill, base + segment.valley, segment.instances))
        held[b] = segment.valley
        base += held[b]
    return result


def _decomposed(parts: Iterable[_Segment]) -> list[_Segment]:
    """Join parts until hills strictly fall and valleys strictly rise."""
    stack: list[tuple[int, int, list[int]]] = []
    for part in parts:
        hill, valley, members = part.hill, part.valley, list(part.instances)
        while stack and (stack[-1][0] <= hill or stack[-1][1] >= valley):
            before = stack.pop()
            hill, members = max(before[0], hill), before[2] + members
        stack.append((hill, valley, members))
    return [_Segment(hill, valley, tuple(members)) for hill, valley, members in stack]
