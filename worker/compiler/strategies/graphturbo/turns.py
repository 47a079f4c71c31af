"""Samples in instances: groups of layers (Algorithm 2) and their factors, as a nest of loops.

Every cluster takes an equal share of the samples; there an instance of a group runs as soon as the
instances before it that it covers have: weights of a late group with few instances are loaded that
few times.  Other orders are the variant `paper`'s (`paper.py`).
Source: GraphTurbo, sections 3.1 to 3.3.  Deviation: factors are raised to multiples of the
following group's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, inf

from worker.compiler.ir.graph import Graph
from worker.compiler.machine.machine import Engine
from worker.compiler.schedule.nodes import Span
from worker.compiler.strategies.graphturbo.groups import Grouped
from worker.compiler.strategies.graphturbo.section_plan import SectionPlan
from worker.compiler.strategies.graphturbo.site import Part, Site, Spread, instance_var
from worker.compiler.strategies.graphturbo.split_info import MAX_INSTANCES
from worker.compiler.strategies.graphturbo.unit_plan import Planner
from worker.compiler.tiling.factors import divisors
from worker.compiler.tiling.layer.layers import Layer
from worker.compiler.tiling.slices.footprint import piece_outputs
from worker.compiler.tiling.slices.propagate import propagate

MAX_TURNS = 3
"""Numbers of turns planned where all layers take the samples of a turn together."""
MAX_NESTED = 512
"""Instances of all groups together, above which a nest is not compared, nor orders searched."""


def num_samples(graph: Graph) -> int:
    """Extent of the outermost dimension of the first result, if everything can be cut along it."""
    exits = piece_outputs(graph, graph.ops)
    shape = graph.tensors[exits[0]].shape
    if not shape or not 2 <= shape[0] <= MAX_INSTANCES:
        return 1
    slices = propagate(graph, graph.ops, exits, 0, shape[0], instance_var(0))
    return 1 if slices is None or slices.recompute else shape[0]


def even_turns(
    graph: Graph,
    layers: Sequence[Layer],
    engines: Mapping[str, Engine],
    site: Site,
    samples: int,
    limit: float = inf,
    *,
    at_once: bool = False,
) -> list[SectionPlan]:
    """Plans in which every layer takes the same number of samples at a time.

    `at_once`: each cluster takes all of its samples, whether their tensors fit or not.  Plans
    predicted to take more than `limit` cycles, or more than another, may be left out.
    """
    if site.buffer is None:
        return []
    found: list[SectionPlan] = []
    for number in [1] if at_once else _turns(graph, layers, engines, site, samples):
        plans = equal_turns(graph, layers, engines, site, samples, number, limit)
        found.extend(plans)
        limit = min([limit, *(plan.predicted_cycles for plan in plans)])
    return found


def equal_turns(
    graph: Graph,
    layers: Sequence[Layer],
    engines: Mapping[str, Engine],
    site: Site,
    samples: int,
    number: int,
    limit: float = inf,
) -> list[SectionPlan]:
    """The plan in which each cluster takes its samples in `number` turns, as a list.

    Empty where nothing fits or it is predicted to take more than `limit` cycles.
    """
    clusters = clusters_of(samples, site)
    exits = piece_outputs(graph, graph.ops)
    slices = propagate(graph, graph.ops, exits, 0, clusters * number, instance_var(0))
    assert slices is not None, "samples are independent"
    part = Part(tuple(range(len(layers))), slices, number)
    return _planned(graph, layers, engines, site, clusters, (part,), limit)


def _turns(
    graph: Graph, layers: Sequence[Layer], engines: Mapping[str, Engine], site: Site, samples: int
) -> list[int]:
    """Numbers of turns worth planning, most promising first.

    The fewest in which all tensors fit the buffer and one more, for layers whose tiles do better
    with fewer samples; and one less, which spills but loads the weights less often.
    """
    plain = Part(tuple(range(len(layers))), None, 1)
    spread = Spread(1, site.spread.cores)
    whole = replace(site, spread=spread, parts=(plain,))
    planner = Planner(graph, layers, engines, whole)
    clusters = clusters_of(samples, site)
    least = ceil(planner.needed_bytes() / clusters / site.room)
    every = divisors(samples // clusters)
    first = next((k for k, t in enumerate(every) if t >= least), len(every))
    fewer, more = every[max(first - 1, 0) : first], every[first : first + MAX_TURNS - 1]
    return [*more[:1], *fewer, *more[1:]]


def grouped_turns(
    graph: Graph,
    layers: Sequence[Layer],
    engines: Mapping[str, Engine],
    site: Site,
    samples: int,
    grouped: Grouped,
    limit: float = inf,
) -> list[SectionPlan]:
    """The plan in which groups of layers run as a nest of loops over their instances, as a list.

    Empty where nothing fits or it is predicted to take more than `limit` cycles.
    """
    factors = [g.factor for g in grouped.groups if g.factor is not None]
    if site.buffer is None or len(factors) < 2 or len(factors) < len(grouped.groups):
        return []
    if sum(factors) > MAX_NESTED:
        return []
    clusters = clusters_of(samples, site)
    parts = group_parts(graph, layers, grouped, samples, clusters)
    return [] if parts is None else _planned(graph, layers, engines, site, clusters, parts, limit)


def group_parts(
    graph: Graph, layers: Sequence[Layer], grouped: Grouped, samples: int, clusters: int
) -> tuple[Part, ...] | None:
    """The groups as parts whose factors divide, each cluster with its share of the samples.

    A group that no factor makes fit takes one sample at a time.  None where a part reads other
    samples than those of its own instance.
    """
    own = samples // clusters
    factors = nested_factors([own if g.factor is None else g.factor for g in grouped.groups], own)
    parts: list[Part] = []
    for number, group in enumerate(grouped.groups):
        names = {name for k in group.layers for name in layers[k].ops}
        ops = [op for op in graph.ops if op.name in names]
        exits = piece_outputs(graph, ops)
        slices = propagate(graph, ops, exits, 0, clusters * factors[number], instance_var(number))
        if slices is None or slices.recompute:
            return None
        last = factors[number + 1] if number + 1 < len(factors) else 1
        parts.append(Part(group.layers, slices, factors[number] // last))
    return tuple(parts) if _fits_together(graph, parts) else None


def clusters_of(samples: int, site: Site) -> int:
    """Most clusters that get equal shares of the samples."""
    most = 1 if site.buffer is None else site.buffer.instances
    return max(k for k in range(1, most + 1) if samples % k == 0)


def nested_factors(factors: Sequence[int], samples: int) -> list[int]:
    """Factors raised until each is a multiple of the next and divides the samples of a cluster.

    A group that does not even fit with one sample at a time gets that: the rest is spilled.
    """
    found: list[int] = []
    inner = 1
    for factor in reversed(factors):
        wanted = [d for d in divisors(samples) if d % inner == 0 and d >= min(factor, samples)]
        inner = wanted[0] if wanted else samples
        found.append(inner)
    return found[::-1]


def _fits_together(graph: Graph, parts: Sequence[Part]) -> bool:
    """Whether every part reads exactly what the instances inside it have made."""
    made: dict[str, tuple[int, Span]] = {}
    for number, part in enumerate(parts):
        assert part.slices is not None
        for tensor, box in part.slices.boxes.items():
            if tensor not in made or not box:
                continue
            maker, share = made[tensor]
            runs = 1
            for inner in parts[maker:number]:
                runs *= inner.trips
            step = box[0].start.coeff(instance_var(number))
            if box[0].extent != share.extent * runs or step != box[0].extent:
                return False
        for tensor, box in part.slices.shares.items():
            made[tensor] = (number, box[0])
    return True


def _planned(
    graph: Graph,
    layers: Sequence[Layer],
    engines: Mapping[str, Engine],
    site: Site,
    clusters: int,
    parts: tuple[Part, ...],
    limit: float,
) -> list[SectionPlan]:
    spread = Spread(clusters, site.spread.cores)
    own = replace(site, spread=spread, parts=parts)
    plan = Planner(graph, layers, engines, own).plan((False,) * len(layers), limit=limit)
    return [] if plan is None else [plan]
