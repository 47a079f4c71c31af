"""What the runtime needs to know to interpret one control-flow node, as plain values.

They are written into the bundle as they are, so they hold names, numbers and bytes only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ControlKind(StrEnum):
    """Operators that are interpreted on the host."""

    LOOP = "loop"
    IF = "if"
    SCAN = "scan"


@dataclass(frozen=True, slots=True)
class Literal:
    """A small constant tensor, row-major and little-endian."""

    name: str
    dtype: str
    """numpy's name."""
    shape: tuple[int, ...]
    content: bytes


@dataclass(frozen=True, slots=True)
class Result:
    """Type of one output of a body."""

    dtype: str
    """numpy's name."""
    shape: tuple[int, ...]
    """-1 where only the data decides; empty also when not even the rank is known."""


@dataclass(frozen=True, slots=True)
class Body:
    """One graph of a control-flow node, as a function of named values."""

    formal: tuple[str, ...]
    """Its own inputs, in order.  A name the body does not read is left out of its feeds."""
    captured: tuple[str, ...]
    """Values of the surrounding model that it reads; constants are inside the body."""
    reads: tuple[str, ...]
    """Those of `formal` and `captured` that the body's model has as inputs."""
    outputs: tuple[str, ...]
    """Per output: a value the body computes, one it was given, or a literal."""
    computes: tuple[str, ...]
    """Outputs of its model: empty when nothing has to run."""
    results: tuple[Result, ...]
    """Parallel to `outputs`."""
    literals: tuple[Literal, ...]
    iter_rank: int = 0
    """Loop only: rank (0 or 1) of the trip number and condition inputs."""
    program: int | None = None
    """Which nested program runs it; None: ONNX Runtime runs it whole."""


@dataclass(frozen=True, slots=True)
class ControlFlow:
    """One interpreted node.

    Loop: operands are trip count, condition, initial values ("" where absent).  If: the condition;
    bodies are then and else.  Scan (since opset 9): initial states, then scanned sequences.
    """

    kind: ControlKind
    node: str
    operands: tuple[str, ...]
    outputs: tuple[str, ...]
    """"" where the node leaves an output out."""
    bodies: tuple[Body, ...]
    literals: tuple[Literal, ...]
    """Operands that are constants of the surrounding model."""
    num_sequences: int = 0
    """Scan: how many of the operands are sequences."""
    input_axes: tuple[int, ...] = ()
    input_reversed: tuple[bool, ...] = ()
    output_axes: tuple[int, ...] = ()
    output_reversed: tuple[bool, ...] = ()
    trips: int | None = None
    """Iterations when they are known at compile time (If: 1)."""
    max_trips: int | None = None
    """Loop: the trip count operand when constant; a condition may stop earlier."""
    branch: int | None = None
    """If: the body that runs when the condition is constant."""

    @property
    def num_states(self) -> int:
        """Values carried from one iteration to the next."""
        match self.kind:
            case ControlKind.LOOP:
                return len(self.operands) - 2
            case ControlKind.SCAN:
                return len(self.operands) - self.num_sequences
            case ControlKind.IF:
                return 0
