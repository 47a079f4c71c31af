"""How good the tiles of every kernel are, in reports: what was proven of their space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import msgspec

from worker.compiler.strategies.naive.certificate import Certificate
from worker.compiler.strategies.sections import Columns, Figures, Summary, Table, UnitNotes

SHOWN = 12
"""Kernels in the table: those that could be better by the most, all calls together."""


class KernelProof(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel."""

    unit: int
    """Position in the program's units."""
    kernel: str
    """First and last node."""
    calls: int
    simulated_cycles: int | None
    """Of one call."""
    predicted_cycles: int
    best: float
    """Of the best tiling by predicted cycles: these without the launch, and a thousandth for every
    executed instruction."""
    bound: float
    """No tiling of the spaces has less."""
    gap: float
    """best / bound - 1: 0 where the tiling is proven to be the best as predictions go."""
    second: float | None
    """Of the runner-up: the best of all other tilings that were priced."""
    spaces: tuple[str, ...]
    """Where tiles may be, sums stand, and what has one copy."""
    boxes: int
    """Sets of tilings that were bounded."""
    cut: int
    """Of them, those that their bounds ruled out whole."""
    tilings: int
    """That were priced one by one."""


class NaiveSummary(Summary, frozen=True, kw_only=True):
    """Kernels whose tiles were searched for by branch and bound."""

    kernels: tuple[KernelProof, ...]
    unproven: int
    """Other kernels of the strategy: an index is no sum of axes, or nothing was asked to search."""
    mean_gap: float
    worst_gap: float
    schema_version: int = 2
    nulls: ClassVar[Mapping[str, str]] = {
        "simulated_cycles": "The program was not simulated.",
        "second": "No other tiling had to be priced.",
    }

    @classmethod
    def of(cls, units: Sequence[UnitNotes], options: Any) -> Self | None:
        """None: no kernel was searched for so."""
        del options
        kernels = [
            _kernel(unit, found)
            for unit in units
            for found in map(Certificate.said, unit.notes)
            if found is not None
        ]
        if not kernels:
            return None
        gaps = [kernel.gap for kernel in kernels]
        return cls(
            kernels=tuple(kernels), unproven=len(units) - len(kernels),
            mean_gap=sum(gaps) / len(gaps), worst_gap=max(gaps),
        )  # fmt: skip


def _kernel(unit: UnitNotes, found: Certificate) -> KernelProof:
    return KernelProof(
        unit=unit.unit, kernel=unit.label, calls=unit.calls,
        simulated_cycles=unit.simulated_cycles, predicted_cycles=unit.predicted_cycles,
        best=found.best, bound=found.bound, gap=found.gap,
        second=found.second, spaces=tuple(map(str, found.spaces)), boxes=found.boxes,
        cut=found.cut, tilings=found.tilings,
    )  # fmt: skip


def columns(summary: NaiveSummary) -> Columns:
    """What the layer table says of kernels that were searched for."""
    return {
        kernel.unit: {
            "best": kernel.best, "bound": kernel.bound, "gap": kernel.gap,
            "second": kernel.second, "spaces": ", ".join(kernel.spaces), "boxes": kernel.boxes,
            "cut": kernel.cut, "tilings": kernel.tilings,
        }
        for kernel in summary.kernels
    }  # fmt: skip


def blocks(summary: NaiveSummary) -> tuple[Figures | Table, ...]:
    """How far the tiles are from the best that any in their space are predicted to be."""
    figures = Figures(
        "naive: tiles of kernels",
        {
            "searched by branch and bound": len(summary.kernels), "others": summary.unproven,
            "mean gap": f"{summary.mean_gap:.2%}", "worst gap": f"{summary.worst_gap:.2%}",
        },
    )  # fmt: skip

    def lost(kernel: KernelProof) -> float:
        return (kernel.best - kernel.bound) * kernel.calls

    largest = sorted(summary.kernels, key=lambda kernel: (-lost(kernel), kernel.unit))[:SHOWN]
    rows = tuple(
        {
            "kernel": kernel.kernel, "calls": kernel.calls,
            "simulated": kernel.simulated_cycles, "predicted": kernel.predicted_cycles,
            "best": round(kernel.best), "bound": round(kernel.bound), "gap": f"{kernel.gap:.2%}",
            "runner-up": None if kernel.second is None else round(kernel.second),
            "boxes": kernel.boxes, "ruled out": kernel.cut, "tilings": kernel.tilings,
        }
        for kernel in largest
    )  # fmt: skip
    return figures, Table("", tuple(rows[0]), rows)
