"""What a compile is given from outside, and what it gives to all later stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy.typing as npt

from worker.compiler.cache import Cache, CacheEvent
from worker.compiler.control.compile import CompiledControl
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.passes import Interface
from worker.compiler.ir.graph import Graph
from worker.compiler.isa.program import UnitCall
from worker.compiler.judge.figures import Figures
from worker.compiler.judge.link import LinkedModel
from worker.compiler.judge.solve import Counter, HandedOver
from worker.compiler.judge.units import Unit
from worker.compiler.layout.change import LayoutChange
from worker.compiler.machine.machine import Conversion, Machine
from worker.compiler.options import CompileOptions
from worker.compiler.partition.plan import Partitioning, Placement, RegionRule
from worker.compiler.quantize.boundary import NOT_QUANTISED, Boundary, Quantised
from worker.compiler.stages import StageSink
from worker.compiler.strategies.sections import UnitNotes

Samples: TypeAlias = "Callable[[OnnxModel], Sequence[Mapping[str, npt.NDArray[Any]]]]"


class Progress(Counter, StageSink, Protocol):
    """What a compile tells its caller while it works."""


@dataclass(frozen=True, slots=True)
class Ports:
    """What the pure compiler is given from outside."""

    cache: Cache
    progress: Progress
    samples: Samples
    """Calibration inputs of a model; asked only when something must be quantised."""
    figures: Callable[[Unit], Figures]
    """Simulates one kernel: decides between candidates, and about automatic partitioning."""
    whole: Callable[[CompiledModel], Figures]
    """Simulates a whole program: decides between strategies."""
    simulator: str
    """Version of what gives the figures."""
    is_helping: bool = False
    """Whether candidates are solved from the last to the first, so that another compile of the same
    model, which comes from the other end, finds them in the cache."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program that stood for election."""

    name: str
    kernels: int
    figures: Figures | None
    """None: it could not be made."""
    reason: str
    """Why it was chosen, or was not."""
    rules: tuple[RegionRule, ...] = ()
    """By which its regions were chosen: several, where they end in the same program."""
    regions: int = 0
    """Of the accelerator, those of nested programs not counted."""


@dataclass(frozen=True, slots=True)
class CompiledModel:
    """Everything later stages need about one compiled model."""

    model: OnnxModel
    """As compiled: with the conversions that were inserted."""
    machine: Machine
    strategy: str
    """What the program was put together by: a strategy, or a mixture of all."""
    partitioning: Partitioning
    units: tuple[Unit, ...]
    linked: LinkedModel
    region_graphs: tuple[Graph, ...]
    """The regions in the algebra, in execution order."""
    constants: Mapping[str, Callable[[], npt.NDArray[Any]]]
    """Values of the constants units read, by name."""
    cache_events: tuple[CacheEvent, ...]
    warnings: tuple[tuple[str, str], ...]
    """(code, message)."""
    conversions: Mapping[str, Conversion]
    """What was converted for which target."""
    boundaries: tuple[Boundary, ...]
    layouts: tuple[tuple[int, LayoutChange], ...]
    """(region, change)."""
    source: OnnxModel
    """Simplified, before any conversion: the user's model."""
    interface: Interface
    """Of the user's file: what every later form of the model keeps."""
    controls: tuple[CompiledControl[CompiledModel], ...] = ()
    """Control-flow nodes, in model order, with their compiled bodies."""
    summaries: tuple[UnitNotes, ...] = ()
    """What strategies left at its units, for the summaries of reports."""
    handed: tuple[HandedOver, ...] = ()
    """Operators whose kernels are not their groups' own strategy's."""
    quantised: Quantised = NOT_QUANTISED
    """How the model's integers came about."""
    programs: tuple[Program, ...] = ()
    """Every program that was compared, the chosen one first; empty where there was one."""

    @property
    def placement(self) -> tuple[Placement, ...]:
        """A row for every node, in model order."""
        return self.partitioning.placement

    @property
    def made_by(self) -> str:
        """The strategies whose kernels it has."""
        return " + ".join(dict.fromkeys(unit.schedule.strategy for unit in self.units)) or "host"

    @property
    def num_kernels(self) -> int:
        """Calls of kernels, those of nested programs not counted."""
        return sum(isinstance(call, UnitCall) for call in self.linked.program.calls)

    @property
    def home_bytes(self) -> int:
        """Of the home arenas of the model and of every program nested in it."""
        bodies = [body for control in self.controls for body in control.bodies]
        return self.linked.program.home_bytes + sum(b.home_bytes for b in bodies if b is not None)

    @property
    def is_offloading(self) -> bool:
        """Whether any kernel runs, here or in a nested program."""
        return bool(self.units) or any(control.flow for control in self.controls)


@dataclass(frozen=True, slots=True)
class Compile:
    """What every stage of one compile may ask for."""

    path: Path
    """An .onnx file, or a .zip with external data; what the machine defines is in it."""
    name: str
    machine: Machine
    options: CompileOptions
    ports: Ports
    limits: Limits
    user_file: Path
    """`path`, or what it was made from: reports name its digest."""
