"""Engines that draw and return through the ports of transfers: in specs, programs and prices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import lower_toys as toys
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from looped_programs import looped
from nest_layers import Layer
from timing_oracle import Step, oracle, unit_program

from worker.compiler.clock.run import run_unit
from worker.compiler.cost.floor import kernel_floor
from worker.compiler.errors import VerifyError
from worker.compiler.isa.program import Opcode, Resource, Stream, UnitProgram, expanded
from worker.compiler.isa.text import parse_program, print_program
from worker.compiler.isa.verify import verify_program
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import digest, load_machine, load_preset
from worker.compiler.machine.digest import machine_document, machine_of
from worker.compiler.machine.lint.document import lint_document
from worker.compiler.machine.machine import Machine, Managed
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.tiling.nest.emit import emit
from worker.compiler.tiling.nest.levels import Sizes
from worker.simulator.run import simulate_unit


def sharing(machine: Machine, *, half: bool = False, rate: float = 64.0) -> Machine:
    """The machine whose L1 has one port each way, or one for both, for engines and transfers."""
    levels = tuple(
        replace(m, serves_engines=True, half_duplex=half, read_bytes_per_cycle=rate,
                write_bytes_per_cycle=rate)
        if m.name == "L1" else m
        for m in machine.levels
    )  # fmt: skip
    return replace(machine, levels=levels)


def product(machine: Machine, num_cores: int = 2) -> UnitProgram:
    return lower_unit(toys.naive_matmul(16, 16, 16, (4, 4, 4), num_cores), machine, "s" * 64)


def causes(unit: UnitProgram, machine: Machine) -> dict[str, int]:
    found = simulate_unit(unit, machine)
    assert all(check.passed for check in found.checks)
    return {c.cause: c.cycles for c in found.causes}


def spec(**fields: Any) -> dict[str, Any]:
    return {"name": "mine", "inherits": "kapla-edge", "levels": [{"name": "GBUF", **fields}]}


def test_left_out_engines_have_ports_of_their_own_and_that_is_a_guess() -> None:
    plain, said = load_machine(spec()), load_machine(spec(engine_ports="own"))
    shared = load_machine(spec(engine_ports={"value": "shared", "tag": "S", "note": "1 port"}))
    assert [m.serves_engines for m in plain.levels] == [False] * len(plain.levels)
    assert [m.name for m in shared.levels if m.serves_engines] == ["GBUF"]
    at = "/levels/1/engine_ports"
    assert [g.value for g in plain.guesses if g.pointer == at] == ["own"]
    for machine in (said, shared):
        assert at not in [g.pointer for g in machine.guesses]
    assert digest(plain) != digest(shared)
    assert machine_of(machine_document(shared)).levels == shared.levels


def test_an_engine_that_does_not_say_has_its_share_of_the_port() -> None:
    """VEC of kapla-edge says nothing of its ports, and there is no dataflow that would."""
    plain, shared = load_machine(spec()), load_machine(spec(engine_ports="shared"))
    assert plain.engine("VEC").feed_bytes_per_cycle == 0
    level, vector = shared.level("GBUF"), shared.engine("VEC")
    assert vector.feed_bytes_per_cycle == level.read_bytes_per_cycle
    assert vector.drain_bytes_per_cycle == level.write_bytes_per_cycle


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ({"levels": [{"name": "DRAM", "engine_ports": "shared"}]}, "/levels/0/engine_ports"),
        ({"levels": [{"name": "REGF", "engine_ports": "own"}]}, "/levels/0/engine_ports"),
        ({"levels": [{"name": "GBUF", "engine_ports": "shared"}],
          "engines": [{"name": "VEC", "feed_bytes_per_cycle": 4096}]},
         "/engines/0/feed_bytes_per_cycle"),
        ({"levels": [{"name": "GBUF", "engine_ports": "shared"}],
          "engines": [{"name": "VEC", "drain_bytes_per_cycle": 4096}]},
         "/engines/0/drain_bytes_per_cycle"),
    ],
)  # fmt: skip
def test_what_would_change_nothing_is_refused(change: dict[str, Any], at: str) -> None:
    found = lint_document({"name": "mine", "inherits": "kapla-edge", **change})
    assert [f.pointer for f in found] == [at]
    assert found[0].code == "TW-SPEC-002"


def test_no_preset_says_that_they_are_shared() -> None:
    """None has evidence for it: programs of presets are what they were."""
    for name in ("a100", "eyeriss", "nvdla-large", "stcp920", "tpuv1"):
        assert not any(m.serves_engines for m in load_preset(name).levels)


def test_one_port_by_hand() -> None:
    """Per core 32 products of 4 x 4 x 4: 32 bytes of each factor and 64 of sums in, 64 of sums out
    (f32); 64 loads of 32 bytes, 8 stores of 32."""
    machine = sharing(toys.flat_machine(), half=True, rate=2.0)
    unit = product(machine)
    work = unit.instructions[unit.instructions["opcode"] == Opcode.COMPUTE]
    assert {(int(r["drawn"]), int(r["returned"]), int(r["cycles"])) for r in work} == {(128, 64, 4)}
    port = 32 * (128 + 64) // 2 + (64 + 8) * 32 // 2
    # Before the port is asked, two bytes at home; the last store and the first load are on their
    # way for 10 cycles, during which the port has nothing to do.
    assert run_unit(unit, machine).cycles == port + 2 + 20 == 4246
    found = causes(unit, machine)
    assert found["port:L1.read"] + found["port:L1.write"] == port
    assert not any(name.startswith("engine") for name in found)
    own = replace(machine, levels=tuple(
        replace(m, serves_engines=False, half_duplex=False) for m in machine.levels
    ))  # fmt: skip
    assert run_unit(product(own), own).cycles == 1066
    apart = sharing(toys.flat_machine(), rate=2.0)  # a port each way
    reading, writing = (32 * 128 + 8 * 32) // 2, (32 * 64 + 64 * 32) // 2
    assert reading == 2176 > writing
    cycles = run_unit(product(apart), apart).cycles
    assert reading <= cycles < 4246


def test_a_kernel_that_a_shared_port_starves_is_blamed_on_it() -> None:
    free = sharing(toys.flat_machine(), rate=8.0)
    levels = tuple(replace(m, serves_engines=False) for m in free.levels)
    free = replace(free, levels=levels)
    tight = sharing(toys.flat_machine(), half=True, rate=8.0)
    before, after = causes(product(free), free), causes(product(tight), tight)
    ports = [sum(n for c, n in each.items() if c.startswith("port:L1")) for each in (before, after)]
    assert 2 * ports[0] < sum(before.values())
    assert 4 * sum(after.values()) < 5 * ports[1]


def test_energy_and_traffic_are_what_they_were() -> None:
    plain, shared = toys.flat_machine(), sharing(toys.flat_machine(), half=True)
    found = [simulate_unit(product(m), m) for m in (plain, shared)]
    assert found[0].cycles < found[1].cycles
    assert found[0].traffic == found[1].traffic
    assert found[0].energy == found[1].energy


@st.composite
def shared_steps(draw: st.DrawFn) -> list[Step]:
    """Computes and transfers of two cores at their own L1, and at one home."""
    steps: list[Step] = []
    known: list[int] = []
    for _ in range(draw(st.integers(1, 30))):
        waits = tuple(draw(st.lists(st.sampled_from(known), max_size=2))) if known else ()
        signals = tuple(draw(st.lists(st.integers(0, 6), max_size=2, unique=True)))
        core, latency = draw(st.integers(0, 1)), draw(st.sampled_from([0, 0, 5]))
        if draw(st.booleans()):
            drawn, returned = draw(st.sampled_from([0, 9, 160])), draw(st.sampled_from([0, 5, 90]))
            ways = (*(6 + core for _ in range(drawn > 0)), *(8 + core for _ in range(returned > 0)))
            steps.append(Step(
                core * 4 + draw(st.integers(0, 1)), Opcode.COMPUTE, draw(st.integers(0, 30)), 0, 0,
                latency, ways, waits, signals, drawn=drawn, returned=returned,
            ))  # fmt: skip
        else:
            is_in, size = draw(st.booleans()), draw(st.integers(0, 90))
            ways = (0, 4 + core) if is_in else (2 + core, 1)
            opcode = Opcode.LOAD if is_in else Opcode.STORE
            steps.append(Step(
                core * 4 + (2 if is_in else 3), opcode, 0, size, 0, latency, ways, waits, signals,
            ))  # fmt: skip
        known = sorted({*known, *signals})
    return steps


STREAMS = tuple(Stream(c, e) for c in range(2) for e in ("mme", "vec", "din", "dout"))


def ports(*, half: bool) -> tuple[Resource, ...]:
    near = [
        Resource("L1", core, way, rate, half, counted=counted)
        for way, rate, counted in (
            ("read", 3.0, "bytes"), ("write", 2.0, "bytes"), ("read", 3.0, "drawn"),
            ("write", 2.0, "returned"),
        )
        for core in range(2)
    ]  # fmt: skip
    return (Resource("DDR", 0, "read", 4.0), Resource("DDR", 0, "write", 4.0), *near)


@given(shared_steps(), st.booleans())
def test_the_clock_is_that_of_events_one_by_one(steps: list[Step], half: bool) -> None:
    used = ports(half=half)
    wire = [0, 1, 2, 3, *((2, 3) if half else (4, 5)), 2, 3, *((2, 3) if half else (4, 5))]
    counted = {6: "drawn", 7: "drawn", 8: "returned", 9: "returned"}
    unit = unit_program(steps, STREAMS, used)
    machine = sharing(toys.flat_machine(), half=half)
    run = run_unit(unit, machine)
    rates = [port.bytes_per_cycle for port in used]
    expected = oracle(steps, rates, wire, [s.core for s in STREAMS], counted=counted)
    assert run.cycles == expected.cycles
    assert run.begin[np.argsort(run.row)].tolist() == expected.start
    found = simulate_unit(unit, machine)
    assert sum(c.cycles for c in found.causes) == run.cycles
    assert all(check.passed for check in found.checks)


@COSTLY
@given(looped(), st.sampled_from([0, 7, 40]), st.sampled_from([0, 3, 25]))
def test_loops_run_as_when_they_are_written_out(unit: UnitProgram, drawn: int, back: int) -> None:
    """Every compute of the first core, too, takes ports of that core's L1."""
    is_mine = (unit.instructions["opcode"] == Opcode.COMPUTE) & (unit.instructions["stream"] < 4)
    is_mine &= ~np.any(unit.loops.stride["stream"] != 0, axis=1) if len(unit.loops.table) else True
    rows, first = unit.instructions.copy(), len(unit.resources)
    rows["drawn"][is_mine], rows["returned"][is_mine] = drawn, back
    rows["resource"][is_mine, 0], rows["resource"][is_mine, 1] = first, first + 1
    unit = replace(unit, instructions=rows, resources=(
        *unit.resources, Resource("L1", 0, "read", 3.0, counted="drawn"),
        Resource("L1", 0, "write", 2.5, counted="returned"),
    ))  # fmt: skip
    machine = sharing(toys.flat_machine())
    found, flat = run_unit(unit, machine), run_unit(expanded(unit), machine)
    assert found.cycles == flat.cycles
    assert found.resource_busy.tolist() == flat.resource_busy.tolist()
    assert sum(c.cycles for c in simulate_unit(unit, machine).causes) == flat.cycles


@pytest.mark.parametrize("half", [False, True])
def test_programs_carry_it_and_must_agree_with_the_machine(half: bool) -> None:
    plain, shared = toys.flat_machine(), sharing(toys.flat_machine(), half=half)
    unit = product(shared)
    verify_program(unit, shared)
    again = parse_program(print_program(unit))
    assert (again.instructions == unit.instructions).all() and again.resources == unit.resources
    levels = tuple(replace(m, serves_engines=False) for m in shared.levels)
    other = replace(shared, levels=levels)
    for wrong, machine in ((unit, other), (product(other), shared)):
        with pytest.raises(VerifyError):
            verify_program(wrong, machine)
    verify_program(product(plain), plain)


@pytest.mark.parametrize("change", ["other core", "missing", "idle", "a transfer", "direction"])
def test_other_ports_than_the_engine_s_are_refused(change: str) -> None:
    machine = sharing(toys.flat_machine())
    unit = product(machine)
    rows, used = unit.instructions.copy(), list(unit.resources)
    at = int(np.flatnonzero(rows["opcode"] == Opcode.COMPUTE)[0])
    names = {(r.level, r.instance, r.counted): k for k, r in enumerate(used)}
    rule = "resource"
    match change:
        case "other core":
            rows["resource"][at, 0] = names["L1", 1, "drawn"]
        case "missing":
            rows["resource"][at, 1] = -1
        case "idle":
            rows["returned"][at] = 0
        case "a transfer":
            rows["resource"][0, 3] = names["L1", 0, "drawn"]
        case _:
            number = names["L1", 0, "drawn"]
            used[number], rule = replace(used[number], direction="write"), "counted"
    with pytest.raises(VerifyError) as caught:
        verify_program(replace(unit, instructions=rows, resources=tuple(used)), machine)
    assert caught.value.rule == rule


@COSTLY
@given(
    st.sampled_from([8, 16, 24]), st.sampled_from([8, 16, 32]), st.sampled_from([8, 16, 32]),
    st.sampled_from([(1, 2.0), (1, 16.0), (2, 4.0)]), st.booleans(), st.booleans(), st.data(),
)  # fmt: skip
def test_prices_count_what_passes_and_floors_do_not_exceed_it(
    m: int, n: int, k: int, port: tuple[int, float], half: bool, double: bool, data: st.DataObject
) -> None:
    """A price is no less than the shared port is busy, whole tiles given; the bound of the operator
    is below what is simulated."""
    num_cores, rate = port
    machine = toys.flat_machine(num_cores, 1 << 14)
    levels = tuple(level for level in machine.levels if level.managed is not Managed.CACHE)
    machine = sharing(replace(machine, levels=levels), half=half, rate=rate)
    graph = toys.matmul_graph(m, n, k)
    layer = Layer(graph, machine)
    tile = {name: data.draw(st.sampled_from([d for d in range(2, extent + 1) if not extent % d]))
            for name, extent in layer.facts.extents.items()}  # fmt: skip
    plan = layer.plan(Sizes((tile,), double))
    if plan is None:
        return
    unit = lower_unit(Schedule(layer.graph, emit(plan, machine.home.name), "t", 0), machine, "s")
    verify_program(unit, machine)
    run = simulate_unit(unit, machine)
    timing = run_unit(unit, machine)
    busy: dict[tuple[int, str], int] = {}
    for resource, cycles in zip(unit.resources, timing.resource_busy.tolist(), strict=True):
        if resource.level == "L1":
            key = resource.instance, "" if half else resource.direction
            busy[key] = busy.get(key, 0) + cycles
    assert plan.predicted_cycles >= max(busy.values())
    assert sum(cycles for _, cycles in kernel_floor(layer.graph, machine)) <= run.cycles
