"""The naive strategy: a kernel per operator or composite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from worker.compiler.errors import Shortfall
from worker.compiler.ir.graph import Graph
from worker.compiler.machine.machine import Machine
from worker.compiler.options import Objective
from worker.compiler.schedule.nodes import Node, Schedule
from worker.compiler.schedule.stages import Grouping
from worker.compiler.strategies.base import Budget
from worker.compiler.strategies.naive.descriptor import DESCRIPTOR, NaiveOptions
from worker.compiler.strategies.naive.tilings import layer_of, offers, shortfall
from worker.compiler.tiling.nest.emit import emit
from worker.compiler.tiling.nest.fusion import fused_groups

DEFAULTS = NaiveOptions()
ONE = Budget(candidates=1)


@dataclass(frozen=True, slots=True)
class NaiveStrategy:
    """One operator at a time, or one composite; see the package docstring."""

    name: str = DESCRIPTOR.name
    version: str = DESCRIPTOR.version
    spans_regions: bool = False

    def group(
        self,
        graph: Graph,
        machine: Machine,
        options: NaiveOptions = DEFAULTS,
        together: Sequence[tuple[str, ...]] = (),
    ) -> Grouping:
        """One group per operator, in graph order, but for what `together` allows to fuse."""
        del options
        return Grouping(graph, fused_groups(graph, machine, together))

    def candidates(
        self,
        unit: Graph,
        machine: Machine,
        options: NaiveOptions = DEFAULTS,
        budget: Budget = ONE,
    ) -> Iterator[Schedule | Shortfall]:
        """The schedule of least predicted cycles, energy or bytes from and to home, by what the
        budget's objective sums up; then, where their predictions are near, the best with its sums
        in the other place they may stand in, and the one that tiles grow into: predictions of small
        kernels are off by more than lies between them."""
        yield from self._schedules(unit, machine, options, budget.measures)

    def _schedules(
        self, unit: Graph, machine: Machine, options: NaiveOptions, measures: Sequence[Objective]
    ) -> Iterator[Schedule | Shortfall]:
        """Tiles for the first operator of the unit, which the others follow."""
        layer = layer_of(unit, machine)
        if isinstance(layer, Shortfall):
            yield layer
            return
        written: list[Node] = []
        for offered in offers(layer, machine, options, measures):
            for plan in offered.plans:
                root = emit(plan, machine.home.name)
                if root not in written:
                    written.append(root)
                    cycles = plan.predicted_cycles + machine.launch_latency_cycles
                    yield Schedule(unit, root, self.name, cycles, notes=offered.notes())
        if not written:
            yield shortfall(layer, machine)


NAIVE = NaiveStrategy()
"""What the entry point loads."""
