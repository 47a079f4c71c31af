"""Minimum cuts: the cheapest way to give every item one of two sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_MOST = 2**29
"""The solver counts in 32 bits; larger totals are scaled down."""


class CutProblem:
    """Items 0..n-1 that stay on the source's side or go to the sink's, at a cost."""

    def __init__(self, num_items: int) -> None:
        self._num_items = num_items
        self._source: dict[int, int] = {}
        self._sink: dict[int, int] = {}
        self._edges: dict[tuple[int, int], int] = {}
        self._forced: dict[tuple[int, int], None] = {}

    def new_item(self) -> int:
        """One more item."""
        self._num_items += 1
        return self._num_items - 1

    def costs_on_source_side(self, item: int, cost: int) -> None:
        """Pay `cost` when `item` is on the source's side."""
        self._sink[item] = self._sink.get(item, 0) + cost

    def costs_on_sink_side(self, item: int, cost: int) -> None:
        """Pay `cost` when `item` is on the sink's side."""
        self._source[item] = self._source.get(item, 0) + cost

    def costs_when_split(self, item: int, other: int, cost: int) -> None:
        """Pay `cost` when `item` is on the source's side and `other` on the sink's."""
        self._edges[item, other] = self._edges.get((item, other), 0) + cost

    def implies(self, item: int, other: int) -> None:
        """`item` on the source's side takes `other` along."""
        self._forced[item, other] = None

    def solve(self) -> list[bool]:
        """Whether each item stays on the source's side, in a cheapest cut; among equally cheap ones
        the largest source side.

        Exact while the sum of all costs is below 2^29; beyond, costs are rounded to that precision.
        Cost: Dinic's algorithm.
        """
        # 0.2 s to import, for a choice that most targets do not ask for
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow

        source, sink = self._num_items, self._num_items + 1
        rows: list[int] = []
        cols: list[int] = []
        costs: list[int] = []
        for item, cost in self._source.items():
            rows.append(source)
            cols.append(item)
            costs.append(cost)
        for item, cost in self._sink.items():
            rows.append(item)
            cols.append(sink)
            costs.append(cost)
        for (item, other), cost in self._edges.items():
            rows.append(item)
            cols.append(other)
            costs.append(cost)
        divisor = max(1, -(-sum(costs) // _MOST))
        scaled = [(cost + divisor // 2) // divisor for cost in costs]
        unlimited = sum(scaled) + 1
        for item, other in self._forced:
            rows.append(item)
            cols.append(other)
            scaled.append(unlimited)
        size = self._num_items + 2
        capacity = _matrix(rows, cols, scaled, size)
        flow = maximum_flow(capacity, source, sink).flow
        residual = (capacity - flow).tocsr()
        residual.data[residual.data < 0] = 0
        residual.eliminate_zeros()
        back = breadth_first_order(residual.T.tocsr(), sink, return_predecessors=False)
        stays = np.ones(size, dtype=bool)
        stays[back] = False
        return [bool(s) for s in stays[: self._num_items]]


def _matrix(
    rows: Sequence[int], cols: Sequence[int], values: Sequence[int], size: int
) -> csr_matrix:
    from scipy.sparse import csr_matrix

    # A forced pair may also have a cost: their sum still exceeds every finite cut.
    data = np.asarray(values, dtype=np.int32)
    found = csr_matrix((data, (np.asarray(rows), np.asarray(cols))), shape=(size, size))
    found.sum_duplicates()
    return found
