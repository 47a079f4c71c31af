"""From a CompiledModel to what the bundle writer and the kernel runner need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import onnx_ir

from worker.compiler.assembly.regions import packed_regions
from worker.compiler.control.bodies import BodyModel
from worker.compiler.control.flow import ControlFlow
from worker.compiler.errors import Detail, PassContractError
from worker.compiler.frontend.host_graph import RegionNode, host_graph
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.ops.call import DTYPES
from worker.compiler.frontend.passes import require_interface
from worker.compiler.frontend.slice import host_submodel
from worker.compiler.ir.dtype import DType
from worker.compiler.isa.binary import encode_program
from worker.compiler.isa.program import HostCall, OperandRole
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.package.bundle import BundleContents
from worker.compiler.package.executable import (
    ExecutableModel,
    HomeTensor,
    HostControl,
    HostEntry,
    Port,
    ProgramContents,
    level_specs,
)
from worker.compiler.package.manifest import body_prefix
from worker.compiler.package.region_code import EntryRole
from worker.compiler.package.region_members import ProgramRegions
from worker.compiler.package.stream.text import print_unit

MAX_LISTED_INSTRUCTIONS = 128
"""Longer units are listed by their first instructions only: program.bin holds them all."""


@dataclass(frozen=True, slots=True)
class _Interpreted:
    """A control-flow node with its own host part."""

    flow: ControlFlow
    models: tuple[BodyModel | None, ...]

    def whole_branch(self) -> bytes:
        """The model of the branch that ONNX Runtime runs; an interpreted node has at most one."""
        for body, model in zip(self.flow.bodies, self.models, strict=True):
            if body.program is None and body.computes and model is not None:
                nodes = list(model.model.ir.graph)
                return host_submodel(model.model, nodes, body.reads, body.computes)
        return b""


def executable_model(compiled: CompiledModel) -> ExecutableModel:
    """The linked model as the runtime runs it."""
    linked = compiled.linked
    tensors = tuple(
        HomeTensor(name, str(t.dtype), t.shape, linked.address_of[name], t.size_bytes)
        for name, t in linked.tensors.items()
    )
    return ExecutableModel(
        compiled.model.name,
        _ports(compiled, compiled.model.ir.graph.inputs),
        _ports(compiled, compiled.model.ir.graph.outputs),
        level_specs(compiled.machine),
        linked.program,
        tuple(unit.kernel_name for unit in compiled.units),
        tensors,
        linked.constants,
        tuple(HostControl(host, control.flow) for host, control in _interpreted(compiled)),
        _host_entries(compiled),
        tuple(part.target for part in compiled.partitioning.regions),
    )


def _host_entries(compiled: CompiledModel) -> tuple[HostEntry, ...]:
    """Values that live outside the home arena: those that only the host touches."""
    graph = compiled.model.ir.graph
    values = {v.name: v for v in (*graph.inputs, *(v for node in graph for v in node.outputs))}
    names = dict.fromkeys(value.name for value in graph.inputs)
    for call in compiled.linked.program.calls:
        if isinstance(call, HostCall):
            names.update(dict.fromkeys((*call.inputs, *call.outputs)))
    names.update(dict.fromkeys(value.name for value in graph.outputs))
    stored = compiled.linked.tensors
    return tuple(
        _host_entry(compiled.model, values[name])
        for name in names
        if name in values and name not in stored
    )


def _host_entry(model: OnnxModel, value: onnx_ir.Value) -> HostEntry:
    dtype = DTYPES.get(value.dtype) if value.dtype is not None else None
    is_array = isinstance(value.type, onnx_ir.TensorType) and dtype is not None
    if not is_array or value.shape is None or not model.is_static(value):
        return HostEntry(value.name or "", "" if dtype is None else str(dtype), None)
    return HostEntry(value.name or "", str(dtype), tuple(int(d) for d in value.shape.numpy()))


def _interpreted(compiled: CompiledModel) -> list[tuple[int, _Interpreted]]:
    """(host index, control-flow node) of every host part that the host interprets."""
    by_node = {c.node: c for c in compiled.controls}
    found: list[tuple[int, _Interpreted]] = []
    for k, host in enumerate(compiled.linked.hosts):
        control = by_node.get(host.onnx_nodes[0]) if len(host.onnx_nodes) == 1 else None
        if control is not None and control.flow is not None:
            found.append((k, _Interpreted(control.flow, control.models)))
    return found


def _ports(compiled: CompiledModel, values: object) -> tuple[Port, ...]:
    ports: list[Port] = []
    for value in values:  # type: ignore[attr-defined]  # onnx_ir's value lists
        dtype = DTYPES.get(value.dtype)
        name = str(dtype) if isinstance(dtype, DType) else str(value.dtype.name).lower()
        shape = value.shape
        dims = None if shape is None else tuple(d if isinstance(d, int) else -1 for d in shape)
        ports.append(Port(value.name, name, dims))
    return tuple(ports)


def _require_promised(compiled: CompiledModel, model: ExecutableModel) -> None:
    """Check that a bundle's inputs and outputs are the user's, and that a run defines each output.

    Raises:
        PassContractError: TW-INT-003.
    """
    require_interface("package", compiled.interface, compiled.model.ir)
    for role, ports, wanted in (
        ("input", model.inputs, compiled.interface.inputs),
        ("output", model.outputs, compiled.interface.outputs),
    ):
        if [p.name for p in ports] != [p.name for p in wanted]:
            raise PassContractError(
                "package",
                f"the bundle's {role}s are {[p.name for p in ports]}, the model's"
                f" {[p.name for p in wanted]}",
            )
    linked = compiled.linked
    defined = {
        *(p.name for p in model.inputs),
        *linked.constants,
        *(v.tensor for v in linked.views),
    }
    for call in linked.program.calls:
        if isinstance(call, HostCall):
            defined.update(call.outputs)
        else:
            operands = linked.program.units[call.unit].operands
            for operand, binding in zip(operands, call.bindings, strict=True):
                if operand.role is OperandRole.OUTPUT:
                    defined.add(binding.tensor)
    missing = [p.name for p in model.outputs if p.name not in defined]
    if missing:
        raise PassContractError("package", f"no call of the program makes output {missing[0]!r}")


def host_models(compiled: CompiledModel) -> tuple[bytes, ...]:
    """Standalone ONNX models of the host parts, in call order.

    An interpreted node has the model of the branch that runs whole, or none (empty).
    """
    nodes = list(compiled.model.ir.graph)
    interpreted = dict(_interpreted(compiled))
    return tuple(
        interpreted[k].whole_branch()
        if k in interpreted
        else host_submodel(
            compiled.model, [nodes[n] for n in host.nodes], host.inputs, host.outputs
        )
        for k, host in enumerate(compiled.linked.hosts)
    )


def program_contents(compiled: CompiledModel) -> ProgramContents:
    """The model and its nested programs, ready to run; weights stay lazy."""
    bodies = tuple(program_contents(body) for body in nested_models(compiled))
    return ProgramContents(
        executable_model(compiled), host_models(compiled), compiled.constants, bodies
    )


def nested_models(compiled: CompiledModel) -> tuple[CompiledModel, ...]:
    """Compiled bodies of the model's own control flow, by program index."""
    return tuple(
        body
        for control in compiled.controls
        if control.flow is not None
        for body in control.bodies
        if body is not None
    )


def kernel_texts(compiled: CompiledModel) -> dict[str, str]:
    """C text of every kernel, those of nested programs included, by function name."""
    return {unit.kernel_name: unit.kernel for each in programs(compiled) for unit in each.units}


def schedule_texts(compiled: CompiledModel) -> dict[str, str]:
    """Graph and schedule of every kernel as text, by function name."""
    return {
        unit.kernel_name: unit.schedule_text for each in programs(compiled) for unit in each.units
    }


def programs(compiled: CompiledModel) -> Iterator[CompiledModel]:
    """The model and the compiled bodies inside it, outer ones first."""
    yield compiled
    for body in nested_models(compiled):
        yield from programs(body)


def program_text(compiled: CompiledModel) -> str:
    """Disassembly of every unit; long ones are cut after their first instructions, with a note."""
    units = {unit.kernel_name: unit for each in programs(compiled) for unit in each.units}
    return "\n".join(print_unit(u.program, MAX_LISTED_INSTRUCTIONS) for u in units.values())


def _folders(compiled: CompiledModel, prefix: str = "") -> Iterator[tuple[str, CompiledModel]]:
    """(folder in the bundle, program) of the model and its nested programs, outer ones first."""
    yield prefix, compiled
    for k, body in enumerate(nested_models(compiled)):
        yield from _folders(body, body_prefix(prefix, k))


def regions_of(compiled: CompiledModel) -> tuple[ProgramRegions, ...]:
    """The regions of the model and of its nested programs, written by their serializers.

    Raises: as `packed_regions`.
    """
    return tuple(packed_regions(each, prefix) for prefix, each in _folders(compiled))


def bundle_contents(
    compiled: CompiledModel,
    toolchain: Mapping[str, Detail],
    schedule_json: bytes,
    report_json: bytes,
    trace_json_gz: bytes,
    regions: tuple[ProgramRegions, ...] | None = None,
) -> BundleContents:
    """Everything the bundle is made of; weights stay lazy.

    `regions`: what `regions_of` gave; None: it is asked.
    """
    regions = regions_of(compiled) if regions is None else regions
    contents = program_contents(compiled)
    _require_promised(compiled, contents.model)
    return BundleContents(
        contents.model,
        kernel_texts(compiled),
        schedule_texts(compiled),
        contents.constants,
        contents.host_models,
        encode_program(compiled.linked.program),
        program_text(compiled),
        schedule_json,
        report_json,
        trace_json_gz,
        toolchain,
        compiled.machine,
        contents.bodies,
        regions,
        partial(_host_graph, compiled, regions[0]),
    )


def _host_graph(compiled: CompiledModel, regions: ProgramRegions, digest: str) -> bytes:
    """The model with a custom node per region; control flow stays as the user has it."""
    hosts = sorted({k for host in compiled.linked.hosts for k in host.nodes})
    nodes = []
    for region in regions.regions:
        of = {role: tuple(e.name for e in region.code.entries if e.role is role)
              for role in EntryRole}  # fmt: skip
        outputs = of[EntryRole.OUTPUT]
        if outputs:
            nodes.append(RegionNode(region.code.index, of[EntryRole.INPUT], outputs))
    return host_graph(compiled.model, hosts, nodes, digest)
