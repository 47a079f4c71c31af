"""Which program a model gets: simulated whole programs of strategies and mixtures, compared.

Kernels are chosen by sums (cycles, energy, bytes), one by one.  What is no sum (energy-delay
product, peak memory) and what stands between kernels (host parts, copies) only a whole program
shows; so each strategy's own complete program stands beside the best mixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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


def elected(
    ways: Sequence[Way],
    made: Callable[[Way, bool], CompiledModel],
    whole: Callable[[CompiledModel], Figures],
    objective: Objective,
) -> CompiledModel:
    """The best program by its simulation, with what it was compared with.

    `made` gives the program of a way; its flag is set for the first, which must succeed.  Of equal
    programs the first is taken.  Cost: one link and one simulated walk over the calls per way.

    Raises:
        CompilerError: the first way's.
    """
    first = made(ways[0], True)
    if len(ways) == 1:
        return replace(first, strategy=_made_by(first))
    found: list[tuple[Way, CompiledModel, Figures]] = [(ways[0], first, whole(first))]
    failed: list[Program] = []
    for way in ways[1:]:
        try:
            program = made(way, False)
        except CompilerError as error:
            name = " + ".join(entrant.name for entrant in way.entrants)
            failed.append(Program(name, 0, None, f"it has no program: {error.message}"))
            continue
        if all(_calls(program) != _calls(other) for _, other, _ in found):
            found.append((way, program, whole(program)))
    measure = measure_of(objective)
    best = min(range(len(found)), key=lambda k: measure(found[k][2]))
    won = measure(found[best][2])
    rows = [
        Program(
            _title(way, program, [other for _, other, _ in found]), program.num_kernels, figures,
            f"least {objective} of {len(found)} programs"
            if k == best
            else f"{objective} is {_more(measure(figures), won)} the least",
        )
        for k, (way, program, figures) in enumerate(found)
    ]  # fmt: skip
    chosen = rows.pop(best)
    return replace(found[best][1], strategy=chosen.name, programs=(chosen, *rows, *failed))


def _calls(program: CompiledModel) -> tuple[object, ...]:
    """What tells programs of one model apart."""
    texts = tuple(unit.schedule_text for unit in program.units)
    return texts, program.linked.program.calls


def _made_by(program: CompiledModel) -> str:
    """The strategies whose kernels a program has."""
    return " + ".join(dict.fromkeys(unit.schedule.strategy for unit in program.units)) or "host"


def _title(way: Way, program: CompiledModel, others: Sequence[CompiledModel]) -> str:
    """What a program is made by, and how where that alone is another's as well."""
    name = _made_by(program)
    if sum(_made_by(other) == name for other in others) == 1:
        return name
    regions = "regions by cost" if way.is_weighed else "regions as they were"
    return f"{name}, kernels by {way.measure}, {regions}"


def _more(value: float, least: float) -> str:
    return f"{value / least:.4g} times" if least else f"{value:.4g} above"
