"""Compile the bodies of a model's control-flow nodes, and describe how to run around them.

Generic in what a compiled model is, so that this room need not know the pipeline that calls it.
Source: BYOC section 3.4: control flow stays with the host's executor; the regions inside bodies
are offloaded like all others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import onnx_ir

from worker.compiler.control.bodies import (
    INTERPRETED_TYPES,
    BodyModel,
    Dims,
    extract_body,
    literal,
)
from worker.compiler.control.flow import Body, ControlFlow, ControlKind, Literal, Result
from worker.compiler.control.nodes import (
    KINDS,
    constant_int,
    graphs_of,
    has_graphs,
    operands_of,
    scan_layout,
)
from worker.compiler.control.refusal import refusal
from worker.compiler.control.shapes import extract_bodies, scan_length, static_trips
from worker.compiler.errors import ModelError
from worker.compiler.frontend.edit import constant_of
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.partition.plan import Placement
from worker.compiler.rejection import ReasonCode

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CompiledControl(Generic[T]):
    """One control-flow node and what became of its bodies."""

    node: str
    op_type: str
    flow: ControlFlow | None
    """How the host interprets it; None: ONNX Runtime runs the node whole."""
    bodies: tuple[T | None, ...]
    """Per body: its compiled model; None where nothing of it is offloaded."""
    models: tuple[BodyModel | None, ...]
    """Per body: the stand-alone model; None where it was not taken out."""
    rows: tuple[tuple[tuple[str, str], ...], ...]
    """Per body: (node, operator) of everything inside, nested graphs included, in order."""
    tried: tuple[T | None, ...]
    """Per body: what compiling it gave, kept also where nothing was offloaded: it has the reasons
    of every node inside."""
    reason: str
    """Why it is interpreted, or why ONNX Runtime runs it whole."""


def compile_bodies(
    model: OnnxModel,
    compile_one: Callable[[OnnxModel], T],
    is_offloading: Callable[[T], bool],
) -> tuple[CompiledControl[T], ...]:
    """Every control-flow node of `model`, in order, with its bodies compiled where that pays.

    `compile_one` compiles a stand-alone model by the whole pipeline (nesting is its recursion);
    `is_offloading` says whether anything of the result runs on an accelerator.
    """
    found: list[CompiledControl[T]] = []
    programs = 0
    for node in model.ir.graph:
        if node.domain != "" or not has_graphs(node):
            continue
        control = _compile_node(model, node, compile_one, is_offloading, programs)
        if control.flow is not None:
            programs += sum(body is not None for body in control.bodies)
        found.append(control)
    return tuple(found)


def explained(
    placement: tuple[Placement, ...], controls: tuple[CompiledControl[T], ...]
) -> tuple[Placement, ...]:
    """`placement` with the reason of every control-flow node as found here."""
    reason_of = {c.node: c.reason for c in controls}
    return tuple(
        replace(row, reason_code=ReasonCode.CONTROL_FLOW, reason=reason_of[row.node])
        if row.node in reason_of
        else row
        for row in placement
    )


def whole(controls: tuple[CompiledControl[T], ...], reason: str) -> tuple[CompiledControl[T], ...]:
    """The same nodes, none interpreted."""
    return tuple(
        replace(
            c,
            flow=None,
            reason=reason,
            bodies=(None,) * len(c.bodies),
            models=(None,) * len(c.bodies),
            tried=(None,) * len(c.bodies),
        )
        if c.flow is not None
        else c
        for c in controls
    )


def _compile_node(
    model: OnnxModel,
    node: onnx_ir.Node,
    compile_one: Callable[[OnnxModel], T],
    is_offloading: Callable[[T], bool],
    programs: int,
) -> CompiledControl[T]:
    rows = tuple(_rows(graph) for graph in graphs_of(node))
    nothing = (None,) * len(rows)
    name = node.name or ""

    def stays(reason: str, tried: tuple[T | None, ...] = nothing) -> CompiledControl[T]:
        return CompiledControl(name, node.op_type, None, nothing, nothing, rows, tried, reason)

    reason = refusal(node)
    if reason:
        return stays(reason)
    try:
        bodies: tuple[BodyModel, ...] = extract_bodies(model, node)
        is_whole = (False,) * len(bodies)
    except ModelError as error:
        if KINDS[node.op_type] is not ControlKind.IF:
            return stays(f"the body cannot be compiled alone: {error.message}")
        bodies, is_whole = _branches(model, node)
    if any(d not in INTERPRETED_TYPES for body in bodies for d in body.result_types):
        return stays("the type of a body's result is not one that kernels and host can exchange")
    tried: tuple[T | None, ...] = tuple(
        None if stays_whole or not body.model.ir.graph.outputs else compile_one(body.model)
        for body, stays_whole in zip(bodies, is_whole, strict=True)
    )
    compiled = tuple(made if made is not None and is_offloading(made) else None for made in tried)
    if all(made is None for made in compiled):
        return stays("nothing inside its bodies can be offloaded", tried)
    flow = _flow(node, bodies, [made is not None for made in compiled], programs)
    count = sum(made is not None for made in compiled)
    return CompiledControl(
        name, node.op_type, flow, compiled, bodies, rows, tried,
        f"the host interprets it; {count} of {len(bodies)} bodies run their own program",
    )  # fmt: skip


def _branches(
    model: OnnxModel, node: onnx_ir.Node
) -> tuple[tuple[BodyModel, ...], tuple[bool, ...]]:
    """Branches of an If one by one: one that cannot be simplified stays whole."""
    bodies: list[BodyModel] = []
    is_whole: list[bool] = []
    for graph in graphs_of(node):
        try:
            bodies.append(extract_body(model, graph, ()))
            is_whole.append(False)
        except ModelError:
            bodies.append(extract_body(model, graph, (), is_simplified=False))
            is_whole.append(True)
    return tuple(bodies), tuple(is_whole)


def _rows(graph: onnx_ir.Graph) -> tuple[tuple[str, str], ...]:
    return tuple((node.name or "", node.op_type) for node in graph.all_nodes())


def _flow(
    node: onnx_ir.Node, bodies: tuple[BodyModel, ...], is_compiled: list[bool], programs: int
) -> ControlFlow:
    kind = KINDS[node.op_type]
    operands = operands_of(node)
    described: list[Body] = []
    for body, has_program in zip(bodies, is_compiled, strict=True):
        described.append(_described(body, kind, programs if has_program else None))
        programs += has_program
    flow = ControlFlow(
        kind,
        node.name or "",
        tuple("" if v is None else v.name or "" for v in operands),
        tuple(v.name or "" for v in node.outputs),
        tuple(described),
        _literals(operands),
    )
    match kind:
        case ControlKind.LOOP:
            count = constant_int(operands[0])
            return replace(
                flow, trips=static_trips(node, bodies[0]),
                max_trips=None if count is None else max(count, 0),
            )  # fmt: skip
        case ControlKind.IF:
            condition = constant_int(operands[0])
            return replace(flow, trips=1, branch=None if condition is None else int(condition == 0))
        case ControlKind.SCAN:
            layout = scan_layout(node)
            return replace(
                flow,
                num_sequences=len(layout.input_axes),
                input_axes=layout.input_axes,
                input_reversed=layout.input_reversed,
                output_axes=layout.output_axes,
                output_reversed=layout.output_reversed,
                trips=scan_length(node),
            )


def _literals(operands: tuple[onnx_ir.Value | None, ...]) -> tuple[Literal, ...]:
    found: dict[str, Literal] = {}
    for value in operands:
        tensor = constant_of(value)
        if value is not None and value.name and tensor is not None:
            found[value.name] = literal(value.name, tensor)
    return tuple(found.values())


def _filled(dims: Dims | None, declared: Dims | None) -> tuple[int, ...]:
    """What is certain of a shape, else what the model says; -1 where neither does."""
    if dims is None or declared is None or len(dims) != len(declared):
        dims = dims or declared or ()
        declared = dims
    known = (d if d is not None else said for d, said in zip(dims, declared, strict=True))
    return tuple(-1 if d is None else d for d in known)


def _described(body: BodyModel, kind: ControlKind, program: int | None) -> Body:
    graph = body.model.ir.graph
    results = tuple(
        Result(
            "float32" if dtype is None else str(dtype.numpy()),
            _filled(dims, declared),
        )
        for dtype, dims, declared in zip(
            body.result_types, body.result_dims, body.declared_dims, strict=True
        )
    )
    rank = 0
    if kind is ControlKind.LOOP:
        by_name = {v.name: v for v in graph.inputs}
        ranks = [len(v.shape) for n in body.formal[:2] if (v := by_name.get(n)) and v.shape]
        rank = max(ranks, default=0)
    return Body(
        body.formal,
        body.captured,
        tuple(v.name or "" for v in graph.inputs),
        body.outputs,
        tuple(v.name or "" for v in graph.outputs),
        results,
        body.literals,
        rank,
        program,
    )
