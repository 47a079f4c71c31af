"""What every strategy offers: groups of operators, and for each of them candidate schedules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from worker.compiler.errors import Shortfall
from worker.compiler.ir.graph import Graph
from worker.compiler.machine.machine import Machine
from worker.compiler.options import Objective
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.stages import Grouping

Options = TypeVar("Options", contravariant=True)


@dataclass(frozen=True, slots=True)
class Budget:
    """How much a strategy may spend on one unit, in units of work: never time."""

    candidates: int
    """Candidates that will be asked for, at most."""
    measures: tuple[Objective, ...] = (Objective.LATENCY,)
    """What candidates will be compared by, sums over kernels, the most important first.  What the
    first of a strategy's candidates is good at is the first of these."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of checking a certificate that a strategy left in a schedule's notes."""

    best: float
    """What the certificate says of the best that was found, in its own measure."""
    bound: float
    """What it says that nothing is better than."""
    least: float
    """The best that was looked at now; inf: nothing fitted."""
    tilings: int
    """That were looked at."""
    is_whole: bool
    """Whether these are all there are; else they were drawn."""
    holds: bool


Port = tuple[str, str]
"""(level, `read` or `write`), or (link, `link`)."""


@dataclass(frozen=True, slots=True)
class Estimated:
    """What a strategy predicts of the best schedule that it would offer first for one unit."""

    cycles: int
    """Without the launch."""
    least_cycles: float
    """It knows that none of the schedules it looked through takes fewer, but for a thousandth of
    every instruction; 0: it does not know."""
    moved: Mapping[Port, float]
    """Bytes through every port, of all instances."""
    fed: Mapping[Port, float]
    """Bytes that engines draw from their memory and return to it."""


class Strategy(Protocol[Options]):
    """Stateless: the same graph, machine, options and budget give the same answer.

    A tensor of the user's graph that a strategy keeps keeps its name and its value, so that what
    one strategy writes another may read.
    """

    @property
    def name(self) -> str:
        """Name users choose it by."""

    @property
    def version(self) -> str:
        """Changes whenever the same input may give another schedule (part of cache keys)."""

    @property
    def spans_regions(self) -> bool:
        """Whether kernels of operators that are not connected pay off, so that neighbouring
        regions are handed over as one."""

    def group(
        self,
        graph: Graph,
        machine: Machine,
        options: Options,
        together: Sequence[tuple[str, ...]] = (),
    ) -> Grouping:
        """Say which operators live together; the answer's graph may be a simpler equal one.

        `together`: names of operators of `graph` that the target runs as one (composites); a hint,
        of which a strategy takes what it can.
        """

    def candidates(
        self, unit: Graph, machine: Machine, options: Options, budget: Budget
    ) -> Iterator[Schedule | Shortfall]:
        """Schedules of one canonical graph, the best guess first; a Shortfall says what is missing.

        Whoever asks compares them by simulation and stops when it likes; what costs work belongs
        behind the `yield` that needs it.
        """
