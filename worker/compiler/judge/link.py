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
from worker.compiler.ir.op import Origin, Tensor
from worker.compiler.isa.program import Binding, HostCall, OperandRole, Program, UnitCall
from worker.compiler.judge.launches import Launches
from worker.compiler.judge.units import Unit
from worker.compiler.machine.machine import Machine
from worker.compiler.memory.memory_map import CallUse, HomeMap, plan_home
from worker.compiler.partition.host_work import host_flops


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """Call of a unit by index, or a view when `unit` is None (names then give src and dst)."""

    unit: int | None
    names: tuple[tuple[str, str], ...]
    """(canonical tensor name, model tensor name)."""
    onnx_nodes: tuple[str, ...]
    op_type: str
    region: int = 0
    target: str = ""
    """Name of the accelerator target that runs it."""
    origins: tuple[Origin, ...] = ()
    """Of the operators of the unit's graph."""


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
    home: HomeMap
    names: tuple[Mapping[str, str], ...]
    """By call of the program: canonical tensor names of its unit -> the model's; none for the
    host's."""
    origins: tuple[tuple[Origin, ...], ...]
    """By call of the program: of the operators of its unit's graph; none for the host's."""


def link(
    model: OnnxModel,
    calls: Sequence[PlannedCall | PlannedHost],
    units: Sequence[Unit],
    graphs: Sequence[Graph],
    machine: Machine,
) -> LinkedModel:
    """Plan the home arena and bind every call.

    Raises:
        Infeasible: the model does not fit the home level.
    Cost: near-linear in calls and tensors.
    """
    tensors: dict[str, Tensor] = {}
    constants: dict[str, None] = {}
    for graph in graphs:
        tensors.update(graph.tensors)
        constants.update(dict.fromkeys(graph.constants))
    used = _touched(model, calls, units, tensors)
    plan = plan_home(
        {name: tensors[name].size_bytes for name in used},
        [name for name in constants if name in used],
        [v.name for v in model.ir.graph.inputs if v.name in used],
        [v.name for v in model.ir.graph.outputs if v.name in used],
        [_use(call, units, used) for call in calls],
        {dst: src for dst, src in map(_view, calls) if dst},
        machine,
    )
    bound: list[UnitCall | HostCall] = []
    hosts: list[PlannedHost] = []
    views: list[View] = []
    names_of: list[Mapping[str, str]] = []
    origins: list[tuple[Origin, ...]] = []
    launches = Launches(machine)
    for call in calls:
        if isinstance(call, PlannedHost):
            bound.append(_host_call(call, len(hosts), model, tensors))
            hosts.append(call)
            launches.host_part()
            names_of.append(MappingProxyType({}))
            origins.append(())
        elif call.unit is None:
            dst, src = _view(call)
            views.append(View(dst, src, call.onnx_nodes))
        else:
            names = dict(call.names)
            names_of.append(MappingProxyType(names))
            origins.append(call.origins)
            bindings = tuple(
                Binding(names[o.tensor], plan.address_of[names[o.tensor]])
                for o in units[call.unit].program.operands
            )
            overhead = launches.kernel(call.target, call.region)
            bound.append(
                UnitCall(call.unit, bindings, call.onnx_nodes, call.op_type, call.region, overhead)
            )
    program = Program(
        tuple(u.program for u in units), tuple(bound), plan.home_bytes, plan.weight_bytes,
        plan.peak_activation_bytes,
    )  # fmt: skip
    stored = sorted((n for n in constants if n in used), key=lambda n: (plan.address_of[n], n))
    return LinkedModel(
        program, tuple(hosts), MappingProxyType({n: tensors[n] for n in used}),
        MappingProxyType(dict(plan.address_of)), tuple(stored), tuple(views), plan,
        tuple(names_of), tuple(origins),
    )  # fmt: skip


def _view(call: PlannedCall | PlannedHost) -> tuple[str, str]:
    """(tensor, source) of a view call; empty names otherwise."""
    if isinstance(call, PlannedHost) or call.unit is not None:
        return "", ""
    names = dict(call.names)
    return names["dst"], names["src"]


def _touched(
    model: OnnxModel,
    calls: Sequence[PlannedCall | PlannedHost],
    units: Sequence[Unit],
    tensors: Mapping[str, Tensor],
) -> dict[str, None]:
    """Tensors that need storage, in order of first use (inputs first).

    A tensor that a unit keeps in its scratchpads only is none of its operands.
    """
    names: dict[str, None] = {}
    for value in model.ir.graph.inputs:
        names.setdefault(value.name or "")
    for call in calls:
        if isinstance(call, PlannedHost):
            names.update(dict.fromkeys((*call.inputs, *call.outputs)))
        elif call.unit is None:
            names.update(dict.fromkeys(name for _, name in call.names))
        else:
            held = {operand.tensor for operand in units[call.unit].program.operands}
            names.update(dict.fromkeys(name for local, name in call.names if local in held))
    return {name: None for name in names if name in tensors}


def _use(
    call: PlannedCall | PlannedHost, units: Sequence[Unit], used: Mapping[str, None]
) -> CallUse:
    if isinstance(call, PlannedHost):
        return CallUse(
            tuple(n for n in call.inputs if n in used),
            tuple(n for n in call.outputs if n in used),
        )
    if call.unit is None:
        dst, src = _view(call)
        return CallUse((src,), (dst,))
    names = dict(call.names)
    operands = units[call.unit].program.operands
    written = (OperandRole.OUTPUT, OperandRole.SCRATCH)
    return CallUse(
        tuple(names[o.tensor] for o in operands if o.role not in written),
        tuple(names[o.tensor] for o in operands if o.role in written),
    )


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
