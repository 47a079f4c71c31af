"""From a CompiledModel to what the bundle writer and the kernel runner need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from worker.compiler.errors import Detail
from worker.compiler.frontend.slice import host_submodel
from worker.compiler.frontend.work import static_shape
from worker.compiler.ir.dtype import DType
from worker.compiler.isa.binary import encode_program
from worker.compiler.isa.program import UnitProgram
from worker.compiler.isa.text import print_program
from worker.compiler.machine import digest
from worker.compiler.package.bundle import BundleContents
from worker.compiler.package.executable import ExecutableModel, HomeTensor, Port, level_specs
from worker.compiler.partition.support import DTYPE_OF_ONNX
from worker.compiler.pipeline import CompiledModel

MAX_LISTED_INSTRUCTIONS = 128
"""Longer units are listed by their first instructions only: program.bin holds them all."""


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
    )


def _ports(compiled: CompiledModel, values: object) -> tuple[Port, ...]:
    ports: list[Port] = []
    for value in values:  # type: ignore[attr-defined]  # onnx_ir's value lists
        dtype = DTYPE_OF_ONNX.get(value.dtype)
        name = str(dtype) if isinstance(dtype, DType) else str(value.dtype.name).lower()
        ports.append(Port(value.name, name, static_shape(value) or ()))
    return tuple(ports)


def host_models(compiled: CompiledModel) -> tuple[bytes, ...]:
    """Standalone ONNX models of the host parts, in call order."""
    nodes = list(compiled.model.ir.graph)
    return tuple(
        host_submodel(compiled.model, [nodes[k] for k in host.nodes], host.inputs, host.outputs)
        for host in compiled.linked.hosts
    )


def program_text(compiled: CompiledModel) -> str:
    """Disassembly of every unit; long ones are cut after their first instructions, with a note."""
    parts: list[str] = []
    for unit in compiled.units:
        count = unit.program.num_instructions
        parts.append(print_program(_head(unit.program)))
        if count > MAX_LISTED_INSTRUCTIONS:
            parts.append(f"# {MAX_LISTED_INSTRUCTIONS} of {count} instructions; see program.bin\n")
    return "\n".join(parts)


def _head(program: UnitProgram) -> UnitProgram:
    """The unit with its first instructions only."""
    count = min(program.num_instructions, MAX_LISTED_INSTRUCTIONS)
    return replace(
        program,
        instructions=program.instructions[:count],
        wait_ptr=program.wait_ptr[: count + 1],
        wait_token=program.wait_token[: program.wait_ptr[count]],
        signal_ptr=program.signal_ptr[: count + 1],
        signal_token=program.signal_token[: program.signal_ptr[count]],
    )


def bundle_contents(
    compiled: CompiledModel,
    toolchain: Mapping[str, Detail],
    schedule_json: bytes,
    report_json: bytes,
    trace_json_gz: bytes,
) -> BundleContents:
    """Everything the bundle is made of; weights stay lazy."""
    return BundleContents(
        executable_model(compiled),
        {unit.kernel_name: unit.kernel for unit in compiled.units},
        compiled.constants,
        host_models(compiled),
        encode_program(compiled.linked.program),
        program_text(compiled),
        schedule_json,
        report_json,
        trace_json_gz,
        toolchain,
        compiled.machine.name,
        digest(compiled.machine),
    )
