"""The documents of a bundle: `manifest.json` and `model/graph.json`, typed.

`model/graph.json` is the first of BYOC's two ways to hand a host graph to a runtime: an ordered
list of calls into separately built code, with operand names; the instruction streams themselves
stay in `program.bin`.
Source: 4-papers.md, BYOC, "code generation and runtime".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TypeVar

import msgspec
import numpy as np

from worker.compiler.errors import Detail
from worker.compiler.ir.dtype import DType
from worker.compiler.isa.program import HostCall, OperandRole, Program, UnitCall
from worker.compiler.package.archive import Written, damaged
from worker.compiler.package.emulator import LevelSpec
from worker.compiler.package.executable import (
    ExecutableModel,
    HomeTensor,
    HostControl,
    HostEntry,
    Port,
)

FORMAT_VERSION = 4
"""FORMATS.md says what each version changed: raise it with every change of a member."""
MANIFEST_NAME = "manifest.json"
GRAPH_NAME = "model/graph.json"
PROGRAM_NAME = "program.bin"
MACHINE_NAME = "hardware.json"
HOST_GRAPH_NAME = "host.onnx"
"""The user's model with a custom node for each region: what an application's runtime loads."""
CONSTANTS_NAME = "regions/constants.safetensors"
"""Constants of the regions' graphs that the program's weights do not hold."""
_MOST_BYTES = 1 << 62
"""Of a value; a larger number only breaks what would allocate it."""

T = TypeVar("T")


class Format(msgspec.Struct, frozen=True):
    """What the manifest of every format says."""

    format_version: int
    toolchain: dict[str, object]


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
    """Which of the user's nodes one kernel serves, and what it is generated from."""

    kernel: str
    file: str
    signature: str
    onnx_nodes: tuple[str, ...]
    schedule: str
    """Its canonical graph and schedule, as text."""
    target: str
    """The accelerator target that runs it: it decides which engines the schedule may name."""


class ImageRow(msgspec.Struct, frozen=True):
    """A region as one serializer wrote it."""

    serializer: str
    version: str
    """Of the serializer."""
    distribution: str
    """Name and version of the package that brought it."""
    format: str
    format_version: int
    member: str
    sha256: str
    size_bytes: int


class RegionFormats(msgspec.Struct, frozen=True):
    """Where the forms of one offloaded region are."""

    program: str
    """Folder of the nested program it belongs to; empty: the model itself."""
    index: int
    """In execution order within its program."""
    target: str
    graph: str
    """JSON graph, for a graph engine."""
    c: str
    """C against the runtime header, for a C toolchain."""
    stream: str
    """Binary instruction stream, for the chip's own loader."""
    function: str
    """Name of its C function."""
    images: tuple[ImageRow, ...] = ()
    """What serializers wrote, the stream first."""
    engine: str = ""
    """What its target runs regions on; empty: the compiled kernels."""

    def image(self, kind: str, versions: Sequence[int]) -> ImageRow | None:
        """What an engine that reads this format can load."""
        readable = (i for i in self.images if i.format == kind and i.format_version in versions)
        return next(readable, None)


class Manifest(msgspec.Struct, frozen=True):
    """What is in the bundle, who made it, for what."""

    format_version: int
    model: str
    toolchain: dict[str, object]
    hardware: Hardware
    members: tuple[MemberDigest, ...]
    """Every other member, in archive order."""
    provenance: tuple[UnitOrigin, ...]
    regions: tuple[RegionFormats, ...] = ()


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


class ControlCall(msgspec.Struct, frozen=True, tag="control"):
    """Interpretation of a control-flow node: `controls` of the document has the details."""

    control: int
    kind: str
    programs: tuple[str, ...]
    """Folders of the nested programs that may run."""
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
    calls: tuple[KernelCall | HostModelCall | ControlCall, ...]
    controls: tuple[HostControl, ...] = ()
    host_entries: tuple[HostEntry, ...] = ()
    """Data entries after the home tensors."""
    targets: tuple[str, ...] = ()
    """By region."""


def graph_name(prefix: str) -> str:
    """Member that holds a program's graph document."""
    return f"{prefix}graph.json" if prefix else GRAPH_NAME


def body_prefix(prefix: str, index: int) -> str:
    """Folder of nested program `index` of the program in folder `prefix`."""
    return f"{prefix}bodies/{index}/"


def num_programs(model: ExecutableModel) -> int:
    """How many nested programs a model has.

    Raises:
        InputError: TW-RUN-001 when their numbers have gaps.
    """
    used = sorted(
        body.program
        for control in model.controls
        for body in control.flow.bodies
        if body.program is not None
    )
    if used != list(range(len(used))):
        raise damaged(f"the nested programs are numbered {used}")
    return len(used)


def host_name(index: int) -> str:
    """Member that holds host sub-model `index`."""
    return f"host/{index:04d}.onnx"


def region_folder(prefix: str, index: int) -> str:
    """Folder of region `index` of the program in folder `prefix`."""
    return f"{prefix}regions/{index}/"


def region_function(prefix: str, index: int) -> str:
    """Name of the C function of a region: unique in the bundle."""
    return f"tw_{prefix.replace('/', '_')}region_{index}"


def region_formats(
    prefix: str, index: int, target: str, images: tuple[ImageRow, ...] = (), engine: str = ""
) -> RegionFormats:
    """The manifest's row of one region."""
    folder = region_folder(prefix, index)
    return RegionFormats(
        prefix, index, target, f"{folder}graph.json", f"{folder}region.c", f"{folder}stream.bin",
        region_function(prefix, index), images, engine,
    )  # fmt: skip


def kernel_file(name: str) -> str:
    """Member that holds a kernel's C text."""
    return f"kernels/{name}.c"


def schedule_file(name: str) -> str:
    """Member that holds a kernel's graph and schedule."""
    return f"schedules/{name}.txt"


def graph_document(model: ExecutableModel, prefix: str = "") -> bytes:
    """`model/graph.json`, or that of the nested program in folder `prefix`."""
    return encode(
        GraphDocument(
            model.name, model.inputs, model.outputs, model.levels, model.program.home_bytes,
            model.kernels, model.tensors, model.constants, _calls(model, prefix), model.controls,
            model.host_entries, model.targets,
        )
    )  # fmt: skip


def _calls(
    model: ExecutableModel, prefix: str
) -> tuple[KernelCall | HostModelCall | ControlCall, ...]:
    """The program's calls as the document lists them."""
    program = model.program
    calls: list[KernelCall | HostModelCall | ControlCall] = []
    control_of = {control.host: k for k, control in enumerate(model.controls)}
    for call in program.calls:
        match call:
            case UnitCall(unit, bindings, nodes, op_type, _, _):
                operands = tuple(
                    Operand(b.tensor, OperandRole(o.role).name.lower(), b.address)
                    for b, o in zip(bindings, program.units[unit].operands, strict=True)
                )
                calls.append(KernelCall(model.kernels[unit], operands, op_type, nodes))
            case HostCall() if call.host in control_of:
                number = control_of[call.host]
                flow = model.controls[number].flow
                programs = tuple(
                    body_prefix(prefix, b.program) for b in flow.bodies if b.program is not None
                )
                calls.append(
                    ControlCall(
                        number, str(flow.kind), programs, call.inputs, call.outputs,
                        call.onnx_nodes,
                    )
                )  # fmt: skip
            case HostCall():
                name = prefix + host_name(call.host)
                calls.append(HostModelCall(name, call.inputs, call.outputs, call.onnx_nodes))
    return tuple(calls)


def executable_of(document: GraphDocument, program: Program, prefix: str = "") -> ExecutableModel:
    """Join the graph document and the decoded program of folder `prefix`.

    Raises:
        InputError: TW-RUN-001 when the two disagree.
    """
    if len(document.kernels) != len(program.units) or document.home_bytes != program.home_bytes:
        raise damaged("model/graph.json and program.bin disagree")
    for tensor in document.tensors:
        if tensor.address < 0 or tensor.address + tensor.size_bytes > program.home_bytes:
            raise damaged(f"tensor {tensor.name} lies outside the home memory")
        if _size_bytes(tensor.dtype, tensor.shape) != tensor.size_bytes:
            raise damaged(f"tensor {tensor.name} has not the bytes of its shape")
    for entry in document.host_entries:
        if entry.shape is not None and _size_bytes(entry.dtype, entry.shape) > _MOST_BYTES:
            raise damaged(f"value {entry.name} is larger than any memory")
    _check_bindings(document, program)
    model = ExecutableModel(
        document.name, document.inputs, document.outputs, document.levels, program,
        document.kernels, document.tensors, document.constants, document.controls,
        document.host_entries, document.targets,
    )  # fmt: skip
    if _calls(model, prefix) != document.calls:
        raise damaged("model/graph.json and program.bin disagree about what is called")
    return model


def _check_bindings(document: GraphDocument, program: Program) -> None:
    """What kernels are called with is where the document has it: inputs are written there.

    Raises:
        InputError: TW-RUN-001, the first call of no unit or part, or operand that is elsewhere.
    """
    tensors = {tensor.name: tensor for tensor in document.tensors}
    if len(tensors) != len(document.tensors) or not tensors.keys() >= set(document.constants):
        raise damaged("model/graph.json names a tensor twice, or weights that are none")
    ports = (*document.inputs, *document.outputs)
    values = {*tensors, *(e.name for e in document.host_entries), *(p.name for p in ports)}
    made = _Made(tensors)
    made.add((*document.constants, *(port.name for port in document.inputs)))
    for call in program.calls:
        if isinstance(call, HostCall):
            if call.host < 0:
                raise damaged(f"program.bin calls host part {call.host}")
            if unknown := {*call.inputs, *call.outputs} - values:
                raise damaged(f"a host part takes or gives {min(unknown)[:100]!r}, which is none")
            made.require(call.inputs)
            made.add(call.outputs)
            continue
        if not 0 <= call.unit < len(program.units):
            raise damaged(f"program.bin calls unit {call.unit} of {len(program.units)}")
        operands = program.units[call.unit].operands
        if len(call.bindings) != len(operands):
            raise damaged(f"program.bin gives unit {call.unit} another number of operands")
        for binding, operand in zip(call.bindings, operands, strict=True):
            tensor = tensors.get(binding.tensor)
            if (
                tensor is None
                or tensor.address != binding.address
                or tensor.size_bytes != operand.size_bytes
            ):
                raise damaged(
                    f"model/graph.json and program.bin disagree about tensor {binding.tensor[:100]}"
                )
        by_role = [(o.role, b.tensor) for b, o in zip(call.bindings, operands, strict=True)]
        takes = (OperandRole.INPUT, OperandRole.CONSTANT)
        made.require([name for role, name in by_role if role in takes])
        made.add(name for role, name in by_role if role is OperandRole.OUTPUT)


class _Made:
    """What the calls so far have made: values by name, and where the home memory was written.

    A tensor may be a part of others, or consist of them, under a name that no call writes.
    """

    def __init__(self, tensors: Mapping[str, HomeTensor]) -> None:
        self._tensors = tensors
        self._names: set[str] = set()
        self._written: list[tuple[int, int]] = []
        """Ranges of addresses."""

    def add(self, names: Iterable[str]) -> None:
        """A call makes these."""
        for name in names:
            tensor = self._tensors.get(name)
            if tensor is not None and name not in self._names:
                self._written.append((tensor.address, tensor.address + tensor.size_bytes))
            self._names.add(name)

    def require(self, names: Iterable[str]) -> None:
        """Check that all are there for a call that reads them.

        Raises:
            InputError: TW-RUN-001.
        Cost: names that no call writes go through everything that was written.
        """
        for name in names:
            if name not in self._names and not self._is_covered(self._tensors.get(name)):
                raise damaged(f"a call reads {name[:100]!r} before it is made")
            self._names.add(name)

    def _is_covered(self, tensor: HomeTensor | None) -> bool:
        if tensor is None:
            return False
        at, end = tensor.address, tensor.address + tensor.size_bytes
        for low, high in sorted(r for r in self._written if r[0] < end and at < r[1]):
            if low > at:
                break
            at = max(at, high)
        return at >= end


def _size_bytes(dtype: str, shape: Sequence[int]) -> int:
    """Of a value.

    Raises:
        InputError: TW-RUN-001, there is no such type or shape.
    """
    if min(shape, default=0) < 0:
        raise damaged(f"a shape has the dimension {min(shape)}")
    try:
        width = DType(dtype).size_bytes if dtype in set(DType) else np.dtype(dtype).itemsize
    except TypeError:
        raise damaged(f"{dtype[:100]!r} is no type") from None
    return width * prod(shape)


def manifest_document(
    model: ExecutableModel,
    toolchain: Mapping[str, Detail],
    hardware: Hardware,
    members: Sequence[Written],
    nested: Sequence[ExecutableModel] = (),
    regions: Sequence[RegionFormats] = (),
) -> bytes:
    """`manifest.json`; `nested` are the models of all nested programs, whose kernels are shared."""
    nodes: dict[str, dict[str, None]] = {}
    signature_of: dict[str, str] = {}
    target_of: dict[str, str] = {}
    for each in (model, *nested):
        for name, unit in zip(each.kernels, each.program.units, strict=True):
            nodes.setdefault(name, {})
            signature_of[name] = unit.signature
        for call in each.program.calls:
            if isinstance(call, UnitCall):
                nodes[each.kernels[call.unit]].update(dict.fromkeys(call.onnx_nodes))
                target_of[each.kernels[call.unit]] = each.target_of(call.region)
    provenance = tuple(
        UnitOrigin(
            name, kernel_file(name), signature_of[name], tuple(served), schedule_file(name),
            target_of.get(name, ""),
        )
        for name, served in nodes.items()
    )  # fmt: skip
    return encode(
        Manifest(
            FORMAT_VERSION, model.name, dict(sorted(toolchain.items())), hardware,
            tuple(MemberDigest(w.name, w.sha256, w.size_bytes) for w in members), provenance,
            tuple(regions),
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
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise damaged(f"{name} is not valid: {error}") from error
