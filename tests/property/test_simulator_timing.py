"""The compiled timing loop equals a plain oracle; physics holds for random programs."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from lower_toys import (
    cluster_machine,
    cluster_matmul,
    flat_machine,
    fused_rows,
    naive_matmul,
    piped,
    skipping,
)
from timing_oracle import Step, oracle, unit_program

from worker.compiler.clock.forward import forward
from worker.compiler.clock.readiness import by_readiness
from worker.compiler.clock.run import BUSY, IDLE, Timing, run_unit
from worker.compiler.isa.program import Opcode, Operand, OperandRole, Resource, Stream, UnitProgram
from worker.compiler.jit import compiled
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule
from worker.simulator.repeats import compute_cycles
from worker.simulator.results import UnitSimulation
from worker.simulator.run import simulate_unit

STREAMS = tuple(Stream(c, e) for c in range(2) for e in ("mme", "vec", "din", "dout"))
RATES = [1.0, 3.0, 16.0, 2.5, 7.0, 2.5, 2.5]
PORTS = (
    Resource("DDR", 0, "read", RATES[0]), Resource("DDR", 0, "write", RATES[1]),
    Resource("L2", 0, "read", RATES[2]), Resource("L1", 0, "write", RATES[3]),
    Resource("L1", 1, "read", RATES[4]), Resource("L1", 0, "write", RATES[5], count=2),
)  # fmt: skip
ONE_BUS = tuple(replace(p, half_duplex=p.level == "DDR") for p in PORTS)
WIRE = [0, 0, 2, 3, 4, 3, 5]
"""Of `ONE_BUS`: what passes through one at a time.  5 and 6: the two ports of the last one."""
NO_WIRE = [0, 1, 2, 3, 4, 3, 5]


@st.composite
def programs(draw: st.DrawFn) -> list[Step]:
    """Random legal programs: waits only on tokens signalled earlier."""
    steps: list[Step] = []
    known: list[int] = []
    for _ in range(draw(st.integers(1, 40))):
        waits = tuple(draw(st.lists(st.sampled_from(known), max_size=3))) if known else ()
        signals = tuple(draw(st.lists(st.integers(0, 9), max_size=2, unique=True)))
        latency = draw(st.integers(0, 20))
        if draw(st.booleans()):
            core = draw(st.integers(0, 1))
            engine = draw(st.integers(0, 1))
            cycles = draw(st.integers(0, 50))
            macs = draw(st.integers(0, min(99, 16 * cycles)))  # no engine does more than 16 a cycle
            step = Step(
                core * 4 + engine, Opcode.COMPUTE, cycles, 0, macs, latency, (), waits, signals
            )
        else:
            reads = draw(st.sampled_from([(0,), (0, 2), (4,)]))
            writes = draw(st.sampled_from([1, 3, 5]))
            opcode = Opcode.MULTICAST if writes == 5 else Opcode.LOAD
            issuing = draw(st.sampled_from([0, 0, 9, 70]))
            step = Step(
                draw(st.sampled_from([2, 3, 6, 7])), opcode, issuing, draw(st.integers(0, 200)), 0,
                latency, (*reads, writes), waits, signals, drawn=draw(st.integers(0, 400)),
                returned=draw(st.integers(0, 400)),
            )  # fmt: skip
        steps.append(step)
        known = sorted({*known, *signals})
    return steps


def _interpreted(program: UnitProgram, on: Machine) -> Timing:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("worker.compiler.clock.run.loop_for", lambda loop, count: loop)
        return run_unit(program, on)


def _same(a: Timing, b: Timing) -> None:
    for field in fields(Timing):
        assert np.array_equal(getattr(a, field.name), getattr(b, field.name)), field.name


@given(
    programs(),
    st.booleans(),
    st.sampled_from([(0, 0), (1, 0), (30, 4), (0, 4), (2, 9)]),
    st.sampled_from([{}, {0: "drawn", 1: "drawn"}, {0: "drawn", 1: "drawn", 2: "returned"}]),
)
def test_loop_equals_oracle(
    steps: list[Step], shared: bool, signals: tuple[int, int], counted: dict[int, str]
) -> None:
    ports = tuple(
        replace(p, counted=counted.get(k, "bytes"))
        for k, p in enumerate(ONE_BUS if shared else PORTS)
    )
    program = unit_program(steps, STREAMS, ports)
    on = replace(flat_machine(), signal_cycles=signals[0], engine_signal_cycles=signals[1])
    run = run_unit(program, on)
    cores = [s.core for s in STREAMS]
    expected = oracle(_alone(steps), RATES, WIRE if shared else NO_WIRE, cores, *signals, counted)
    assert run.cycles == expected.cycles
    compiled(forward), compiled(by_readiness)  # from here on run_unit uses the compiled loops
    _same(run, run_unit(program, on))
    _same(run, _interpreted(program, on))
    assert run.begin[np.argsort(run.row)].tolist() == expected.start
    assert not run.in_order or (np.diff(run.row) > 0).all()
    assert run.stream_stats[:, IDLE].tolist() == [expected.idle[s] for s in range(len(STREAMS))]
    assert run.stream_stats[:, BUSY].tolist() == [expected.busy[s] for s in range(len(STREAMS))]
    assert run.resource_bytes.tolist() == [expected.port_bytes[p] for p in range(len(PORTS))]


def _alone(steps: list[Step]) -> list[Step]:
    """Each port of the last resource by itself."""
    return [replace(s, ports=(*s.ports, 6) if 5 in s.ports else s.ports) for s in steps]


def _bursts(sizes: list[tuple[int, int]]) -> list[Step]:
    """For each pair: in turns, a transfer and what waits for it, so that few instructions are known
    at a time; then many of one engine behind a long transfer, while other streams go on."""
    steps = [  # ports are not granted in the program's order
        Step(0, cycles=10, signals=(0,)),
        Step(2, Opcode.LOAD, num_bytes=8, ports=(0, 1), waits=(0,)),
        Step(3, Opcode.LOAD, num_bytes=8, ports=(0, 3)),
    ]
    for turns, behind in sizes:
        for k in range(turns):
            steps.append(Step(2, Opcode.LOAD, num_bytes=5 + k, ports=(0, 1), signals=(1,)))
            steps.append(Step(0, cycles=3, waits=(1,), signals=(2,), latency=k % 5))
            steps.append(Step(3, Opcode.LOAD, num_bytes=k % 7, ports=(0, 3), waits=(2,)))
            steps.append(Step(2, cycles=1, waits=(2,)))
        steps.append(Step(6, Opcode.LOAD, num_bytes=900, ports=(4, 3), signals=(3, 5)))
        steps.append(Step(0, cycles=1, waits=(3,)))
        for k in range(behind):
            steps.append(Step(0, cycles=1 + k % 3, signals=(4, 6) if k % 2 else ()))
            steps.append(Step(4, cycles=2, signals=(7,)))
            steps.append(Step(7, Opcode.LOAD, num_bytes=k % 4, ports=(0, 1), waits=(7, 5)))
            steps.append(Step(2, Opcode.LOAD, num_bytes=4, ports=(0, 3), waits=(7,)))
    return steps


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "sizes", [[(3, 9)], [(7, 3), (5, 40)], [(1, 1), (2, 5), (9, 17), (30, 80)], [(41, 0), (0, 41)]]
)
def test_a_clock_that_runs_out_of_room_goes_on(sizes: list[tuple[int, int]]) -> None:
    """Log and rings begin with almost nothing and grow once they have wrapped."""
    steps = _bursts(sizes)
    program = unit_program(steps, STREAMS, PORTS)
    usual = run_unit(program, flat_machine())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("worker.compiler.clock.run.FIRST_LOG", 1)
        patch.setattr("worker.compiler.clock.run.FIRST_KNOWN", 2)
        tight = run_unit(program, flat_machine())
    expected = oracle(steps, RATES)
    assert tight.begin[np.argsort(tight.row)].tolist() == expected.start
    assert (np.diff(tight.row) < 0).any() and not tight.in_order
    _same(tight, usual)


@given(programs())
def test_compute_cycles_is_the_union_of_busy_cycles(steps: list[Step]) -> None:
    program = unit_program(steps, STREAMS, PORTS)
    run = run_unit(program, flat_machine())
    expected = oracle(_alone(steps), RATES, NO_WIRE)
    busy: set[int] = set()
    for step, start, end in zip(steps, expected.start, expected.end, strict=True):
        if step.opcode is Opcode.COMPUTE:
            busy.update(range(start, end))
    assert compute_cycles(program, run) == len(busy)


@given(programs())
def test_every_cycle_has_a_cause(steps: list[Step]) -> None:
    """Nothing is left over, and no cycle is blamed on what took none.

    What is not to blame may not be made faster for nothing: who is ready first changes with it.
    """
    on, program = replace(flat_machine(), signal_cycles=7), unit_program(steps, STREAMS, PORTS)
    sim = simulate_unit(program, on)
    assert sum(b.cycles for b in sim.blame) == sum(c.cycles for c in sim.causes) == sim.cycles
    assert all(b.cycles > 0 for b in sim.blame)


@given(programs(), st.integers(0, 5000), st.integers(0, 5000))
def test_every_sanity_check_passes(steps: list[Step], inward: int, outward: int) -> None:
    operands = (
        Operand("t0", OperandRole.INPUT, "f32", (inward,), inward),
        Operand("t1", OperandRole.OUTPUT, "f32", (outward,), outward),
    )
    sim = simulate_unit(unit_program(steps, STREAMS, PORTS, operands), flat_machine())
    assert [c for c in sim.checks if not c.passed] == []
    assert sim.cycles >= sim.roofline.cycles
    assert all(0 <= s.start_cycle <= s.end_cycle <= sim.cycles for s in sim.slices)
    assert sum(s.merged for s in sim.slices) == len(steps)
    assert UnitSimulation.from_bytes(sim.to_bytes()) == sim


def lowered(kind: int, tile: int) -> tuple[Schedule, Machine]:
    match kind:
        case 0:
            return naive_matmul(32, 32, 32, (tile, 8, 8), 1), flat_machine(1)
        case 1:
            return fused_rows(32, 16, tile), flat_machine(1)
        case 2:
            return naive_matmul(32, 24, 40, (tile, 8, 8), 2), flat_machine(2)
        case 3:
            return piped(32, 16, tile, 2, "L1"), flat_machine(2)
        case 4:
            return skipping(32, 16, tile, (2, 1), "L1"), flat_machine(3)
        case _:
            return cluster_matmul(), cluster_machine()


def scaled(machine: Machine, level: str, factor: float) -> Machine:
    levels = tuple(
        replace(
            m, read_bytes_per_cycle=m.read_bytes_per_cycle * factor,
            write_bytes_per_cycle=m.write_bytes_per_cycle * factor,
        ) if m.name == level else m
        for m in machine.levels
    )  # fmt: skip
    return replace(machine, levels=levels)


@given(
    st.integers(0, 1), st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from(["DDR", "L2", "L1"]),
    st.sampled_from([1.5, 2.0, 7.0, 100.0]),
)  # fmt: skip
def test_a_faster_memory_never_slows_a_single_core(
    kind: int, tile: int, level: str, factor: float
) -> None:
    schedule, machine = lowered(kind, tile)
    slow = simulate_unit(lower_unit(schedule, machine, "u"), machine)
    fast_machine = scaled(machine, level, factor)
    fast = simulate_unit(lower_unit(schedule, fast_machine, "u"), fast_machine)
    assert fast.cycles <= slow.cycles


@COSTLY
@given(st.sampled_from([0.25, 0.5, 1.0, 3.0]), st.sampled_from([1.1, 2.0, 50.0]))
def test_a_faster_link_never_slows_a_single_core(rate: float, factor: float) -> None:
    def cycles(bytes_per_cycle: float) -> int:
        machine = cluster_machine(1, 1)
        (link,) = machine.links
        machine = replace(machine, links=(replace(link, bytes_per_cycle=bytes_per_cycle),))
        return simulate_unit(lower_unit(cluster_matmul(1, 1), machine, "u"), machine).cycles

    assert cycles(rate * factor) <= cycles(rate)
    assert cycles(100.0) < cycles(0.25), "the link matters at all"


def test_a_queue_of_one_tile_keeps_its_producer_waiting() -> None:
    """Also where only the stage after next is late in reading it."""

    def cycles(*depths: int) -> int:
        schedule = skipping(64, 16, 2, (depths[0], depths[1]), "L1")
        return simulate_unit(lower_unit(schedule, flat_machine(3), "u"), flat_machine(3)).cycles

    assert cycles(1, 1) > cycles(2, 1) > cycles(2, 2) > cycles(3, 2)
    assert cycles(1, 1) == cycles(1, 3), "the queue that skips a stage is what is full"


@COSTLY
@given(st.integers(0, 5), st.sampled_from([2, 4, 8]))
def test_lowered_toys_pass_every_check(kind: int, tile: int) -> None:
    schedule, machine = lowered(kind, tile)
    program = lower_unit(schedule, machine, "u")
    sim = simulate_unit(program, machine)
    assert [c for c in sim.checks if not c.passed] == []
    assert sim.cycles > sim.roofline.cycles > 0
    moved = {t.level: t for t in sim.traffic}["DDR"]
    assert moved.read_bytes > 0
    assert moved.write_bytes > 0
    assert all(0 < o.peak_bytes <= machine.level(o.level).usable_bytes for o in sim.occupancy)
    assert simulate_unit(program, machine) == sim


OWN_PORTS = {2: (0, 1), 3: (2, 3), 6: (4, 5)}


def apart(step: Step) -> Step:
    """The same step where no two streams share a port."""
    if not step.ports:
        return step
    stream = min(step.stream, 6)
    opcode = Opcode.MULTICAST if stream == 6 else Opcode.LOAD
    return replace(step, stream=stream, opcode=opcode, ports=OWN_PORTS[stream])


@given(programs(), st.integers(0, 40))
def test_delaying_one_instruction_never_shortens_the_run(steps: list[Step], pick: int) -> None:
    """Where streams share no port.  Where they do, who is ready first goes first, and a delay may
    let a longer chain go first (Graham, Bounds on Multiprocessing Timing Anomalies, 1969)."""
    steps = [apart(step) for step in steps]
    slower = list(steps)
    k = pick % len(steps)
    slower[k] = replace(steps[k], latency=steps[k].latency + 10)
    machine = flat_machine()

    def cycles(some: list[Step]) -> int:
        return run_unit(unit_program(some, STREAMS, PORTS), machine).cycles

    assert cycles(slower) >= cycles(steps)


def test_a_delay_may_let_a_longer_chain_go_first() -> None:
    """Two transfers wait for one port; behind the second stands a long computation."""

    def cycles(delay: int) -> int:
        first = Step(2, Opcode.LOAD, 0, 100, 0, 0, (0, 1), (), ())
        late = Step(0, Opcode.COMPUTE, 5, 0, 0, 0, (), (), (0,))
        second = Step(3, Opcode.LOAD, 0, 100, 0, 0, (0, 3), (0,), (1,))
        after = Step(1, Opcode.COMPUTE, 500, 0, 0, 0, (), (1,), ())
        held = Step(4, Opcode.COMPUTE, delay, 0, 0, 0, (), (), (2,))
        program = [held, late, replace(first, waits=(2,)), second, after]
        return run_unit(unit_program(program, STREAMS, PORTS), flat_machine()).cycles

    assert cycles(9) < cycles(1)


def test_an_empty_program_takes_no_time() -> None:
    program: UnitProgram = unit_program([], STREAMS, PORTS)
    sim = simulate_unit(program, flat_machine())
    assert sim.cycles == 0
    assert all(c.passed for c in sim.checks)
    assert np.sum([t.read_bytes + t.write_bytes for t in sim.traffic]) == 0
