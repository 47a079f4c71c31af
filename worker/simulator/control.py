"""What interpreting one control-flow node costs: a nested run per iteration, and copies around it.

The node's own call pays the host's launch and the copies of its operands once.  Captured values go
to a nested program's home memory once; formal inputs and results cross the host link in every
iteration.  A branch without a program runs on the host, as a roofline of its work.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from worker.compiler.machine.energy_range import priced
from worker.compiler.machine.machine import Machine
from worker.simulator.energy import HOST, Bill, host_spent, static_pj
from worker.simulator.mesh_load import summed_load
from worker.simulator.results import (
    OUTSIDE,
    BodyTiming,
    Cause,
    ControlTiming,
    EnergyLine,
    LevelTraffic,
    LinkLoad,
    ModelSimulation,
)


@dataclass(frozen=True, slots=True)
class BodyRun:
    """One body of a control-flow node, as the simulation sees it."""

    simulation: ModelSimulation | None
    """Of its nested program; None: the host runs it."""
    captured_bytes: int = 0
    """Copied in once per run of the node."""
    input_bytes: int = 0
    """Copied in per iteration."""
    output_bytes: int = 0
    """Copied out per iteration."""
    flops: int = 0
    """Of one iteration on the host, where there is no program."""
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ControlRun:
    """One control-flow node; a loop has one body, an If two."""

    node: str
    trips: int
    trips_assumed: bool
    """The count is not known at compile time."""
    bodies: tuple[BodyRun, ...]
    branch: int | None = None
    """The body that runs, when that is known at compile time."""


@dataclass(frozen=True, slots=True)
class ControlCost:
    """Cycles, bytes and energy of all iterations together, by who spends them."""

    timing: ControlTiming
    kernel_cycles: int
    launch_cycles: int
    """Of kernels inside iterations."""
    host_cycles: int
    """Everything else: copies, nested host parts, branches on the host."""
    transfer_cycles: int
    """The part of `host_cycles` that is copies over the host link."""
    boundary_bytes: int
    traffic: tuple[LevelTraffic, ...]
    """(level, bytes read, bytes written)."""
    mesh: tuple[LinkLoad, ...]
    energy: tuple[EnergyLine, ...]
    """Without leakage, which goes with the clock."""
    causes: tuple[Cause, ...]
    """Of `kernel_cycles`."""
    bounds: tuple[tuple[str, int], ...]
    """(name, cycles no schedule of the same placement can beat): the roofline's."""
    floor: tuple[tuple[str, int], ...]
    """(name, cycles) that every schedule of the same kernels spends at least: they sum up."""

    @property
    def cycles(self) -> int:
        return self.kernel_cycles + self.launch_cycles + self.host_cycles


def iteration_cycles(body: BodyRun, machine: Machine) -> int:
    """One iteration with its copies, without those that happen once."""
    if body.simulation is not None:
        return _copy_cycles(body, machine) + body.simulation.cycles
    return ceil(machine.host.work_s(body.flops, body.memory_bytes) * machine.clock_hz)


def _copy_cycles(body: BodyRun, machine: Machine) -> int:
    """Copies of formal inputs and results, which recur in every iteration."""
    copies = machine.host.copy_s(body.input_bytes) + machine.host.copy_s(body.output_bytes)
    return ceil(copies * machine.clock_hz)


def control_cost(run: ControlRun, machine: Machine) -> ControlCost:
    """Cost of all iterations.  Where a branch is open, the slower one is taken.

    Cost: linear in bodies.
    """
    per_trip = [iteration_cycles(body, machine) for body in run.bodies]
    branch = run.branch if run.branch is not None else per_trip.index(max(per_trip))
    body, sim = run.bodies[branch], run.bodies[branch].simulation
    trips = run.trips
    once = machine.host.copy_s(body.captured_bytes) if sim is not None and trips else 0.0
    once_cycles = ceil(once * machine.clock_hz)
    total = once_cycles + trips * per_trip[branch]
    kernels = launches = macs = repeated = moved = 0
    copies = once_cycles
    traffic: tuple[LevelTraffic, ...] = ()
    bill = Bill()
    if sim is not None:
        launches = trips * sim.launch_cycles
        kernels = trips * (sim.cycles - sim.host_cycles - sim.launch_cycles)
        macs, repeated = trips * sim.macs, trips * sim.repeated_macs
        copies += trips * (_copy_cycles(body, machine) + sim.invocation.transfer_cycles)
        if not machine.host.shared_memory and trips:
            moved = body.captured_bytes + trips * (body.input_bytes + body.output_bytes)
        moved += trips * sim.boundary_bytes
        traffic = tuple(
            LevelTraffic(
                t.level, trips * t.read_bytes, trips * t.write_bytes, trips * t.unasked_bytes
            )
            for t in sim.traffic
        )  # fmt: skip
        bill.add_lines(sim.energy, trips)
    elif body.flops:
        bill.add(HOST, host_spent(priced(machine), trips * body.flops))
    pj = bill.pj + static_pj(machine, total)
    bounds, floor = _bounds(run, machine), _floor(run, machine)
    timing = ControlTiming(
        run.node, trips, run.trips_assumed, branch, run.branch is None and len(run.bodies) > 1,
        once_cycles, total, pj, macs, repeated,
        sum(cycles for _, cycles in floor), max((cycles for _, cycles in bounds), default=0),
        tuple(
            BodyTiming(cycles, trips if k == branch else 0, each.simulation)
            for k, (cycles, each) in enumerate(zip(per_trip, run.bodies, strict=True))
        ),
    )  # fmt: skip
    return ControlCost(
        timing, kernels, launches, total - kernels - launches, copies, moved, traffic,
        summed_load([(sim.mesh, trips)] if sim is not None else []),
        bill.lines(),
        () if sim is None else tuple(
            Cause(c.cause, trips * c.cycles) for c in sim.causes if c.cause not in OUTSIDE
        ),
        bounds,
        floor,
    )  # fmt: skip


def _bounds(run: ControlRun, machine: Machine) -> tuple[tuple[str, int], ...]:
    """Per name, the least over the branches that may run.

    Compute and host work recur in every iteration; compulsory traffic is counted once, since
    weights could stay inside from one iteration to the next.
    """
    branches = run.bodies if run.branch is None else (run.bodies[run.branch],)
    tables = [_body_bounds(body, run.trips, machine) for body in branches]
    names = dict.fromkeys(name for table in tables for name in table)
    return tuple((name, min(table.get(name, 0) for table in tables)) for name in names)


def _body_bounds(body: BodyRun, trips: int, machine: Machine) -> dict[str, int]:
    if body.simulation is None:
        return {"host": trips * iteration_cycles(body, machine)}
    return {
        bound.name: bound.cycles * (min(trips, 1) if bound.name.startswith("traffic:") else trips)
        for bound in body.simulation.bounds
    }


def _floor(run: ControlRun, machine: Machine) -> tuple[tuple[str, int], ...]:
    """All iterations of the body that takes least of those that may run."""
    branches = run.bodies if run.branch is None else (run.bodies[run.branch],)
    tables = [_body_floor(body, run.trips, machine) for body in branches]
    return min(tables, key=lambda table: sum(cycles for _, cycles in table))


def _body_floor(body: BodyRun, trips: int, machine: Machine) -> tuple[tuple[str, int], ...]:
    """As `control_cost` charges it: captured values once, the rest in every iteration."""
    if body.simulation is None:
        return (("host", trips * iteration_cycles(body, machine)),)
    once = machine.host.copy_s(body.captured_bytes) if trips else 0.0
    copies = ceil(once * machine.clock_hz) + trips * _copy_cycles(body, machine)
    inside = ((bound.name, trips * bound.cycles) for bound in body.simulation.floor)
    return (("host-link", copies), *inside)


def failed_checks(run: ControlRun) -> list[str]:
    """Invariants that do not hold in a nested simulation, as sentences."""
    return [
        f"{run.node}: {check.name}: {check.detail}"
        for body in run.bodies
        if body.simulation is not None
        for check in body.simulation.checks
        if not check.passed
    ]


def nested_peaks(run: ControlRun, level: str) -> tuple[int, ...]:
    """Peak bytes of one level in every nested program."""
    return tuple(
        peak
        for body in run.bodies
        if body.simulation is not None
        for name, peak in body.simulation.peak_bytes
        if name == level
    )
