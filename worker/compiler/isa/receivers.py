"""Whom the transfers of a program serve: a multicast several cores, its own first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from worker.compiler.isa.program import Resource
from worker.compiler.machine.machine import Machine

Ints = npt.NDArray[np.int64]


class Receivers:
    """Of a program's resources, which write ports stand for several cores'."""

    def __init__(self, resources: Sequence[Resource], machine: Machine) -> None:
        self._apart, self._many = np.zeros((2, len(resources) + 1), dtype=np.int64)
        """Cores between neighbouring ports, and ports; the last entry is for "no resource"."""
        for number, port in enumerate(resources):
            if port.count > 1 and port.direction == "write":
                per_instance = machine.num_cores // machine.level(port.level).instances
                self._apart[number], self._many[number] = port.step * per_instance, port.count

    def each(self, rows: npt.NDArray[np.void]) -> tuple[Ints, Ints]:
        """(row, as which of its receivers): of instructions without loops, once for each core that
        they serve.  Cost: linear in what it gives."""
        owner: Ints = np.arange(len(rows))
        if not self._many.any():
            return owner, np.zeros(len(rows), dtype=np.int64)
        times = np.maximum(self._many[rows["resource"]].max(axis=1, initial=0), 1)
        owner = np.repeat(owner, times)
        return owner, np.arange(len(owner)) - np.repeat(np.cumsum(times) - times, times)

    def cores(self, rows: npt.NDArray[np.void], rank: Ints) -> Ints:
        """How far the core of each receiver lies from its stream's."""
        found: Ints = rank * self._apart[rows["resource"]].max(axis=1, initial=0)
        return found
