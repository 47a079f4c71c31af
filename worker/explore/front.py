"""Which rows no other is better than."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def front(costs: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """Rows [rows, costs] of which no other costs at most as much in everything and less in
    something; of equal ones the first.  Ascending.

    Cost: rows times rows on the front.
    """
    if not len(costs):
        return ()
    table = np.asarray(costs, np.float64)
    best = np.empty(table.T.shape)  # [costs, rows on the front]
    kept: list[int] = []
    for row in np.lexsort(table.T[::-1]).tolist():  # none is dominated by a later one
        found = best[:, : len(kept)] <= table[row][:, np.newaxis]
        if not found.all(axis=0).any():
            best[:, len(kept)] = table[row]
            kept.append(row)
    return tuple(sorted(kept))
