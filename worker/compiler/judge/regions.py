"""One region as its strategies see it: the kernels that each would make of it, and what they cost.

A strategy that breaks is not the user's end: another candidate, smaller groups and the strategy for
single operators follow, and the pool notes it (decisions/0017).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from worker.compiler.cost.bounds import bound_cycles
from worker.compiler.errors import Shortfall
from worker.compiler.faults import Fault, T, attempt
from worker.compiler.frontend.express import Expressed
from worker.compiler.heuristics import Heuristic
from worker.compiler.ir.region import Cuts, is_view
from worker.compiler.ir.signature import Canonical, canonicalize
from worker.compiler.judge.choices import Best, Choice, choice_key, recall, remember
from worker.compiler.judge.entrants import Entrant
from worker.compiler.judge.figures import ADDITIVE, Figures, measure_of, rank_by
from worker.compiler.judge.mixture import Cost
from worker.compiler.judge.pool import Answer, UnitKey, UnitPool
from worker.compiler.judge.units import Unit
from worker.compiler.layout.lay_out import LayoutChange
from worker.compiler.machine.machine import LaunchUnit, Machine
from worker.compiler.options import Objective
from worker.compiler.partition.plan import Part
from worker.compiler.rewrite.cut_units import cut_units
from worker.compiler.schedule.stages import Grouping

_MIN_HALVED = 4
"""Operators of a group that does not fit, or is slow, and is still tried in halves."""
MOST_HALVED = 1 << 20
"""Instructions of a group that is slow and is still tried in halves.

Every halving makes, checks and times as many once more, at some 5 microseconds each. 26
concatenations on a100 (5.9 million): 30 more CPU s for 0.3 % of the cycles (`benchmarks.hostile
--seed 20261128 --only models:6918`).
"""


@dataclass(frozen=True, slots=True)
class Kernel:
    """Operators that become one kernel."""

    ops: tuple[str, ...]
    entrant: Entrant
    why: str = ""
    """Why it is not the group's own strategy's; empty: it is."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """A strategy's groups of a region, and every piece that was cut out of their graph."""

    grouping: Grouping
    cuts: Cuts
    _canonical: dict[tuple[str, ...], Canonical] = field(default_factory=dict)

    def canonical(self, names: tuple[str, ...]) -> Canonical:
        """The canonical graph of some operators; made once."""
        if names not in self._canonical:
            self._canonical[names] = canonicalize(self.cuts.piece(names))
        return self._canonical[names]


@dataclass(slots=True)
class Cover:
    """A region as one strategy covers it with kernels."""

    entrant: Entrant
    pieces: Pieces
    measure: Objective
    """An additive one."""
    kernels: dict[tuple[str, ...], tuple[Kernel, ...]] = field(default_factory=dict)
    """Of groups, as they were decided."""

    @property
    def grouping(self) -> Grouping:
        """The strategy's groups."""
        return self.pieces.grouping

    @property
    def cuts(self) -> Cuts:
        """The graph of the groups, for cutting pieces out."""
        return self.pieces.cuts


@dataclass(frozen=True, slots=True)
class Region:
    """An accelerator part, expressed and laid out, and its strategies' covers."""

    part: Part
    expressed: Expressed
    covers: tuple[Cover, ...]
    layouts: tuple[LayoutChange, ...]


class Weigher:
    """Decides about the kernels of covers by simulated figures."""

    def __init__(self, pool: UnitPool, target: str) -> None:
        self._pool = pool
        self._target = target

    def cost(self, cover: Cover, group: tuple[str, ...]) -> Cost:
        """(operators that fit nowhere, the measure, kernels) of a group."""
        misfits, kernels, total = 0, 0, 0.0
        for kernel in self.kernels(cover, group):
            if self._is_nothing(cover, kernel.ops):
                continue
            figures = self._weighed(cover, kernel.ops, kernel.entrant).figures
            if figures is not None:
                total += measure_of(cover.measure)(figures) + self._launch(cover)
                kernels += 1
            else:
                misfits += 1
        return float(misfits), total, float(kernels)

    def kernels(self, cover: Cover, group: tuple[str, ...]) -> tuple[Kernel, ...]:
        """The kernels of a group: one for all where that is no worse than one each.

        The cost model sees less of stalls than the simulator does, so it does not decide this.
        What does not fit as one kernel, or is worse, is tried in halves, but for what is vast.
        """
        if group not in cover.kernels:
            cover.kernels[group] = tuple(self._decided(cover, group))
        return cover.kernels[group]

    def _decided(self, cover: Cover, names: tuple[str, ...]) -> list[Kernel]:
        last = self._pool.last_resort
        if len(names) == 1 and (cover.entrant.name == last.name or self._is_nothing(cover, names)):
            return [Kernel(names, last)]
        whole = self._weighed(cover, names, cover.entrant)
        if whole.figures is not None:
            if cover.grouping.is_final or self._is_better(cover, names, whole.figures):
                return [Kernel(names, cover.entrant)]
            why = f"one kernel is worse by {cover.measure} than a kernel for every operator"
        else:
            why = self._why_none(cover, names)
        is_vast = whole.instructions > MOST_HALVED
        if (
            len(names) >= _MIN_HALVED
            and not is_vast
            and not self._pool.leaves_out(Heuristic.HALVES)
        ):
            piece = cover.cuts.piece(names)
            halves = cut_units(piece, -(-len(names) // 2))
            if len(halves) > 1:
                return [k for half in halves for k in self._decided(cover, half)]
        return [Kernel((name,), last, why) for name in names]

    def _why_none(self, cover: Cover, names: tuple[str, ...]) -> str:
        """Why the cover's strategy has no kernel for some operators."""
        _, answer = self.best(cover, names, cover.entrant)
        if isinstance(answer, Shortfall):
            return f"{answer.resource} needs {answer.demand} {answer.unit}, has {answer.bound}"
        assert isinstance(answer, Fault), "a kernel has figures"
        return f"its strategy failed at step {answer.step}"

    def best(self, cover: Cover, names: tuple[str, ...], entrant: Entrant) -> tuple[int, Answer]:
        """The best candidate of a strategy for some operators: its number, and what it is."""
        pool = self._pool
        canonical = cover.pieces.canonical(names)
        label = label_of(cover.cuts, names)
        while True:
            best = self._weighed(cover, names, entrant)
            found = pool.candidate(self._target, entrant, canonical, label, best.number)
            if found is not None and isinstance(found, Unit) == (best.figures is not None):
                return best.number, self._noted(cover, names, found)
            known_as = self._target, entrant.name, canonical.signature
            if known_as in pool.broken:
                assert found is not None, "a strategy says at least what does not fit"
                return best.number, self._noted(cover, names, found)
            pool.disown(known_as)  # another job's choice, which is none of these candidates

    def _weighed(self, cover: Cover, names: tuple[str, ...], entrant: Entrant) -> Best:
        """What `best` gives, by its figures alone."""
        pool = self._pool
        canonical = cover.pieces.canonical(names)
        known_as = self._target, entrant.name, canonical.signature
        if known_as not in pool.best:
            pool.best[known_as] = self._chosen(cover, names, entrant, canonical)
        return pool.best[known_as][cover.measure]

    def _chosen(
        self, cover: Cover, names: tuple[str, ...], entrant: Entrant, canonical: Canonical
    ) -> Choice:
        """The choice among the strategy's candidates: recalled, or made now and kept."""
        pool, signature = self._pool, canonical.signature
        label, solver = label_of(cover.cuts, names), pool.solver(self._target, entrant)
        if (self._target, entrant.name, signature) in pool.broken:
            return self._ranked(cover, names, entrant, canonical, label)[0]
        key = choice_key(solver, signature, pool.simulator)
        if found := recall(solver, key, signature, label):
            return found
        choice, is_whole = self._ranked(cover, names, entrant, canonical, label)
        if is_whole:
            remember(solver, key, choice)
        return choice

    def _ranked(
        self,
        cover: Cover,
        names: tuple[str, ...],
        entrant: Entrant,
        canonical: Canonical,
        label: str,
    ) -> tuple[Choice, bool]:
        """The best candidate by each additive measure, the first of equals, and whether none broke.

        Programs are large: only those that are the best by some measure are kept.
        """
        pool = self._pool
        best = dict.fromkeys(ADDITIVE, Best())
        least: dict[Objective, tuple[float, ...]] = dict.fromkeys(ADDITIVE, (inf,))
        number, is_whole = 0, True
        while True:
            found = pool.candidate(self._target, entrant, canonical, label, number)
            if found is None:
                return best, is_whole
            self._noted(cover, names, found)
            if isinstance(found, Unit):
                figures = pool.figures(found)
                for measure in ADDITIVE:
                    if (rank := rank_by(measure, figures)) < least[measure]:
                        best[measure] = Best(number, figures, found.program.num_instructions)
                        least[measure] = rank
            for k in {*range(number + 1)} - {each.number for each in best.values()}:
                key = UnitKey(self._target, entrant.name, canonical.signature, k)
                if isinstance(pool.known.get(key), Unit):
                    del pool.known[key]
            if isinstance(found, Fault):
                is_whole = False
                if found.step == "schedule":
                    return best, is_whole  # its search is dead, and would die there again
            number += 1

    def forget(self, cover: Cover, group: tuple[str, ...], names: tuple[str, ...]) -> None:
        """Decide about a group anew: a kernel of it broke."""
        cover.kernels.pop(group, None)
        canonical = cover.pieces.canonical(names)
        self._pool.disown((self._target, cover.entrant.name, canonical.signature))

    def _noted(self, cover: Cover, names: tuple[str, ...], found: Answer) -> Answer:
        if isinstance(found, Fault):
            self._pool.broke(nodes_of(cover.cuts, names), found)
        return found

    def _launch(self, cover: Cover) -> float:
        """What one more kernel adds to its own cycles: it is queued behind others."""
        machine = self._machine(cover)
        target = machine.targets[0]
        is_counted = cover.measure is Objective.LATENCY and target.launch_unit is LaunchUnit.KERNEL
        return float(machine.launch_gap(target)) if is_counted else 0.0

    def _machine(self, cover: Cover) -> Machine:
        return self._pool.solver(self._target, cover.entrant).machine

    def _is_nothing(self, cover: Cover, names: Sequence[str]) -> bool:
        """Whether the operator only renames memory."""
        op = cover.cuts.op(names[0])
        return len(names) == 1 and is_view(op, cover.cuts.graph.tensors)

    def _is_better(self, cover: Cover, names: Sequence[str], whole: Figures) -> bool:
        """Whether one kernel each costs at least as much, launches included.

        An operator counts with its lower bound until it is solved; most are never solved, because
        the bounds of the others decide.
        """
        machine, launch = self._machine(cover), self._launch(cover)
        measure = measure_of(cover.measure)
        limit = measure(whole) + launch
        is_bounded = cover.measure is Objective.LATENCY
        bounds = [
            (bound_cycles(cover.cuts.piece((name,)), machine) if is_bounded else 0, name)
            for name in names
            if not self._is_nothing(cover, (name,))
        ]
        apart = sum(bound + launch for bound, _ in bounds)
        # Largest first: they are furthest above their bounds.
        for bound, name in sorted(bounds, key=lambda found: -found[0]):
            if apart >= limit:
                return True
            figures = self._weighed(cover, (name,), self._pool.last_resort).figures
            if figures is None:
                return True
            apart += measure(figures) - bound
        return apart >= limit


def nodes_of(cuts: Cuts, names: Sequence[str]) -> tuple[str, ...]:
    """The ONNX nodes of some operators, each once."""
    return tuple(dict.fromkeys(n for name in names for n in cuts.op(name).origin.nodes))


def label_of(cuts: Cuts, names: Sequence[str]) -> str:
    """What messages call a unit: its first ONNX node."""
    nodes = nodes_of(cuts, names)
    return nodes[0] if nodes else names[0]


def try_step(entrant: Entrant, step: str, work: Callable[[], T]) -> T | Fault:
    """What a step of a strategy gives, or how it broke."""
    return attempt(entrant.name, entrant.version, step, work)
