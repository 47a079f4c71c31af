"""What a developer sees of the value of a stage (`--print-after`)."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir

from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.passes import Ingested
from worker.compiler.ir.text import print_graph
from worker.compiler.isa.program import UnitCall
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.judge.programs import Scheduled
from worker.compiler.partition.plan import Partitioning
from worker.compiler.quantize.boundary import Converted


def ingested(found: Ingested) -> str:
    """The model as it was read."""
    return model(found.model)


def model(found: OnnxModel) -> str:
    """One line per input, initializer, node and output; values of initializers are left out."""
    graph = found.ir.graph
    lines = [f"model {found.name} opset {found.opset}"]
    lines += [f"input {_typed(value)}" for value in graph.inputs]
    lines += [f"initializer {_typed(value)}" for value in graph.initializers.values()]
    lines += [_node(node) for node in graph]
    lines += [f"output {_typed(value)}" for value in graph.outputs]
    return _joined(lines)


def converted(found: Converted) -> str:
    """The model, and what changes its number format at the edges of regions."""
    lines = [f"conversion {target}: {c.dtype}" for target, c in sorted(found.conversions.items())]
    lines += [
        f"boundary {b.value} {b.kind} {b.dtype} on {b.target} scale {b.scale} zero {b.zero_point}"
        for b in found.boundaries
    ]
    return model(found.model) + _joined(lines)


def partitioned(found: Partitioning) -> str:
    """Parts in execution order with their nodes, then why every node is where it is."""
    lines: list[str] = []
    for number, part in enumerate(found.parts):
        lines.append(f"part {number} on {part.target}")
        lines.append(f"  reads {', '.join(part.inputs)}")
        lines += [f"  {found.placement[k].op_type} {found.placement[k].node}" for k in part.nodes]
        lines.append(f"  leaves {', '.join(part.outputs)}")
    lines += [f"node {r.node}: {r.target}, {r.reason_code}: {r.reason}" for r in found.placement]
    lines += [f"region at {d.first_node}: {d.action}, {d.sentence}" for d in found.decisions]
    return _joined(lines)


def scheduled(found: Scheduled) -> str:
    """The regions in the algebra, every kernel's schedule, and the order of calls."""
    program = found.program
    lines = [f"program by {found.election.strategy}"]
    lines += [
        f"compared {row.name}: {row.figures.cycles if row.figures else 'no'} cycles; {row.reason}"
        for row in found.election.programs
    ]
    for number, graph in enumerate(program.region_graphs):
        lines += [f"region {number}", print_graph(graph)]
    for unit in program.units:
        lines += [f"kernel {unit.kernel_name}", unit.schedule_text]
    for call in program.linked.program.calls:
        what = program.units[call.unit].kernel_name if isinstance(call, UnitCall) else "host"
        lines.append(f"call {what}: {', '.join(call.onnx_nodes)}")
    return _joined(lines)


def coded(found: CompiledModel) -> str:
    """The kernels as C."""
    return "\n".join(unit.kernel for unit in found.units)


def _node(node: onnx_ir.Node) -> str:
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    outs = ", ".join(_typed(value) for value in node.outputs)
    reads = ", ".join("" if v is None else v.name or "" for v in node.inputs)
    words = (f"{a.name}={_attribute(a)}" for a in node.attributes.values())
    return f"node {node.name}: {outs} = {kind}({reads}) {' '.join(words)}".rstrip()


def _attribute(attribute: onnx_ir.Attr) -> str:
    if attribute.type in (onnx_ir.AttributeType.GRAPH, onnx_ir.AttributeType.GRAPHS):
        return "{graph}"
    if attribute.type in (onnx_ir.AttributeType.TENSOR, onnx_ir.AttributeType.TENSORS):
        return "{tensor}"
    return str(attribute.value).replace("\n", " ")


def _typed(value: onnx_ir.Value) -> str:
    dtype = value.dtype.name if value.dtype is not None else "?"
    return f"{value.name} {dtype}{value.shape if value.shape is not None else '[?]'}"


def _joined(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
