"""Which program a model gets: simulated whole programs of strategies and mixtures, compared.

Kernels are chosen by sums (cycles, energy, bytes), one by one.  What is no sum (energy-delay
product, peak memory) and what stands between kernels (host parts, copies) only a whole program
shows; so each strategy's own complete program stands beside the best mixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from worker.compiler.errors import CompilerError
from worker.compiler.judge.compiled import CompiledModel, Program
from worker.compiler.judge.entrants import Entrant
from worker.compiler.judge.figures import Figures, measure_of, mixtures_by
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
    def spans_regions(self) -> bool:
        """Whether neighbouring regions are worth handing over as one."""
        return any(entrant.strategy.spans_regions for entrant in self.entrants)


def ways_for(
    entrants: Sequence[Entrant], objective: Objective, is_weighable: bool
) -> tuple[Way, ...]:
    """Programs to compare: mixtures of all strategies, then each alone.

    Where regions may be changed by cost, each stands with its regions changed and as they were: the
    cost of a node is an estimate, and what stands between kernels is not in it.
    """
    fields = [tuple(entrants), *((e,) for e in entrants)] if len(entrants) > 1 else [(entrants[0],)]
    return tuple(
        Way(field, measure, is_weighed)
        for field in fields
        for measure in mixtures_by(objective)
        for is_weighed in ((True, False) if is_weighable else (False,))
    )


class Pass(Enum):
    """What a program is made for."""

    ONLY = "only"
    """There is no other: its kernels are audited and coded."""
    FIRST = "first"
    """To be compared, as the first of several."""
    FURTHER = "further"
    """To be compared."""
    LAST = "last"
    """To be kept after all were compared: its kernels are audited and coded."""


def elected(
    ways: Sequence[Way],
    made: Callable[[Way, Pass], CompiledModel],
    whole: Callable[[CompiledModel], Figures],
    objective: Objective,
) -> CompiledModel:
    """The best program by its simulation, with what it was compared with.

    `made` gives the program of a way.  Of equal programs the first is taken.  Cost: one link and
    one simulated walk over the calls per way; only the kernels of the winner are coded.

    Raises:
        CompilerError: the first way's.
    """
    if len(ways) == 1:
        only = made(ways[0], Pass.ONLY)
        return replace(only, strategy=_made_by(only))
    first = made(ways[0], Pass.FIRST)
    found: list[tuple[Way, CompiledModel, Figures]] = [(ways[0], first, whole(first))]
    failed: list[Program] = []
    for way in ways[1:]:
        try:
            program = made(way, Pass.FURTHER)
        except CompilerError as error:
            name = " + ".join(entrant.name for entrant in way.entrants)
            failed.append(Program(name, 0, None, f"it has no program: {error.message}"))
            continue
        if all(_calls(program) != _calls(other) for _, other, _ in found):
            found.append((way, program, whole(program)))
    measure = measure_of(objective)
    best = min(range(len(found)), key=lambda k: measure(found[k][2]))
    won = measure(found[best][2])
    titles = _titles([way for way, _, _ in found], [program for _, program, _ in found])
    rows = [
        Program(
            titles[k], program.num_kernels, figures,
            f"least {objective} of {len(found)} programs"
            if k == best
            else f"{objective} is {_more(measure(figures), won)} the least",
        )
        for k, (_, program, figures) in enumerate(found)
    ]  # fmt: skip
    chosen = rows.pop(best)
    kept = made(found[best][0], Pass.LAST)
    return replace(kept, strategy=chosen.name, programs=(chosen, *rows, *failed))


def _calls(program: CompiledModel) -> tuple[object, ...]:
    """What tells programs of one model apart."""
    texts = tuple(unit.schedule_text for unit in program.units)
    return texts, program.linked.program.calls


def _made_by(program: CompiledModel) -> str:
    """The strategies whose kernels a program has."""
    return " + ".join(dict.fromkeys(unit.schedule.strategy for unit in program.units)) or "host"


def _titles(ways: Sequence[Way], programs: Sequence[CompiledModel]) -> list[str]:
    """What each program is made by; where that is another's too, how it was put together."""
    names = [_made_by(program) for program in programs]
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
