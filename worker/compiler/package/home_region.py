"""A region of a running model on an engine: its tensors stay where they are in the home memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from worker.compiler.errors import CompilerError
from worker.compiler.package.archive import damaged
from worker.compiler.package.engines import EngineRegion, Executed, OpenEngines, require_engine
from worker.compiler.package.executable import ExecutableModel, HomeTensor
from worker.compiler.package.manifest import RegionFormats, decode
from worker.compiler.package.metadata_module import MetadataModule
from worker.compiler.package.region_graph import RegionGraph


@dataclass(frozen=True, slots=True)
class EngineImage:
    """What an engine loads of one region, and what goes in and out."""

    engine: str
    content: bytes
    inputs: tuple[str, ...]
    """Tensors of the home memory."""
    outputs: tuple[str, ...]


def image_of(
    row: RegionFormats, engine: str, read: Callable[[str], bytes], model: ExecutableModel
) -> EngineImage:
    """The image of a bundle's region that an engine reads; `read` gives members of the bundle.

    Raises:
        CompilerError: TW-PLUG-001, the engine is not installed; TW-PLUG-004, it reads none of them.
    """
    descriptor = require_engine(engine)
    image = row.image(descriptor.format, descriptor.format_versions)
    if image is None:
        raise CompilerError(
            "TW-PLUG-004",
            f"engine {engine} reads none of what region {row.index} of target {row.target} was"
            " written in",
            limit=[f"{descriptor.format} {v}" for v in descriptor.format_versions],
            actual=[f"{i.format} {i.format_version}" for i in row.images],
        )
    graph = decode(read(row.graph), RegionGraph, row.graph)
    tensors = {tensor.name for tensor in model.tensors}
    try:
        inputs, outputs = (
            tuple(name for name in (graph.entries[k].name for k in ids) if name in tensors)
            for ids in (graph.inputs, graph.outputs)
        )
    except IndexError:
        raise damaged(f"{row.graph} names an entry that there is not") from None
    return EngineImage(engine, read(image.member), inputs, outputs)


class HomeRegion:
    """One region, bound to the home memory of its program.

    No copies, but of outputs that share storage with an input: the planner reuses what dies inside
    the region, and an engine has an order of its own.
    """

    def __init__(self, image: EngineImage, there: OpenEngines) -> None:
        """Raises: as `OpenEngines.region`."""
        self._region: EngineRegion = there.region(image.engine, image.content)
        self._inputs = image.inputs
        self._outputs = image.outputs
        self._aside: dict[str, bytearray] = {}
        self._is_bound = False

    @property
    def engine(self) -> str:
        """The engine's name."""
        return self._region.descriptor.name

    @property
    def executed(self) -> Executed:
        """Figures of the last execution."""
        return self._region.executed

    def bind(self, model: ExecutableModel, metadata: MetadataModule) -> None:
        """Take the places of the tensors; they never move, so once is enough.

        Raises:
            CompilerError: TW-PLUG-003, the engine failed.
        """
        if self._is_bound:
            return
        tensors = {tensor.name: tensor for tensor in model.tensors}
        inputs = [tensors[name] for name in self._inputs]
        outputs = [tensors[name] for name in self._outputs]
        for tensor in outputs:
            if any(_overlap(tensor, other) for other in inputs):
                self._aside[tensor.name] = bytearray(tensor.size_bytes)
        places = {tensor.name: metadata.place(tensor.name).toreadonly() for tensor in inputs}
        for tensor in outputs:
            aside = self._aside.get(tensor.name)
            places[tensor.name] = (
                metadata.place(tensor.name) if aside is None else memoryview(aside)
            )
        self._region.bind(Places(places, frozenset(model.constants), metadata))
        self._is_bound = True

    def poison(self, metadata: MetadataModule) -> None:
        """Fill what is to be written with bytes that no result looks like."""
        for name in self._outputs:
            place = self._aside.get(name) or metadata.place(name)
            place[:] = b"\xff" * len(place)

    def execute(self) -> None:
        """Run once.

        Raises:
            CompilerError: TW-PLUG-003, the engine failed.
        """
        self._region.execute()

    def hand_over(self, metadata: MetadataModule) -> tuple[str, ...]:
        """Put outputs that were kept aside where they belong; gives the names of all outputs."""
        for name, value in self._aside.items():
            metadata.place(name)[:] = value
        return self._outputs


class Places(Mapping[str, memoryview]):
    """Inputs and outputs of a region, and the constants of its program, which are read-only."""

    def __init__(
        self, ends: Mapping[str, memoryview], constants: frozenset[str], metadata: MetadataModule
    ) -> None:
        self._ends = ends
        self._constants = constants
        self._metadata = metadata

    def __getitem__(self, name: str) -> memoryview:
        if name in self._ends:
            return self._ends[name]
        if name in self._constants:
            return self._metadata.place(name).toreadonly()
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        yield from self._ends
        yield from sorted(self._constants - set(self._ends))

    def __len__(self) -> int:
        return len(self._constants | set(self._ends))


def _overlap(one: HomeTensor, other: HomeTensor) -> bool:
    return (
        one.address < other.address + other.size_bytes
        and other.address < one.address + one.size_bytes
    )
