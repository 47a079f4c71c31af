"""The documents of a bundle: `manifest.json` and `model/graph.json`, typed.

`model/graph.json` is the first of BYOC's two ways to hand a host graph to a runtime: an ordered
list of calls into separately built code, with operand names; the instruction streams themselves
stay in `program.bin`.
Source: 4-papers.md, BYOC, "code generation and runtime".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from worker.compiler.errors import Detail
from worker.compiler.isa.program import HostCall, OperandRole, Program, UnitCall
from worker.compiler.package.archive import Written, damaged
from worker.compiler.package.emulator import LevelSpec
from worker.compiler.package.executable import ExecutableModel, HomeTensor, Port

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
GRAPH_NAME = "model/graph.json"
PROGRAM_NAME = "program.bin"

T = TypeVar("T")


class Hardware(msgspec.Struct, frozen=True):
    """The machine a bundle was compiled for."""

    name: str
    digest: str


class MemberDigest(msgspec.Struct, frozen=True):
    """One line of the table of contents."""

    name: str
    sha256: str
    size_bytes: int


class UnitOrigin(msgspec.Struct, frozen=True):
    """Which of the user's nodes one kernel serves."""

    kernel: str
    file: str
    signature: str
    onnx_nodes: tuple[str, ...]


class Manifest(msgspec.Struct, frozen=True):
    """What is in the bundle, who made it, for what."""

    format_version: int
    model: str
    toolchain: dict[str, object]
    hardware: Hardware
    members: tuple[MemberDigest, ...]
    """Every other member, in archive order."""
    provenance: tuple[UnitOrigin, ...]


class Operand(msgspec.Struct, frozen=True):
    """One operand of a kernel call."""

    tensor: str
    role: str
    address: int


class KernelCall(msgspec.Struct, frozen=True, tag="kernel"):
    """Call of a kernel on whole tensors in the home memory."""

    kernel: str
    operands: tuple[Operand, ...]
    op_type: str
    onnx_nodes: tuple[str, ...]


class HostModelCall(msgspec.Struct, frozen=True, tag="host"):
    """Run of an ONNX sub-model on the host."""

    model: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    onnx_nodes: tuple[str, ...]


class GraphDocument(msgspec.Struct, frozen=True):
    """The model as an ordered list of calls."""

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    levels: tuple[LevelSpec, ...]
    home_bytes: int
    kernels: tuple[str, ...]
    tensors: tuple[HomeTensor, ...]
    constants: tuple[str, ...]
    calls: tuple[KernelCall | HostModelCall, ...]


def host_name(index: int) -> str:
    """Member that holds host sub-model `index`."""
    return f"host/{index:04d}.onnx"


def kernel_file(name: str) -> str:
    """Member that holds a kernel's C text."""
    return f"kernels/{name}.c"


def graph_document(model: ExecutableModel) -> bytes:
    """`model/graph.json`."""
    program = model.program
    calls: list[KernelCall | HostModelCall] = []
    for call in program.calls:
        match call:
            case UnitCall(unit, bindings, nodes, op_type, _, _):
                operands = tuple(
                    Operand(b.tensor, OperandRole(o.role).name.lower(), b.address)
                    for b, o in zip(bindings, program.units[unit].operands, strict=True)
                )
                calls.append(KernelCall(model.kernels[unit], operands, op_type, nodes))
            case HostCall():
                calls.append(
                    HostModelCall(host_name(call.host), call.inputs, call.outputs, call.onnx_nodes)
                )
    return encode(
        GraphDocument(
            model.name, model.inputs, model.outputs, model.levels, program.home_bytes,
            model.kernels, model.tensors, model.constants, tuple(calls),
        )
    )  # fmt: skip


def executable_of(document: GraphDocument, program: Program) -> ExecutableModel:
    """Join the graph document and the decoded program.

    Raises:
        InputError: TW-RUN-001 when the two disagree.
    """
    if len(document.kernels) != len(program.units) or document.home_bytes != program.home_bytes:
        raise damaged("model/graph.json and program.bin disagree")
    for tensor in document.tensors:
        if tensor.address < 0 or tensor.address + tensor.size_bytes > program.home_bytes:
            raise damaged(f"tensor {tensor.name} lies outside the home memory")
    return ExecutableModel(
        document.name, document.inputs, document.outputs, document.levels, program,
        document.kernels, document.tensors, document.constants,
    )  # fmt: skip


def manifest_document(
    model: ExecutableModel,
    toolchain: Mapping[str, Detail],
    hardware: Hardware,
    members: Sequence[Written],
) -> bytes:
    """`manifest.json`."""
    nodes: list[dict[str, None]] = [{} for _ in model.kernels]
    for call in model.program.calls:
        if isinstance(call, UnitCall):
            nodes[call.unit].update(dict.fromkeys(call.onnx_nodes))
    provenance = tuple(
        UnitOrigin(name, kernel_file(name), unit.signature, tuple(served))
        for name, unit, served in zip(model.kernels, model.program.units, nodes, strict=True)
    )
    return encode(
        Manifest(
            FORMAT_VERSION, model.name, dict(sorted(toolchain.items())), hardware,
            tuple(MemberDigest(w.name, w.sha256, w.size_bytes) for w in members), provenance,
        )
    )  # fmt: skip


def encode(value: object) -> bytes:
    """Indented JSON; field order is the declaration order, so equal values give equal bytes."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def decode(data: bytes, kind: type[T], name: str) -> T:
    """Parse one of the documents.

    Raises:
        InputError: TW-RUN-001 when it is not valid.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise damaged(f"{name} is not valid: {error}") from error
