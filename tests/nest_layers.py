"""Single operators on the scratchpads of a chain of memories, and what prices their tilings."""

from __future__ import annotations

from dataclasses import replace

import lower_toys as toys
from hypothesis import strategies as st
from test_lower_naive import conv_graph

from worker.compiler.cost.compute import engines_of
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.signature import canonicalize
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.machine import Machine
from worker.compiler.options import Objective
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.verify import verify
from worker.compiler.strategies.naive.tilings import chains
from worker.compiler.tiling.nest.branch_bound import search_all
from worker.compiler.tiling.nest.emit import emit
from worker.compiler.tiling.nest.facts import Facts, facts_of, homes_of_sums
from worker.compiler.tiling.nest.levels import Sizes, StageFrame, levels_of
from worker.compiler.tiling.nest.measure import Measure
from worker.compiler.tiling.nest.plan import Plan, Stage, Team, stages_of
from worker.compiler.tiling.nest.price import Pricer
from worker.compiler.tiling.nest.search import (
    MOST_LEAVES,
    loop_orders,
    measured,
    needed_units,
    ordered_plan,
    search,
)
from worker.simulator.run import simulate_unit

ADDITIVE = [Objective.LATENCY, Objective.ENERGY, Objective.OFFCHIP]
PRESETS = [
    "a100", "stcp920-inferred", "kapla-16x16", "eyeriss", "nvdla-large", "tpuv1", "ethos-u65",
    "simba", "ipu-gc200", "ascend910", "mi50",
]  # fmt: skip
extents = st.sampled_from([1, 2, 3, 7, 16, 50, 64, 128])
graphs = st.one_of(
    st.builds(toys.matmul_graph, extents, extents, extents),
    st.builds(
        conv_graph, st.sampled_from([1, 3, 8, 32]), st.sampled_from([7, 14, 28]),
        st.sampled_from([1, 3]), st.sampled_from([1, 8, 24]), st.sampled_from([1, 2]),
    ),
)  # fmt: skip


class Layer:
    """One operator on the scratchpads of one chain of a machine."""

    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        chain: int = 0,
        *,
        alone: bool = False,
        objective: Objective = Objective.LATENCY,
        inside: bool = True,
        joins: bool = True,
    ) -> None:
        """`inside`: sums stand in registers, where the engine has some."""
        self.graph = canonicalize(graph).graph
        self.machine = machine
        (op,) = self.graph.ops
        found = engines_of((op,), self.graph.tensors, machine)
        assert not isinstance(found, str)
        self.engine = found[op.name]
        homes = homes_of_sums(facts_of(op, self.graph.tensors), self.engine, machine)
        self.facts: Facts = replace(homes[0 if inside else -1], is_alone=alone)
        offered = chains(machine, self.engine.memory, self.facts)
        team = Team.everyone(machine, joins=joins)
        self.stages: tuple[Stage, ...] = stages_of(machine, offered[chain % len(offered)], team)
        self.needed = needed_units(self.facts, self.stages)
        self.frame = StageFrame(self.facts, self.needed)
        self.measure = Measure.of(objective, machine)
        self.pricer = Pricer(self.facts, self.engine, self.needed, machine, self.measure)
        self.orders = loop_orders(self.facts)

    def plan(self, sizes: Sizes) -> Plan | None:
        levels = levels_of(self.frame, sizes)
        if levels is None:
            return None
        return ordered_plan(self.pricer, levels, self.orders, MOST_LEAVES)

    def grown(self) -> Plan | None:
        """What tiles grow into, by the layer's measure."""
        plan = search(self.facts, self.engine, self.stages, self.machine)
        return None if plan is None else measured(plan, self.machine, self.measure)

    def bounded(self, plan: Plan) -> Plan:
        return search_all(self.facts, self.engine, self.stages, self.machine, plan)[0]

    def ran(self, plan: Plan) -> int:
        """Simulated cycles."""
        schedule = Schedule(self.graph, emit(plan, self.machine.home.name), "tiles", 0)
        verify(schedule, self.machine)
        return simulate_unit(lower_unit(schedule, self.machine, "s" * 64), self.machine).cycles
