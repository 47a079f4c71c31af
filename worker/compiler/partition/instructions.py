"""From the composites of a region to its operators: which instruction each may be run by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir

from worker.compiler.cost.compute import contraction
from worker.compiler.frontend.express import Expressed
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import TensorOp
from worker.compiler.machine.machine import Machine
from worker.compiler.partition.plan import Composite, Part


def with_instructions(
    expressed: Expressed, part: Part, nodes: Sequence[onnx_ir.Node], machine: Machine
) -> Expressed:
    """The region with its operators told the instruction of the composite that they belong to.

    Of a composite that a product's instruction runs, the product; of one by an element-wise
    instruction, the last operator.  `nodes` are those of the model that `part` counts in.
    Cost: linear in operators and composites.
    """
    kinds = {i.name: i.op for engine in machine.engines for i in engine.intrinsics}
    composite_of: dict[str, list[int]] = {}
    for number, composite in enumerate(part.composites):
        if composite.intrinsic in kinds:
            for k in composite.nodes:
                composite_of.setdefault(nodes[k].name or "", []).append(number)
    if not composite_of:
        return expressed
    told: dict[str, TensorOp] = {}
    last: dict[int, TensorOp] = {}
    for op in expressed.graph.ops:
        owners = [set(composite_of.get(name, ())) for name in op.origin.nodes]
        shared = set.intersection(*owners) if owners else set()
        for number in sorted(shared):
            name = _instruction(part.composites[number])
            if kinds[name] == "elementwise":
                last[number] = replace(op, instruction=name)
            elif contraction(op) is not None:
                told[op.name] = replace(op, instruction=name)
    told.update((op.name, op) for op in last.values() if contraction(op) is None)
    graph = expressed.graph
    ops = tuple(told.get(op.name, op) for op in graph.ops)
    tensors = tuple(graph.tensors.values())
    return replace(
        expressed, graph=Graph.build(ops, tensors, graph.inputs, graph.outputs, graph.constants)
    )


def _instruction(composite: Composite) -> str:
    assert composite.intrinsic is not None
    return composite.intrinsic
