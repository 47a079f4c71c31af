"""Cores that load the same are served by one transfer: what it does, takes and costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from audit_oracle import fault_in
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from lower_toys import (
    cluster_machine,
    cluster_matmul,
    flat_machine,
    matmul_graph,
    multicast_machine,
    naive_matmul,
)
from naive_schedules import naive_answer
from program_faults import reordered
from test_loops import EVERYTHING, as_bytes, check_lowered
from test_lower_naive import check, conv_graph

from worker.compiler.clock.run import run_unit
from worker.compiler.errors import Shortfall, VerifyError
from worker.compiler.heuristics import Heuristic
from worker.compiler.ir.graph import Graph
from worker.compiler.isa.binary import decode_program
from worker.compiler.isa.program import Opcode, Resource, UnitProgram, excerpt, port_sets
from worker.compiler.isa.text import parse_program, print_program
from worker.compiler.isa.verify import verify_program
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule
from worker.simulator.run import simulate_unit

CORES = 4
MACHINE = multicast_machine(CORES)
NOC = MACHINE.links[0]
SCHEDULE = naive_matmul(32, 16, 24, (8, 8, 12), CORES)
"""Every core has rows of its own and all of the second operand: 2 x 2 tiles of 12 x 8, f16."""
BUS = replace(cluster_machine().links[0], multicast=True)
CLUSTERS = replace(cluster_machine(), links=(BUS,))


def lowered(schedule: Schedule = SCHEDULE, machine: Machine = MACHINE) -> UnitProgram:
    return lower_unit(schedule, machine, "s" * 64)


def without(schedule: Schedule) -> Schedule:
    return replace(schedule, without=(Heuristic.MULTICAST,))


def multicasts(unit: UnitProgram) -> np.ndarray:
    return np.flatnonzero(unit.instructions["opcode"] == Opcode.MULTICAST)


def test_the_shared_operand_is_read_once() -> None:
    unit, alone = lowered(), lowered(without(SCHEDULE))
    verify_program(unit, MACHINE)
    assert fault_in(SCHEDULE, MACHINE, unit) is None
    rows = unit.instructions[multicasts(unit)]
    assert len(rows) == 4
    assert set(rows["bytes"].tolist()) == {12 * 8 * 2}
    assert not len(multicasts(alone))
    one, many = simulate_unit(unit, MACHINE), simulate_unit(alone, MACHINE)
    assert all(c.passed for c in one.checks), one.checks
    saved = 4 * (CORES - 1) * 12 * 8 * 2
    before, after = ({m.level: m for m in s.traffic} for s in (many, one))
    assert before["DDR"].read_bytes - after["DDR"].read_bytes == saved
    assert before["L2"].read_bytes - after["L2"].read_bytes == saved
    assert before["L1"] == after["L1"]
    energy = {line.item: line.pj for line in one.energy}
    assert energy["link:noc"] == 4 * CORES * 12 * 8 * 2 * NOC.energy_pj_per_byte
    assert one.cycles < many.cycles


def test_its_time_by_hand() -> None:
    """192 bytes leave DDR at 16 a cycle, but enter at 8: 24 cycles at every receiver, 12 at DDR;
    seen after the slowest level's 10 cycles, and 7 more on other cores."""
    unit = lowered()
    machine = replace(MACHINE, signal_cycles=7)
    first = int(multicasts(unit)[0])
    short = excerpt(unit, first, first + 1)
    empty = np.zeros(2, dtype=np.int32)
    run = run_unit(
        replace(short, wait_ptr=empty, wait_token=empty[:0], signal_ptr=empty,
                signal_token=empty[:0]), machine,
    )  # fmt: skip
    assert run.cycles == 24 + 10
    busy = {
        (unit.resources[r].level, unit.resources[r].direction): int(run.resource_busy[r])
        for r in short.instructions["resource"][0].tolist() if r >= 0
    }  # fmt: skip
    assert busy == {("DDR", "read"): 12, ("L2", "read"): 6, ("noc", "link"): 24, ("L1", "write"): 3}
    wide = [unit.resources[r] for r in short.instructions["resource"][0].tolist() if r >= 0]
    assert [list(port.instances) for port in wide] == [[0], [0], [0, 1, 2, 3], [0, 1, 2, 3]]


def test_a_link_between_levels_is_taken_as_it_is_shared() -> None:
    """The cores of a cluster share a bus and its operand's tiles: one transfer, one use of it."""
    schedule = cluster_matmul(2, 2)
    unit = lowered(schedule, CLUSTERS)
    assert fault_in(schedule, CLUSTERS, unit) is None
    rows = unit.instructions[multicasts(unit)]
    assert len(rows)
    for row in rows:
        ports = [unit.resources[r] for r in row["resource"].tolist() if r >= 0]
        assert [(p.level, p.count) for p in ports] == [("LLB", 1), ("bus", 1), ("L1", 2)]
    check_lowered(schedule, CLUSTERS)


def test_a_noc_serves_one_cluster() -> None:
    machine = replace(MACHINE, num_clusters=2)
    unit = lowered(SCHEDULE, machine)
    assert len(multicasts(unit)) == 2 * 4
    assert {p.count for p in unit.resources if p.count > 1} == {2}
    assert fault_in(SCHEDULE, machine, unit) is None


@pytest.mark.parametrize(
    "machine",
    [
        replace(MACHINE, links=(replace(NOC, multicast=False),)),
        replace(MACHINE, links=()),
        replace(MACHINE, num_clusters=CORES),
    ],
)
def test_nothing_is_shared_where_no_link_can(machine: Machine) -> None:
    unit = lowered(SCHEDULE, machine)
    assert not len(multicasts(unit))
    assert as_bytes(unit) == as_bytes(lowered(without(SCHEDULE), machine))


def test_what_takes_longer_is_left() -> None:
    slow = replace(MACHINE, links=(replace(NOC, bytes_per_cycle=0.01),))
    assert as_bytes(lowered(SCHEDULE, slow)) == as_bytes(lowered(without(SCHEDULE), slow))


@given(
    st.one_of(
        st.builds(matmul_graph, st.integers(1, 70), st.integers(1, 90), st.integers(1, 70)),
        st.builds(
            conv_graph, st.integers(1, 5), st.integers(3, 24), st.sampled_from([1, 3]),
            st.integers(1, 9), st.sampled_from([1, 2]),
        ),
    ),
    st.sampled_from([
        MACHINE, replace(MACHINE, signal_cycles=40, num_clusters=2), CLUSTERS,
        replace(flat_machine(2, 512), links=(NOC,)),
    ]),
)  # fmt: skip
@COSTLY
def test_kernels_are_sound_and_never_slower(graph: Graph, machine: Machine) -> None:
    schedule = naive_answer(graph, machine)
    if isinstance(schedule, Shortfall):
        return
    unit = lowered(schedule, machine)
    verify_program(unit, machine)
    assert fault_in(schedule, machine, unit) is None
    check(schedule, machine)
    assert all(c.passed for c in simulate_unit(unit, machine).checks)
    assert (
        run_unit(unit, machine).cycles
        <= run_unit(lowered(without(schedule), machine), machine).cycles
    )


LONG = naive_matmul(160, 48, 96, (4, 8, 12), CORES)


def test_loops_hold_multicasts() -> None:
    unit = check_lowered(LONG, MACHINE)
    assert len(unit.loops.table)
    assert len(multicasts(unit))
    assert unit.num_instructions > 4 * unit.num_rows
    assert fault_in(LONG, MACHINE, unit) is None


def test_where_too_many_wait_there_are_loops_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.compiler.lower.order.folding.MOST_TOKENS", 3)
    unit = lower_unit(LONG, MACHINE, "s" * 64, most_rows=0)
    alone = lower_unit(without(LONG), MACHINE, "s" * 64, most_rows=0)
    assert as_bytes(unit) == as_bytes(alone)


def test_text_and_bytes_keep_it() -> None:
    for rows in (0, EVERYTHING):
        unit = lower_unit(LONG, MACHINE, "s" * 64, most_rows=rows)
        assert as_bytes(parse_program(print_program(unit))) == as_bytes(unit)
        again = decode_program(as_bytes(unit)).units[0]
        assert again.resources == unit.resources
        assert as_bytes(again) == as_bytes(unit)


def _some_set(unit: UnitProgram) -> int:
    return next(
        k for k, port in enumerate(unit.resources) if port.count > 1 and port.direction == "write"
    )


def _resized(by: int) -> Callable[[UnitProgram], UnitProgram]:
    def fault(unit: UnitProgram) -> UnitProgram:
        at, ports = _some_set(unit), list(unit.resources)
        ports[at] = replace(ports[at], count=ports[at].count + by)
        return replace(unit, resources=tuple(ports))

    return fault


def _shifted(unit: UnitProgram) -> UnitProgram:
    at, ports = _some_set(unit), list(unit.resources)
    ports[at] = replace(ports[at], instance=1, count=3)
    return replace(unit, resources=tuple(ports))


def _twice(unit: UnitProgram) -> UnitProgram:
    at = int(multicasts(unit)[1])
    return reordered(unit, sorted([*range(unit.num_rows), at]))


def _never(unit: UnitProgram) -> UnitProgram:
    at = int(multicasts(unit)[1])
    return reordered(unit, [k for k in range(unit.num_rows) if k != at])


def _sent_alone(unit: UnitProgram) -> UnitProgram:
    rows = unit.instructions.copy()
    rows["opcode"][multicasts(unit)[0]] = int(Opcode.LOAD)
    return replace(unit, instructions=rows)


FAULTS = {f.__name__: f for f in (_shifted, _twice, _never, _sent_alone)} | {
    "a receiver less": _resized(-1), "a receiver more": _resized(1),
}  # fmt: skip


def refused(schedule: Schedule, machine: Machine, unit: UnitProgram) -> bool:
    try:
        verify_program(unit, machine)
    except VerifyError:
        return True
    return fault_in(schedule, machine, unit) is not None


@pytest.mark.parametrize("name", FAULTS)
def test_wrong_receivers_are_found(name: str) -> None:
    unit = lowered()
    assert not refused(SCHEDULE, MACHINE, unit)
    assert refused(SCHEDULE, MACHINE, FAULTS[name](unit))


def test_the_audit_itself_finds_receivers_that_are_missing_or_doubled() -> None:
    """Programs that `verify` has nothing against."""
    for fault, said in ((_resized(-1), "no instruction of"), (_twice, "once too often")):
        wrong = fault(lowered())
        verify_program(wrong, MACHINE)
        assert said in str(fault_in(SCHEDULE, MACHINE, wrong))


def test_every_wait_around_a_multicast_counts() -> None:
    """Without any one wait of a multicast, or of a core for what it brings, the program is wrong;
    only for its own core has the stream that issues it waited before."""
    unit = lowered()
    shared = set(multicasts(unit).tolist())
    sent = np.repeat(np.arange(unit.num_rows), np.diff(unit.signal_ptr))
    brought = set(unit.signal_token[np.isin(sent, list(shared))].tolist())
    tried = 0
    for k in range(unit.num_rows):
        for w in range(int(unit.wait_ptr[k]), int(unit.wait_ptr[k + 1])):
            token = int(unit.wait_token[w])
            users = unit.instructions["stream"][sent[unit.signal_token == token]]
            is_own = {unit.streams[s].core for s in users.tolist()} == {0}
            if token not in brought if k not in shared else is_own:
                continue
            tried += 1
            pointer = unit.wait_ptr.copy()
            pointer[k + 1 :] -= 1
            hasty = replace(unit, wait_ptr=pointer, wait_token=np.delete(unit.wait_token, w))
            assert fault_in(SCHEDULE, MACHINE, hasty) is not None, (k, w)
    assert tried == 4 * CORES + 2 * (CORES - 1)


def test_ports_of_half_duplex_receivers_are_those_that_they_read_through() -> None:
    read = Resource("L1", 2, "read", 4.0, half_duplex=True)
    home = Resource("DDR", 0, "read", 4.0)
    several = Resource("L1", 0, "write", 4.0, half_duplex=True, count=3)
    others = Resource("L1", 1, "write", 4.0, half_duplex=True, count=2, step=2)
    pointer, ports, count = port_sets((read, home, several, others))
    assert pointer.tolist() == [0, 1, 2, 5, 7]
    assert ports.tolist() == [0, 1, 4, 5, 0, 5, 6]
    assert count == 7
