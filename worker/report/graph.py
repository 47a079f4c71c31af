"""graph.json: the simplified model's nodes and edges, for views that must not load ONNX."""

from __future__ import annotations

from worker.compiler.errors import Detail
from worker.compiler.frontend.model_summary import model_summary, node_macs
from worker.compiler.judge.compiled import CompiledModel


def graph_document(compiled: CompiledModel) -> dict[str, Detail]:
    """Give the model's summary and one row per node, in topological order."""
    targets = {row.node: str(row.target) for row in compiled.placement}
    rows: list[Detail] = []
    for node in compiled.model.ir.graph:
        name = node.name or ""
        rows.append(
            {
                "name": name,
                "op_type": node.op_type,
                "inputs": [value.name if value is not None else "" for value in node.inputs],
                "outputs": [value.name for value in node.outputs],
                "macs": node_macs(node),
                "target": targets.get(name),
            }
        )
    return {"schema_version": 1, "summary": model_summary(compiled.model), "nodes": rows}
