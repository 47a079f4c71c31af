"""A run of layers that hand tensors over in LB, written out as its part of the tree.

Constants first, into the cluster's buffer; then loops over the cores and over each core's turns,
and inside them the layers one after the other, with a place in LB around what they hand over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from worker.compiler.ir.affine import Affine, var
from worker.compiler.schedule.nodes import Box, Loop, LoopKind, Move, Node, Place, Seq, Span
from worker.compiler.strategies.graphturbo.handover_cut import piece_var
from worker.compiler.strategies.graphturbo.handover_plan import RunPlan

if TYPE_CHECKING:
    from worker.compiler.strategies.graphturbo.section_plan import SectionPlan


def fetched(plan: RunPlan, section: SectionPlan) -> tuple[Move, ...]:
    """Constants of the run on their way to the cluster's buffer."""
    return tuple(
        Move(tensor, section.home, section.buffer, _whole(section, tensor))
        for tensor in plan.constants
    )


def around_run(plan: RunPlan, section: SectionPlan, node: Node) -> Node:
    """`node` with places for the run's constants around it."""
    for tensor in reversed(plan.constants):
        node = Place(tensor, section.buffer, _whole(section, tensor), 1, node)
    return node


def emit_run(
    plan: RunPlan, section: SectionPlan, number: Mapping[str, Affine], prefix: str
) -> Node:
    """The run inside of an instance whose number is in `number`.

    Loop variables are `prefix` + r, the run's first layer, and c0, t0, c1, .. per shared dimension.
    """
    binding, name = plan.run.cut.binding, f"{prefix}r{plan.run.first}"
    values = dict(number)
    for k, share in enumerate(binding):
        piece = var(f"{name}c{k}") * share.trips if share.ways > 1 else Affine()
        values[piece_var(k)] = piece + var(f"{name}t{k}") if share.trips > 1 else piece
    node: Node | None = None
    for k in reversed(range(plan.run.first, plan.run.last)):
        tree = plan.layers[k - plan.run.first].tree(section.home, values, f"{prefix}l{k}")
        if node is not None:
            rest = node.parts if isinstance(node, Seq) else (node,)
            tree = Seq((tree, *rest))
        node = tree
        for handed in reversed(plan.handed):
            if handed.first == k:
                own = section.graph.tensors[handed.tensor].dtype
                wide = handed.dtype if handed.dtype is not own else None
                box = tuple(Span(s.start.substitute(values), s.extent) for s in handed.box)
                node = Place(handed.tensor, plan.memory, box, 1, node, wide, handed.init)
    assert node is not None
    for k in reversed(range(len(binding))):
        if binding[k].trips > 1:
            node = Loop(f"{name}t{k}", binding[k].trips, LoopKind.TIME, node)
    stride = 1
    for k in reversed(range(len(binding))):
        if binding[k].ways > 1:
            node = Loop(f"{name}c{k}", binding[k].ways, LoopKind.CORES, node, stride)
            stride *= binding[k].ways
    return node


def _whole(section: SectionPlan, tensor: str) -> Box:
    return tuple(Span(Affine(), size) for size in section.graph.tensors[tensor].shape)
