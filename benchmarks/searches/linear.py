"""Linear programs with integers, written row by row and solved by HiGHS."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

NODES = 2000
"""Of HiGHS's tree, for one program: work, not time."""
NEAR = 0.01
"""Relative distance to the program's optimum at which HiGHS may end."""

Linear = Mapping[int, float]
"""Factors by variable."""
Values = npt.NDArray[np.float64]


@dataclass(slots=True)
class Rows:
    """A program that is written: the least of `cost`, none of its variables below 0."""

    cost: dict[int, float] = field(default_factory=dict)
    upper: list[float] = field(default_factory=list)
    is_integer: list[bool] = field(default_factory=list)
    rows: list[tuple[Linear, float]] = field(default_factory=list)
    """(factors, limit): their sum is at most the limit."""

    def variable(self, upper: float, *, is_integer: bool = False) -> int:
        """A new one, between 0 and `upper`."""
        self.upper.append(upper)
        self.is_integer.append(is_integer)
        return len(self.upper) - 1

    def at_most(self, row: Linear, limit: float) -> None:
        """What has to hold."""
        if row:
            self.rows.append((row, limit))

    def charge(self, row: Linear, factor: float) -> None:
        """Add to what is made small."""
        self.cost = total((self.cost, 1.0), (row, factor))

    def solved(self) -> Values | None:
        """The best values of all variables; None: there are none, or none were found."""
        number = len(self.upper)
        cost = np.zeros(number)
        for variable, factor in self.cost.items():
            cost[variable] = factor
        entries = [(k, v, f) for k, (row, _) in enumerate(self.rows) for v, f in row.items()]
        rows, columns, factors = zip(*entries, strict=True)
        matrix = csr_matrix((factors, (rows, columns)), shape=(len(self.rows), number))
        found = milp(
            cost, integrality=np.array(self.is_integer, np.int64),
            bounds=Bounds(np.zeros(number), np.array(self.upper)),
            constraints=LinearConstraint(matrix, -np.inf, np.array([r[1] for r in self.rows])),
            options={"node_limit": NODES, "mip_rel_gap": NEAR},
        )  # fmt: skip
        return None if found.x is None else np.asarray(found.x)


def total(*parts: tuple[Linear, float]) -> dict[int, float]:
    """The sum of rows, each times a factor."""
    found: dict[int, float] = {}
    for row, factor in parts:
        for variable, own in row.items():
            found[variable] = found.get(variable, 0.0) + factor * own
    return found


def summed(parts: Iterable[Linear]) -> dict[int, float]:
    """The sum of rows."""
    return total(*((row, 1.0) for row in parts))


def value(row: Linear, values: Values) -> float:
    """What a row comes to."""
    return float(sum(factor * values[variable] for variable, factor in row.items()))
