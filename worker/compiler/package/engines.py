"""Engines: what executes a region from its bytes, behind entry points.

Built-in is the interpreter of streams; a vendor's package brings its runtime or its simulator, and
a target of a hardware document names the one that its regions run on.
Source: BYOC section 3.4 (engines load, bind and execute a region; figure 6c).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from worker.compiler.errors import CompilerError
from worker.compiler.faults import Fault, attempt
from worker.compiler.plugins import named
from worker.compiler.vendors import KERNELS, EngineDescriptor, engines

Memory: TypeAlias = "Mapping[str, memoryview]"
"""Bytes of tensors by name: row-major, little endian, in their storage types."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Executed:
    """What an engine says of one execution."""

    cycles: int | None = None
    """By its own clock; None: it has none."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """Whatever else it counts, by names of its own."""


class LoadedRegion(Protocol):
    """A region on an engine."""

    def bind(self, memory: Memory) -> None:
        """Take the places of its tensors: inputs and constants are read, outputs written there.

        They stay where they are until the next `bind`.
        """
        ...

    def execute(self) -> None:
        """Run once on what is bound; outputs are there when it returns."""
        ...

    def profile(self) -> Executed:
        """Figures of the last execution."""
        ...


class Engine(Protocol):
    """What loads regions."""

    def load(self, image: bytes) -> LoadedRegion:
        """Make a region ready.  The bytes may be damaged or hostile."""
        ...


OpenEngine: TypeAlias = Callable[[Path], Engine]


def blamed(one: EngineDescriptor, step: str, work: Callable[[], T]) -> T:
    """What `work`, a step of the engine's own code, gives.

    Raises:
        CompilerError: TW-PLUG-003, it raised anything but a refusal of Tilewright's.
    """

    def kept() -> T | CompilerError:
        try:
            return work()
        except CompilerError as error:
            return error

    found = attempt(one.name, one.version, "execute", kept)
    if isinstance(found, CompilerError):
        raise found
    if isinstance(found, Fault):
        raise CompilerError(
            "TW-PLUG-003",
            f"engine {one.name} {one.version} of {one.distribution or 'Tilewright'} failed to"
            f" {step}: {found.reason}",
        )
    return found


class EngineRegion:
    """One region on one engine: loaded once, bound once, executed as often as is asked."""

    def __init__(self, one: EngineDescriptor, engine: Engine, image: bytes) -> None:
        """Raises: as `blamed`."""
        self.descriptor = one
        self._loaded = blamed(one, "load", lambda: engine.load(image))
        self.executed = Executed()
        """Figures of the last execution."""

    def bind(self, memory: Memory) -> None:
        """Raises: as `blamed`."""
        blamed(self.descriptor, "bind", lambda: self._loaded.bind(memory))

    def execute(self) -> None:
        """Raises: as `blamed`."""
        blamed(self.descriptor, "execute", self._loaded.execute)
        found: Any = blamed(self.descriptor, "profile", self._loaded.profile)
        self.executed = blamed(self.descriptor, "profile", lambda: _plain(found))


def require_engine(name: str) -> EngineDescriptor:
    """An installed engine.

    Raises:
        CompilerError: TW-PLUG-001.
    """
    one = engines().get(name)
    if one is None:
        raise CompilerError(
            "TW-PLUG-001",
            f"engine {name}, on which regions are to run, is not installed here",
            limit=[KERNELS, *engines()],
            actual=name,
        )
    return one


class OpenEngines:
    """Engines by name, each opened once."""

    def __init__(self, folder: Path, opened: Mapping[str, Engine] | None = None) -> None:
        """`folder`: where they may keep files; `opened`: those that are open already."""
        self._folder = folder
        self._opened = dict(opened or {})

    def region(self, name: str, image: bytes) -> EngineRegion:
        """A region, loaded.

        Raises:
            CompilerError: TW-PLUG-001, no such engine is installed here; as `blamed`.
        """
        one = require_engine(name)
        if name not in self._opened:
            self._folder.mkdir(parents=True, exist_ok=True)
            opens: OpenEngine = blamed(one, "open", lambda: named(one.implementation))
            self._opened[name] = blamed(one, "open", lambda: opens(self._folder))
        return EngineRegion(one, self._opened[name], image)


def _plain(found: Executed) -> Executed:
    """What an engine says, checked: it is printed and written as JSON.

    Raises:
        TypeError, ValueError: it is none.
    """
    if not isinstance(found, Executed):
        raise TypeError(f"its profile is a {type(found).__name__}, no Executed")
    counters = {str(name): int(value) for name, value in sorted(found.counters.items())}
    return Executed(None if found.cycles is None else int(found.cycles), counters)
