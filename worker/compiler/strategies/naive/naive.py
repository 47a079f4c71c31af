"""`naive`: the baseline, the fallback and the test double.

One operator per unit.  Output tiles go over the cores; each tile's operands are loaded into the
innermost scratchpad (double-buffered where a loop streams them), the reduction is cut and
accumulated in the buffer when operands do not fit, and the result is stored back home.  Outer
scratchpads and caches are crossed, not used for reuse: that is what the later strategies add.
Source: 2-architecture.md; the tile descent is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from worker.compiler.cost.compute import pick_engine
from worker.compiler.errors import Shortfall
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import OpaqueOp, TensorOp
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.stages import Arrangement, Group, Grouping
from worker.compiler.strategies.naive.search import search
from worker.compiler.strategies.naive.tree import build_tree


@dataclass(frozen=True, slots=True)
class NaiveStrategy:
    """See the module docstring."""

    name: str = "naive"
    version: str = "1"

    def group(self, graph: Graph, machine: Machine) -> Grouping:
        """One group per operator, in graph order."""
        del machine
        return Grouping(graph, tuple(Group((op.name,)) for op in graph.ops))

    def schedule(
        self, grouping: Grouping, index: int, machine: Machine
    ) -> Arrangement | Shortfall:
        """Pick the engine of the group's one operator.

        `grouping.graph` must be the canonical graph of that group alone.
        """
        graph = grouping.graph
        (name,) = grouping.groups[index].ops
        op = graph.op(name)
        if isinstance(op, OpaqueOp):
            return Shortfall(
                "operator:opaque", 1, 0, "operators", ((op.kind, 1),),
                ("leave the operator to the host",),
            )  # fmt: skip
        engine = pick_engine(op, machine, graph.tensors)
        if engine is None:
            dtype = graph.tensors[op.write.tensor].dtype
            return Shortfall(
                f"engine for {dtype}", 1, 0, "engines", (),
                (f"declare a rate for {dtype} on a VECTOR engine",),
            )  # fmt: skip
        if not machine.scratchpads:
            return Shortfall(
                "memory:scratchpad", 1, 0, "levels", (), ("declare a scratchpad level",)
            )
        return Arrangement(graph, ((name, engine.name),), machine.num_cores)

    def tile(self, arrangement: Arrangement, machine: Machine) -> Schedule | Shortfall:
        """Search tiles for the operator and write its tree."""
        graph = arrangement.graph
        ((name, engine_name),) = arrangement.engine_of_op
        op = graph.tensor_op(name)
        assert isinstance(op, TensorOp)
        engine = machine.engine(engine_name)
        found = search(op, graph.tensors, machine, engine)
        if isinstance(found, Shortfall):
            return found
        out = graph.tensors[op.write.tensor]
        root = build_tree(
            op, out, found.nest, engine, machine.home.name, machine.scratchpads[-1].name
        )
        return Schedule(graph, root, self.name, found.cycles)
