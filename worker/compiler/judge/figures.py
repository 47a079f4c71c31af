"""What candidates are compared by: simulated figures, and the objective that orders them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from worker.compiler.options import CompileOptions, Objective

RANK_VERSION = "1"
"""Of `rank_by` and `ADDITIVE`: of which candidate of a unit is the best by a measure."""


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


@dataclass(frozen=True, slots=True)
class Caps:
    """What a whole program may take at most; None: no cap."""

    power_w: float | None
    """Mean over a run."""
    latency_ms: float | None

    @staticmethod
    def of(options: CompileOptions) -> Caps:
        """Those that were asked for."""
        return Caps(options.max_power_w, options.max_latency_ms)


_MEASURE: dict[Objective, Callable[[Figures], float]] = {
    Objective.LATENCY: lambda figures: figures.cycles,
    Objective.ENERGY: lambda figures: figures.energy_pj,
    Objective.EDP: lambda figures: figures.edp,
    Objective.OFFCHIP: lambda figures: figures.offchip_bytes,
    Objective.PEAK_MEMORY: lambda figures: figures.peak_bytes,
}
ADDITIVE = (Objective.LATENCY, Objective.ENERGY, Objective.OFFCHIP)
"""Measures that are sums over kernels, and so can be minimised kernel by kernel."""
_SUMS_FOR = {
    Objective.EDP: (Objective.LATENCY, Objective.ENERGY),
    Objective.PEAK_MEMORY: (Objective.LATENCY, Objective.OFFCHIP),
}
"""Related sums for the measures that are none."""


def measure_of(objective: Objective) -> Callable[[Figures], float]:
    """What an objective minimises."""
    return _MEASURE[objective]


def rank_by(objective: Objective, figures: Figures) -> tuple[float, ...]:
    """What to order by: the objective's measure, and among equals the others, latency first."""
    return tuple(measure(figures) for measure in (measure_of(objective), *_MEASURE.values()))


def mixtures_by(objective: Objective, caps: Caps, is_contest: bool) -> tuple[Objective, ...]:
    """Additive measures by which programs are put together, the objective's own first.

    All of them in a contest of strategies: what stands between kernels (launches, host parts,
    copies, the power that is drawn meanwhile) is in no kernel's sum, so that the program by another
    measure can be the better one.  One strategy by name is put together by its objective's, and
    under caps also by what makes the fastest and the most frugal program.
    """
    wanted = [*_SUMS_FOR.get(objective, (objective,))]
    if is_contest:
        wanted += ADDITIVE
    if caps.latency_ms is not None:
        wanted.append(Objective.LATENCY)
    if caps.power_w is not None:
        wanted.append(Objective.ENERGY)
    return tuple(dict.fromkeys(wanted))


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """Caps on a whole program, on a machine of one clock."""

    caps: Caps
    clock_hz: float

    @property
    def clause(self) -> str:
        """The caps in words; empty where there is none."""
        words = [
            f"at most {cap:g} {unit}"
            for cap, unit in ((self.caps.power_w, "W"), (self.caps.latency_ms, "ms"))
            if cap is not None
        ]
        return f" of {' and '.join(words)}" if words else ""

    def exceeded(self, figures: Figures) -> str:
        """Which cap a program breaks, actual against limit; empty: none.

        Power is the mean over the run, in W: the simulated energy over the simulated time.
        """
        seconds = figures.cycles / self.clock_hz
        power = figures.energy_pj * 1e-12 / seconds if seconds else 0.0
        broken = [
            f"{have:.4g} {unit}, more than {cap:g} {unit}"
            for have, cap, unit in (
                (power, self.caps.power_w, "W"),
                (seconds * 1e3, self.caps.latency_ms, "ms"),
            )
            if cap is not None and have > cap
        ]
        return " and ".join(broken)
