"""A fused kernel's figures by the user's nodes.

Every instruction serves one operator of the kernel's graph: a computation its own, a transfer that
brings a tensor in the next one that reads it, a transfer that takes a tensor away the last one that
wrote it.  Operators of the same ONNX nodes are one group.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence

from worker.compiler.cost.compute import contracted_points
from worker.compiler.errors import Detail
from worker.compiler.ir.op import Origin
from worker.compiler.judge.units import Unit
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Compute
from worker.compiler.schedule.walk import Leaf, walk
from worker.report.node_names import kernel_op_type
from worker.simulator.results import Cause, UnitSimulation, summed_causes


def node_groups(
    unit: Unit,
    sim: UnitSimulation,
    origins: Sequence[Origin],
    served: Callable[[Unit], Mapping[str, int]],
    op_type_of: Mapping[str, str],
) -> list[Detail]:
    """Cycles, their causes, and multiply-accumulates of every group of nodes, in the graph's order.

    `origins`: of the operators of the unit's graph, as one call of it serves them; `served`: as
    `served_ops` of the machine.  Empty where there is one group only.  What no group can be blamed
    for is missing.
    Cost: linear in the nodes of the tree that are to blame.
    """
    groups: dict[tuple[str, ...], list[int]] = {}
    for k, origin in enumerate(origins):
        groups.setdefault(origin.nodes, []).append(k)
    if len(groups) < 2:
        return []
    op_of = served(unit)
    blamed: dict[int, list[tuple[str, int]]] = {}
    for part in sim.blame:
        blamed.setdefault(op_of.get(part.path, -1), []).append((part.cause, part.cycles))
    points = contracted_points(unit.schedule.graph.ops)
    rows: list[Detail] = []
    for nodes, ops in groups.items():
        causes = summed_causes(row for k in ops for row in blamed.get(k, ()))
        macs = sum(sim.work[k] for k in ops if k in points and k < len(sim.work))
        kinds = [op_type_of[name] for name in nodes if name in op_type_of]
        first = kinds[0] if kinds else "+".join(dict.fromkeys(origins[k].op_type for k in ops))
        rows.append({
            "onnx_nodes": list(nodes),
            "op_type": kernel_op_type(first, nodes, op_type_of),
            "cycles": sum(c.cycles for c in causes),
            "causes": causes_of(causes),
            "macs": macs,
            "repeated_macs": max(0, macs - sum(points.get(k, 0) for k in ops)),
        })  # fmt: skip
    return rows


def causes_of(causes: Sequence[Cause]) -> list[Detail]:
    """Who is to blame for cycles, the costliest first."""
    return [{"cause": c.cause, "cycles": c.cycles} for c in causes]


def served_ops(unit: Unit, machine: Machine) -> dict[str, int]:
    """Of every leaf of the schedule tree, by path, the operator that it serves.

    Cost: linear in the tree, times a logarithm.
    """
    leaves = walk(unit.schedule).leaves
    depth = {level.name: k for k, level in enumerate(machine.levels)}
    position = {op.name: k for k, op in enumerate(unit.schedule.graph.ops)}
    readers: dict[str, list[int]] = {}
    writers: dict[str, list[int]] = {}
    for at, leaf in enumerate(leaves):
        if isinstance(leaf.node, Compute):
            op = unit.schedule.graph.ops[position[leaf.node.op]]
            writers.setdefault(op.write.tensor, []).append(at)
            for tensor in op.input_names():
                readers.setdefault(tensor, []).append(at)

    def served(at: int, leaf: Leaf) -> int:
        node = leaf.node
        if isinstance(node, Compute):
            return position[node.op]
        inward = depth[node.dst] >= depth[node.src]
        users = (readers if inward else writers).get(node.tensor, [])
        users = users or (writers if inward else readers).get(node.tensor, [])
        if not users:
            return -1
        k = bisect(users, at)
        user = leaves[users[min(k, len(users) - 1) if inward else max(k - 1, 0)]].node
        assert isinstance(user, Compute)
        return position[user.op]

    return {leaf.path: served(at, leaf) for at, leaf in enumerate(leaves)}
