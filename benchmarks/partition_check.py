"""Whether a partitioning is sound, worked out from the ONNX graph alone.

Nothing of the partitioner is used: data flow is read again here, from nodes, operands and the
graphs that nodes own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import onnx_ir

from worker.compiler.frontend.model import OnnxModel
from worker.compiler.machine.machine import Machine
from worker.compiler.partition.plan import HOST, Part, Partitioning


def faults(model: OnnxModel, machine: Machine, found: Partitioning) -> tuple[str, ...]:
    """What is wrong with `found`; empty when it is sound.

    Every node has one placement row, in model order, with a known target and a reason, and is in
    exactly one part, which is of that target.  Parts run in the order given and name exactly what
    they read and leave.  Regions are convex.  Composites lie in their part as a whole.
    Cost: linear in nodes and edges, times regions.
    """
    nodes = list(model.ir.graph)
    wrong = _row_faults(nodes, machine, found) or _membership_faults(nodes, found)
    if wrong:
        return tuple(wrong)
    reads = [_reads(node) for node in nodes]
    producer = {id(v): k for k, node in enumerate(nodes) for v in node.outputs}
    wrong += _order_faults(nodes, reads, producer, found.parts)
    wrong += _edge_faults(model, nodes, reads, found.parts)
    for part in found.regions:
        if not _is_convex(part, reads, producer):
            wrong.append(f"the region at {nodes[part.nodes[0]].name} is not convex")
    return tuple(wrong)


def _row_faults(nodes: Sequence[onnx_ir.Node], machine: Machine, found: Partitioning) -> list[str]:
    expected = [(node.name or "", node.op_type) for node in nodes]
    if [(row.node, row.op_type) for row in found.placement] != expected:
        return [f"{len(found.placement)} placement rows are not the {len(nodes)} nodes in order"]
    names = {HOST, *(target.name for target in machine.targets)}
    wrong = [
        f"{row.node} is placed on {row.target!r}, which the machine lacks"
        for row in found.placement
        if row.target not in names
    ]
    wrong += [
        f"{row.node} has no reason"
        for row in found.placement
        if not str(row.reason_code) or not row.reason.strip()
    ]
    return wrong + [
        f"{n} names two nodes" for n, k in Counter(n for n, _ in expected).items() if k > 1
    ]


def _membership_faults(nodes: Sequence[onnx_ir.Node], found: Partitioning) -> list[str]:
    counts = Counter(k for part in found.parts for k in part.nodes)
    wrong = [
        f"{node.name} is in {counts[k]} parts" for k, node in enumerate(nodes) if counts[k] != 1
    ]
    wrong += [f"a part has node {k} of {len(nodes)}" for k in counts if not 0 <= k < len(nodes)]
    if wrong:
        return wrong
    for part in found.parts:
        inside = set(part.nodes)
        for k in part.nodes:
            if found.placement[k].target != part.target:
                wrong.append(
                    f"{nodes[k].name} is placed on {found.placement[k].target},"
                    f" its part is of {part.target}"
                )
        for composite in part.composites:
            if not inside.issuperset(composite.nodes):
                wrong.append(f"composite {composite.name} leaves its region")
            elif found.placement[composite.nodes[-1]].composite != composite.name:
                wrong.append(f"the row of {nodes[composite.nodes[-1]].name} lacks its composite")
    return wrong


def _reads(node: onnx_ir.Node) -> list[onnx_ir.Value]:
    """Operands of the node and every value its graphs mention (inner ones included)."""
    found = [v for v in node.inputs if v is not None]
    for attribute in node.attributes.values():
        graphs: Sequence[onnx_ir.Graph] = ()
        if attribute.type == onnx_ir.AttributeType.GRAPH:
            graphs = (attribute.as_graph(),)
        elif attribute.type == onnx_ir.AttributeType.GRAPHS:
            graphs = attribute.as_graphs()
        for graph in graphs:
            found += [v for v in graph.outputs if v is not None]
            for inner in graph:
                found += _reads(inner)
    return found


def _order_faults(
    nodes: Sequence[onnx_ir.Node],
    reads: Sequence[Sequence[onnx_ir.Value]],
    producer: dict[int, int],
    parts: Sequence[Part],
) -> list[str]:
    step = {k: number for number, part in enumerate(parts) for k in part.nodes}
    wrong = [
        f"nodes of the part at {nodes[part.nodes[0]].name} are out of order"
        for part in parts
        if list(part.nodes) != sorted(part.nodes)
    ]
    for k, values in enumerate(reads):
        for value in values:
            before = producer.get(id(value))
            if before is not None and step[before] > step[k]:
                wrong.append(f"{nodes[k].name} runs before {nodes[before].name}, which it reads")
    return wrong


def _edge_faults(
    model: OnnxModel,
    nodes: Sequence[onnx_ir.Node],
    reads: Sequence[Sequence[onnx_ir.Value]],
    parts: Sequence[Part],
) -> list[str]:
    """Parts whose `inputs` or `outputs` are not what crosses their edge."""
    graph = model.ir.graph
    given = {id(v) for v in graph.inputs if v.const_value is None}
    made = {id(v) for node in nodes for v in node.outputs if v.name}
    results = {id(v) for v in graph.outputs}
    readers: dict[int, set[int]] = {}
    for k, values in enumerate(reads):
        for value in values:
            readers.setdefault(id(value), set()).add(k)
    wrong: list[str] = []
    for part in parts:
        inside = set(part.nodes)
        own = {id(v) for k in part.nodes for v in nodes[k].outputs}
        enters = {
            v.name or ""
            for k in part.nodes
            for v in reads[k]
            if id(v) not in own and (id(v) in given or id(v) in made)
        }
        leaves = {
            v.name
            for k in part.nodes
            for v in nodes[k].outputs
            if v.name and (id(v) in results or readers.get(id(v), set()) - inside)
        }
        first = nodes[part.nodes[0]].name
        if set(part.inputs) != enters or len(part.inputs) != len(enters):
            wrong.append(f"inputs of the part at {first} are {part.inputs}, not {sorted(enters)}")
        if set(part.outputs) != leaves or len(part.outputs) != len(leaves):
            wrong.append(f"outputs of the part at {first} are {part.outputs}, not {sorted(leaves)}")
    return wrong


def _is_convex(
    part: Part, reads: Sequence[Sequence[onnx_ir.Value]], producer: dict[int, int]
) -> bool:
    """No path leaves the part and comes back (nodes are in topological order)."""
    inside = set(part.nodes)
    reached: set[int] = set()
    for k in range(part.nodes[0], part.nodes[-1] + 1):
        sources = {producer[id(v)] for v in reads[k] if id(v) in producer}
        if k in inside:
            if sources & reached:
                return False
        elif sources & inside or sources & reached:
            reached.add(k)
    return True
