"""Transfers take their engine's time: it sets them up, and has so many bytes on their way."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from lower_toys import cluster_machine, cluster_matmul, flat_machine, matmul_graph, naive_matmul
from naive_schedules import naive_answer

from worker.compiler.clock.run import run_unit
from worker.compiler.cost.floor import kernel_floor
from worker.compiler.errors import VerifyError
from worker.compiler.isa.program import Opcode, UnitProgram, expanded
from worker.compiler.isa.verify import verify_program
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.dma import issuing_rate
from worker.compiler.machine.machine import EngineKind, Machine
from worker.compiler.schedule.nodes import Schedule
from worker.simulator.run import simulate_unit

MOVING = (EngineKind.DMA_IN, EngineKind.DMA_OUT)
CASES = (
    (naive_matmul(32, 16, 24, (8, 8, 12), 2), flat_machine()),
    (naive_matmul(4, 4, 4, (2, 2, 2), 1), flat_machine(2, 1 << 16, 1)),
    (cluster_matmul(tiles=2), cluster_machine()),
)


def limited(machine: Machine, setup: int = 0, outstanding: int = 0) -> Machine:
    engines = tuple(
        replace(e, setup_cycles=setup, outstanding_bytes=outstanding) if e.kind in MOVING else e
        for e in machine.engines
    )
    return replace(machine, engines=engines)


def lowered(schedule: Schedule, machine: Machine) -> UnitProgram:
    return lower_unit(schedule, machine, "s" * 64)


def transfers(unit: UnitProgram) -> np.ndarray:
    return unit.instructions[unit.instructions["opcode"] != Opcode.COMPUTE]


def causes(unit: UnitProgram, machine: Machine) -> dict[str, int]:
    found: dict[str, int] = {}
    for blame in simulate_unit(unit, machine).causes:
        found[blame.cause] = found.get(blame.cause, 0) + blame.cycles
    return found


def test_one_tile_by_hand() -> None:
    """Two loads of 32 bytes one after the other, a product, a store of 32 bytes; the slowest port
    passes 16 bytes a cycle."""
    schedule, plain = naive_matmul(4, 4, 4, (4, 4, 4), 1), flat_machine()
    rows = lowered(schedule, plain).instructions
    way = int(rows["latency"][0])
    work = int(rows["cycles"][rows["opcode"] == Opcode.COMPUTE][0])
    assert rows["bytes"].tolist() == [32, 32, 0, 32]
    assert run_unit(lowered(schedule, plain), plain).cycles == 2 + 2 + way + work + 2 + way
    slow = limited(plain, setup=50)  # the second load is set up when the first has been
    expected = 50 + (50 + 2 + way) + work + (50 + 2 + way)
    assert run_unit(lowered(schedule, slow), slow).cycles == expected
    assert causes(lowered(schedule, slow), slow) == {
        "dma:din": 100, "port:DDR.read": 2, "dma:dout": 50, "port:DDR.write": 2,
        "engine:mme": work, "latency": 2 * way,
    }  # fmt: skip
    # No schedule sets up less than one transfer in and one out.
    bounds = [sum(c for _, c in kernel_floor(schedule.graph, on)) for on in (plain, slow)]
    assert bounds[1] - bounds[0] == 2 * 50
    quick = limited(plain, setup=1)  # hidden behind the bytes of the first
    expected = 1 + 2 + (2 + way) + work + (1 + 2 + way)
    assert run_unit(lowered(schedule, quick), quick).cycles == expected
    few = limited(plain, outstanding=2)  # 2 bytes a way: 32 take 16 of them
    expected = 2 * 16 * way + way + work + 16 * way + way
    assert run_unit(lowered(schedule, few), few).cycles == expected
    assert issuing_rate(few.engine("din"), way) == 2 / way


@COSTLY
@given(st.sampled_from(CASES), st.sampled_from([0, 1, 7, 300]), st.sampled_from([0, 1, 48, 4096]))
def test_every_transfer_takes_what_the_spec_says(
    case: tuple[Schedule, Machine], setup: int, outstanding: int
) -> None:
    schedule, plain = case
    machine = limited(plain, setup, outstanding)
    unit, before = lowered(schedule, machine), transfers(expanded(lowered(schedule, plain)))
    verify_program(unit, machine)
    rows = transfers(expanded(unit))
    assert rows["bytes"].tolist() == before["bytes"].tolist()
    for row, was in zip(rows, before, strict=True):
        way, ports = int(was["latency"]), [unit.resources[r] for r in row["resource"] if r >= 0]
        passing = -(-int(row["bytes"]) * way // outstanding) if outstanding else 0
        data = max(passing, *(ceil(int(row["bytes"]) / p.payload_per_cycle) for p in ports))
        assert row["cycles"] == max(setup, passing)
        # Alone it is seen set-up, bytes and way after its start.
        assert max(int(row["cycles"]), data) + row["latency"] == setup + data + way
    run, flat = run_unit(unit, machine), run_unit(expanded(unit), machine)
    assert run.cycles == flat.cycles >= run_unit(lowered(schedule, plain), plain).cycles
    found = simulate_unit(unit, machine)
    assert all(check.passed for check in found.checks)
    blamed = {b.cause for b in found.causes if b.cause.startswith("dma:")}
    assert bool(blamed) or (setup == 0 and outstanding != 1)


def test_another_time_of_the_engine_is_refused() -> None:
    schedule, machine = CASES[0][0], limited(CASES[0][1], setup=9, outstanding=100)
    for field, change in (("cycles", -1), ("cycles", 1), ("latency", 5)):
        unit = lowered(schedule, machine)
        rows = unit.instructions.copy()
        rows[field][np.flatnonzero(rows["opcode"] == Opcode.LOAD)[0]] += change
        with pytest.raises(VerifyError, match="not what din takes to issue it"):
            verify_program(replace(unit, instructions=rows), machine)
    unit = lowered(schedule, machine)
    with pytest.raises(VerifyError, match="not what din takes to issue it"):
        verify_program(unit, limited(machine, setup=10**6, outstanding=100))


def test_plans_have_fewer_transfers_where_each_costs_more() -> None:
    graph, plain = matmul_graph(128, 128, 128), flat_machine(capacity=1 << 14)
    slow = limited(plain, setup=3000)
    as_before, planned = naive_answer(graph, plain), naive_answer(graph, slow)
    assert isinstance(as_before, Schedule) and isinstance(planned, Schedule)
    old, new = lowered(as_before, slow), lowered(planned, slow)
    assert len(transfers(expanded(new))) < len(transfers(expanded(old)))
    assert run_unit(new, slow).cycles < run_unit(old, slow).cycles
