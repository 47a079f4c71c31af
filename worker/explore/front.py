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
    kept: list[int] = []
    for row in np.lexsort(table.T[::-1]).tolist():  # none is dominated by a later one
        if not np.any(np.all(table[kept] <= table[row], axis=1)):
            kept.append(row)
    return tuple(sorted(kept))
