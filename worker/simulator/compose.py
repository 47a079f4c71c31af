"""A whole program: unit runs and host parts, one after the other, with barriers between them.

A unit call costs its launch overhead plus the unit's cycles.  A host call costs its launch, its
boundary copies over the host link (none where memory is shared) and a roofline of its work; where
it is an interpreted control-flow node, its iterations take the place of the work (control.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from types import MappingProxyType

from worker.compiler.isa.program import HostCall, OperandRole, Program, UnitCall
from worker.compiler.machine.energy_range import priced
from worker.compiler.machine.machine import EngineKind, Host, Machine
from worker.simulator.bounds import port_floor
from worker.simulator.control import (
    ControlCost,
    ControlRun,
    control_cost,
    failed_checks,
    nested_peaks,
)
from worker.simulator.energy import HOST, STATIC, Bill, host_spent, static, static_pj
from worker.simulator.floor import model_floor
from worker.simulator.invocation import host_launch, invocation
from worker.simulator.mesh_load import summed_load
from worker.simulator.results import (
    OUTSIDE,
    Bound,
    CallTiming,
    Cause,
    Check,
    ControlTiming,
    EnergyLine,
    Invocation,
    LevelTraffic,
    LinkLoad,
    ModelSimulation,
    UnitSimulation,
    summed_causes,
)
from worker.simulator.sanity import above_bounds

_PARTS = ("launch_cycles", "transfer_cycles", "execute_cycles")


def simulate_program(
    program: Program,
    units: tuple[UnitSimulation, ...],
    machine: Machine,
    controls: Mapping[int, ControlRun] = MappingProxyType({}),
    views: Mapping[str, str] = MappingProxyType({}),
) -> ModelSimulation:
    """Compose the simulations of `program.units` (parallel) into the program's run.

    `controls` are the interpreted control-flow nodes, by the `host` index of their calls; `views`
    gives the source of every tensor that lives in another's storage.
    """
    clock = nested_kernel_cycles = 0
    costs = {host: control_cost(run, machine) for host, run in controls.items()}
    control: list[ControlTiming] = []
    timings: list[CallTiming] = []
    host_cycles = launch_cycles = boundary_bytes = macs = repeated = 0
    prices, bill = priced(machine), Bill()
    moved = {level.name: [0, 0, 0] for level in machine.levels}
    loads: list[tuple[tuple[LinkLoad, ...], int]] = []
    for number, call in enumerate(program.calls):
        match call:
            case UnitCall():
                sim = units[call.unit]
                overhead = call.launch_cycles
                length = overhead + sim.cycles
                launch_cycles += overhead
                macs += sim.macs
                repeated += sim.repeated_macs
                pj = sim.energy_pj + static_pj(machine, overhead)
                bill.add_lines(sim.energy)
                for flow in sim.traffic:
                    moved[flow.level][0] += flow.read_bytes
                    moved[flow.level][1] += flow.write_bytes
                    moved[flow.level][2] += flow.unasked_bytes
                loads.append((sim.mesh, 1))
                kind = "unit"
            case HostCall() if call.host in costs:
                cost = costs[call.host]
                control.append(cost.timing)
                overhead, _ = host_time(call, machine)
                length = overhead + cost.cycles
                host_cycles += overhead + cost.host_cycles
                launch_cycles += cost.launch_cycles
                nested_kernel_cycles += cost.kernel_cycles
                boundary_bytes += copied_bytes(call, machine.host) + cost.boundary_bytes
                macs += cost.timing.macs
                repeated += cost.timing.repeated_macs
                pj = cost.timing.energy_pj + static_pj(machine, overhead)
                bill.add_lines(cost.energy)
                for flow in cost.traffic:
                    moved[flow.level][0] += flow.read_bytes
                    moved[flow.level][1] += flow.write_bytes
                    moved[flow.level][2] += flow.unasked_bytes
                loads.append((cost.mesh, 1))
                kind = "host"
            case HostCall():
                overhead, work = host_time(call, machine)
                length = overhead + work
                host_cycles += length
                boundary_bytes += copied_bytes(call, machine.host)
                own = host_spent(prices, call.flops)
                bill.add(HOST, own)
                pj = own.pj + static_pj(machine, length)
                kind = "host"
        inside = costs.get(call.host) if isinstance(call, HostCall) else None
        causes = _causes(call, overhead, length, units, inside, machine)
        timings.append(CallTiming(number, kind, clock, clock + length, overhead, pj, causes))
        clock += length
    lines = (*bill.lines(), EnergyLine(STATIC, *static(prices, clock)))
    flows = tuple(LevelTraffic(name, *sums) for name, sums in moved.items())
    bounds = tuple(Bound(*b) for b in model_bounds(program, units, machine, costs, views))
    floor = model_floor(program, timings, units, machine, costs)
    split = invocation(program, timings, machine, costs)
    summed = summed_causes((c.cause, c.cycles) for timing in timings for c in timing.causes)
    return ModelSimulation(
        cycles=clock,
        calls=tuple(timings),
        host_cycles=host_cycles,
        launch_cycles=launch_cycles,
        boundary_bytes=boundary_bytes,
        traffic=flows,
        energy=lines,
        macs=macs,
        repeated_macs=repeated,
        causes=summed,
        roofline=max(bounds, key=lambda b: b.cycles),
        peak_bytes=_peaks(program, units, machine, tuple(controls.values())),
        checks=(
            above_bounds(clock, bounds, floor),
            *_checks(
                program, units, machine, timings, clock, lines,
                (host_cycles, launch_cycles, nested_kernel_cycles), tuple(controls.values()),
            ),
            *_nested_checks(tuple(controls.values())),
            invocation_check(split, clock),
            _causes_check(summed, clock),
        ),
        bounds=bounds,
        floor=floor,
        invocation=split,
        control=tuple(control),
        mesh=summed_load(loads),
    )  # fmt: skip


def _causes(
    call: UnitCall | HostCall,
    overhead: int,
    length: int,
    units: tuple[UnitSimulation, ...],
    cost: ControlCost | None,
    machine: Machine,
) -> tuple[Cause, ...]:
    """Who is to blame for the cycles of one call."""
    if isinstance(call, UnitCall):
        kernel = units[call.unit].causes
        return summed_causes([("launch", overhead), *((c.cause, c.cycles) for c in kernel)])
    copies = overhead - host_launch(overhead, machine)
    launches = 0
    inside: tuple[Cause, ...] = ()
    if cost is not None:
        copies += cost.transfer_cycles
        launches, inside = cost.launch_cycles, cost.causes
    host = length - copies - launches - sum(c.cycles for c in inside)
    outside = zip(OUTSIDE, (launches, host, copies), strict=True)
    return summed_causes([*outside, *((c.cause, c.cycles) for c in inside)])


def copied_bytes(call: HostCall, host: Host) -> int:
    """Bytes that cross the host link around a host part."""
    return 0 if host.shared_memory else call.input_bytes + call.output_bytes


def host_time(call: HostCall, machine: Machine) -> tuple[int, int]:
    """(cycles of launch and copies, cycles of the work) of a host part."""
    host = machine.host
    overhead = host.launch_overhead_s
    for num_bytes in (call.input_bytes, call.output_bytes):
        overhead += host.copy_s(num_bytes)
    work = host.work_s(call.flops, call.memory_bytes)
    return ceil(overhead * machine.clock_hz), ceil(work * machine.clock_hz)


def model_bounds(
    program: Program,
    units: tuple[UnitSimulation, ...],
    machine: Machine,
    costs: Mapping[int, ControlCost] = MappingProxyType({}),
    views: Mapping[str, str] = MappingProxyType({}),
) -> tuple[tuple[str, int], ...]:
    """The roofline: bounds that no schedule of the same placement can beat, fused or not, with
    operators on the engines that they run on.

    Compute per engine; compulsory traffic of the home level: every weight and every outside input
    read once, every result written once (intermediates could have stayed inside); the host's own
    work.  Who reads a view of a tensor (`views`: its source) reads that tensor.
    """
    calls = [call for call in program.calls if isinstance(call, UnitCall)]
    hosts = [c for c in program.calls if isinstance(c, HostCall) and c.host not in costs]
    bounds: list[tuple[str, int]] = []
    for engine in machine.engines:
        if engine.kind not in (EngineKind.DMA_IN, EngineKind.DMA_OUT):
            name = f"compute:{engine.name}"
            bounds.append((name, sum(_bound(units[c.unit], name) for c in calls)))
    made: set[str] = set()
    read: set[str] = set()
    wanted: dict[str, int] = {}
    inward = 0
    for call in calls:
        unit = program.units[call.unit]
        fresh = 0
        for operand, binding in zip(unit.operands, call.bindings, strict=True):
            if operand.role in (OperandRole.INPUT, OperandRole.CONSTANT):
                root = _root(binding.tensor, views)
                if root not in made and root not in read:
                    fresh += operand.size_bytes
                read.add(root)
                wanted.pop(root, None)
        for operand, binding in zip(unit.operands, call.bindings, strict=True):
            if operand.role is OperandRole.OUTPUT:
                root = _root(binding.tensor, views)
                made.add(root)
                wanted[root] = operand.size_bytes
        home = units[call.unit].traffic[0].read_bytes
        inward += min(fresh, home)
    outward = min(sum(wanted.values()), sum(units[c.unit].traffic[0].write_bytes for c in calls))
    level = machine.home
    bounds.append((f"traffic:{level.name}", port_floor(level, inward, outward)))
    bounds.append(("host", sum(host_time(call, machine)[1] for call in hosts)))
    nested: dict[str, int] = {}
    for cost in costs.values():
        for name, cycles in cost.bounds:
            nested[name] = nested.get(name, 0) + cycles
    return tuple((name, cycles + nested.get(name, 0)) for name, cycles in bounds)


def _root(tensor: str, views: Mapping[str, str]) -> str:
    """The tensor whose storage `tensor` lives in: views may be of views."""
    while tensor in views:
        tensor = views[tensor]
    return tensor


def _bound(sim: UnitSimulation, name: str) -> int:
    return next((b.cycles for b in sim.bounds if b.name == name), 0)


def _peaks(
    program: Program,
    units: tuple[UnitSimulation, ...],
    machine: Machine,
    runs: tuple[ControlRun, ...],
) -> tuple[tuple[str, int], ...]:
    peaks = {machine.home.name: program.home_bytes + _nested_home_bytes(machine, runs)}
    for level in machine.placeable:
        own = (c.peak_bytes for sim in units for c in sim.occupancy if c.level == level.name)
        nested = (peak for run in runs for peak in nested_peaks(run, level.name))
        peaks[level.name] = max((*own, *nested), default=0)
    return tuple(peaks.items())


def _nested_home_bytes(machine: Machine, runs: tuple[ControlRun, ...]) -> int:
    """Nested programs keep their weights: all their arenas exist at the same time."""
    return sum(peak for run in runs for peak in nested_peaks(run, machine.home.name))


def invocation_check(split: Invocation, cycles: int) -> Check:
    """The shares of an invocation are whole, and no region has more than all of them."""
    own = [sum(getattr(r, part) for r in split.regions) for part in _PARTS]
    over = [p for p, s in zip(_PARTS, own, strict=True) if s > getattr(split, p)]
    return Check(
        "invocation-sums-to-total",
        split.cycles == cycles and not over,
        f"residual {cycles - split.cycles} cycles" + "".join(f", regions exceed {p}" for p in over),
    )


def _causes_check(causes: tuple[Cause, ...], cycles: int) -> Check:
    residual = cycles - sum(c.cycles for c in causes)
    return Check(
        "causes-sum-to-total", residual == 0, f"{residual} of {cycles} cycles have no cause"
    )


def _nested_checks(runs: tuple[ControlRun, ...]) -> tuple[Check, ...]:
    if not runs:
        return ()
    failed = [sentence for run in runs for sentence in failed_checks(run)]
    detail = "; ".join(failed[:4]) or f"{len(runs)} control-flow nodes"
    return (Check("nested-programs-hold", not failed, detail),)


def _checks(
    program: Program,
    units: tuple[UnitSimulation, ...],
    machine: Machine,
    timings: list[CallTiming],
    cycles: int,
    energy: tuple[EnergyLine, ...],
    shares: tuple[int, int, int],
    runs: tuple[ControlRun, ...],
) -> tuple[Check, ...]:
    """`shares` are cycles of the host, of all launches, and of kernels in nested programs."""
    calls = [call for call in program.calls if isinstance(call, UnitCall)]
    parts = sum(units[c.unit].cycles for c in calls) + sum(shares)
    home_bytes = program.home_bytes + _nested_home_bytes(machine, runs)
    by_call, by_line = sum(t.energy_pj for t in timings), sum(line.pj for line in energy)
    usable = machine.home.usable_bytes
    return (
        Check("parts-sum-to-total", parts == cycles, f"residual {cycles - parts} cycles"),
        Check(
            "energy-sums", abs(by_call - by_line) <= 1e-9 * max(by_line, 1.0),
            f"by call {by_call:.6g} pJ, by item {by_line:.6g} pJ",
        ),
        Check(
            "home-within-capacity", home_bytes <= usable,
            f"{home_bytes} of {usable} bytes of {machine.home.name}",
        ),
    )  # fmt: skip
