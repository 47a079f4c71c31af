"""GraphTurbo's part of report.json: how layers became groups, instances, orders and scopes.

Everything is read from the notes of its schedules; totals count a unit as often as the model runs
it.  Bytes and cycles as the names say; percentages of 100.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Self

import msgspec

from worker.compiler.strategies.graphturbo.descriptor import GraphTurboOptions, Variant
from worker.compiler.strategies.graphturbo.summary import (
    BufferScope,
    GroupSummary,
    MovementSummary,
    OrderName,
    OrderSummary,
    SectionSummary,
    SpillSummary,
    UnitSummary,
    read_summary,
)
from worker.compiler.strategies.sections import Summary, UnitNotes


class UnitRow(msgspec.Struct, frozen=True):
    """The fields are those of the strategy's own summary of a unit."""

    unit: int
    label: str
    calls: int
    layers: int
    operators: int
    instances: int
    samples_per_cluster: int
    iterations: int
    is_ahead: bool
    groups: tuple[GroupSummary, ...]
    orders: tuple[OrderSummary, ...]
    tensors_by_scope: dict[BufferScope, int]
    spills: tuple[SpillSummary, ...]
    movements: tuple[MovementSummary, ...]
    predicted_cycles: int
    simulated_cycles: int | None
    sections: tuple[SectionSummary, ...]


class Total(msgspec.Struct, frozen=True):
    """Of all units, each as often as the model runs it."""

    units: int
    calls: int
    layers: int
    operators: int
    groups: int
    instances: int
    tensors_by_scope: dict[BufferScope, int]
    lb_tensors_pct: float | None
    spills: int
    spilled_bytes: int
    movements: int
    movement_bytes: int
    units_by_order: dict[OrderName, int]
    predicted_cycles: int
    simulated_cycles: int | None
    prediction_error_pct: float | None


class GraphTurboSummary(Summary, frozen=True):
    """What the strategy did with a model."""

    nulls: ClassVar[Mapping[str, str]] = {
        "simulated_cycles": "not every unit was simulated",
        "prediction_error_pct": "not every unit was simulated",
        "lb_tensors_pct": "no tensor was placed",
        "factor": "no number of instances makes this group fit the local buffers",
    }
    variant: Variant
    total: Total
    units: tuple[UnitRow, ...]

    @classmethod
    def of(cls, units: Sequence[UnitNotes], options: GraphTurboOptions) -> Self | None:
        """Of the units that say something of themselves."""
        found = [_read(unit) for unit in units if unit.notes]
        return cls.about(found, options.variant) if found else None

    @classmethod
    def about(cls, units: Sequence[UnitSummary], variant: Variant) -> Self:
        """Totals, and a row per unit in the units' order."""
        rows = tuple(msgspec.convert(unit, UnitRow, from_attributes=True) for unit in units)
        return cls(variant=variant, total=_total(rows), units=rows)


def _read(unit: UnitNotes) -> UnitSummary:
    """What the schedule's note says, and what only the whole model knows."""
    return replace(
        read_summary(unit.notes[0]),
        unit=unit.unit, label=unit.label, calls=unit.calls, simulated_cycles=unit.simulated_cycles,
    )  # fmt: skip


def _total(units: Sequence[UnitRow]) -> Total:
    def summed(number: Callable[[UnitRow], int]) -> int:
        return sum(number(unit) * unit.calls for unit in units)

    predicted = summed(lambda unit: unit.predicted_cycles)
    is_simulated = all(unit.simulated_cycles is not None for unit in units)
    cycles = summed(lambda unit: unit.simulated_cycles or 0) if is_simulated else None
    tensors = {
        scope: sum(unit.tensors_by_scope[scope] * unit.calls for unit in units)
        for scope in BufferScope
    }
    chosen = [order.name for unit in units for order in unit.orders if order.chosen]
    return Total(
        units=len(units),
        calls=summed(lambda unit: 1),
        layers=summed(lambda unit: unit.layers),
        operators=summed(lambda unit: unit.operators),
        groups=summed(lambda unit: len(unit.groups)),
        instances=summed(lambda unit: unit.instances),
        tensors_by_scope=tensors,
        lb_tensors_pct=_pct(tensors[BufferScope.LB], sum(tensors.values())),
        spills=summed(lambda unit: len(unit.spills)),
        spilled_bytes=summed(lambda unit: sum(spill.size_bytes for spill in unit.spills)),
        movements=summed(lambda unit: sum(move.count for move in unit.movements)),
        movement_bytes=summed(lambda unit: sum(move.size_bytes for move in unit.movements)),
        units_by_order={name: chosen.count(name) for name in OrderName},
        predicted_cycles=predicted,
        simulated_cycles=cycles,
        prediction_error_pct=None if cycles is None else _pct(predicted - cycles, cycles),
    )


def _pct(part: int, whole: int) -> float | None:
    return round(100.0 * part / whole, 4) if whole else None
