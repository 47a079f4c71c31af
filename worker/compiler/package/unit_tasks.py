"""The tables that say what the leaves of one unit do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class UnitTasks:
    """Tables of one unit, by name (`records.TASKS`); their rows count from the unit's own first
    ones, and `path` of leaves is the number of the leaf."""

    tables: Mapping[str, npt.NDArray[np.void]]
