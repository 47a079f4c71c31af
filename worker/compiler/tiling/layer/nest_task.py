"""Tiles of a layer that shares its memories with others: with those held meanwhile, with the next.

The best tiles for a layer alone fill a memory to the brim.  What else lives in the cluster's buffer
(GB) takes its part first.  Then a layer leaves a part of a core's buffer (LB) to the first tiles of
the layer after it, and of GB to the weights of those behind, where that costs it little: their
fills would have to wait for its end.
Source: our own (the paper moves single instructions across layers and counts no room for them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from worker.compiler.machine.machine import Engine, Machine, MemoryLevel
from worker.compiler.schedule.nodes import Box
from worker.compiler.schedule.walk import reach_memory
from worker.compiler.tiling.layer.plan_layer import bytes_in, plan_nest
from worker.compiler.tiling.nest.facts import Facts
from worker.compiler.tiling.nest.plan import Plan, Team

PREFETCH_RESERVE = 0.5
"""Part of LB a layer leaves to the first tiles of the next one."""
PREFETCH_GAIN = 1.1
"""How much slower a layer may be predicted for leaving that part."""
WEIGHT_SHARE = 0.375
"""Part of GB for the weights of one layer where many more follow."""
RESERVE_GAIN = 1.3
"""How much slower a layer may be predicted for that: the wait of those behind is not predicted."""


@dataclass(frozen=True, slots=True)
class NestTask:
    """A layer with an anchor, to be tiled."""

    facts: Facts
    domain: Box | None
    engine: Engine
    machine: Machine
    team: Team
    buffer: MemoryLevel | None
    """GB, where there is one."""
    room: int
    """Bytes of it that tensors held meanwhile leave."""
    is_reserving: bool
    """Whether many more weights follow."""

    def tiles(self, *, prefetch: bool) -> Plan | None:
        """The best tiles; None when nothing fits.

        `prefetch`: weights are fetched under the layers before.
        Cost: one to six searches, most of them remembered.
        """
        whole = self._found({})
        if whole is None or not prefetch:
            return whole
        local = self.machine.level(reach_memory(self.engine.name, self.machine))
        room = int(local.usable_bytes * (1 - PREFETCH_RESERVE))
        if bytes_in(whole, local.name) <= room:
            return whole
        part = self._found({local.name: room})
        if part is None or part.predicted_cycles > whole.predicted_cycles * PREFETCH_GAIN:
            return whole
        return part

    def _found(self, limits: Mapping[str, int]) -> Plan | None:
        """What fits a free buffer is mostly small enough for a busy one: one search then."""
        plan = self._plan(limits)
        if self.buffer is None or plan is None:
            return plan
        if bytes_in(plan, self.buffer.name) > self.room:
            limits = {self.buffer.name: self.room, **limits}
            plan = self._plan(limits)
        return self._with_reserve(plan, limits, self.buffer) if self.is_reserving and plan else plan

    def _with_reserve(self, plan: Plan, limits: Mapping[str, int], buffer: MemoryLevel) -> Plan:
        """With no more weights in GB at once than the reserve leaves, unless much slower."""
        weights = bytes_in(plan, buffer.name, self.facts.early)
        most = int(buffer.usable_bytes * WEIGHT_SHARE)
        if weights <= most:
            return plan
        room = bytes_in(plan, buffer.name) - weights + most
        part = self._plan({**limits, buffer.name: room})
        if part is None or part.predicted_cycles > plan.predicted_cycles * RESERVE_GAIN:
            return plan
        return part

    def _plan(self, limits: Mapping[str, int]) -> Plan | None:
        return plan_nest(self.facts, self.domain, self.engine, self.machine, self.team, limits)
