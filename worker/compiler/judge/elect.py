"""Which program a model gets: simulated whole programs of strategies and mixtures, compared.

Kernels are chosen by sums (cycles, energy, bytes), one by one.  What is no sum (energy-delay
product, peak memory) and what stands between kernels (host parts, copies) only a whole program
shows; so each strategy's own complete program stands beside the best mixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from worker.compiler.errors import CompilerError, Finding
from worker.compiler.judge.compiled import CompiledModel, Program
from worker.compiler.judge.entrants import Entrant
from worker.compiler.judge.figures import (
    Caps,
    Figures,
    ProgramLimits,
    measure_of,
    mixtures_by,
    rank_by,
)
from worker.compiler.options import Objective


@dataclass(frozen=True, slots=True)
class Way:
    """How to put a program together."""

    entrants: tuple[Entrant, ...]
    """Strategies that may win units, the preferred one first."""
    measure: Objective
    """By what kernels are chosen: an additive one."""
    is_weighed: bool
    """Whether regions are changed by what their nodes cost."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the strategies."""
        return tuple(entrant.name for entrant in self.entrants)

    @property
    def spans_regions(self) -> bool:
        """Whether neighbouring regions are worth handing over as one."""
        return any(entrant.strategy.spans_regions for entrant in self.entrants)


def ways_for(
    entrants: Sequence[Entrant],
    objective: Objective,
    is_weighable: bool,
    caps: Caps,
    *,
    is_mixing: bool = True,
) -> tuple[Way, ...]:
    """Programs to compare: mixtures of all strategies where `is_mixing`, then each alone.

    Where regions may be changed by cost, each stands with its regions changed and as they were: the
    cost of a node is an estimate, and what stands between kernels is not in it.
    """
    mixed = [tuple(entrants)] if is_mixing and len(entrants) > 1 else []
    fields = [*mixed, *((entrant,) for entrant in entrants)]
    return tuple(
        Way(field, measure, is_weighed)
        for field in fields
        for measure in mixtures_by(objective, caps, len(entrants) > 1)
        for is_weighed in ((True, False) if is_weighable else (False,))
    )


@dataclass(frozen=True, slots=True)
class Election:
    """How the best program is made, and what it was compared with."""

    way: Way
    strategy: str
    """What the program is called: the strategies whose kernels it has."""
    programs: tuple[Program, ...]
    """Every program that was compared, the chosen one first; empty where there was one."""


def elect(
    ways: Sequence[Way],
    made: Callable[[Way], CompiledModel],
    whole: Callable[[CompiledModel], Figures],
    objective: Objective,
    limits: ProgramLimits,
) -> tuple[CompiledModel, Election]:
    """The best program within the limits, by its simulation, and how it was found.

    `made` gives the program of a way.  Of equal programs the first is taken, made in the way of the
    fewest strategies.  Cost: one link and one simulated walk over the calls per way.

    Raises:
        CompilerError: the first way's; TW-PLAN-003, no program is within the limits.
    """
    first = made(ways[0])
    found: list[tuple[Way, CompiledModel, Figures]] = [(ways[0], first, whole(first))]
    failed: list[Program] = []
    plainest = [ways[0]]
    for way in ways[1:]:
        try:
            program = made(way)
        except CompilerError as error:
            name = " + ".join(way.names)
            failed.append(Program(name, 0, None, f"it has no program: {error.message}"))
            continue
        same = [k for k, (_, other, _) in enumerate(found) if _calls(program) == _calls(other)]
        if not same:
            found.append((way, program, whole(program)))
            plainest.append(way)
        elif len(way.names) < len(plainest[same[0]].names):
            plainest[same[0]] = way
    titles = _titles([way for way, _, _ in found], [program for _, program, _ in found])
    beyond = [limits.exceeded(figures) for _, _, figures in found]
    if all(beyond):
        raise _beyond_limits(list(zip(titles, beyond, strict=True)))
    measure = measure_of(objective)
    best = min(
        (k for k, words in enumerate(beyond) if not words),
        key=lambda k: rank_by(objective, found[k][2]),
    )
    won = measure(found[best][2])
    rows = [
        Program(
            titles[k], program.num_kernels, figures,
            f"least {objective} of {len(found)} programs{limits.clause}"
            if k == best
            else beyond[k] or f"{objective} is {_more(measure(figures), won)} the least",
        )
        for k, (_, program, figures) in enumerate(found)
    ]  # fmt: skip
    chosen = rows.pop(best)
    election = Election(plainest[best], chosen.name, (chosen, *rows, *failed))
    return found[best][1], election


def only(
    way: Way,
    made: Callable[[Way], CompiledModel],
    whole: Callable[[CompiledModel], Figures],
    limits: ProgramLimits,
) -> tuple[CompiledModel, Election]:
    """The program of the only way there is.

    Raises:
        CompilerError: the way's; TW-PLAN-003, it is not within the limits.
    """
    program = made(way)
    beyond = limits.exceeded(whole(program)) if limits.clause else ""
    if beyond:
        raise _beyond_limits([(program.made_by, beyond)])
    return program, Election(way, program.made_by, ())


def _beyond_limits(programs: Sequence[tuple[str, str]]) -> CompilerError:
    said = "; ".join(f"{name}: {beyond}" for name, beyond in programs)
    return CompilerError(
        "TW-PLAN-003",
        f"no program is within the limits: {said}"[:1000],
        findings=tuple(Finding("TW-PLAN-003", f"{name}: {beyond}") for name, beyond in programs),
    )


def _calls(program: CompiledModel) -> tuple[object, ...]:
    """What tells programs of one model apart."""
    texts = tuple(unit.schedule_text for unit in program.units)
    return texts, program.linked.program.calls


def _titles(ways: Sequence[Way], programs: Sequence[CompiledModel]) -> list[str]:
    """What each program is made by; where that is another's too, how it was put together."""
    names = [program.made_by for program in programs]
    details: tuple[Callable[[Way], str], ...] = (
        lambda way: "out of " + ", ".join(e.name for e in way.entrants),
        lambda way: f"kernels by {way.measure}",
        lambda way: "regions by cost" if way.is_weighed else "regions as they were",
    )
    for detail in details:
        names = [
            f"{name}, {detail(way)}" if names.count(name) > 1 else name
            for name, way in zip(names, ways, strict=True)
        ]
    return names


def _more(value: float, least: float) -> str:
    return f"{value / least:.4g} times" if least else f"{value:.4g} above"
