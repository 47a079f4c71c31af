"""Which layers of a section hand tensors over in the cores' local buffers (LB).

A tensor between two layers passes the cluster's global buffer (GB) where their splits over the
cores differ; where one split serves both, each core may keep its slice in LB.  What that saves is
weighed against what it costs: every core then reads all constants of its layers, and tiles get less
room.  Runs of layers are estimated, the best set of runs that do not overlap is planned for real,
and what is not predicted faster than the plan through GB is dropped.
Source: GraphTurbo, section 3.4 and Algorithm 4.  Deviation: the paper keeps in LB whatever is bound
equally; here predicted cycles decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from worker.compiler.strategies.graphturbo.handover_bind import Candidate, candidates
from worker.compiler.strategies.graphturbo.handover_facts import handed_over
from worker.compiler.strategies.graphturbo.handover_plan import RunPlan, plan_run

if TYPE_CHECKING:
    from worker.compiler.strategies.graphturbo.section_plan import SectionPlan
    from worker.compiler.strategies.graphturbo.unit_plan import Planner

MAX_RUN = 8
"""Layers of a run, at most."""
MAX_PLANNED = 24
"""Runs of a section for which tiles are searched."""
EAGER = 1.02
SURE = 0.97
"""What runs may be predicted to take, as a part of their layers' cycles through GB: about as much,
or clearly less.  The model sees nothing of contention at GB's ports, nor of tokens that cores wait
for, so either may simulate faster, and the solver tries both."""
RESIDENT = 100.0
"""Whatever one binding reaches stays in LB, as in the paper: no run is a hundred times slower."""
HOPE = 1.1
"""The same for an estimate: it decides only for which runs tiles are searched."""


def runs_on_offer(planner: Planner, plan: SectionPlan, hope: float = HOPE) -> tuple[Candidate, ...]:
    """Runs that are estimated to take at most `hope` of their layers' cycles through GB.

    Cost: layers x MAX_RUN propagations.
    """
    if planner.site.buffer is None or any(plan.whole_chip):
        return ()
    return tuple(_offers(planner, [layer.predicted_cycles for layer in plan.layers], hope))


def hand_over(
    planner: Planner, plan: SectionPlan, on_offer: Sequence[Candidate], gain: float = 1.0
) -> SectionPlan:
    """The plan with tensors handed over in LB where that is predicted faster; else as it is.

    `on_offer`: from `runs_on_offer`; `gain`: what a run may take, as a part of the cycles through
    GB.  Cost: tiles of at most MAX_PLANNED runs.
    """
    alone = [layer.predicted_cycles for layer in plan.layers]
    offers = list(on_offer)
    held = frozenset(plan.buffered)
    made: list[RunPlan] = []
    for _ in range(MAX_PLANNED):
        chosen = _best_set([*_real(made), *offers], alone, gain)
        fresh = [c for c in chosen if c in offers]
        if not fresh:
            break
        offers.remove(fresh[0])
        run = plan_run(planner, held, fresh[0].run)
        if run is not None:
            made.append(run)
    runs = [c.run for c in _best_set(_real(made), alone, gain)]
    while runs:
        found = planner.plan(plan.whole_chip, runs)
        if found is not None and found.predicted_cycles < gain * plan.predicted_cycles:
            return found
        runs = runs[:-1]
    return plan


def _offers(planner: Planner, alone: Sequence[int], hope: float) -> list[Candidate]:
    found: list[Candidate] = []
    for part in planner.site.parts:
        for first in part.layers:
            known: tuple[str, ...] = ()
            for last in range(first + 2, min(first + MAX_RUN, part.layers[-1] + 1) + 1):
                if last - 1 not in part.layers:
                    break
                handed = handed_over(planner, first, last)
                if len(handed) == len(known):
                    continue  # a shorter run hands over as much
                known = handed
                most = hope * sum(alone[first:last])
                found.extend(c for c in candidates(planner, first, last) if c.estimate < most)
    return found


def _real(made: Sequence[RunPlan]) -> list[Candidate]:
    """Planned runs with their predicted cycles."""
    return [Candidate(plan.run, plan.predicted_cycles) for plan in made]


def _best_set(offers: Sequence[Candidate], alone: Sequence[int], gain: float) -> list[Candidate]:
    """Runs, in order, that do not overlap and together save most."""
    ends: dict[int, list[tuple[float, Candidate]]] = {}
    for offer in offers:
        saved = gain * sum(alone[offer.run.first : offer.run.last]) - offer.estimate
        ends.setdefault(offer.run.last, []).append((saved, offer))
    best: list[tuple[float, list[Candidate]]] = [(0.0, [])]
    for last in range(1, len(alone) + 1):
        most = best[last - 1]
        for saved, offer in ends.get(last, ()):
            before = best[offer.run.first]
            if before[0] + saved > most[0]:
                most = (before[0] + saved, [*before[1], offer])
        best.append(most)
    return best[-1][1]
