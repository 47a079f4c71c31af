"""Simulate a compiled model, each unique unit once, through the cache."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from worker.compiler.cache import Cache, CacheKey, CacheKind
from worker.compiler.control.bodies import BodyModel
from worker.compiler.control.compile import CompiledControl
from worker.compiler.control.flow import Body
from worker.compiler.cost.compute import compute_dtypes, contracted_points
from worker.compiler.cost.floor import kernel_floor
from worker.compiler.errors import SimulationError
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.judge.units import Unit, unit_digest
from worker.compiler.machine import digest
from worker.compiler.machine.machine import Machine
from worker.compiler.partition.host_work import host_flops
from worker.simulator.control import BodyRun, ControlRun
from worker.simulator.results import ModelSimulation, UnitSimulation
from worker.simulator.run import SIMULATOR_VERSION, simulate_program, simulate_unit

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a program takes by the simulator."""

    units: tuple[UnitSimulation, ...]
    """Parallel to the program's."""
    whole: ModelSimulation


def simulate_cached(
    unit: Unit, machine: Machine, cache: Cache, machine_digest: str
) -> UnitSimulation:
    """Simulation of one kernel, from the cache where it is known."""
    key = CacheKey(
        CacheKind.SIMULATION,
        (
            ("program", unit_digest(unit.program)),
            ("machine", machine_digest),
            ("simulator_version", SIMULATOR_VERSION),
        ),
    )
    stored = cache.get(key)
    if stored is not None:
        try:
            return UnitSimulation.from_bytes(stored)
        except msgspec.MsgspecError as error:  # another job wrote it
            _LOG.warning("bad cache entry: %s %s: %s", key.kind, key.digest, error)
    points = contracted_points(unit.schedule.graph.ops)
    floor = kernel_floor(unit.schedule.graph, machine)
    sim = simulate_unit(
        unit.program, machine, unit.schedule.predicted_cycles, points, floor,
        compute_dtypes(unit.schedule.graph),
    )  # fmt: skip
    cache.put(key, sim.to_bytes())
    return sim


def simulate_model(
    compiled: CompiledModel, cache: Cache, loop_trips: int = 1
) -> tuple[tuple[UnitSimulation, ...], ModelSimulation]:
    """Simulations of all units (parallel to `compiled.units`) and of the whole program.

    `loop_trips` is assumed for loops whose count is known only at run time.

    Raises:
        SimulationError: TW-SIM-003 naming the first violated invariant.
    """
    machine, machine_digest = compiled.machine, digest(compiled.machine)
    sims = [simulate_cached(unit, machine, cache, machine_digest) for unit in compiled.units]
    control_of = {c.node: c for c in compiled.controls if c.flow is not None}
    runs = {
        k: _control_run(control_of[host.onnx_nodes[0]], cache, loop_trips)
        for k, host in enumerate(compiled.linked.hosts)
        if len(host.onnx_nodes) == 1 and host.onnx_nodes[0] in control_of
    }
    program = compiled.linked.program
    views = {view.tensor: view.source for view in compiled.linked.views}
    whole = simulate_program(program, tuple(sims), compiled.machine, runs, views)
    return tuple(sims), whole


def _control_run(
    control: CompiledControl[CompiledModel], cache: Cache, loop_trips: int
) -> ControlRun:
    flow = control.flow
    assert flow is not None
    bodies = tuple(
        _body_run(body, compiled, model, cache, loop_trips)
        for body, compiled, model in zip(flow.bodies, control.bodies, control.models, strict=True)
    )
    if flow.trips is not None:
        return ControlRun(flow.node, flow.trips, False, bodies, flow.branch)
    trips = loop_trips if flow.max_trips is None else min(loop_trips, flow.max_trips)
    return ControlRun(flow.node, trips, True, bodies)


def _body_run(
    body: Body,
    compiled: CompiledModel | None,
    model: BodyModel | None,
    cache: Cache,
    loop_trips: int,
) -> BodyRun:
    if compiled is None:
        assert model is not None
        flops, memory_bytes = host_flops(list(model.model.ir.graph))
        return BodyRun(None, flops=flops, memory_bytes=memory_bytes)
    sims, whole = simulate_model(compiled, cache, loop_trips)
    broken = tuple(check for sim in sims for check in sim.checks if not check.passed)
    whole = msgspec.structs.replace(whole, checks=(*whole.checks, *broken))
    stored = compiled.linked.tensors

    def size_bytes(names: Iterable[str]) -> int:
        return sum(stored[name].size_bytes for name in names if name in stored)

    formal = set(body.formal)
    return BodyRun(
        whole,
        size_bytes(name for name in body.reads if name not in formal),
        size_bytes(name for name in body.reads if name in formal),
        size_bytes(body.computes),
    )


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
