"""Which program a model gets: simulated whole programs of strategies and mixtures, compared.

Kernels are chosen by sums (cycles, energy, bytes), one by one.  What is no sum (energy-delay
product, peak memory) and what stands between kernels (host parts, copies) only a whole program
shows; so each strategy's own complete program stands beside the best mixtures, each with regions as
every rule chooses them, and beside the user's model on the host (decisions/0083).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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
from worker.compiler.partition.plan import RegionRule


@dataclass(frozen=True, slots=True)
class Way:
    """How to put a program together."""

    entrants: tuple[Entrant, ...]
    """Strategies that may win units, the preferred one first."""
    measure: Objective
    """By what kernels are chosen: an additive one."""
    regions: RegionRule
    """How regions are chosen."""

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
    rules: Sequence[RegionRule],
    caps: Caps,
    *,
    is_mixing: bool = True,
) -> tuple[Way, ...]:
    """Programs to compare: mixtures of all strategies where `is_mixing`, then each alone, each with
    regions by every one of `rules`; and the host's, once, where it is one of them.

    Regions changed by cost stand beside those as they were: the cost of a node is an estimate, and
    what stands between kernels is not in it.
    """
    mixed = [tuple(entrants)] if is_mixing and len(entrants) > 1 else []
    fields = [*mixed, *((entrant,) for entrant in entrants)]
    measures = mixtures_by(objective, caps, len(entrants) > 1)
    ways = [
        Way(some, measure, rule)
        for some in fields
        for measure in measures
        for rule in rules
        if rule is not RegionRule.HOST
    ]
    if RegionRule.HOST in rules:
        ways.append(Way(tuple(entrants), measures[0], RegionRule.HOST))
    return tuple(ways)


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
    found: list[_Stood] = []
    failed: list[Program] = []
    for way in ways:
        try:
            program = made(way)
        except CompilerError as error:
            if way is ways[0]:
                raise
            name = " + ".join(way.names)
            why = f"it has no program: {error.message}"
            failed.append(Program(name, 0, None, why, (way.regions,)))
            continue
        calls = _calls(program)
        same = next((stood for stood in found if stood.is_same(program, calls)), None)
        if same is None:
            found.append(_Stood(program, calls, whole(program), [way]))
        else:
            same.ways.append(way)
    titles = _titles([stood.ways[0] for stood in found], [stood.program for stood in found])
    beyond = [limits.exceeded(stood.figures) for stood in found]
    if all(beyond):
        raise _beyond_limits(list(zip(titles, beyond, strict=True)))
    measure = measure_of(objective)
    best = min(
        (k for k, words in enumerate(beyond) if not words),
        key=lambda k: rank_by(objective, found[k].figures),
    )
    won = measure(found[best].figures)
    rows = [
        Program(
            titles[k], stood.program.num_kernels, stood.figures,
            f"least {objective} of {len(found)} programs{limits.clause}"
            if k == best
            else beyond[k] or f"{objective} is {_more(measure(stood.figures), won)} the least",
            stood.rules, len(stood.program.partitioning.regions),
        )
        for k, stood in enumerate(found)
    ]  # fmt: skip
    chosen = rows.pop(best)
    election = Election(found[best].plainest, chosen.name, (chosen, *rows, *failed))
    return found[best].program, election


@dataclass(slots=True)
class _Stood:
    """A program that stands for election, and every way that gives it."""

    program: CompiledModel
    calls: tuple[object, ...]
    figures: Figures
    ways: list[Way] = field(default_factory=list)

    def is_same(self, program: CompiledModel, calls: tuple[object, ...]) -> bool:
        """Whether `program` is this one: of the same form of the model, with the same calls."""
        return self.program is program or (
            self.program.model is program.model and self.calls == calls
        )

    @property
    def plainest(self) -> Way:
        """The first of those with the fewest strategies."""
        return min(self.ways, key=lambda way: len(way.names))

    @property
    def rules(self) -> tuple[RegionRule, ...]:
        """By which its regions were chosen, each once."""
        return tuple(dict.fromkeys(way.regions for way in self.ways))


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
        lambda way: way.regions.words,
    )
    for detail in details:
        names = [
            f"{name}, {detail(way)}" if names.count(name) > 1 else name
            for name, way in zip(names, ways, strict=True)
        ]
    return names


def _more(value: float, least: float) -> str:
    return f"{value / least:.4g} times" if least else f"{value:.4g} above"
