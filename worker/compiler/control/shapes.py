"""Static shapes through control flow, and the bodies they make possible.

A loop's carried value has a known shape when the body gives back the shape it was given.  That is
a fixed point: start from the initial value's shape, run the body's shape inference, forget every
dimension that changes, repeat until none does.  It holds for any number of trips, zero included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import onnx_ir

from worker.compiler.control.bodies import BodyModel, Dims, Given, extract_body, known_dims
from worker.compiler.control.flow import ControlKind
from worker.compiler.control.nodes import KINDS, constant_int, graphs_of, operands_of, scan_layout
from worker.compiler.control.refusal import refusal
from worker.compiler.errors import ModelError
from worker.compiler.frontend.evaluate_node import FoldBudget
from worker.compiler.frontend.fold import fold_constants
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.passes import run_pass
from worker.compiler.frontend.rules.check import Checker
from worker.compiler.frontend.shapes import is_static
from worker.compiler.frontend.tidy import tidy

_MAX_SWEEPS = 8
"""One sweep more than the longest chain of control-flow nodes whose shapes need each other."""


def extract_bodies(model: OnnxModel, node: onnx_ir.Node) -> tuple[BodyModel, ...]:
    """The bodies of an If, Loop or Scan as simplified models with every shape that is certain.

    The node must be one that `refusal` accepts.

    Raises:
        ModelError: a body cannot be simplified alone (a shape in it has no known reason).
    Cost: linear in the bodies, times one plus the number of carried dimensions that change.
    """
    if KINDS[node.op_type] is ControlKind.IF:
        return tuple(_settled(extract_body(model, g, ())) for g in graphs_of(node))
    (graph,) = graphs_of(node)
    given = list(_given(node))
    first = 1 if node.op_type == "Loop" else 0  # a loop's results begin with the condition
    states = range(2, len(given)) if node.op_type == "Loop" else range(scan_layout(node).num_states)
    while True:
        body = _settled(extract_body(model, graph, given))
        is_stable = True
        for k, slot in enumerate(states):
            dtype, before = given[slot]
            joined = join(before, body.result_dims[first + k])
            if joined != before:
                given[slot] = (dtype, joined)
                is_stable = False
        if is_stable:
            return (body,)


def _settled(body: BodyModel) -> BodyModel:
    """The body with shapes carried through its own control flow."""
    if not any(node.op_type in KINDS for node in body.model.ir.graph):
        return body
    if not settle_shapes(body.model, is_certain=False):
        return body
    shape_of = {v.name: known_dims(v) for v in body.model.ir.graph.outputs}
    dims = tuple(
        shape_of.get(name, old) for name, old in zip(body.outputs, body.result_dims, strict=True)
    )
    return replace(body, result_dims=dims)


def join(first: Dims | None, second: Dims | None) -> Dims | None:
    """What is certain of a value that has either shape."""
    if first is None or second is None or len(first) != len(second):
        return None
    return tuple(a if a == b else None for a, b in zip(first, second, strict=True))


def _given(node: onnx_ir.Node) -> list[Given]:
    """What the first iteration gives the formal inputs of a Loop or Scan."""
    operands = operands_of(node)
    if node.op_type == "Loop":
        given: list[Given] = [
            (onnx_ir.DataType.INT64, _formal_scalar(node, 0)),
            (onnx_ir.DataType.BOOL, _formal_scalar(node, 1)),
        ]
        given += [(_dtype(v), known_dims(v)) for v in operands[2:]]
        return given
    layout = scan_layout(node)
    given = [(_dtype(v), known_dims(v)) for v in operands[: layout.num_states]]
    for value, axis in zip(operands[layout.num_states :], layout.input_axes, strict=True):
        dims = known_dims(value)
        if dims is not None:
            at = axis % len(dims)
            dims = (*dims[:at], *dims[at + 1 :])
        given.append((_dtype(value), dims))
    return given


def _dtype(value: onnx_ir.Value | None) -> onnx_ir.DataType | None:
    return None if value is None else value.dtype


def _formal_scalar(node: onnx_ir.Node, index: int) -> Dims:
    """() or (1,): exporters write both for a loop's counter and condition."""
    (graph,) = graphs_of(node)
    shape = graph.inputs[index].shape
    return (1,) if shape is not None and len(shape) == 1 else ()


def settle_shapes(model: OnnxModel, *, is_certain: bool = True) -> bool:
    """Give outputs of control flow, and all that follows from them, their static shapes.

    Edits a simplified model in place and folds what became constant.  Bodies that cannot be
    understood alone leave their node's outputs as they were.  True when something changed.
    `is_certain` is False for a body, which may never run.

    Raises:
        ModelError: TW-MODEL-021 at a node that is illegal with the shapes now known.

    Cost: one extraction per control-flow node with an open output, and sweep.
    """
    graph = model.ir.graph
    changed = False
    checker = Checker(Limits(), is_certain=is_certain)
    budget = FoldBudget.of(graph)
    folding = partial(fold_constants, opset=model.opset, checker=checker, budget=budget)
    for _ in range(_MAX_SWEEPS):
        found = False
        for node in list(graph):
            if node.op_type in KINDS and not all(is_static(v) for v in node.outputs if v.name):
                found |= _settle_node(model, node)
        if not found:
            return changed
        changed = True
        run_pass("folding", model.ir, folding)
        tidy(model.ir)
    return changed


def _settle_node(model: OnnxModel, node: onnx_ir.Node) -> bool:
    if refusal(node):
        return False
    try:
        shapes = result_dims(node, extract_bodies(model, node))
    except ModelError:
        return False  # its bodies run whole in ONNX Runtime, whatever their shapes
    found = False
    for value, dims in zip(node.outputs, shapes, strict=False):
        if dims is not None and None not in dims and not is_static(value):
            value.shape = onnx_ir.Shape(dims)
            found = True
    return found


def result_dims(node: onnx_ir.Node, bodies: Sequence[BodyModel]) -> list[Dims | None]:
    """Shapes of the node's outputs, from its bodies at their fixed point."""
    results = [body.result_dims for body in bodies]
    if node.op_type == "If":
        return [join(a, b) for a, b in zip(*results, strict=True)]
    if node.op_type == "Loop":
        initial = [known_dims(v) for v in operands_of(node)[2:]]
        num_states = len(initial)
        carried = results[0][1 : 1 + num_states]
        shapes = [join(a, b) for a, b in zip(initial, carried, strict=True)]
        length = static_trips(node, bodies[0])
        return shapes + [_stacked(d, length, 0) for d in results[0][1 + num_states :]]
    layout = scan_layout(node)
    shapes = [
        join(known_dims(v), d)
        for v, d in zip(operands_of(node), results[0][: layout.num_states], strict=False)
    ]
    length = scan_length(node)
    return shapes + [
        _stacked(d, length, axis)
        for d, axis in zip(results[0][layout.num_states :], layout.output_axes, strict=True)
    ]


def _stacked(dims: Dims | None, length: int | None, axis: int) -> Dims | None:
    if dims is None:
        return None
    at = axis % (len(dims) + 1)
    return (*dims[:at], length, *dims[at:])


def static_trips(node: onnx_ir.Node, body: BodyModel) -> int | None:
    """Iterations of a Loop when neither its count nor its condition depends on data."""
    operands = operands_of(node)
    condition = constant_int(operands[1])
    if operands[1] is not None and condition is None:
        return None
    if condition == 0:
        return 0
    count = constant_int(operands[0])
    if count is None:
        return None
    if count <= 0:
        return 0
    goes_on = body.outputs[0] == body.formal[1] or any(
        entry.name == body.outputs[0] and any(entry.content) for entry in body.literals
    )
    if goes_on:
        return count
    stops = any(entry.name == body.outputs[0] for entry in body.literals)
    return 1 if stops else None


def scan_length(node: onnx_ir.Node) -> int | None:
    """Iterations of a Scan when a sequence's length is known."""
    layout = scan_layout(node)
    sequences = operands_of(node)[layout.num_states :]
    for value, axis in zip(sequences, layout.input_axes, strict=True):
        dims = known_dims(value)
        if dims is not None and dims[axis % len(dims)] is not None:
            return dims[axis % len(dims)]
    return None
