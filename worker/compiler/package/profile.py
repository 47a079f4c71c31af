"""What one run of a model spends wall-clock time on.

The compiler reads no clock: whoever wants a profile gives one.  Profiles never enter results.
Source: BYOC section 5 (invocation overheads: engine initialisation, launch, transfer, execution).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Clock: TypeAlias = Callable[[], float]
"""Seconds that only grow."""


@dataclass(frozen=True, slots=True)
class CallProfile:
    """One call of the program."""

    position: int
    """In `Program.calls`."""
    kind: str
    """`kernel`, `region`, `host` or `control`."""
    name: str
    """Of the kernel, the engine that ran the region, or the first node of the host part."""
    target: str
    launch_s: float
    """Marshalling of arguments and bindings; of a control-flow node: that of its iterations."""
    transfer_s: float
    """Copies between host values and the home memory."""
    execute_s: float
    """The kernel, the engine, or ONNX Runtime.  Entering a library through ctypes is a part of
    it."""
    cycles: int | None = None
    """Of a region, by the clock of its engine; None: it has none."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """Whatever else an engine counts, by its own names."""


@dataclass(frozen=True, slots=True)
class InvocationProfile:
    """One run."""

    total_s: float
    inputs_s: float
    """Copying the model's inputs to their data entries."""
    outputs_s: float
    """Copying its outputs out."""
    engine_s: float
    """Initialising accelerator engines, once for each target."""
    checks_s: float
    """Poisoning memory before it is written; only while kernels are being checked."""
    initialised_now: tuple[str, ...]
    """Targets whose engine this run has initialised."""
    calls: tuple[CallProfile, ...]

    @property
    def launch_s(self) -> float:
        return sum(call.launch_s for call in self.calls)

    @property
    def transfer_s(self) -> float:
        """Of all calls, and of the model's inputs and outputs."""
        return self.inputs_s + self.outputs_s + sum(call.transfer_s for call in self.calls)

    @property
    def execute_s(self) -> float:
        return sum(call.execute_s for call in self.calls)

    @property
    def other_s(self) -> float:
        """The executor's own bookkeeping."""
        parts = self.launch_s + self.transfer_s + self.execute_s + self.engine_s + self.checks_s
        return self.total_s - parts


@dataclass(slots=True)
class Tally:
    """Grows into an InvocationProfile while a model runs."""

    now: Clock
    inputs_s: float = 0.0
    engine_s: float = 0.0
    checks_s: float = 0.0
    initialised: list[str] = field(default_factory=list)
    calls: list[CallProfile] = field(default_factory=list)
    nested: list[InvocationProfile] = field(default_factory=list)
    """Runs of nested programs since the call that is under way began."""

    def add_control(self, position: int, name: str, spent_s: float, transfer_s: float) -> None:
        """Note an interpreted node that took `spent_s`, its iterations included, and copies."""
        launch = sum(run.launch_s for run in self.nested)
        moved = sum(run.transfer_s for run in self.nested)
        engine = sum(run.engine_s for run in self.nested)
        checks = sum(run.checks_s for run in self.nested)
        for run in self.nested:
            self.initialised.extend(run.initialised_now)
        self.nested.clear()
        self.engine_s += engine
        self.checks_s += checks
        rest = spent_s - launch - moved - engine - checks
        call = CallProfile(position, "control", name, "host", launch, transfer_s + moved, rest)
        self.calls.append(call)

    def finished(self, total_s: float, outputs_s: float) -> InvocationProfile:
        """The whole run."""
        return InvocationProfile(
            total_s, self.inputs_s, outputs_s, self.engine_s, self.checks_s,
            tuple(self.initialised), tuple(self.calls),
        )  # fmt: skip


def no_clock() -> float:
    """Stands where nobody measures."""
    return 0.0
