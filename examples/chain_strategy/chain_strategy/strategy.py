"""Chains: an operator and the pointwise operators behind it are one kernel.

The product's own loop-nest search makes the schedules; what is new is which operators share a
kernel, on every machine and without a pattern in its spec.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chain_strategy.descriptor import DESCRIPTOR, ChainOptions
from worker.compiler.errors import Shortfall
from worker.compiler.ir.graph import Graph
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.stages import Grouping
from worker.compiler.strategies.base import Budget
from worker.compiler.strategies.naive.strategy import NAIVE


class ChainStrategy:
    """Stateless; see the module's docstring."""

    name = DESCRIPTOR.name
    version = DESCRIPTOR.version
    spans_regions = False

    def group(
        self,
        graph: Graph,
        machine: Machine,
        options: ChainOptions,
        together: Sequence[tuple[str, ...]] = (),
    ) -> Grouping:
        """Chains that the loop-nest search can fuse; the target's composites go before them."""
        chains = _chains(graph, options.longest)
        return NAIVE.group(graph, machine, together=(*together, *chains))

    def candidates(
        self, unit: Graph, machine: Machine, options: ChainOptions, budget: Budget
    ) -> Iterator[Schedule | Shortfall]:
        """The best loop nest of the chain."""
        del options
        for found in NAIVE.candidates(unit, machine, budget=budget):
            if isinstance(found, Schedule):
                yield Schedule(unit, found.root, self.name, found.predicted_cycles, found.without)
            else:
                yield found


def _chains(graph: Graph, longest: int) -> list[tuple[str, ...]]:
    """Runs of operators in which each is the only reader of the one before, heads first."""
    readers: dict[str, list[str]] = {}
    for op in graph.ops:
        for tensor in dict.fromkeys(op.input_names()):
            readers.setdefault(tensor, []).append(op.name)
    by_name = {op.name: op for op in graph.ops}
    taken: set[str] = set()
    found: list[tuple[str, ...]] = []
    for op in graph.ops:
        chain = [op.name]
        while len(chain) < longest:
            last = by_name[chain[-1]]
            (result,) = (last.write.tensor,) if len((last.write.tensor,)) == 1 else ("",)
            following = readers.get(result, [])
            if result in graph.outputs or len(following) != 1:
                break
            after = by_name[following[0]]
            if after.reduce is not None:
                break
            chain.append(after.name)
        if len(chain) > 1 and taken.isdisjoint(chain):
            taken.update(chain)
            found.append(tuple(chain))
    return found


CHAINS = ChainStrategy()
