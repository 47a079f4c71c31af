"""Simulate a compiled model, each unique unit once, through the cache."""

from __future__ import annotations

from hashlib import sha256

from worker.compiler.cache import Cache, CacheKey, CacheKind
from worker.compiler.errors import SimulationError
from worker.compiler.machine import digest
from worker.compiler.pipeline import CompiledModel
from worker.compiler.units import encode_unit
from worker.simulator.results import ModelSimulation, UnitSimulation
from worker.simulator.run import SIMULATOR_VERSION, simulate_program, simulate_unit


def simulate_model(
    compiled: CompiledModel, cache: Cache
) -> tuple[tuple[UnitSimulation, ...], ModelSimulation]:
    """Simulations of all units (parallel to `compiled.units`) and of the whole program.

    Raises:
        SimulationError: TW-SIM-003 naming the first violated invariant.
    """
    machine_digest = digest(compiled.machine)
    sims: list[UnitSimulation] = []
    for unit in compiled.units:
        key = CacheKey(
            CacheKind.SIMULATION,
            (
                ("program", sha256(encode_unit(unit.program)).hexdigest()),
                ("machine", machine_digest),
                ("simulator_version", SIMULATOR_VERSION),
            ),
        )
        stored = cache.get(key)
        if stored is not None:
            sims.append(UnitSimulation.from_bytes(stored))
            continue
        sim = simulate_unit(unit.program, compiled.machine, unit.schedule.predicted_cycles)
        cache.put(key, sim.to_bytes())
        sims.append(sim)
    whole = simulate_program(compiled.linked.program, tuple(sims), compiled.machine)
    return tuple(sims), whole


def refuse_violations(sims: tuple[UnitSimulation, ...], whole: ModelSimulation) -> None:
    """Fail the job when an invariant is violated (the report that shows it is written first)."""
    for sim in sims:
        for check in sim.checks:
            if not check.passed:
                raise SimulationError(
                    "TW-SIM-003", f"unit {sim.signature[:16]}: {check.name}: {check.detail}"
                )
    for check in whole.checks:
        if not check.passed:
            raise SimulationError("TW-SIM-003", f"model: {check.name}: {check.detail}")
