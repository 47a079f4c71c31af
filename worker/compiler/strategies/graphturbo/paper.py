"""The paper's own way through a unit: groups, instances in one order, tensors in local buffers.

Every cluster takes an equal share of the samples.  There the groups of Algorithm 2 run as
instances one by one, in each of the orders that are known (`ordering`), the best by memory first.
Inside an instance each core keeps what one binding reaches in its local buffer (`handover`);
instances meet in the cluster's global buffer, where the order decides how long slices stay
(`stays`) and hence what is spilled.  Predicted cycles decide nothing here.
Source: GraphTurbo, sections 3 and 4.  Deviations: a tensor between instances is never in the local
buffers, since a place there belongs to one loop over the cores and every instance has its own;
factors divide, so that a consumer reads whole instances; a single sample keeps one cluster busy.
"""

from __future__ import annotations

from collections.abc import Iterator

from worker.compiler.strategies.graphturbo.instances import instance_graph
from worker.compiler.strategies.graphturbo.ordering import FoundOrder, is_nest, orders_of
from worker.compiler.strategies.graphturbo.section_plan import SectionPlan
from worker.compiler.strategies.graphturbo.sections import UnitContext, site_of
from worker.compiler.strategies.graphturbo.site import Part, Site, Spread
from worker.compiler.strategies.graphturbo.summary import OrderSummary
from worker.compiler.strategies.graphturbo.turns import (
    MAX_NESTED,
    clusters_of,
    group_parts,
    num_samples,
)
from worker.compiler.strategies.graphturbo.unit_plan import Planner
from worker.compiler.strategies.graphturbo.values import Instance
from worker.compiler.tiling.layer.layers import layer_edges

MAX_WRITTEN = 512
"""Layers of all instances together, above which only a nest of loops is written: a program of
thousands of layers would be larger than the network's own."""


def paper_plans(ctx: UnitContext) -> Iterator[tuple[SectionPlan, tuple[OrderSummary, ...]]]:
    """The unit as one section per order, the best order first, with all orders and which one it is.

    Nothing where a layer has no tiles.  Cost: Algorithms 1 and 2, and tiles of every layer.
    """
    samples = num_samples(ctx.graph) if ctx.buffer is not None else 1
    alone = (Part(tuple(range(len(ctx.layers))), None, 1),)
    clusters = clusters_of(samples, _site(ctx, 1, alone))
    parts = None
    if samples > 1:
        parts = group_parts(ctx.graph, ctx.layers, ctx.grouped, samples, clusters)
    if parts is None:
        clusters, parts = 1, alone
    site = _site(ctx, clusters, parts)
    is_nested = sum(site.factors) > MAX_NESTED
    for order, orders in [((), ())] if is_nested else _orders(ctx, site):
        site = _site(ctx, clusters, parts, order)
        planner = Planner(ctx.graph, ctx.layers, ctx.engines, site)
        plan = planner.plan((ctx.buffer is None,) * len(ctx.layers))
        if plan is not None:
            yield plan, orders


def _site(
    ctx: UnitContext, clusters: int, parts: tuple[Part, ...], order: tuple[Instance, ...] = ()
) -> Site:
    return site_of(ctx, Spread(clusters, ctx.machine.num_cores // ctx.clusters), parts, order)


def _orders(
    ctx: UnitContext, site: Site
) -> Iterator[tuple[tuple[Instance, ...], tuple[OrderSummary, ...]]]:
    """Orders of the instances (empty: a nest of loops), and what is said of all of them."""
    owner = {k: n for n, part in enumerate(site.parts) for k in part.layers}
    pairs = {(owner[a], owner[b]) for a, b in layer_edges(ctx.graph, ctx.layers)}
    edges = [(a, b) for a, b in sorted(pairs) if a != b]
    sizes = [_bytes_out(ctx, part, site.spread.clusters) for part in site.parts]
    instances = instance_graph(site.factors, sizes, edges)
    orders = orders_of(instances, site.room)
    written = sum(f * len(p.layers) for f, p in zip(site.factors, site.parts, strict=True))
    for found in orders:
        order = tuple(instances.instances[k] for k in found.order)
        if is_nest(instances, found.order, site.factors):
            order = ()
        elif written > MAX_WRITTEN:
            continue
        yield order, _summaries(orders, found) if len(instances.instances) > 1 else ()


def _bytes_out(ctx: UnitContext, part: Part, clusters: int) -> int:
    """What a group's instances in one cluster leave for other groups, in bytes."""
    cuts = ctx.cuts
    names = frozenset(name for k in part.layers for name in ctx.layers[k].ops)
    made = dict.fromkeys(cuts.op(name).write.tensor for name in sorted(names))
    read = [t for t in made if any(reader not in names for reader in cuts.readers.get(t, ()))]
    return sum(ctx.graph.tensors[t].size_bytes for t in read) // clusters


def _summaries(orders: tuple[FoundOrder, ...], ran: FoundOrder) -> tuple[OrderSummary, ...]:
    return tuple(
        OrderSummary(o.name, o.peak_bytes, o.spilled_bytes, chosen=o is ran) for o in orders
    )
