"""Link units and host parts into one program: bind every call's operands to home addresses.

In: calls in execution order, with tensor names.  Out: a Program (isa) plus the tables that the
runtime and the reports need.  Views (reshapes) share their source's storage.  A tensor gets storage
in the home level only when some unit touches it; values that pass between host parts stay there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import onnx_ir

from worker.compiler.frontend.model import OnnxModel
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Tensor
from worker.compiler.isa.program import Binding, HostCall, Program, UnitCall
from worker.compiler.lower.memory_map import HomePlan, HomeRequest, plan_home
from worker.compiler.partition.host_work import host_flops
from worker.compiler.units import Unit


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """Call of a unit by index, or a view when `unit` is None (names then give src and dst)."""

    unit: int | None
    names: tuple[tuple[str, str], ...]
    """(canonical tensor name, model tensor name)."""
    onnx_nodes: tuple[str, ...]
    op_type: str


@dataclass(frozen=True, slots=True)
class PlannedHost:
    """A host part; `nodes` are positions in the model."""

    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    onnx_nodes: tuple[str, ...]
    op_types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class View:
    """A tensor that lives in another's storage."""

    tensor: str
    source: str
    onnx_nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LinkedModel:
    """The program and what surrounds it."""

    program: Program
    hosts: tuple[PlannedHost, ...]
    """Parallel to the `host` index of HostCalls."""
    tensors: Mapping[str, Tensor]
    """Every tensor with storage in the home level."""
    address_of: Mapping[str, int]
    constants: tuple[str, ...]
    """Names of the constants with storage, in address order."""
    views: tuple[View, ...]
    home: HomePlan


def link(
    model: OnnxModel,
    calls: Sequence[PlannedCall | PlannedHost],
    units: Sequence[Unit],
    graphs: Sequence[Graph],
) -> LinkedModel:
    """Plan the home arena and bind every call.  Cost: near-linear in calls and tensors."""
    tensors: dict[str, Tensor] = {}
    constants: dict[str, None] = {}
    for graph in graphs:
        tensors.update(graph.tensors)
        constants.update(dict.fromkeys(graph.constants))
    root = _view_roots(calls)
    span = _live_spans(model, calls, constants, root, tensors)
    requests = tuple(
        HomeRequest(name, tensors[name].size_bytes, first, last, name in constants)
        for name, (first, last) in span.items()
    )
    plan = plan_home(requests)
    address_of = {
        name: plan.address_of[root.get(name, name)]
        for name in tensors
        if root.get(name, name) in plan.address_of
    }
    bound: list[UnitCall | HostCall] = []
    hosts: list[PlannedHost] = []
    views: list[View] = []
    for call in calls:
        if isinstance(call, PlannedHost):
            bound.append(_host_call(call, len(hosts), model, tensors))
            hosts.append(call)
        elif call.unit is None:
            names = dict(call.names)
            views.append(View(names["dst"], names["src"], call.onnx_nodes))
        else:
            names = dict(call.names)
            bindings = tuple(
                Binding(names[o.tensor], address_of[names[o.tensor]])
                for o in units[call.unit].program.operands
            )
            bound.append(UnitCall(call.unit, bindings, call.onnx_nodes, call.op_type))
    program = Program(
        tuple(u.program for u in units), tuple(bound), plan.total_bytes, plan.weight_bytes,
        plan.peak_activation_bytes,
    )  # fmt: skip
    stored = sorted((n for n in constants if n in address_of), key=lambda n: (address_of[n], n))
    return LinkedModel(
        program, tuple(hosts), MappingProxyType(tensors), MappingProxyType(address_of),
        tuple(stored), tuple(views), plan,
    )  # fmt: skip


def _view_roots(calls: Sequence[PlannedCall | PlannedHost]) -> dict[str, str]:
    """For each viewed tensor, the tensor whose storage it shares."""
    root: dict[str, str] = {}
    for call in calls:
        if isinstance(call, PlannedCall) and call.unit is None:
            names = dict(call.names)
            root[names["dst"]] = root.get(names["src"], names["src"])
    return root


def _live_spans(
    model: OnnxModel,
    calls: Sequence[PlannedCall | PlannedHost],
    constants: Mapping[str, None],
    root: Mapping[str, str],
    tensors: Mapping[str, Tensor],
) -> dict[str, tuple[int, int]]:
    """(first, last) call index during which each root tensor must keep its storage.

    Graph inputs live from -1, graph outputs until the end, constants always.
    """
    end = len(calls)
    span: dict[str, tuple[int, int]] = {}

    def touch(name: str, when: int) -> None:
        if name not in tensors:
            return
        owner = root.get(name, name)
        first, last = span.get(owner, (when, when))
        span[owner] = (min(first, when), max(last, when))

    for value in model.ir.graph.inputs:
        touch(value.name or "", -1)
    for when, call in enumerate(calls):
        names = (
            [*call.inputs, *call.outputs]
            if isinstance(call, PlannedHost)
            else [name for _, name in call.names]
        )
        for name in names:
            touch(name, when)
    for value in model.ir.graph.outputs:
        touch(value.name or "", end)
    for name in constants:
        if root.get(name, name) in span:
            span[root.get(name, name)] = (-1, end)
    return span


def _host_call(
    host: PlannedHost, index: int, model: OnnxModel, tensors: Mapping[str, Tensor]
) -> HostCall:
    nodes = list(model.ir.graph)
    chosen: list[onnx_ir.Node] = [nodes[k] for k in host.nodes]
    flops, memory_bytes = host_flops(chosen)
    return HostCall(
        index,
        host.inputs,
        host.outputs,
        sum(tensors[n].size_bytes for n in host.inputs if n in tensors),
        sum(tensors[n].size_bytes for n in host.outputs if n in tensors),
        flops,
        memory_bytes,
        host.onnx_nodes,
        host.op_types,
    )
