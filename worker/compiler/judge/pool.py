"""The units of one compile: solved once each, by target, strategy, signature and candidate.

A pool lives as long as one compile.  The compile may partition again (an operator fits no memory, a
region is not worth its transfers), compiles bodies of control flow, and solves the same regions by
several strategies; what was solved before is remembered and not solved twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from worker.compiler.cache import Cache, CacheEvent
from worker.compiler.errors import Shortfall
from worker.compiler.faults import Fallback, Fault
from worker.compiler.heuristics import Heuristic
from worker.compiler.ir.signature import Canonical
from worker.compiler.judge.choices import Choice
from worker.compiler.judge.entrants import Entrant
from worker.compiler.judge.figures import Figures
from worker.compiler.judge.units import Unit, UnitSolver
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions


class UnitKey(NamedTuple):
    """What a unit is known as."""

    target: str
    entrant: str
    signature: str
    candidate: int


Answer = Unit | Shortfall | Fault
"""What a strategy has for a unit."""


class UnitPool:
    """See the module's docstring.

    Args:
        entrants: strategies that may win units, the preferred one first.
        last_resort: can schedule whatever operator the machine can run, each alone.
        figures: simulates a kernel.
        simulator: version of that.
    """

    def __init__(
        self,
        machine: Machine,
        options: CompileOptions,
        cache: Cache,
        entrants: Sequence[Entrant],
        last_resort: Entrant,
        figures: Callable[[Unit], Figures],
        simulator: str,
    ) -> None:
        self.machine = machine
        self.simulator = simulator
        self._without = frozenset(options.without)
        self.entrants = tuple(entrants)
        self.last_resort = last_resort
        self.figures = figures
        self._solver_of = {
            (target.name, name): UnitSolver.create(
                machine.restricted(target), entrant, options, cache
            )
            for target in machine.targets
            for name, entrant in {e.name: e for e in (*self.entrants, last_resort)}.items()
        }
        self.best: dict[tuple[str, str, str], Choice] = {}
        """By target, strategy and signature."""
        self.broken: set[tuple[str, str, str]] = set()
        """Those of which no earlier choice is of use."""
        self.known: dict[UnitKey, Answer | None] = {}
        self.fallbacks: dict[Fallback, None] = {}
        """Every fault that was met, once, in the order in which they were."""

    def solver(self, target: str, entrant: Entrant) -> UnitSolver:
        """The solver of a strategy for a target."""
        return self._solver_of[target, entrant.name]

    def leaves_out(self, heuristic: Heuristic) -> bool:
        """Whether the options turn a heuristic off."""
        return heuristic in self._without

    def broke(self, nodes: Sequence[str], fault: Fault) -> None:
        """Note that another way is taken for some ONNX nodes."""
        self.fallbacks.setdefault(Fallback(tuple(nodes), fault))

    def disown(self, known_as: tuple[str, str, str]) -> None:
        """Forget a choice, and what the cache says of it: a candidate's code broke, or it is none
        of them."""
        self.best.pop(known_as, None)
        self.broken.add(known_as)

    def candidate(
        self, target: str, entrant: Entrant, canonical: Canonical, label: str, number: int
    ) -> Answer | None:
        """A candidate, not coded yet: known, cached, or solved now; None: there is none."""
        key = UnitKey(target, entrant.name, canonical.signature, number)
        if key not in self.known:
            solver = self.solver(target, entrant)
            self.known[key] = solver.lowered(canonical, label, number)
        return self.known[key]

    @property
    def num_missed(self) -> int:
        """How often the cache had no answer so far."""
        return sum(solver.num_missed for solver in self._solver_of.values())

    @property
    def events(self) -> tuple[CacheEvent, ...]:
        """What the cache answered, target by target."""
        return tuple(event for solver in self._solver_of.values() for event in solver.events)
