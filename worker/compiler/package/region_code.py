"""A region as code: its data entries, the kernels it uses, and the calls in order.

The values behind two code formats, the C function and the binary stream.  Entries get their ids
here: inputs, constants, intermediates that pass through the home memory, outputs.
Source: BYOC sections 3.3 and 3.4 (data entries with ids assigned during compilation).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from worker.compiler.codegen.region_driver import Driver, DriverCall
from worker.compiler.errors import InternalError
from worker.compiler.ir.graph import Graph
from worker.compiler.isa.program import Program, UnitCall, UnitProgram
from worker.compiler.machine.machine import Machine
from worker.compiler.package.emulator import LevelSpec
from worker.compiler.package.executable import HomeTensor, level_specs
from worker.compiler.package.unit_tasks import UnitTasks


class EntryRole(IntEnum):
    """What a data entry is to its region."""

    INPUT = 0
    CONSTANT = 1
    INTERMEDIATE = 2
    OUTPUT = 3


@dataclass(frozen=True, slots=True)
class DataEntry:
    """One tensor in the home memory; its position in the table is its id."""

    name: str
    role: EntryRole
    dtype: str
    shape: tuple[int, ...]
    address: int
    """In the home arena of the program the region belongs to."""
    size_bytes: int
    alias_of: int | None = None
    """Entry whose storage it must share: a view of it."""
    sha256: str | None = None
    """Of a constant's bytes, row-major and little endian, as `weights.safetensors` holds them."""


@dataclass(frozen=True, slots=True)
class RegionCall:
    """One kernel call."""

    unit: int
    """Index into the region's units."""
    entries: tuple[int, ...]
    """Parallel to the unit's operands."""
    launch_cycles: int
    op_type: str
    onnx_nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RegionCode:
    """One offloaded region, ready to be written as C or as a stream."""

    index: int
    """Number of the region in its program, in execution order."""
    target: str
    function: str
    """Name of its C function."""
    entries: tuple[DataEntry, ...]
    units: tuple[UnitProgram, ...]
    kernels: tuple[str, ...]
    """Function names, parallel to `units`."""
    calls: tuple[RegionCall, ...]
    tasks: tuple[UnitTasks, ...]
    """What the leaves of each unit do, parallel to `units`."""
    levels: tuple[LevelSpec, ...]
    """Memories, home first."""
    cores: int


def region_code(
    index: int,
    target: str,
    function: str,
    graph: Graph,
    program: Program,
    kernels: Sequence[str],
    tensors: Mapping[str, HomeTensor],
    views: Sequence[tuple[str, str]],
    tasks_of: Callable[[int], UnitTasks],
    digest_of: Callable[[str], str],
    machine: Machine,
) -> RegionCode:
    """Collect region `index` of a linked program.

    `graph` is the region in the algebra, `kernels` are parallel to `program.units`, `tensors` those
    with storage by name, `views` pairs (tensor, source) of the program.  `tasks_of` a unit by its
    number, `digest_of` a constant by its name, `machine`: the target's.

    Raises:
        InternalError: a call touches a tensor without storage.
    Cost: linear in the program's calls and views.
    """
    calls = [c for c in program.calls if isinstance(c, UnitCall) and c.region == index]
    source_of = {tensor: source for tensor, source in views if tensor in graph.tensors}
    entries = tuple(
        replace(entry, sha256=digest_of(entry.name)) if entry.role is EntryRole.CONSTANT else entry
        for entry in _entries(graph, calls, tensors, source_of)
    )
    id_of = {entry.name: k for k, entry in enumerate(entries)}
    numbers: dict[int, int] = {}
    coded: list[RegionCall] = []
    for call in calls:
        unit = numbers.setdefault(call.unit, len(numbers))
        ids = tuple(id_of[binding.tensor] for binding in call.bindings)
        coded.append(RegionCall(unit, ids, call.launch_cycles, call.op_type, call.onnx_nodes))
    return RegionCode(
        index,
        target,
        function,
        entries,
        tuple(program.units[k] for k in numbers),
        tuple(kernels[k] for k in numbers),
        tuple(coded),
        tuple(tasks_of(k) for k in numbers),
        level_specs(machine),
        machine.num_cores,
    )


def _entries(
    graph: Graph,
    calls: Sequence[UnitCall],
    tensors: Mapping[str, HomeTensor],
    source_of: Mapping[str, str],
) -> tuple[DataEntry, ...]:
    touched: dict[str, None] = {}
    for call in calls:
        touched.update(dict.fromkeys(binding.tensor for binding in call.bindings))
    for tensor, source in source_of.items():
        touched.update({source: None, tensor: None})
    homeless = [name for name in touched if name not in tensors]
    if homeless:
        raise InternalError(
            "TW-INT-001", f"{homeless[0]} is touched and has no storage", stage="package"
        )
    outside = {*graph.inputs, *graph.constants, *graph.outputs}
    roles: dict[str, EntryRole] = {n: EntryRole.INPUT for n in graph.inputs if n in tensors}
    roles |= {n: EntryRole.CONSTANT for n in graph.constants if n in touched}
    roles |= {n: EntryRole.INTERMEDIATE for n in touched if n not in outside}
    for name in graph.outputs:
        if name in tensors:
            roles.setdefault(name, EntryRole.OUTPUT)
    id_of = {name: k for k, name in enumerate(roles)}
    found: list[DataEntry] = []
    for name, role in roles.items():
        stored, source = tensors[name], name
        while source in source_of:
            source = source_of[source]
        found.append(
            DataEntry(
                name, role, stored.dtype, stored.shape, stored.address, stored.size_bytes,
                None if source == name else id_of[source],
            )
        )  # fmt: skip
    return tuple(found)


def driver_of(code: RegionCode) -> Driver:
    """The region as its C function sees it."""
    entries: list[str] = []
    for entry in code.entries:
        alias = "" if entry.alias_of is None else f", shares the storage of {entry.alias_of}"
        entries.append(
            f"{entry.role.name.lower()} {entry.dtype}{list(entry.shape)}{alias}: {entry.name}"
        )
    calls = tuple(
        DriverCall(code.kernels[call.unit], call.entries, call.onnx_nodes) for call in code.calls
    )
    return Driver(code.function, code.target, tuple(entries), calls)
