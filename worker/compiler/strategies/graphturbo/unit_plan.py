"""A whole unit: where its tensors live, its instances over clusters and time, tiles of every layer.

A layer runs on the cores of one cluster and exchanges tensors through the cluster's global buffer
(GB), or on the whole chip and exchanges them through home.  A tensor lives in GB from its first
writer to its last reader there; it is brought in from home once where it was made elsewhere, and
stored home once where somebody else wants it.
Source: GraphTurbo, sections 3.4 (scopes) and 4.3 (what exceeds the memory is spilled, longest
liveness first).  Deviation: the paper's clusters share nothing but DDR and always work on samples
of their own; a layer of a single sample may use all of them here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import ceil, inf

from worker.compiler.ir.affine import Affine
from worker.compiler.ir.graph import Graph
from worker.compiler.machine.machine import Engine
from worker.compiler.memory.liveness import LiveTensor, live_bytes_by_task
from worker.compiler.memory.spill import SpillRule, choose_spills
from worker.compiler.memory.spill_choices import SpillChoice, spill_choices
from worker.compiler.schedule.nodes import Box
from worker.compiler.strategies.graphturbo.floors import least_cycles
from worker.compiler.strategies.graphturbo.handover_cut import LayerRun
from worker.compiler.strategies.graphturbo.handover_facts import handed_over
from worker.compiler.strategies.graphturbo.handover_plan import RunPlan, plan_run
from worker.compiler.strategies.graphturbo.section_context import SectionContext
from worker.compiler.strategies.graphturbo.section_plan import SectionPlan
from worker.compiler.strategies.graphturbo.site import Site, TileKey
from worker.compiler.strategies.graphturbo.stays import stays_of, steps_of
from worker.compiler.tiling.align import buffer_bytes
from worker.compiler.tiling.chain.plan import ChainPlan, follows_slices
from worker.compiler.tiling.layer.layers import Layer
from worker.compiler.tiling.layer.nest_task import WEIGHT_SHARE, NestTask
from worker.compiler.tiling.layer.plan_layer import LayerPlan, Tiles, plan_rows
from worker.compiler.tiling.nest.overhang import hangs_over
from worker.compiler.tiling.nest.plan import Team
from worker.compiler.tiling.slices.propagate import is_sliced_badly

_QUARTERS = 4


class Planner(SectionContext):
    """Plans one unit in several ways; what was planned once is remembered.

    Cost: a few hundred predictions per layer, team and set of operands in GB.
    """

    def __init__(
        self, graph: Graph, layers: Sequence[Layer], engines: Mapping[str, Engine], site: Site
    ) -> None:
        super().__init__(graph, layers, engines, site)
        self.steps = steps_of(site)
        """Of every layer: one for each instance in an order, one in a nest of loops."""
        self._num_steps = sum(map(len, self.steps.values()))
        self._live_bytes: dict[frozenset[str], tuple[int, ...]] = {}
        """Per set of tensors in GB, its bytes while each step runs."""

    def plan(
        self, whole_chip: Sequence[bool], runs: Sequence[LayerRun] = (), limit: float = inf
    ) -> SectionPlan | None:
        """Plan all layers, on one cluster or the whole chip; None where one has no tiles.

        None also as soon as more than `limit` cycles are predicted.
        `runs`: layers that hand tensors over in the cores' buffers, in order and apart.
        """
        if self._reads_foreign_slices() or self._is_sliced_badly():
            return None
        handed = {t for run in runs for t in handed_over(self, run.first, run.last)}
        made, staged = self._tensors(whole_chip)
        made = [t for t in made if t not in handed]
        best: SectionPlan | None = None
        for choice in self._spill_choices(made, staged, runs):
            found = self._plan_with(whole_chip, runs, (made, staged), choice, limit)
            if found is not None:
                # The next one has to be faster.
                best, limit = found, found.predicted_cycles - 1
        return best

    def _plan_with(
        self,
        whole_chip: Sequence[bool],
        runs: Sequence[LayerRun],
        tensors: tuple[Sequence[str], Sequence[str]],
        choice: SpillChoice,
        limit: float,
    ) -> SectionPlan | None:
        """The plan with `tensors` (made in GB, brought there), less what a choice spills."""
        rule, spilled = choice
        made = [t for t in tensors[0] if t not in spilled]
        staged = [t for t in tensors[1] if t not in spilled]
        held = frozenset((*made, *staged))
        planned = self._planned_runs(held, (*made, *staged), runs)
        if planned is None:
            return None
        site = self.site
        layers: list[LayerPlan] = []
        around = {k: run for run in planned for k in range(run.run.first, run.run.last)}
        cycles = sum(r.predicted_cycles * site.runs(self.part_of[r.run.first]) for r in planned)
        kept = frozenset(
            t for t in made
            if t in self.graph.outputs
            or any(whole_chip[n] or t in self.uses.at_home[n] for n in self.uses.readers.get(t, ()))
        )  # fmt: skip
        home = site.machine.home
        for t in (*staged, *sorted(kept)):
            times = site.runs(self._place(t) if t in staged else self._home_part(t))
            moved = self.size(t) * times * site.spread.clusters
            cycles += int(moved / home.read_bytes_per_cycle)
        floors = [
            0.0
            if n in around
            else self._known_or_least(n, held, on_chip) * site.runs(self.part_of[n])
            for n, on_chip in enumerate(whole_chip)
        ]
        least = cycles + sum(floors)
        for number in range(len(self.layers)):
            if least > limit + 1:  # rounding apart
                return None
            if number in around:
                layers.append(around[number].layers[number - around[number].run.first])
                continue
            found = self.tiles(number, held, whole_chip[number])
            if found is None:
                return None
            layers.append(self._layer_plan(number, found))
            cost = found.predicted_cycles * site.runs(self.part_of[number])
            cycles += cost
            least += cost - floors[number]
        if cycles > limit:
            return None
        return SectionPlan(
            self.graph, tuple(layers), site.parts,
            tuple(t for t in self.graph.tensors if t in held),
            frozenset(staged), kept, self._summed(frozenset(made)),
            {t: self._place(t) for t in sorted(held)},
            {t: self.box(t) for t in sorted(held)}, self._shares(kept), tuple(sorted(spilled)),
            tuple(whole_chip), site.spread, "" if site.buffer is None else site.buffer.name,
            home.name, cycles, planned, rule, site.order,
        )  # fmt: skip

    def _planned_runs(
        self, held: frozenset[str], order: Sequence[str], runs: Sequence[LayerRun]
    ) -> tuple[RunPlan, ...] | None:
        """Tiles of all runs; None where one has none, or its constants no room in GB."""
        found: list[RunPlan] = []
        alive = live_bytes_by_task(self._lives(order, runs)) if runs else []
        for run in runs:
            plan = plan_run(self, held, run)
            if plan is None or self.site.buffer is None:
                return None
            wanted = sum(
                buffer_bytes(self.graph.tensors[t].shape, self.graph.tensors[t].dtype,
                             self.site.buffer, 1)
                for t in plan.constants
            )  # fmt: skip
            length = run.last - run.first
            most = max(
                (b for at in self.steps[run.first] for b in alive[at : at + length]), default=0
            )
            if wanted + most > self.site.buffer.usable_bytes:
                return None
            found.append(plan)
        return tuple(found)

    def _known_or_least(self, number: int, held: frozenset[str], whole_chip: bool) -> float:
        """Cycles of one run of a layer where its tiles are known, else what it takes at least."""
        key, site = self._tile_key(number, held, whole_chip), self.site
        if key in site.tiles:
            tiles = site.tiles[key]
            return inf if tiles is None else tiles.predicted_cycles
        if key not in site.floors:
            site.floors[key] = least_cycles(self, number, key[1], whole_chip)
        return site.floors[key]

    def _tile_key(self, number: int, held: frozenset[str], whole_chip: bool) -> TileKey:
        layer = self.layers[number]
        near: frozenset[str] = frozenset() if whole_chip else self.near(number, held)
        # Row chains pass by the buffer; what room there is makes no difference to them.
        quarters = 1 if layer.is_chain else self.free_quarters(number, held)
        domains = self.domains(number)
        boxes = () if domains is None else tuple(domains[name] for name in layer.ops)
        extents = tuple(tuple((str(span.start), span.extent) for span in box) for box in boxes)
        reserve, near_names = self._precedes_weights(number), tuple(sorted(near))
        return (layer.ops, near_names, whole_chip, extents, self.site.spread, quarters, reserve)

    def tiles(self, number: int, held: frozenset[str], whole_chip: bool) -> Tiles | None:
        """Tiles of one layer when `held` tensors are in GB."""
        key = self._tile_key(number, held, whole_chip)
        if key not in self.site.tiles:
            self.site.tiles[key] = self._search(number, key)
        found = self.site.tiles[key]
        if isinstance(found, ChainPlan):  # what is held of its operands the key does not say
            return found if follows_slices(found.cut, {t: self.box(t) for t in key[1]}) else None
        return None if found is not None and self._hangs_over(number, key[1]) else found

    def _hangs_over(self, number: int, near: Sequence[str]) -> bool:
        """Whether a layer's epilogue would leave the slices of tensors it exchanges in GB."""
        facts, domains = self.uses.facts[number], self.domains(number)
        if facts is None or domains is None:
            return False
        held = {tensor: self.box(tensor) for tensor in near}
        return hangs_over(facts, domains[facts.op.name], held, self.instances(number))

    def needed_bytes(self) -> int:
        """Most bytes of tensors in GB at once, if all that can be there are."""
        every = [t for names in self._tensors((False,) * len(self.layers)) for t in names]
        return max(live_bytes_by_task(self._lives(every)), default=0)

    def free_quarters(self, number: int, held: frozenset[str]) -> int:
        """Quarters of GB, at least one, that tensors held while the layer runs leave to its nest.

        Coarse steps, so that layers of equal structure stay one question.
        """
        if self.site.buffer is None:
            return 0
        if held not in self._live_bytes:
            names = [t for t in self.graph.tensors if t in held and self.uses.is_exchanged(t)]
            live = live_bytes_by_task(self._lives(names))
            self._live_bytes[held] = (*live, *[0] * (self._num_steps - len(live)))
        live = self._live_bytes[held]
        busy = min(self.site.room, max(live[step] for step in self.steps[number]))
        return _QUARTERS - ceil(_QUARTERS * busy / self.site.buffer.usable_bytes)

    def _precedes_weights(self, number: int) -> bool:
        """Whether later layers have more weights than one with a reserve leaves room for."""
        buffer = self.site.buffer
        if buffer is None or not self.site.prefetch:
            return False
        return sum(self.uses.weights[number + 1 :]) > buffer.usable_bytes * (1 - WEIGHT_SHARE)

    def _search(self, number: int, key: TileKey) -> Tiles | None:
        _, near, whole_chip, _, _, quarters, reserve = key
        layer, site = self.layers[number], self.site
        team = Team.everyone(site.machine) if whole_chip else site.cluster
        base = {} if site.buffer is None else dict.fromkeys(near, site.buffer.name)
        engine = self.engines[layer.ops[0]]
        domains = self.domains(number)
        rows = None
        if layer.is_chain:
            rows = plan_rows(layer, self.uses.cuts, base, domains, site.machine, team, engine)
        facts = self.uses.facts[number]
        if rows is not None or facts is None:
            return rows
        domain = None if domains is None else domains[layer.ops[0]]
        early = self.uses.constants if site.prefetch else frozenset()
        facts = replace(facts, base=base, early=early)

        room = 0 if site.buffer is None else site.buffer.usable_bytes * quarters // _QUARTERS
        task = NestTask(facts, domain, engine, site.machine, team, site.buffer, room, reserve)
        return task.tiles(prefetch=site.prefetch)

    def _shares(self, kept: frozenset[str]) -> dict[str, Box]:
        found: dict[str, Box] = {}
        for tensor in sorted(kept):
            slices = self.site.parts[self._home_part(tensor)].slices
            if slices is not None and tensor in slices.shares:
                found[tensor] = slices.shares[tensor]
        return found

    def _tensors(self, whole_chip: Sequence[bool]) -> tuple[list[str], list[str]]:
        """Tensors made in GB and tensors brought there, in the graph's order."""
        made: list[str] = []
        staged: list[str] = []
        if self.site.buffer is None:
            return made, staged
        for tensor in self.graph.tensors:
            near = [
                n for n in self.uses.readers.get(tensor, ())
                if not whole_chip[n] and tensor not in self.uses.at_home[n]
            ]  # fmt: skip
            writers = self.uses.writers.get(tensor, [])
            is_here = [not whole_chip[n] and tensor not in self.uses.at_home[n] for n in writers]
            is_made = bool(writers) and all(is_here)
            if tensor in self.uses.constants or (writers and self.uses.stays_inside(tensor)):
                continue
            if is_made and (near or self._is_repeated(tensor)):
                made.append(tensor)
            elif not any(is_here) and near and self._is_staged_once(tensor, near):
                staged.append(tensor)
        return made, staged

    def _is_staged_once(self, tensor: str, near: Sequence[int]) -> bool:
        """Whether it can be brought in at once: all of it is there before its first reader, and one
        part alone reads it, so that its instances can bring in their slices."""
        writers = self.uses.writers.get(tensor, ())
        if writers:
            return len(self.site.parts) == 1 and max(writers) < min(near)
        return len({self.part_of[n] for n in near}) == 1 or len(self.site.parts) == 1

    def _is_repeated(self, tensor: str) -> bool:
        return any(self._repeats(n) for n in self.uses.writers[tensor])

    def _reads_foreign_slices(self) -> bool:
        """Whether an instance reads at home what it computes again: others write it there too."""
        return any(
            tensor in self.uses.at_home[n]
            for tensor in self.uses.writers
            if self._is_repeated(tensor)
            for n in self.uses.readers.get(tensor, ())
        )

    def _is_sliced_badly(self) -> bool:
        return any(
            is_sliced_badly(self.uses.op(name), box)
            for part in self.site.parts
            if part.slices is not None
            for name, box in part.slices.domains.items()
        )

    def _repeats(self, number: int) -> bool:
        """Whether instances compute some of the layer's points again."""
        slices = self.site.parts[self.part_of[number]].slices
        return slices is not None and not slices.recompute.isdisjoint(self.layers[number].ops)

    def _spill_choices(
        self, made: Sequence[str], staged: Sequence[str], runs: Sequence[LayerRun]
    ) -> tuple[SpillChoice, ...]:
        """Ways to choose tensors that leave GB where it cannot hold all."""

        def home_bytes(tensor: str, is_spilled: bool) -> int:
            """A spilled tensor is written once and read by every reader from home."""
            readers = self.uses.readers.get(tensor, ())
            times = len(readers) + (tensor in self.uses.writers)
            if not is_spilled:
                far = any(tensor in self.uses.at_home[n] for n in readers)
                times = int(tensor in staged or far or tensor in self.graph.outputs)
            users = self.uses.users(tensor)
            return times * self.size(tensor) * max(self.site.runs(self.part_of[n]) for n in users)

        lives = self._lives((*made, *staged), runs)
        # In an order the paper's rule decides: a tensor leaves with all of its slices.
        if self.site.order or not self.site.spills_by_cost:
            gone = choose_spills(lives, self.site.room, SpillRule.LONGEST_LIVENESS)
            return ((SpillRule.LONGEST_LIVENESS, frozenset(lives[k].name for k in gone)),)
        return spill_choices(lives, self.site.room, home_bytes)

    def _lives(self, tensors: Sequence[str], runs: Sequence[LayerRun] = ()) -> list[LiveTensor]:
        """When they are in GB, once per stay there; what a run uses is there for all of it."""
        lives: list[LiveTensor] = []
        opens = {k: run.first for run in runs for k in range(run.first, run.last)}
        closes = {k: run.last - 1 for run in runs for k in range(run.first, run.last)}
        for tensor in tensors:
            users = self.uses.users(tensor)
            ends = [end for n in users for end in (opens.get(n, n), closes.get(n, n))]
            parts = {self.part_of[n] for n in users}
            size = self.size(tensor)
            if len(parts) == 1:
                runs_of_it = zip(*(self.steps[n] for n in ends), strict=True)
                lives.extend(LiveTensor(tensor, size, min(s), max(s)) for s in runs_of_it)
            elif not self.site.order:
                # Around inner instances it is there from the first of them on.
                last = max(self.steps[n][0] for n in ends)
                lives.append(LiveTensor(tensor, size, 0, last))
            else:
                lives.extend(self._stays(tensor, size, parts))
        return lives

    def _stays(self, tensor: str, size: int, parts: Collection[int]) -> Iterator[LiveTensor]:
        """In GB between instances of several parts, each of which it outlives or precedes."""
        site = self.site
        sizes = [len(site.parts[instance.group].layers) for instance in site.order]
        begins = [0, *accumulate(sizes)]
        for stay in stays_of(site.order, site.factors, parts):
            last = begins[stay.closed + 1] - 1
            yield LiveTensor(tensor, stay.count * size, begins[stay.opened], last)

    def size(self, tensor: str) -> int:
        """Bytes an instance holds of a tensor."""
        buffer = self.site.buffer
        assert buffer is not None
        extents = tuple(span.extent for span in self.box(tensor))
        return buffer_bytes(extents, self.graph.tensors[tensor].dtype, buffer, 1)

    def _summed(self, held: frozenset[str]) -> frozenset[str]:
        found: list[str] = []
        for layer, facts in zip(self.layers, self.uses.facts, strict=True):
            if facts is not None and facts.accumulates and self.uses.adds_in_buffer(layer):
                found.append(facts.op.write.tensor)
        return held.intersection(found)

    def _layer_plan(self, number: int, tiles: Tiles) -> LayerPlan:
        layer, domains = self.layers[number], self.domains(number)
        op = self.uses.op(layer.ops[0])
        at = {a.name: Affine() for a in op.domain}
        if domains is not None:
            at = {a.name: s.start for a, s in zip(op.domain, domains[op.name], strict=True)}
        return LayerPlan(layer, tiles, at, self._repeats(number))
