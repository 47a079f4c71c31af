"""Tiny programs whose time, traffic, energy, occupancy and bounds are worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from timing_oracle import Step, unit_program

from worker.compiler.clock.run import IDLE, MAX_SLICES, Timing, run_unit
from worker.compiler.errors import Deadlock
from worker.compiler.ir.dtype import DType
from worker.compiler.isa.program import (
    Binding,
    Buffer,
    HostCall,
    Opcode,
    Operand,
    OperandRole,
    Program,
    Resource,
    Stream,
    UnitCall,
    UnitProgram,
)
from worker.compiler.machine.machine import (
    AcceleratorTarget,
    Capabilities,
    Engine,
    EngineKind,
    Host,
    Link,
    LinkKind,
    Machine,
    Managed,
    MemoryLevel,
)
from worker.simulator.attribution import blame
from worker.simulator.bounds import lower_bounds, traffic
from worker.simulator.memory import occupancy
from worker.simulator.results import Bound, UnitSimulation
from worker.simulator.run import simulate_program, simulate_unit
from worker.simulator.sanity import recount, unit_checks
from worker.simulator.trace import trace_json

HOST = Host("cpu", 1e9, 2e9, 1e9, 1e-6, 2e-6, energy_pj_per_flop=3.0)
MACHINE = Machine(
    name="toy", clock_hz=1e9, num_cores=2, num_clusters=1,
    levels=(
        MemoryLevel("DDR", 1 << 20, 1, 4.0, 4.0, 10, 5.0, 6.0, Managed.SCRATCHPAD),
        MemoryLevel("L1", 1024, 2, 16.0, 8.0, 1, 0.5, 0.25, Managed.SCRATCHPAD),
        MemoryLevel("R", 64, 2, 64.0, 64.0, 0, 0.1, 0.2, Managed.REGISTER),
    ),
    engines=(
        Engine("mm", EngineKind.MATRIX, "L1", {DType.F32: 4.0, DType.I8: 16.0}, (2, 4),
               op_energy_pj={DType.F32: 2.0, DType.I8: 0.5}),
        Engine("vec", EngineKind.VECTOR, "L1", {DType.F32: 2.0}, op_energy_pj={DType.F32: 1.0}),
        Engine("in", EngineKind.DMA_IN, "L1", {}),
        Engine("out", EngineKind.DMA_OUT, "L1", {}),
    ),
    links=(Link("bus", "DDR", "L1", LinkKind.BUS, 2.0, 3, 0.5),),
    host=HOST, targets=
        (AcceleratorTarget("accelerator", Capabilities((), (DType.F32,), 4)),),
        launch_latency_cycles=100,
    static_power_w=0.001,
)  # fmt: skip
STREAMS = (Stream(0, "in"), Stream(0, "mm"), Stream(0, "out"), Stream(1, "in"), Stream(1, "vec"))
PORTS = (
    Resource("DDR", 0, "read", 4.0), Resource("DDR", 0, "write", 4.0),
    Resource("L1", 0, "write", 8.0), Resource("L1", 0, "read", 16.0),
    Resource("L1", 1, "write", 8.0), Resource("bus", 0, "link", 2.0),
)  # fmt: skip
OPERANDS = (
    Operand("a", OperandRole.INPUT, "f32", (16,), 64),
    Operand("w", OperandRole.CONSTANT, "f32", (8,), 32),
    Operand("y", OperandRole.OUTPUT, "f32", (4,), 16),
)
BUFFERS = (
    Buffer("a", "L1", 0, 64, 1, "f32", (16,), "0.0"),
    Buffer("w", "L1", 64, 32, 1, "f32", (8,), "0.0"),
    Buffer("y", "L1", 128, 16, 1, "f32", (4,), "0.0.1"),
)


def load(num_bytes: int, token: int, *, stream: int = 0, dst: int = 0, latency: int = 10) -> Step:
    port = 2 if stream == 0 else 4
    return Step(stream, Opcode.LOAD, 0, num_bytes, 0, latency, (0, port), (), (token,), 0, -1, dst)


def chain(engine: str = "mm") -> UnitProgram:
    """Load a (64 B), load w (32 B), multiply (40 MACs, 12 cycles), store y (16 B)."""
    steps = [
        load(64, 0),
        load(32, 1, dst=1),
        Step(1, Opcode.COMPUTE, 12, 0, 40, 0, (), (0, 1), (2,), 1, 0, 2, drawn=90, returned=24),
        Step(2, Opcode.STORE, 0, 16, 0, 10, (3, 1), (2,), (), 2, 2, -1),
    ]
    streams = (STREAMS[0], Stream(0, engine), *STREAMS[2:])
    return unit_program(steps, streams, PORTS, OPERANDS, BUFFERS, ("0.0.0", "0.0.1.0", "0.0.1.1"))


def test_a_chain_by_hand() -> None:
    sim = simulate_unit(chain(), MACHINE, predicted_cycles=7, contractions={0: 30})
    # 64 B at 4 B/cycle: 0..16; 32 B: 16..24; both visible 10 later; compute 34..46; 16 B: 46..50,
    # visible at 60.
    assert sim.cycles == 60
    assert sim.instructions == 4
    assert (sim.macs, sim.repeated_macs, sim.other_ops, sim.active_cores) == (40, 10, 0, 2)
    assert sim.compute_cycles == 12
    assert sim.predicted_cycles == 7
    assert {(t.level, t.read_bytes, t.write_bytes) for t in sim.traffic} == {
        ("DDR", 96, 16), ("L1", 16, 96), ("R", 0, 0),
    }  # fmt: skip
    assert {(e.engine, e.busy_cycles, e.instructions) for e in sim.engines} == {
        ("in", 24, 2), ("mm", 12, 1), ("out", 4, 1), ("vec", 0, 0),
    }  # fmt: skip
    assert all(c.passed for c in sim.checks)
    # The store waits for the computation, that one for the second load, and both loads for DDR.
    assert [(c.cause, c.cycles) for c in sim.causes] == [
        ("port:DDR.read", 24), ("latency", 20), ("engine:mm", 12), ("port:DDR.write", 4),
    ]  # fmt: skip
    assert [(b.path, b.cause, b.cycles) for b in sim.blame] == [
        ("0.0.0", "port:DDR.read", 24), ("0.0.0", "latency", 10), ("0.0.1.0", "engine:mm", 12),
        ("0.0.1.1", "port:DDR.write", 4), ("0.0.1.1", "latency", 10),
    ]  # fmt: skip


def test_bounds_by_hand() -> None:
    sim = simulate_unit(chain(), MACHINE)
    assert {b.name: b.cycles for b in sim.bounds} == {
        "compute:mm": 5,  # 40 MACs / (4 per cycle x 2 cores): f32 only, the int8 rate is out
        "compute:vec": 0,
        "traffic:DDR": 24,  # 96 B in at 4 B/cycle; 16 B out: 4
        "traffic:L1": 6,  # 96 B written at 2 x 8 B/cycle
        "traffic:R": 0,
    }
    assert sim.roofline.name == "traffic:DDR"


def test_energy_by_hand() -> None:
    sim = simulate_unit(chain(), MACHINE)
    lines = {line.item: line.pj for line in sim.energy}
    expected = {
        "mac": 40 * 2.0,
        "level:DDR": 96 * 5.0 + 16 * 6.0,
        "level:L1": 16 * 0.5 + 96 * 0.25,
        "feed:L1": 90 * 0.5 + 24 * 0.25,
        "register:R": 40 * 4 * (3 * 0.1 + 0.2),
        "static": 0.001 * 60e-9 * 1e12,
    }
    assert lines == pytest.approx(expected)
    assert sim.energy_pj == pytest.approx(sum(expected.values()))


def test_occupancy_by_hand() -> None:
    (curve,) = simulate_unit(chain(), MACHINE).occupancy
    # a and w live from the first load (0) to the last finish below their Place (60); y from its
    # compute (34) on.  96 bytes, then 112.
    assert (curve.level, curve.capacity_bytes, curve.peak_bytes) == ("L1", 1024, 112)
    assert list(zip(curve.cycles, curve.used_bytes, strict=True)) == [(0, 96), (34, 112), (60, 0)]


def test_buffers_that_share_an_address_count_once() -> None:
    program = chain()
    shared = replace(program.buffers[2], address=64)
    sim = simulate_unit(replace(program, buffers=(*program.buffers[:2], shared)), MACHINE)
    assert sim.occupancy[0].peak_bytes == 96


def test_a_shared_port_serves_one_after_the_other() -> None:
    steps = [load(64, 0), load(64, 1, stream=3), load(8, 2)]
    sim = simulate_unit(unit_program(steps, STREAMS, PORTS), MACHINE)
    # Core 0: 0..16; core 1 waits for DDR: 16..32; core 0 again: 32..34, +10.
    assert sim.cycles == 44
    idle = run_unit(unit_program(steps, STREAMS, PORTS), MACHINE).stream_stats[:, IDLE]
    assert idle.tolist() == [16, 0, 0, 16, *[0] * (len(STREAMS) - 4)]


def test_a_wide_port_is_shared_without_loss() -> None:
    """Each transfer holds a port only as long as that port needs."""
    wide = (replace(PORTS[0], bytes_per_cycle=16.0), *PORTS[1:])
    steps = [load(64, 0), load(64, 1, stream=3)]
    sim = simulate_unit(unit_program(steps, STREAMS, wide), MACHINE)
    # DDR needs 4 cycles each, L1 8: core 1 starts at 4 and ends at 12.
    assert sim.cycles == 12 + 10


def test_double_buffering_hides_the_loads() -> None:
    def steps(copies: int) -> list[Step]:
        rows = []
        for i in range(6):
            slot = i % copies
            free = (10 + slot,) if i >= copies else ()
            rows.append(Step(0, Opcode.LOAD, 0, 64, 0, 0, (0, 2), free, (slot,), 0, -1, 0))
            rows.append(Step(1, Opcode.COMPUTE, 16, 0, 8, 0, (), (slot,), (10 + slot,), 1, 0, 2))
        return rows

    def cycles(copies: int) -> int:
        program = unit_program(steps(copies), STREAMS, PORTS, (), (), ("0.0", "0.1"))
        return simulate_unit(program, MACHINE).cycles

    assert cycles(1) == 6 * (16 + 16)
    assert cycles(2) == 6 * 16 + 16


def test_latency_delays_the_consumer_but_not_the_engine() -> None:
    steps = [load(64, 0, latency=100), load(64, 1, latency=0)]
    sim = simulate_unit(unit_program(steps, STREAMS, PORTS), MACHINE)
    assert sim.cycles == 116
    assert {e.engine: e.busy_cycles for e in sim.engines}["in"] == 32


def test_a_link_is_a_port_and_costs_energy() -> None:
    step = Step(0, Opcode.LOAD, 0, 64, 0, 0, (0, 5, 2), (), (), 0, -1, 0)
    sim = simulate_unit(unit_program([step], STREAMS, PORTS), MACHINE)
    assert sim.cycles == 32
    assert {line.item: line.pj for line in sim.energy}["link:bus"] == 64 * 0.5
    assert all(c.passed for c in sim.checks)


def test_a_wait_that_nobody_answers_is_a_deadlock_with_a_name() -> None:
    steps = [load(8, 0), Step(1, Opcode.COMPUTE, 1, 0, 1, 0, (), (5,), (), 0)]
    with pytest.raises(Deadlock, match=r"instruction 1 \(COMPUTE, node 0, core 0 mm\).*token 5"):
        simulate_unit(unit_program(steps, STREAMS, PORTS), MACHINE)


def test_a_violated_invariant_is_reported() -> None:
    big = Buffer("a", "L1", 0, 2048, 1, "f32", (512,), "0")
    program = unit_program([load(8, 0)], STREAMS, PORTS, (), (big,), ("0.0",))
    failed = [c for c in simulate_unit(program, MACHINE).checks if not c.passed]
    assert [c.name for c in failed] == ["occupancy-within-capacity"]
    assert "2048/1024" in failed[0].detail


TIGHT = (Bound("traffic:DDR", 24), Bound("latency", 10))
"""Summands, of which neither alone exceeds 33 cycles."""


@pytest.mark.parametrize(
    ("check", "doctored"),
    [
        ("cycles-above-bounds", lambda run: replace(run, cycles=23)),
        ("cycles-above-bounds", lambda run: replace(run, cycles=33)),
        ("macs-conserved", lambda run: replace(run, stream_macs=run.stream_macs + 1)),
        ("parts-sum-to-total", lambda run: replace(run, stream_free=run.stream_free + 1)),
        ("no-overbooking", lambda run: replace(run, resource_busy=run.resource_busy + 60)),
        ("causes-sum-to-total", lambda run: replace(run, cycles=61)),
    ],
)
def test_each_check_can_fail(check: str, doctored: Callable[[Timing], Timing]) -> None:
    program, points = chain(), {0: 40}
    run, counted = run_unit(program, MACHINE), recount(program)
    blamed = blame(program, MACHINE, run)
    moved = traffic(program, MACHINE, run)
    bounds, curves = lower_bounds(program, MACHINE, run, moved), occupancy(program, MACHINE, run)

    def failed(some: Timing) -> set[str]:
        checks = unit_checks(
            program, MACHINE, some, (bounds, TIGHT), moved, curves, counted, points, blamed
        )
        return {c.name for c in checks if not c.passed}

    assert failed(run) == set()
    assert check in failed(doctored(run))


def test_a_multiplication_is_one_whatever_engine_runs_it() -> None:
    """Operator 0 is counted where the graph says that it multiplies and adds."""
    for engine in ("mm", "vec"):
        assert simulate_unit(chain(engine), MACHINE, 0, {0: 40}).macs == 40
        plain = simulate_unit(chain(engine), MACHINE)
        assert (plain.macs, plain.other_ops) == (0, 40)


def test_points_of_a_contraction_that_nobody_computes_are_reported() -> None:
    sim = simulate_unit(chain(), MACHINE, 0, {0: 41, 1: 3})
    (failed,) = (c for c in sim.checks if not c.passed)
    assert failed.name == "macs-conserved"
    assert failed.detail.endswith("operator 0: 40 of 41; operator 1: 0 of 3")


def test_a_transfer_that_loses_bytes_is_reported() -> None:
    step = Step(0, Opcode.LOAD, 0, 64, 0, 0, (0,), (), (), 0, -1, 0)
    failed = [
        c.name
        for c in simulate_unit(unit_program([step], STREAMS, PORTS), MACHINE).checks
        if not c.passed
    ]
    assert failed == ["bytes-conserved"]


def test_long_streams_are_merged_in_the_timeline() -> None:
    steps = [Step(1, Opcode.COMPUTE, 2, 0, 1) for _ in range(5000)]
    sim = simulate_unit(unit_program(steps, STREAMS, PORTS), MACHINE)
    assert len(sim.slices) <= MAX_SLICES
    assert sum(s.merged for s in sim.slices) == 5000
    assert sim.slices[0].start_cycle == 0
    assert sim.slices[-1].end_cycle == 10_000
    assert "instructions from COMPUTE 0" in sim.slices[0].name


# -- whole programs --------------------------------------------------------------------------------


def two_calls_and_a_host() -> Program:
    unit = chain()
    first = UnitCall(
        0, (Binding("x", 0), Binding("w0", 64), Binding("m", 96)), ("n1",), "MatMul", 0, 100
    )
    second = UnitCall(
        0, (Binding("m2", 0), Binding("w0", 64), Binding("z", 96)), ("n3",), "MatMul", 1, 100
    )
    host = HostCall(0, ("m",), ("m2",), 1000, 3000, 8000, 4000, ("n2",), ("TopK",))
    return Program((unit,), (first, host, second), 4096, 32, 128)


def test_a_program_by_hand() -> None:
    program = two_calls_and_a_host()
    sim = simulate_unit(program.units[0], MACHINE, contractions={0: 35})
    whole = simulate_program(program, (sim,), MACHINE)
    # Host: 2 us launch + 2 x 1 us link latency + 1 us + 3 us of copies, then 8 us of work
    # (8000 flop at 1e9; its 4000 B would take 2 us).
    assert [(c.kind, c.start_cycle, c.end_cycle, c.overhead_cycles) for c in whole.calls] == [
        ("unit", 0, 160, 100), ("host", 160, 16160, 8000), ("unit", 16160, 16320, 100),
    ]  # fmt: skip
    assert (whole.cycles, whole.host_cycles, whole.launch_cycles) == (16320, 16000, 200)
    assert whole.boundary_bytes == 4000
    assert (whole.macs, whole.repeated_macs) == (80, 10)
    assert dict(whole.peak_bytes) == {"DDR": 4096, "L1": 112}
    assert {line.item: line.pj for line in whole.energy}["host"] == 24_000
    assert {line.item: line.pj for line in whole.energy}["mac"] == 160
    assert (whole.roofline.name, whole.roofline.cycles) == ("host", 8000)
    assert all(c.passed for c in whole.checks)
    assert whole.energy_pj == pytest.approx(sum(c.energy_pj for c in whole.calls))


def test_what_no_schedule_changes_adds_up() -> None:
    program = two_calls_and_a_host()
    sim = simulate_unit(program.units[0], MACHINE, floor=(("traffic:DDR", 24), ("latency", 10)))
    assert (sim.lower_bound_cycles, sim.roofline.cycles) == (34, 24)
    whole = simulate_program(program, (sim,), MACHINE)
    # Two launches of 100, the host's launch of 2 us and its 8 us of work, two copies of 2 and 4 us.
    assert {(b.name, b.cycles) for b in whole.floor} == {
        ("host", 10_000), ("host-link", 6000), ("launch", 200), ("traffic:DDR", 48),
        ("latency", 20),
    }  # fmt: skip
    assert [b.cycles for b in whole.floor] == sorted((b.cycles for b in whole.floor), reverse=True)
    assert whole.lower_bound_cycles == 16_268 < whole.cycles
    over = simulate_unit(program.units[0], MACHINE, floor=(("traffic:DDR", 61),))
    assert [c.name for c in over.checks if not c.passed] == ["cycles-above-bounds"]
    (failed,) = (c for c in simulate_program(program, (over,), MACHINE).checks if not c.passed)
    assert (failed.name, "traffic:DDR 122" in failed.detail) == ("cycles-above-bounds", True)


def test_the_model_bound_counts_each_weight_once_and_no_intermediate() -> None:
    unit = chain()
    calls = (
        UnitCall(
            0, (Binding("x", 0), Binding("w0", 64), Binding("m", 96)), ("n1",), "MatMul", 0, 100
        ),
        UnitCall(
            0, (Binding("m", 0), Binding("w0", 64), Binding("y", 96)), ("n2",), "MatMul", 0, 100
        ),
    )
    sim = simulate_unit(unit, MACHINE)
    whole = simulate_program(Program((unit,), calls, 4096, 32, 128), (sim,), MACHINE)
    # x (64 B) and w0 (32 B) once: 96 B at 4 B/cycle; the two units alone would ask for 48.
    assert (whole.roofline.name, whole.roofline.cycles) == ("traffic:DDR", 24)


def test_shared_memory_needs_no_copies() -> None:
    program = two_calls_and_a_host()
    machine = replace(MACHINE, host=replace(HOST, shared_memory=True))
    sim = simulate_unit(program.units[0], machine)
    whole = simulate_program(program, (sim,), machine)
    assert whole.boundary_bytes == 0
    assert whole.calls[1].overhead_cycles == 2000


def test_a_home_that_overflows_is_reported() -> None:
    program = replace(two_calls_and_a_host(), home_bytes=1 << 21)
    sim = simulate_unit(program.units[0], MACHINE)
    failed = [c.name for c in simulate_program(program, (sim,), MACHINE).checks if not c.passed]
    assert failed == ["home-within-capacity"]


def test_the_trace_is_valid_deterministic_and_complete() -> None:
    program = two_calls_and_a_host()
    sim = simulate_unit(program.units[0], MACHINE)
    stored = UnitSimulation.from_bytes(sim.to_bytes())
    whole = simulate_program(program, (sim,), MACHINE)
    raw = trace_json(program, (sim,), whole, MACHINE)
    assert raw == trace_json(program, (stored,), whole, MACHINE)
    events = json.loads(raw)["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    calls = [e for e in slices if e["pid"] == 0]
    assert [(e["name"], e["tid"], e["ts"], e["dur"]) for e in calls] == [
        ("MatMul", 0, 0.0, 0.16), ("TopK", 1, 0.16, 16.0), ("MatMul", 0, 16.16, 0.16),
    ]  # fmt: skip
    compute = [e for e in slices if e["name"].startswith("COMPUTE")]
    assert [(e["ts"], e["dur"]) for e in compute] == [(0.134, 0.012), (16.294, 0.012)]
    tracks = {(e["pid"], e["tid"]) for e in slices}
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert tracks <= named


def test_the_trace_tells_what_memories_hold() -> None:
    """In each call as the kernel alone, at the call's place in time, and nothing after the end."""
    program = two_calls_and_a_host()
    sim = simulate_unit(program.units[0], MACHINE)
    whole = simulate_program(program, (sim,), MACHINE)
    document = json.loads(trace_json(program, (sim,), whole, MACHINE))
    memories = document["otherData"]["memories"]
    assert memories == {level.name: level.capacity_bytes for level in MACHINE.placeable}
    counters = [e for e in document["traceEvents"] if e["ph"] == "C"]
    assert {e["name"] for e in counters} == set(memories)
    own = {use.level: use for use in sim.occupancy}
    for name, capacity in memories.items():
        steps = [(e["ts"], e["args"]["bytes"]) for e in counters if e["name"] == name]
        assert steps == sorted(steps, key=lambda step: step[0])
        assert max(used for _, used in steps) == own[name].peak_bytes <= capacity
        assert steps[-1][1] == 0
        end = whole.calls[0].end_cycle
        alone = [
            used
            for cycle, used in zip(own[name].cycles, own[name].used_bytes, strict=True)
            if cycle + whole.calls[0].overhead_cycles < end
        ]
        assert [used for at, used in steps if at * MACHINE.clock_hz < 1e6 * end] == alone


def test_a_huge_trace_is_thinned_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    program = two_calls_and_a_host()
    sim = simulate_unit(program.units[0], MACHINE)
    whole = simulate_program(program, (sim,), MACHINE)
    monkeypatch.setattr("worker.simulator.trace.MAX_EVENTS", 3)
    document = json.loads(trace_json(program, (sim,), whole, MACHINE))
    assert "2 calls are drawn without their engines" in document["otherData"]["note"]
    assert sum(e["ph"] == "X" for e in document["traceEvents"]) == 3


def test_work_is_counted_in_integers() -> None:
    """2**53 and one more are one number in floats, and two here."""
    big = 1 << 53
    steps = [Step(1, Opcode.COMPUTE, 1, 0, work, 0, (), (), (), 0) for work in (big, 1, 1)]
    assert recount(unit_program(steps, STREAMS, PORTS)).of(0) == big + 2
    odd = [Step(1, Opcode.COMPUTE, 1, 0, work, 0, (), (), (), 0) for work in (big, 1)]
    assert recount(unit_program(odd, STREAMS, PORTS)).of(0) == big + 1
