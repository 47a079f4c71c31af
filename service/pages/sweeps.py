"""Rows of the list of sweeps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from service.jobs.exploring import Cost
from service.jobs.sweeps import SweepCounts
from service.states import OPEN_SWEEP_ITEM_STATES, SweepItemState
from service.store.records import SweepRecord

COST_NAMES = {
    Cost.LATENCY_S: "latency", Cost.ENERGY_PJ: "energy", Cost.ON_CHIP_BYTES: "on-chip bytes",
    Cost.AREA_MM2: "area", Cost.OFF_CHIP_BYTES_PER_S: "off-chip bandwidth",
}  # fmt: skip
"""What fronts compare, in words."""


@dataclass(frozen=True, slots=True)
class SweepRow:
    """What the list shows of a sweep."""

    sweep: SweepRecord
    ended: int
    succeeded: int


def rows_of(found: Iterable[SweepCounts]) -> list[SweepRow]:
    """The rows, in their order."""
    return [
        SweepRow(
            row.record,
            row.record.items_total - sum(row.counts.get(s, 0) for s in OPEN_SWEEP_ITEM_STATES),
            row.counts.get(SweepItemState.SUCCEEDED, 0),
        )
        for row in found
    ]
