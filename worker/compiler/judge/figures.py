"""What candidates are compared by: simulated figures, and the objective that orders them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from worker.compiler.options import Objective


@dataclass(frozen=True, slots=True)
class Figures:
    """One kernel, or a whole program, as simulated."""

    cycles: int
    """Launches and host parts included in a whole program's, not in a kernel's."""
    energy_pj: float = 0.0
    offchip_bytes: int = 0
    """Bytes that cross the ports of the home memory."""
    peak_bytes: int = 0
    """Of the planned home arena; 0 of a single kernel, which plans none."""

    @property
    def edp(self) -> float:
        """Energy-delay product, in pJ * cycles."""
        return self.energy_pj * self.cycles


_MEASURE: dict[Objective, Callable[[Figures], float]] = {
    Objective.LATENCY: lambda figures: figures.cycles,
    Objective.ENERGY: lambda figures: figures.energy_pj,
    Objective.EDP: lambda figures: figures.edp,
    Objective.OFFCHIP: lambda figures: figures.offchip_bytes,
    Objective.PEAK_MEMORY: lambda figures: figures.peak_bytes,
}
_ADDITIVE = {
    Objective.LATENCY: (Objective.LATENCY,),
    Objective.ENERGY: (Objective.ENERGY,),
    Objective.OFFCHIP: (Objective.OFFCHIP,),
    Objective.EDP: (Objective.LATENCY, Objective.ENERGY),
    Objective.PEAK_MEMORY: (Objective.LATENCY, Objective.OFFCHIP),
}
"""Measures that are sums over kernels, and so can be minimised kernel by kernel.  EDP and peak
memory are no sums: the best mixtures by related sums stand for them, beside every strategy's own
program, and the simulated whole programs decide."""


def measure_of(objective: Objective) -> Callable[[Figures], float]:
    """What an objective minimises."""
    return _MEASURE[objective]


def mixtures_by(objective: Objective) -> tuple[Objective, ...]:
    """Additive measures by which mixtures of strategies are put together for an objective."""
    return _ADDITIVE[objective]
