"""What a library says of its bundle: storages, regions, and the parts that a session can run.

Everything comes from the documents of the bundle and is checked against each other: the streams
give regions their entries, `model/graph.json` and `program.bin` where tensors lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from worker.compiler.ir.dtype import DType
from worker.compiler.isa.program import HostCall, UnitCall
from worker.compiler.package.archive import damaged
from worker.compiler.package.emulator import LevelPlan, LevelSpec, plan_levels
from worker.compiler.package.executable import ExecutableModel, HomeTensor
from worker.compiler.package.manifest import region_function
from worker.compiler.package.region_code import EntryRole, RegionCode

WHOLE_MODEL = -1


@dataclass(frozen=True, slots=True)
class LibraryValue:
    """An input or output of a part."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    tensor: int | None
    """Position of its tensor; None: no kernel reads it."""
    is_direct: bool
    """Its storage is where it is bound; otherwise an output is copied there."""


@dataclass(frozen=True, slots=True)
class LibraryPart:
    """What one session runs: the whole model, or one region."""

    regions: range
    inputs: tuple[LibraryValue, ...]
    outputs: tuple[LibraryValue, ...]
    refusal: str | None = None
    """Why the library alone cannot run it."""


@dataclass(frozen=True, slots=True)
class LibraryModel:
    """One bundle as the tables have it."""

    name: str
    digest: str
    tensors: tuple[HomeTensor, ...]
    constants: frozenset[int]
    """Positions of the tensors that lie in the weights, at their home addresses."""
    roots: tuple[int, ...]
    """By tensor: the one whose storage it has."""
    regions: tuple[RegionCode, ...]
    entries: tuple[tuple[int, ...], ...]
    """By region: positions of its entries' tensors."""
    parts: tuple[LibraryPart, ...]
    """The whole model, then its regions."""
    levels: tuple[LevelSpec, ...]
    plans: tuple[LevelPlan, ...]

    @property
    def weight_bytes(self) -> int:
        """End of the last constant."""
        ends = (self.tensors[k].address + self.tensors[k].size_bytes for k in self.constants)
        return max(ends, default=0)


def library_model(
    model: ExecutableModel, digest: str, regions: Sequence[RegionCode]
) -> LibraryModel:
    """Put the tables of a bundle's own program together; `regions` in order.

    Raises:
        InputError: TW-RUN-001, a stream and the other documents disagree.
    Cost: linear in tensors, entries and calls.
    """
    number = {tensor.name: k for k, tensor in enumerate(model.tensors)}
    roots = list(range(len(model.tensors)))
    entries = []
    for index, code in enumerate(regions):
        _check(index, code, model, number)
        entries.append(tuple(number[entry.name] for entry in code.entries))
        for entry in code.entries:
            if entry.alias_of is not None:
                roots[number[entry.name]] = number[code.entries[entry.alias_of].name]
    for k in range(len(roots)):
        roots[k] = _root(roots, k, model)
    constants = frozenset(number[name] for name in model.constants)
    units = [
        model.program.units[call.unit] for call in model.program.calls if isinstance(call, UnitCall)
    ]
    parts = [_whole(model, number, roots, constants, len(regions))]
    for index, code in enumerate(regions):
        of = {role: [e.name for e in code.entries if e.role is role] for role in EntryRole}
        inputs, outputs = _values(
            [_Named(n, model.tensors[number[n]]) for n in of[EntryRole.INPUT]],
            [_Named(n, model.tensors[number[n]]) for n in of[EntryRole.OUTPUT]],
            number, roots, constants,
        )  # fmt: skip
        parts.append(LibraryPart(range(index, index + 1), inputs, outputs))
    return LibraryModel(
        model.name, digest, model.tensors, constants, tuple(roots), tuple(regions), tuple(entries),
        tuple(parts), model.levels, plan_levels(model.levels, units),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Named:
    """A value of a part before it has a place."""

    name: str
    like: HomeTensor | LibraryValue


def _check(index: int, code: RegionCode, model: ExecutableModel, number: Mapping[str, int]) -> None:
    """A region's stream says what graph.json and program.bin say.

    Raises:
        InputError: TW-RUN-001.
    """
    if code.index != index or code.function != region_function("", index):
        raise damaged(f"the stream of region {index} is of {code.function[:100]!r}")
    constants = set(model.constants)
    for entry in code.entries:
        tensor = model.tensors[number[entry.name]] if entry.name in number else None
        said = (entry.dtype, entry.shape, entry.address, entry.size_bytes)
        if tensor is None or said != (
            tensor.dtype, tensor.shape, tensor.address, tensor.size_bytes
        ):  # fmt: skip
            raise damaged(f"region {index} has another tensor {entry.name[:100]!r} than the model")
        if (entry.role is EntryRole.CONSTANT) != (entry.name in constants):
            raise damaged(f"region {index} and the model disagree whether {entry.name[:100]!r} is"
                          " a weight")  # fmt: skip
    made = [
        (model.kernels[call.unit], tuple(binding.tensor for binding in call.bindings))
        for call in model.program.calls
        if isinstance(call, UnitCall) and call.region == index
    ]
    told = [
        (code.kernels[call.unit], tuple(code.entries[k].name for k in call.entries))
        for call in code.calls
    ]
    if made != told:
        raise damaged(f"the stream of region {index} makes other calls than program.bin")


def _root(roots: Sequence[int], start: int, model: ExecutableModel) -> int:
    """The tensor at the end of a chain of views.

    Raises:
        InputError: TW-RUN-001, the chain has no end, or leads to another address.
    """
    found = start
    for _ in range(len(roots)):
        if roots[found] == found:
            break
        found = roots[found]
    if roots[found] != found or model.tensors[found].address != model.tensors[start].address:
        raise damaged(f"tensor {model.tensors[start].name[:100]!r} is a view of no other")
    return found


def _whole(
    model: ExecutableModel,
    number: Mapping[str, int],
    roots: Sequence[int],
    constants: frozenset[int],
    num_regions: int,
) -> LibraryPart:
    refusal = _refusal(model, number, num_regions)
    if refusal is not None:
        return LibraryPart(range(0), (), (), refusal)
    sides = []
    for ports in (model.inputs, model.outputs):
        side = []
        for port in ports:
            value = LibraryValue(port.name, DType(port.dtype), port.shape or (), None, False)
            tensor = model.tensors[number[port.name]] if port.name in number else None
            side.append(_Named(port.name, tensor or value))
        sides.append(side)
    inputs, outputs = _values(sides[0], sides[1], number, roots, constants)
    return LibraryPart(range(num_regions), inputs, outputs)


def _refusal(model: ExecutableModel, number: Mapping[str, int], num_regions: int) -> str | None:
    """Why the library alone cannot run the model."""
    hosts = sum(isinstance(call, HostCall) for call in model.program.calls)
    if hosts or not num_regions:
        return (
            f"{hosts} parts of the model run on the host: run host.onnx in ONNX Runtime with this"
            " library, or its regions one by one"
        )
    order = [call.region for call in model.program.calls if isinstance(call, UnitCall)]
    if any(a > b for a, b in pairwise(order)):
        return "the regions of the model take turns: run host.onnx in ONNX Runtime"
    for port in model.outputs:
        if port.name not in number:
            return "an output is made by no kernel: run host.onnx in ONNX Runtime"
    for port in model.inputs:
        if port.shape is None or min(port.shape, default=0) < 0 or port.dtype not in set(DType):
            return "an input has no type or size of its own: run host.onnx in ONNX Runtime"
    return None


def _values(
    inputs: Sequence[_Named],
    outputs: Sequence[_Named],
    number: Mapping[str, int],
    roots: Sequence[int],
    constants: frozenset[int],
) -> tuple[tuple[LibraryValue, ...], tuple[LibraryValue, ...]]:
    """Give values their tensors; of those with one storage the first, inputs before outputs, lends
    it its memory."""
    taken = {roots[k] for k in constants}

    def placed(named: _Named) -> LibraryValue:
        tensor = number.get(named.name)
        is_direct = tensor is not None and roots[tensor] not in taken
        if tensor is not None and is_direct:
            taken.add(roots[tensor])
        dtype = DType(named.like.dtype)
        return LibraryValue(named.name, dtype, named.like.shape, tensor, is_direct)

    return tuple(map(placed, inputs)), tuple(map(placed, outputs))
