"""Cutting a unit into sections: runs of layers that share one way of using the clusters.

Early layers of a network have large tensors and few weights: cut into one instance per cluster
(samples, or rows with a halo) they keep every cluster busy.  Late layers have small tensors and
many weights, which each cluster would have to load: one cluster does.  Sections exchange through
home, so a shortest path over the narrow places of a unit finds the best sequence.
Source: GraphTurbo, sections 3.1-3.3; Deviation: what the paper decides by two rules on factors is
decided here by predicted cycles as well, and a change of spreading inside one kernel is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, inf

from worker.compiler.ir.graph import Graph
from worker.compiler.ir.reductions import is_second_stage
from worker.compiler.ir.region import Cuts
from worker.compiler.machine.machine import Engine, Machine, MemoryLevel
from worker.compiler.strategies.graphturbo.descriptor import Idea
from worker.compiler.strategies.graphturbo.groups import Grouped, group_layers
from worker.compiler.strategies.graphturbo.handover import HOPE, hand_over, runs_on_offer
from worker.compiler.strategies.graphturbo.handover_bind import Candidate
from worker.compiler.strategies.graphturbo.section_plan import SectionPlan
from worker.compiler.strategies.graphturbo.site import Part, Site, Spread, TileKey, instance_var
from worker.compiler.strategies.graphturbo.split_info import lb_capacity
from worker.compiler.strategies.graphturbo.teams import team_plans
from worker.compiler.strategies.graphturbo.turns import even_turns, grouped_turns, num_samples
from worker.compiler.strategies.graphturbo.unit_plan import Planner
from worker.compiler.strategies.graphturbo.values import Instance
from worker.compiler.strategies.graphturbo.variants import Features
from worker.compiler.tiling.layer.layers import Layer
from worker.compiler.tiling.layer.plan_layer import Tiles, global_buffer
from worker.compiler.tiling.nest.facts import Facts
from worker.compiler.tiling.slices.footprint import piece_outputs
from worker.compiler.tiling.slices.propagate import Slices, propagate, repeats_little

MIN_POINTS = 10
"""Places, at least, at which a unit may be cut into sections."""
LAYERS_PER_POINT = 3
"""Layers for one such place in a long unit of one sample: it may hold several blocks of a network.
With more samples, every section is planned for several numbers of turns, and places are dear."""
MIN_CHANGE = 1.5
"""Change of the bytes alive from one narrow place to the next that tells them apart."""
MAX_SPREAD_LAYERS = 32
"""Longest section of one sample that is spread over clusters (halo grows with every layer)."""
MAX_CUTTINGS = 2
"""Dimensions of the results along which a section of one sample is planned."""
MAX_TURNS = 8
"""Bands of one sample, at most, that a cluster takes one after the other."""
SECTION_CYCLES = 1500
"""Latency of a change of section: drain, round trip through home."""


@dataclass
class UnitContext:
    """One unit being planned, and what was planned of it before."""

    graph: Graph
    layers: tuple[Layer, ...]
    engines: Mapping[str, Engine]
    machine: Machine
    features: Features
    tiles: dict[TileKey, Tiles | None] = field(default_factory=dict)
    facts: dict[tuple[str, ...], Facts | None] = field(default_factory=dict)
    floors: dict[TileKey, float] = field(default_factory=dict)
    offers: dict[int, tuple[Planner, tuple[Candidate, ...]]] = field(default_factory=dict)
    """Runs that could hand tensors over, by section."""

    def __post_init__(self) -> None:
        self.cuts = Cuts.of(self.graph)
        memory = self.engines[self.layers[0].ops[0]].memory
        self.buffer: MemoryLevel | None = None
        if self.features.shared_buffer:
            self.buffer = global_buffer(self.machine, memory)
        self.clusters = 1 if self.buffer is None else self.buffer.instances

    @cached_property
    def grouped(self) -> Grouped:
        """What Algorithms 1 and 2 say, for the samples of all clusters together."""
        samples = num_samples(self.graph)
        shares = max(k for k in range(1, self.clusters + 1) if samples % k == 0)
        return group_layers(self.graph, self.layers, lb_capacity(self.machine) * shares)

    def piece(self, first: int, last: int) -> Graph:
        """The graph of layers first .. last - 1."""
        return self.cuts.piece([n for layer in self.layers[first:last] for n in layer.ops])


def best_sections(
    ctx: UnitContext, borders: Sequence[int] | None = None
) -> tuple[SectionPlan, ...] | None:
    """The sections of least predicted cycles, all tensors between layers in GB or at home.

    `borders`: positions between layers where they meet, ascending, both ends included; by default,
    they are chosen from narrow places all along the unit.  None when some layer has no tiles.
    """
    points = meeting_points(ctx) if borders is None else borders
    best: dict[int, tuple[float, tuple[SectionPlan, ...]]] = {0: (0.0, ())}
    for k, end in enumerate(points[1:], 1):
        # Short sections first: what they add up to limits what long ones may take.
        for start in reversed(points[:k] if borders is None else points[k - 1 : k]):
            if start not in best:
                continue
            before = best[start][0] + SECTION_CYCLES
            limit = best[end][0] - before if end in best else inf
            plan = _section(ctx, start, end, limit)
            if plan is None:
                continue
            total = before + plan.predicted_cycles
            if end not in best or total < best[end][0]:
                best[end] = (total, (*best[start][1], plan))
    found = best.get(len(ctx.layers))
    return None if found is None else found[1]


def same_borders(
    sections: Sequence[SectionPlan], layers: Sequence[Layer]
) -> tuple[int, ...] | None:
    """Positions among other layers of the same operators where the sections meet.

    None where such a layer has operators of both sides.
    """
    position = {frozenset[str](): 0}
    before: set[str] = set()
    for k, layer in enumerate(layers, 1):
        before.update(layer.ops)
        position[frozenset(before)] = k
    found, before = [0], set()
    for section in sections:
        before.update(name for layer in section.layers for name in layer.layer.ops)
        if frozenset(before) not in position:
            return None
        found.append(position[frozenset(before)])
    return tuple(found)


def with_handovers(
    ctx: UnitContext, sections: Sequence[SectionPlan], gain: float
) -> tuple[SectionPlan, ...]:
    """The sections with tensors in the cores' local buffers where that takes at most `gain` of the
    predicted cycles; as they are when it is 0."""
    if not gain:
        return tuple(sections)
    found: list[SectionPlan] = []
    for number, plan in enumerate(sections):
        if number not in ctx.offers:
            planner = _planner(ctx, plan)
            ctx.offers[number] = planner, runs_on_offer(planner, plan, max(gain, HOPE))
        planner, offers = ctx.offers[number]
        found.append(hand_over(planner, plan, offers, gain))
    return tuple(found)


def _planner(ctx: UnitContext, plan: SectionPlan) -> Planner:
    """The planner that a plan is from."""
    site = site_of(ctx, plan.spread, plan.parts, plan.order)
    return Planner(plan.graph, [layer.layer for layer in plan.layers], ctx.engines, site)


def site_of(
    ctx: UnitContext, spread: Spread, parts: tuple[Part, ...], order: tuple[Instance, ...] = ()
) -> Site:
    """Where layers of the unit are planned, with what was planned of it before."""
    ahead = ctx.features.prefetch
    return Site(
        ctx.machine, ctx.buffer, spread, parts, ctx.tiles, ahead, ctx.facts, ctx.floors, order,
        ctx.features.uses(Idea.SPILL_BY_COST),
    )  # fmt: skip


def meeting_points(ctx: UnitContext) -> list[int]:
    """Positions between layers where sections may meet: narrow places all along the unit."""
    number = len(ctx.layers)
    is_cut = ctx.features.instances and ctx.features.uses(Idea.SECTIONS)
    if ctx.clusters == 1 or not is_cut or number < 3:
        return [0, number]
    alive = _alive(ctx)
    inside = _half_written(ctx)
    inner = [
        k
        for k in range(1, number)
        if alive[k] <= min(alive[k - 1], alive[k + 1]) and k not in inside
    ]
    most = MIN_POINTS if num_samples(ctx.graph) > 1 else max(MIN_POINTS, number // LAYERS_PER_POINT)
    return sorted({0, *_telling(inner, alive, most - 2), *_second_stages(ctx), number})


def _second_stages(ctx: UnitContext) -> list[int]:
    """Positions of layers that need all rows of what is made band by band in front of them."""
    return [
        k
        for k in range(1, len(ctx.layers))
        if is_second_stage(ctx.cuts.op(ctx.layers[k].ops[0]), ctx.graph)
    ]


def _telling(points: Sequence[int], alive: Sequence[int], most: int) -> list[int]:
    """At most `most` of the points: first where the bytes alive change, then evenly spread.

    Between two changes one way of using the clusters suits all layers.
    """
    if len(points) <= most:
        return list(points)

    def change(k: int) -> float:
        around = [alive[points[j]] for j in (k - 1, k, k + 1) if 0 <= j < len(points)]
        return max(around) / max(1, min(around))

    telling = [k for k in range(len(points)) if change(k) > MIN_CHANGE]
    kept = sorted(telling, key=lambda k: (-change(k), k))[:most]
    rest = [k for k in range(len(points)) if k not in kept]
    more = most - len(kept)
    kept += [rest[j * (len(rest) - 1) // max(more - 1, 1)] for j in range(more)]
    return [points[k] for k in sorted(kept)]


def _half_written(ctx: UnitContext) -> frozenset[int]:
    """Positions before which a tensor of several writers (a concatenation) is not complete."""
    first: dict[str, int] = {}
    found: set[int] = set()
    for k, layer in enumerate(ctx.layers):
        for name in layer.ops:
            tensor = ctx.cuts.op(name).write.tensor
            found.update(range(first.setdefault(tensor, k) + 1, k + 1))
    return frozenset(found)


def _alive(ctx: UnitContext) -> list[int]:
    """Bytes of tensors that cross the point before each layer."""
    made: dict[str, int] = dict.fromkeys(ctx.graph.inputs, -1)
    last: dict[str, int] = {}
    for k, layer in enumerate(ctx.layers):
        for name in layer.ops:
            op = ctx.cuts.op(name)
            tensor = op.write.tensor
            made.setdefault(tensor, k)
            for tensor in op.input_names():
                last[tensor] = k
    last.update(dict.fromkeys(ctx.graph.outputs, len(ctx.layers)))
    found = [0] * (len(ctx.layers) + 2)
    for tensor, first in made.items():
        for k in range(first + 1, last.get(tensor, first) + 1):
            found[k] += ctx.graph.tensors[tensor].size_bytes
    return found


def _section(ctx: UnitContext, start: int, end: int, limit: float = inf) -> SectionPlan | None:
    """The best plan of a run of layers; None if all are predicted to take more than `limit`."""
    graph = ctx.piece(start, end)
    layers = ctx.layers[start:end]
    cores = ctx.machine.num_cores // ctx.clusters
    plain = Part(tuple(range(len(layers))), None, 1)
    site = site_of(ctx, Spread(1, cores), (plain,))
    samples = 1 if ctx.buffer is None else num_samples(graph)
    of = graph, layers, ctx.engines, site
    found: list[SectionPlan] = []

    def most() -> float:
        """Predicted cycles above which no plan can win any more."""
        return min([limit, *(plan.predicted_cycles for plan in found)])

    if ctx.features.instances and ctx.buffer is not None:
        if samples > 1:
            found.extend(even_turns(*of, samples, most()))
        if ctx.features.uses(Idea.BANDS):
            found.extend(spread_plans(ctx, graph, layers, cores, most()))
    is_mixed = ctx.features.uses(Idea.TEAMS)
    found.extend(team_plans(Planner(*of), ctx.clusters, most(), is_mixed=is_mixed))
    if samples > 1 and not ctx.features.instances:
        found.extend(even_turns(*of, samples, most(), at_once=True))
    elif samples > 1 and (start, end) == (0, len(ctx.layers)) and ctx.features.uses(Idea.TURNS):
        found.extend(grouped_turns(*of, samples, ctx.grouped, most()))
    best = min(found, key=lambda plan: plan.predicted_cycles, default=None)
    return None if best is None or best.predicted_cycles > limit else best


def spread_plans(
    ctx: UnitContext, graph: Graph, layers: Sequence[Layer], cores: int, limit: float
) -> list[SectionPlan]:
    """Plans that share one dimension of the results each out over the clusters.

    `cores` are those of a cluster.  None are predicted to take more than `limit` cycles, or longer
    than the plans before them.
    """
    if ctx.clusters == 1 or len(layers) > MAX_SPREAD_LAYERS:
        return []
    found: list[SectionPlan] = []
    for slices in cuttings(ctx, graph):
        for planner in _bands(ctx, graph, layers, cores, slices):
            plan = planner.plan((False,) * len(layers), limit=limit)
            if plan is not None:
                found.append(plan)
                limit = min(limit, plan.predicted_cycles)
    return found


def _bands(
    ctx: UnitContext, graph: Graph, layers: Sequence[Layer], cores: int, slices: Slices
) -> list[Planner]:
    """Planners for one instance per cluster and, where its tensors exceed the buffer, before it for
    the fewest instances one after the other whose tensors do not."""

    def planner(slices: Slices, turns: int) -> Planner:
        part = Part(tuple(range(len(layers))), slices, turns)
        site = site_of(ctx, Spread(ctx.clusters, cores), (part,))
        return Planner(graph, layers, ctx.engines, site)

    once = planner(slices, 1)
    room, needed = once.site.room, once.needed_bytes()
    for turns in range(max(2, ceil(needed / room)), MAX_TURNS + 1) if needed > room else ():
        narrower = _narrower(graph, slices, ctx.clusters * turns)
        if narrower is None:
            break
        several = planner(narrower, turns)
        if several.needed_bytes() <= room:
            return [several, once]
    return [once]


def _narrower(graph: Graph, slices: Slices, number: int) -> Slices | None:
    """`number` slices along the same dimension; None if too few rows or too much repeated work."""
    exits = piece_outputs(graph, graph.ops)
    box = slices.shares[exits[0]]
    dim = next(k for k, span in enumerate(box) if span.start.variables())
    if graph.tensors[exits[0]].shape[dim] < number:
        return None
    found = propagate(graph, graph.ops, exits, dim, number, instance_var(0))
    return None if found is None or not repeats_little(graph.ops, found) else found


def cuttings(ctx: UnitContext, graph: Graph) -> list[Slices]:
    """Ways to cut all results into one slice per cluster: those with the least repeated work.

    Dimensions of equal extent with equal repeated work (height and width) count once.
    """
    exits = piece_outputs(graph, graph.ops)
    found: dict[tuple[int, int], Slices] = {}
    for dim, extent in enumerate(graph.tensors[exits[0]].shape):
        if extent < ctx.clusters:
            continue
        slices = propagate(graph, graph.ops, exits, dim, ctx.clusters, instance_var(0))
        if slices is not None and repeats_little(graph.ops, slices):
            found.setdefault((sum(slices.extra_points.values()), extent), slices)
    return [found[key] for key in sorted(found, key=lambda key: key[0])[:MAX_CUTTINGS]]
