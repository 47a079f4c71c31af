"""What strategies left at a model's units, put together for reports."""

from __future__ import annotations

from collections.abc import Sequence

from worker.compiler.judge.link import PlannedCall, PlannedHost
from worker.compiler.judge.units import Unit
from worker.compiler.strategies.sections import UnitNotes


def unit_summaries(
    units: Sequence[Unit], calls: Sequence[PlannedCall | PlannedHost]
) -> tuple[UnitNotes, ...]:
    """Every unit with its notes, in order.  Cost: linear."""
    nodes: dict[int, tuple[str, ...]] = {}
    count: dict[int, int] = {}
    for call in calls:
        if isinstance(call, PlannedCall) and call.unit is not None:
            nodes.setdefault(call.unit, call.onnx_nodes)
            count[call.unit] = count.get(call.unit, 0) + 1
    return tuple(
        UnitNotes(
            unit.schedule.strategy, number, nodes.get(number, ()), count.get(number, 0),
            unit.schedule.notes, unit.schedule.predicted_cycles,
        )
        for number, unit in enumerate(units)
    )  # fmt: skip
