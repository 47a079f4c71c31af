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

MIXTURE = "mixture"


@dataclass(frozen=True, slots=True)
class Way:
    """How to put a program together."""

    name: str
    entrants: tuple[Entrant, ...]
    """Strategies that may win units, the preferred one first."""
    measure: Objective
    """By what kernels are chosen: an additive one."""

    @property
    def spans_regions(self) -> bool:
        """Whether neighbouring regions are worth handing over as one."""
        return any(entrant.strategy.spans_regions for entrant in self.entrants)


def ways_for(entrants: Sequence[Entrant], objective: Objective) -> tuple[Way, ...]:
    """Programs to compare: mixtures of all strategies, then each alone."""
    measures = mixtures_by(objective)
    alone = [Way(e.name, (e,), measure) for e in entrants for measure in measures]
    if len(entrants) == 1:
        return tuple(alone)
    mixed = [Way(MIXTURE, tuple(entrants), measure) for measure in measures]
    return (*mixed, *alone)


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
            failed.append(Program(way.name, 0, None, f"it has no program: {error.message}"))
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
    """What a program is made by, and by which measure where that alone is another's as well."""
    name = _made_by(program)
    is_unique = sum(_made_by(other) == name for other in others) == 1
    return name if is_unique else f"{name}, kernels by {way.measure}"


def _more(value: float, least: float) -> str:
    return f"{value / least:.4g} times" if least else f"{value:.4g} above"
