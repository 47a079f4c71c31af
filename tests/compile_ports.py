"""Ports for compiles in tests: kernels' figures are what the test says."""

from __future__ import annotations

from collections.abc import Callable

from worker.compiler.cache import Cache
from worker.compiler.isa.program import UnitCall
from worker.compiler.judge.compiled import CompiledModel, Ports
from worker.compiler.judge.figures import Figures
from worker.compiler.judge.units import Unit
from worker.job.request import NoProgress


def ports_of(cache: Cache, figures: Callable[[Unit], Figures]) -> Ports:
    """A whole program's figures are the sums over its kernels, peak memory its arena."""

    def whole(compiled: CompiledModel) -> Figures:
        calls = [c for c in compiled.linked.program.calls if isinstance(c, UnitCall)]
        each = [figures(compiled.units[call.unit]) for call in calls]
        return Figures(
            sum(f.cycles for f in each),
            sum(f.energy_pj for f in each),
            sum(f.offchip_bytes for f in each),
            compiled.home_bytes,
        )

    return Ports(cache, NoProgress(), lambda _: (), figures, whole, "test")
