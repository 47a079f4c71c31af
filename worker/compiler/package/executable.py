"""What it takes to run a compiled model, as a value: tensors, addresses, calls in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy.typing as npt

from worker.compiler.control.flow import ControlFlow
from worker.compiler.isa.program import Program
from worker.compiler.machine.machine import Machine
from worker.compiler.package.emulator import LevelSpec

Array: TypeAlias = "npt.NDArray[Any]"
Constants: TypeAlias = "Mapping[str, Callable[[], Array]]"
"""Values by name, made when asked for, so that weights need not all be in memory."""


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of the model, as the user sees it."""

    name: str
    dtype: str
    """`DType` value, or numpy's name for types that only host parts touch."""
    shape: tuple[int, ...] | None
    """-1 for a dimension only the data decides; None when not even the rank is known."""


@dataclass(frozen=True, slots=True)
class HomeTensor:
    """A tensor with storage in the home arena."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    address: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class HostEntry:
    """A value that only host parts see.  Its data entry's id: after the home tensors, in order."""

    name: str
    dtype: str
    """`DType` value, or numpy's name."""
    shape: tuple[int, ...] | None
    """None: only a run knows its type and size."""


@dataclass(frozen=True, slots=True)
class HostControl:
    """A control-flow node that stands in the place of host sub-model `host`."""

    host: int
    flow: ControlFlow

    @property
    def needs_model(self) -> bool:
        """Whether a branch of it runs whole in ONNX Runtime, as host sub-model `host`."""
        return any(body.program is None and body.computes for body in self.flow.bodies)


@dataclass(frozen=True, slots=True)
class ExecutableModel:
    """A linked model without weights and kernels."""

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    levels: tuple[LevelSpec, ...]
    program: Program
    kernels: tuple[str, ...]
    """Function names, parallel to `program.units`."""
    tensors: tuple[HomeTensor, ...]
    constants: tuple[str, ...]
    """Names of the tensors that hold weights, in address order."""
    controls: tuple[HostControl, ...] = ()
    """Control flow that the host interprets."""
    host_entries: tuple[HostEntry, ...] = ()
    """In order of first use."""
    targets: tuple[str, ...] = ()
    """Name of the accelerator target of each region."""

    def target_of(self, region: int) -> str:
        """The target of a region; models from before there were several have one."""
        return self.targets[region] if region < len(self.targets) else "accelerator"


@dataclass(frozen=True, slots=True)
class ProgramContents:
    """A model with everything it runs on, nested programs included."""

    model: ExecutableModel
    host_models: tuple[bytes, ...]
    """ONNX sub-models, parallel to the `host` index of the program's HostCalls; empty where an
    interpreted node needs none."""
    constants: Constants
    """Values of `model.constants`, by name."""
    bodies: tuple[ProgramContents, ...] = ()
    """By the program index of control-flow bodies."""


def level_specs(machine: Machine) -> tuple[LevelSpec, ...]:
    """What the emulator needs to know of a machine."""
    return tuple(
        LevelSpec(level.name, level.capacity_bytes, level.instances) for level in machine.levels
    )
