"""What strategies say of a model's units, put together for reports."""

from __future__ import annotations

from collections.abc import Sequence

from worker.compiler.judge.link import PlannedCall, PlannedHost
from worker.compiler.judge.units import Unit
from worker.compiler.strategies.graphturbo.describe import placed, read_summary
from worker.compiler.strategies.graphturbo.descriptor import DESCRIPTOR
from worker.compiler.strategies.graphturbo.summary import UnitSummary


def unit_summaries(
    units: Sequence[Unit], calls: Sequence[PlannedCall | PlannedHost]
) -> tuple[UnitSummary, ...]:
    """The summaries of units by GraphTurbo, in the order of the units.

    Labels are the first and the last ONNX node of a unit's first call.  Cost: linear.
    """
    nodes: dict[int, tuple[str, ...]] = {}
    count: dict[int, int] = {}
    for call in calls:
        if isinstance(call, PlannedCall) and call.unit is not None:
            nodes.setdefault(call.unit, call.onnx_nodes)
            count[call.unit] = count.get(call.unit, 0) + 1
    found: list[UnitSummary] = []
    for number, unit in enumerate(units):
        if unit.schedule.strategy != DESCRIPTOR.name or not unit.schedule.notes:
            continue
        names = nodes.get(number, ())
        label = " .. ".join(dict.fromkeys((*names[:1], *names[-1:])))
        summary = read_summary(unit.schedule.notes[0])
        found.append(placed(summary, number, label, count.get(number, 0)))
    return tuple(found)
