"""The seam between the pipeline and every strategy."""

from __future__ import annotations

from typing import Protocol

from worker.compiler.errors import Shortfall
from worker.compiler.ir.graph import Graph
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.stages import Arrangement, Grouping


class Strategy(Protocol):
    """Three steps, each a value; `name` and `version` are part of every cache key."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def group(self, graph: Graph, machine: Machine) -> Grouping:
        """Say which operators live together, in execution order."""
        ...

    def schedule(
        self, grouping: Grouping, index: int, machine: Machine
    ) -> Arrangement | Shortfall:
        """Choose engines and cores for one group (whose graph is canonical)."""
        ...

    def tile(self, arrangement: Arrangement, machine: Machine) -> Schedule | Shortfall:
        """Fix every extent."""
        ...
