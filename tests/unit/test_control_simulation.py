"""What iterations cost, by hand, and that the sanity block stays true around them."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from test_simulator_units import HOST, MACHINE, two_calls_and_a_host

from worker.compiler.isa.program import HostCall, Program
from worker.simulator.control import BodyRun, ControlRun, control_cost
from worker.simulator.results import Check, ModelSimulation
from worker.simulator.run import simulate_program, simulate_unit

BODY = two_calls_and_a_host()
"""Two kernels of 60 cycles after launches of 100, and 16 000 cycles of host work."""


def body_simulation() -> ModelSimulation:
    kernel = simulate_unit(BODY.units[0], MACHINE, contractions={0: 35})
    return simulate_program(BODY, (kernel,), MACHINE)


def around(bytes_in: int = 1000, bytes_out: int = 3000) -> Program:
    call = HostCall(0, ("x",), ("y",), bytes_in, bytes_out, 77, 99, ("loop",), ("Loop",))
    return Program((), (call,), 512, 0, 512)


def loop(trips: int, assumed: bool = False, **changes: int) -> ControlRun:
    body = BodyRun(body_simulation(), captured_bytes=2000, input_bytes=1000, output_bytes=500)
    return ControlRun("loop", trips, assumed, (replace(body, **changes),))


def test_a_loop_by_hand() -> None:
    whole = simulate_program(around(), (), MACHINE, {0: loop(3)})
    (timing,) = whole.control
    # 1 cycle is 1 ns; the link has 1 us latency and 1 ns per byte.
    # A trip: 1 + 1 us in, 1 + 0.5 us out, 16 320 cycles of the nested program.
    assert timing.bodies[0].cycles_per_iteration == 2000 + 1500 + 16_320
    # Once: 1 + 2 us for captured values.
    assert timing.once_cycles == 3000
    assert timing.cycles == 3000 + 3 * 19_820
    # The node itself: 2 us launch, 1 + 1 us in, 1 + 3 us out; the 77 flops are in the body.
    assert whole.cycles == 8000 + 3000 + 3 * 19_820
    assert whole.launch_cycles == 3 * 200
    assert whole.host_cycles == 8000 + 3000 + 3 * (3500 + 16_000)
    assert whole.boundary_bytes == 4000 + 2000 + 3 * (1500 + 4000)
    assert whole.macs == timing.macs == 3 * 80
    assert whole.repeated_macs == timing.repeated_macs == 3 * 10
    assert dict(whole.peak_bytes) == {"DDR": 512 + 4096, "L1": 112}
    # Host work recurs; what is read from home could stay inside.
    assert (whole.roofline.name, whole.roofline.cycles) == ("host", 3 * 8000)
    # The kernels of this body have no bound of their own; all the rest has no schedule.
    assert {(b.name, b.cycles) for b in whole.floor} == {
        ("launch", 3 * 200), ("host", 2000 + 3 * 10_000),
        ("host-link", 6000 + 3000 + 3 * (3500 + 6000)),
    }  # fmt: skip
    assert timing.lower_bound_cycles == whole.lower_bound_cycles - 8000
    assert timing.roofline_cycles == 3 * 8000
    assert [c.name for c in whole.checks if not c.passed] == []
    assert {c.name for c in whole.checks} >= {"nested-programs-hold", "parts-sum-to-total"}


def test_energy_is_that_of_every_iteration_and_of_time() -> None:
    one = body_simulation()
    whole = simulate_program(around(), (), MACHINE, {0: loop(5)})
    items = {line.item: line.pj for line in whole.energy}
    for line in one.energy:
        if line.item != "static":
            assert items[line.item] == pytest.approx(5 * line.pj)
    per_cycle = {line.item: line.pj for line in one.energy}["static"] / one.cycles
    assert items["static"] == pytest.approx(per_cycle * whole.cycles)
    assert whole.energy_pj == pytest.approx(sum(c.energy_pj for c in whole.calls))


def test_no_trips_cost_the_launch_only() -> None:
    whole = simulate_program(around(), (), MACHINE, {0: loop(0)})
    assert whole.cycles == 8000
    assert (whole.macs, whole.boundary_bytes) == (0, 4000)
    assert (whole.roofline.cycles, whole.lower_bound_cycles) == (0, whole.cycles)
    assert all(c.passed for c in whole.checks)


def test_shared_memory_copies_nothing_in_iterations() -> None:
    machine = replace(MACHINE, host=replace(HOST, shared_memory=True))
    sim = simulate_program(BODY, (simulate_unit(BODY.units[0], machine),), machine)
    run = ControlRun("loop", 4, False, (BodyRun(sim, 2000, 1000, 500),))
    whole = simulate_program(around(), (), machine, {0: run})
    assert whole.boundary_bytes == 0
    assert whole.cycles == 2000 + 4 * sim.cycles


def test_an_open_branch_takes_the_slower_and_bounds_by_the_faster() -> None:
    nested = BodyRun(body_simulation())
    light = BodyRun(None, flops=500, memory_bytes=10)
    open_run = ControlRun("if", 1, False, (light, nested))
    cost = control_cost(open_run, MACHINE)
    assert (cost.timing.branch, cost.timing.branch_assumed) == (1, True)
    assert cost.cycles == 16_320
    assert dict(cost.bounds)["host"] == 500  # 500 flops at 1e9 per second, against 8000
    assert cost.floor == (("host", 500),)
    assert [b.iterations for b in cost.timing.bodies] == [0, 1]
    known = control_cost(replace(open_run, branch=0), MACHINE)
    assert (known.timing.branch, known.timing.branch_assumed, known.cycles) == (0, False, 500)
    assert {line.item: line.pj for line in known.energy} == {"host": 500 * HOST.energy_pj_per_flop}


def test_a_broken_nested_invariant_is_named() -> None:
    run = loop(2)
    sim = run.bodies[0].simulation
    assert sim is not None

    broken = msgspec.structs.replace(sim, checks=(Check("made-up", False, "why"),))
    whole = simulate_program(around(), (), MACHINE, {0: replace(run, bodies=(BodyRun(broken),))})
    (failed,) = (c for c in whole.checks if not c.passed)
    assert (failed.name, failed.detail) == ("nested-programs-hold", "loop: made-up: why")


def test_homes_count_together() -> None:
    usable = MACHINE.home.usable_bytes
    program = replace(around(), home_bytes=usable - 4096)
    fits = simulate_program(program, (), MACHINE, {0: loop(1)})
    assert all(c.passed for c in fits.checks)
    full = replace(program, home_bytes=usable - 4095)
    over = simulate_program(full, (), MACHINE, {0: loop(1)})
    assert [c.name for c in over.checks if not c.passed] == ["home-within-capacity"]
