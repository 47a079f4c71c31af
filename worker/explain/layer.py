"""One kernel explained, and searched again on machines that have twice as much of something."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from worker.compiler.cache import MemoryCache
from worker.compiler.errors import InternalError, OptionError, Shortfall, VerifyError
from worker.compiler.export.directives.notation import parse_directives, refuse
from worker.compiler.export.directives.tree import tree_of
from worker.compiler.faults import Fault
from worker.compiler.ir.signature import Canonical, canonicalize
from worker.compiler.isa.program import UnitProgram
from worker.compiler.judge.entrants import Entrant, entrant
from worker.compiler.judge.units import Unit, UnitSolver
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import digest
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.text import print_schedule
from worker.compiler.schedule.verify import verify
from worker.explain.doubled import doubled
from worker.explain.nest import Line, lines_of
from worker.job.simulation import simulate_cached
from worker.simulator.results import UnitSimulation

Answered = tuple[Unit | Shortfall | Fault, int | None]
"""What a strategy answers, with the cycles where it runs."""


@dataclass(frozen=True, slots=True)
class Room:
    """How full a memory is at its fullest."""

    memory: str
    peak_bytes: int
    usable_bytes: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """What the kernel's strategy offers for its operators."""

    number: int
    cycles: int | None
    """Simulated; None: it does not fit, or broke."""
    predicted_cycles: int | None
    is_chosen: bool
    """It is the kernel's own schedule."""
    why: str = ""
    """Why it has no cycles."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The best schedule that the same strategy finds for the same operators on another machine."""

    resource: str
    change: str
    cycles: int | None
    factor: float | None
    """Cycles of the best candidate as the machine is, over these: above 1 it is faster."""
    is_other_schedule: bool
    """Not the schedule that is the best on the machine as it is."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a kernel does, and what holds it."""

    strategy: str
    operators: tuple[str, ...]
    nest: tuple[Line, ...]
    simulation: UnitSimulation
    room: tuple[Room, ...]
    candidates: tuple[Candidate, ...]
    what_if: tuple[WhatIf, ...]
    note: str = ""
    """Why there are no candidates."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """What a kernel's own schedule takes, beside one that its user wrote."""

    cycles: int
    home_bytes: int
    """In and out of the home level."""
    energy_pj: float


def directed(text: str, schedule: Schedule, machine: Machine) -> Schedule:
    """The kernel's operator as the user's directives have it.

    Raises:
        InputError: TW-DIRECTIVE-001: they say no schedule, or one that the machine cannot run.
    """
    root = tree_of(parse_directives(text), schedule.graph, machine)
    found = Schedule(schedule.graph, root, "directives", 0, schedule.without)
    try:
        verify(found, machine)
    except VerifyError as error:
        refuse(None, f"layer {schedule.graph.ops[0].name}", error.message)
    return found


def weighed(schedule: Schedule, machine: Machine, signature: str) -> Weighed:
    """A kernel by its simulated run."""
    unit = _unit(schedule, lower_unit(schedule, machine, signature))
    found = simulate_cached(unit, machine, MemoryCache(), digest(machine))
    home = [row for row in found.traffic if row.level == machine.home.name]
    return Weighed(
        found.cycles,
        sum(row.read_bytes + row.write_bytes for row in home),
        sum(line.pj for line in found.energy),
    )


def explain(
    schedule: Schedule, machine: Machine, options: CompileOptions, signature: str, *, asks: bool
) -> Explanation:
    """Explain a kernel by its schedule; `machine` as its target sees it.

    `asks`: whether its strategy searches again, as the machine is and with twice as much of each
    resource.  Groups stay as they are: a whole compile of such a machine may draw them otherwise.

    Raises:
        VerifyError, Infeasible: the schedule is none for the machine.
    Cost: lowering and simulating; with `asks` a search for every resource that the machine has.
    """
    verify(schedule, machine)
    unit = _unit(schedule, lower_unit(schedule, machine, signature))
    simulation = simulate_cached(unit, machine, MemoryCache(), digest(machine))
    by_name = {level.name: level for level in machine.levels}
    room = tuple(
        Room(use.level, use.peak_bytes, by_name[use.level].usable_bytes)
        for use in simulation.occupancy
        if use.level in by_name and use.peak_bytes
    )
    candidates: tuple[Candidate, ...] = ()
    what_if: tuple[WhatIf, ...] = ()
    note = ""
    if asks:
        try:
            own = entrant(schedule.strategy, options)
        except (OptionError, InternalError) as error:
            note = error.message
        else:
            search = _Search(own, options, canonicalize(schedule.graph), machine)
            candidates = search.candidates(unit.schedule_text)
            what_if = tuple(search.what_if(machine))
    return Explanation(
        schedule.strategy, _operators(schedule), lines_of(schedule, unit.program), simulation,
        room, candidates, what_if, note,
    )  # fmt: skip


class _Search:
    """A strategy, asked again for the operators of one kernel."""

    def __init__(
        self, own: Entrant, options: CompileOptions, canonical: Canonical, machine: Machine
    ) -> None:
        self.own = own
        self.options = options
        self.canonical = canonical
        self.now = tuple(self.answers(machine))
        """On the machine as it is."""

    def answers(self, machine: Machine) -> Iterator[Answered]:
        """The strategy's candidates, with the cycles of those that run."""
        cache, known_as = MemoryCache(), digest(machine)
        solver = UnitSolver.create(machine, self.own, self.options, cache)
        number = 0
        while (found := solver.lowered(self.canonical, "explain", number)) is not None:
            cycles = None
            if isinstance(found, Unit):
                cycles = simulate_cached(found, machine, cache, known_as).cycles
            yield found, cycles
            if isinstance(found, Fault):
                return  # its search is dead, and would die there again
            number += 1

    def candidates(self, own: str) -> tuple[Candidate, ...]:
        """What the strategy offers on the machine as it is."""
        return tuple(
            Candidate(k, cycles, unit.schedule.predicted_cycles, unit.schedule_text == own)
            if isinstance(unit, Unit)
            else Candidate(k, None, None, False, _why(unit))
            for k, (unit, cycles) in enumerate(self.now)
        )

    def what_if(self, machine: Machine) -> Iterator[WhatIf]:
        """The best on each machine that has twice as much of something."""
        before, tree = _best(self.now)
        for other in doubled(machine):
            cycles, found = _best(self.answers(other.machine))
            factor = before / cycles if before and cycles else None
            yield WhatIf(other.resource, other.change, cycles, factor, found != tree)


def _best(answers: Iterable[Answered]) -> tuple[int | None, str]:
    """(cycles, schedule) of the fastest candidate, the first of equals."""
    found: tuple[int | None, str] = None, ""
    for unit, cycles in answers:
        if not isinstance(unit, Unit) or cycles is None:
            continue
        if found[0] is None or cycles < found[0]:
            found = cycles, _tree(unit.schedule_text)
    return found


def _unit(schedule: Schedule, program: UnitProgram) -> Unit:
    return Unit(program.signature, schedule, print_schedule(schedule), program, "", "")


def _operators(schedule: Schedule) -> tuple[str, ...]:
    return tuple(
        f"{op.name}: "
        + " ".join(
            f"{axis.name}={axis.extent}" + ("*" if axis in op.reduce_axes else "")
            for axis in op.domain
        )
        for op in schedule.graph.ops
    )


def _tree(text: str) -> str:
    """Of a schedule's text, without what is predicted of it."""
    return text.partition("\n")[2]


def _why(answer: Shortfall | Fault) -> str:
    if isinstance(answer, Fault):
        return f"failed at step {answer.step}"
    return f"{answer.resource} needs {answer.demand} {answer.unit}, has {answer.bound}"
