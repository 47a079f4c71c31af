"""What every strategy offers: three typed steps, each of which may answer with a Shortfall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from worker.compiler.errors import Shortfall
from worker.compiler.ir.graph import Graph
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.stages import Arrangement, Grouping


class Strategy(Protocol):
    """group -> schedule -> tile.  Implementations are stateless values."""

    @property
    def name(self) -> str:
        """Name users choose it by."""

    @property
    def version(self) -> str:
        """Changes whenever the same input may give another schedule (part of cache keys)."""

    @property
    def spans_regions(self) -> bool:
        """Whether kernels of operators that are not connected pay off, so that neighbouring
        regions are handed over as one."""

    def group(
        self, graph: Graph, machine: Machine, together: Sequence[tuple[str, ...]] = ()
    ) -> Grouping:
        """Say which operators live together; the answer's graph may be a simpler equal one.

        `together`: names of operators of `graph` that the target runs as one (composites); a hint,
        of which a strategy takes what it can.
        """

    def halves(self, graph: Graph) -> tuple[tuple[str, ...], ...]:
        """Smaller groups for one that does not fit, in execution order; one if it stays whole."""

    def plainer(self, schedule: Schedule | None) -> Strategy | None:
        """A simpler form of this strategy to be tried as well, whose kernel is taken where it
        simulates faster; None where it would say the same.

        `schedule` is this strategy's own of the group, or None where that was a Shortfall.
        """

    def schedule(self, grouping: Grouping, index: int, machine: Machine) -> Arrangement | Shortfall:
        """Arrange group `index`: its canonical graph, engines and cores."""

    def tile(self, arrangement: Arrangement, machine: Machine) -> Schedule | Shortfall:
        """Fix every extent."""
