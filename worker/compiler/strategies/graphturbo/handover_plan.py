"""Tiles of a run of layers that hand tensors over in the cores' local buffers (LB).

Each core runs its slice of all layers of the run, one after the other.  A tensor that only the run
uses lies in the core's LB from its first writer to its last reader; tiles of the layers between get
the room that is left.  Constants wait in the cluster's buffer, from where every core fetches them:
they are loaded from home once, however many cores and turns there are.
Source: GraphTurbo, sections 3.4 (an equal binding on both sides keeps a tensor in LB) and 4.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from worker.compiler.ir.op import TensorOp
from worker.compiler.machine.machine import MemoryLevel
from worker.compiler.schedule.grid import Ints
from worker.compiler.strategies.graphturbo.handover_cut import LayerRun, piece_var
from worker.compiler.strategies.graphturbo.handover_facts import (
    Handed,
    handed_tensors,
    local_buffer,
)
from worker.compiler.strategies.graphturbo.section_context import SectionContext
from worker.compiler.tiling.layer.plan_layer import LayerPlan, Tiles, plan_nest, plan_rows
from worker.compiler.tiling.nest.overhang import hangs_over
from worker.compiler.tiling.nest.plan import Team

_BUDGET_STEPS = 32
"""LB that is left to tiles is rounded down to such a part of it: layers are searched less often."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A run with its tiles."""

    run: LayerRun
    layers: tuple[LayerPlan, ...]
    handed: tuple[Handed, ...]
    constants: tuple[str, ...]
    """They are brought into the cluster's buffer in front of the run."""
    memory: str
    """The local buffer."""
    predicted_cycles: int


def plan_run(section: SectionContext, held: frozenset[str], run: LayerRun) -> RunPlan | None:
    """Tiles of all layers of a run when `held` tensors are in GB; None where something has no room.

    Cost: one search for tiles per layer.
    """
    site, uses, members = section.site, section.uses, range(run.first, run.last)
    local = local_buffer(section, members)
    if local is None or site.buffer is None or site.buffer.name == local.name:
        return None
    handed = handed_tensors(section, run, local)
    own = {t for k in members for t in uses.written(k)}
    shared = own.difference(h.tensor for h in handed)
    if any(k in members for t in shared for k in uses.readers.get(t, ()) if t not in held):
        return None  # read again from home, where other cores write their slices of it
    constants = tuple(
        t for t in section.graph.constants
        if any(k in members and t not in uses.at_home[k] for k in uses.readers.get(t, ()))
    )  # fmt: skip
    layers: list[LayerPlan] = []
    for k in members:
        room = local.usable_bytes - sum(h.size_bytes for h in handed if h.first <= k <= h.last)
        tiles = _tiles(section, run, k, held, frozenset(constants), handed, room, local)
        if tiles is None:
            return None
        layers.append(_layer_plan(section, run, k, tiles))
    cycles = run.cut.trips * sum(layer.predicted_cycles for layer in layers)
    cycles = _with_constants(section, run, constants, cycles)
    return RunPlan(run, tuple(layers), handed, constants, local.name, cycles)


def _with_constants(
    section: SectionContext, run: LayerRun, constants: Sequence[str], cycles: int
) -> int:
    """Cycles of a run whose constants come by the cluster's buffer.

    Fetched ahead, they cost what the layers before and in the run do not hide.
    """
    site, home = section.site, section.site.machine.home

    def loading(tensors: Sequence[str]) -> int:
        size = sum(section.graph.tensors[t].size_bytes for t in tensors)
        return int(size * site.spread.clusters / home.read_bytes_per_cycle)

    if not constants:
        return cycles
    if not site.prefetch:
        return cycles + loading(constants) + home.latency_cycles
    first = [t for t in constants if run.first in section.uses.readers[t]]
    waits = loading(first) if run.first == 0 else 0
    return max(cycles, loading(constants)) + waits + home.latency_cycles


def _tiles(
    section: SectionContext,
    run: LayerRun,
    number: int,
    held: frozenset[str],
    constants: frozenset[str],
    handed: Sequence[Handed],
    room: int,
    local: MemoryLevel,
) -> Tiles | None:
    layer, site = section.layers[number], section.site
    assert site.buffer is not None
    step = local.usable_bytes // _BUDGET_STEPS
    budget = room // step * step
    if budget <= 0:
        return None
    near = held.union(constants) - section.uses.at_home[number]
    base = dict.fromkeys(sorted(near), site.buffer.name)
    base.update((h.tensor, local.name) for h in handed)
    team = Team(1, site.spread.clusters * site.spread.cores, site.machine.num_cores)
    engine = section.engines[layer.ops[0]]
    facts = section.uses.facts[number]
    used = set(section.uses.touched(number))
    base = {t: memory for t, memory in base.items() if t in used}
    if layer.is_chain:
        rows = plan_rows(
            layer, section.uses.cuts, base, run.cut.domains, site.machine, team, engine, budget
        )
        if rows is not None or facts is None or len(layer.ops) > 1:
            return rows
    if facts is None:
        return None
    padded_locals = frozenset(
        o.tensor for o in facts.fetched if base.get(o.tensor) == local.name and o.is_padded
    )
    facts = replace(facts, base=base, early=frozenset(), padded_locals=padded_locals)
    domain = run.cut.domains[layer.ops[0]]
    boxes = {t: section.box(t) for t in used & near & held} | {h.tensor: h.box for h in handed}
    if hangs_over(facts, domain, boxes, _pieces(section, run)):
        return None
    return plan_nest(
        facts, domain, engine, site.machine, team, {local.name: budget}, direct=True
    )  # fmt: skip


def _pieces(section: SectionContext, run: LayerRun) -> dict[str, Ints]:
    """Numbers of the instances around a run and of its pieces in them, broadcastable."""
    counts = [share.pieces for share in run.cut.binding]
    around = section.instances(run.first)
    found = {name: turn.reshape(-1, *[1] * len(counts)) for name, turn in around.items()}
    pieces = np.ogrid[tuple(map(slice, counts))]
    return {**found, **{piece_var(k): piece for k, piece in enumerate(pieces)}}


def _layer_plan(section: SectionContext, run: LayerRun, number: int, tiles: Tiles) -> LayerPlan:
    layer, cut = section.layers[number], run.cut
    op: TensorOp = section.uses.op(layer.ops[0])
    at = {a.name: s.start for a, s in zip(op.domain, cut.domains[op.name], strict=True)}
    return LayerPlan(layer, tiles, at, not cut.recompute.isdisjoint(layer.ops))
