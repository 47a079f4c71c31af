"""What the plan of a unit says of itself, for reports: a line of JSON beside the schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import msgspec

from worker.compiler.strategies.graphturbo.section_plan import SectionPlan
from worker.compiler.strategies.graphturbo.sections import UnitContext
from worker.compiler.strategies.graphturbo.summary import (
    BufferScope,
    MovementSummary,
    OrderSummary,
    SectionSummary,
    SpillSummary,
    UnitSummary,
)
from worker.compiler.strategies.graphturbo.turns import num_samples


def describe(
    ctx: UnitContext, sections: Sequence[SectionPlan], orders: tuple[OrderSummary, ...] = ()
) -> str:
    """The summary of a unit without what only the whole model knows.  Cost: linear.

    `orders`: those of the instances that could run, with the one that does.
    """
    widest = max(sections, key=lambda s: s.spread.clusters)
    turns = max(prod(part.trips for part in s.parts) for s in sections)
    samples = num_samples(ctx.graph)
    share = -(-samples // widest.spread.clusters)
    used = [s for s in sections if len(s.parts) > 1]
    summary = UnitSummary(
        unit=-1,
        label="",
        layers=len(ctx.layers),
        operators=len(ctx.graph.ops),
        groups=ctx.grouped.summaries if used or _runs_groups(ctx, sections) else (),
        orders=orders,
        tensors_by_scope=_scopes(ctx, sections),
        spills=_spills(ctx, sections),
        movements=_movements(ctx, sections),
        is_ahead=ctx.features.prefetch,
        samples_per_cluster=max(1, share if used or turns == 1 else -(-share // turns)),
        iterations=1 if used else turns,
        predicted_cycles=sum(s.predicted_cycles for s in sections),
        simulated_cycles=None,
        sections=tuple(SectionSummary(_name(s), s.predicted_cycles) for s in sections),
        num_handed=len(_handed(sections)),
    )
    return msgspec.json.encode(summary).decode()


def _runs_groups(ctx: UnitContext, sections: Sequence[SectionPlan]) -> bool:
    """Whether the parts of the only section are the unit's groups, be it a single one."""
    return ctx.features.ordered and all(p.slices for s in sections for p in s.parts)


def _name(section: SectionPlan) -> str:
    """How a section uses the machine, in words."""
    if any(section.whole_chip):
        return f"{len(section.layers)} layers, {sum(section.whole_chip)} on the whole chip"
    trips = "x".join(str(part.trips) for part in section.parts)
    return f"{len(section.layers)} layers, {section.spread.clusters} clusters, turns {trips}"


def _scopes(ctx: UnitContext, sections: Sequence[SectionPlan]) -> dict[BufferScope, int]:
    """Tensors that operators write, by the memory that holds them between their users."""
    buffered = {t for s in sections for t in s.buffered}
    inside = _inside(ctx).union(_handed(sections))
    counts = dict.fromkeys(BufferScope, 0)
    written = dict.fromkeys(op.write.tensor for op in ctx.graph.ops)
    for tensor in written:
        if tensor in inside:
            counts[BufferScope.LB] += 1
        elif tensor in buffered:
            counts[BufferScope.GB] += 1
        else:
            counts[BufferScope.HOME] += 1
    return counts


def _handed(sections: Sequence[SectionPlan]) -> tuple[str, ...]:
    """Tensors between layers that stay in LB."""
    return tuple(h.tensor for s in sections for run in s.runs for h in run.handed)


def _inside(ctx: UnitContext) -> frozenset[str]:
    """Tensors that only their own layer uses: they stay in LB."""
    owner = {name: k for k, layer in enumerate(ctx.layers) for name in layer.ops}
    users: dict[str, set[int]] = {}
    for op in ctx.graph.ops:
        for tensor in (*op.input_names(), op.write.tensor):
            users.setdefault(tensor, set()).add(owner[op.name])
    outputs = frozenset(ctx.graph.outputs)
    return frozenset(t for t, layers in users.items() if len(layers) == 1 and t not in outputs)


def _spills(ctx: UnitContext, sections: Sequence[SectionPlan]) -> tuple[SpillSummary, ...]:
    return tuple(
        SpillSummary(t, ctx.graph.tensors[t].size_bytes, BufferScope.HOME, str(s.spill_rule))
        for s in sections
        for t in s.spilled
    )


def _movements(ctx: UnitContext, sections: Sequence[SectionPlan]) -> tuple[MovementSummary, ...]:
    """Copies between home and GB, and tensors that cores hand over through GB."""
    copied = [t for s in sections for t in (*sorted(s.staged), *sorted(s.kept))]
    passed = [t for s in sections for t in s.buffered if t not in s.staged]
    size: Mapping[str, int] = {t: ctx.graph.tensors[t].size_bytes for t in (*copied, *passed)}
    return (
        MovementSummary("copy", len(copied), sum(size[t] for t in copied)),
        MovementSummary("exchange", len(passed), sum(size[t] for t in passed)),
    )
