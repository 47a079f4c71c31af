"""The audit of programs with loops: what it says of their expansion, in memory that is bounded."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import lower_toys as toys
import numpy as np
import pytest
from audit_oracle import fault_in, is_sound
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from loop_faults import LOOP_FAULTS
from naive_schedules import naive_answer, naive_schedule
from test_lower_naive import conv_graph

from worker.compiler.audit import audit, few_cores, match
from worker.compiler.errors import Shortfall, VerifyError
from worker.compiler.ir.graph import Graph
from worker.compiler.isa.program import UnitProgram, expanded
from worker.compiler.isa.verify import check_loops
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule


def _naive(shape: tuple[int, int, int], machine: Machine) -> tuple[Schedule, Machine]:
    return naive_schedule(toys.matmul_graph(*shape), machine), machine


CASES = {
    "matmul": (toys.naive_matmul(8, 8, 32, (2, 4, 2), 2), toys.flat_machine()),
    "clusters": _naive((40, 8, 8), toys.cluster_machine(1, 2, 256)),
    "edges": _naive((37, 12, 12), toys.cluster_machine(1, 2, 256)),
    "fused": (toys.fused_rows(40, 4, 2), toys.flat_machine()),
    "deep buffers": (toys.fused_rows(44, 4, 1, copies=3), toys.flat_machine()),
    "staged": (toys.in_place(30, 4, 1), toys.flat_machine()),
    "private": (toys.private_rows(40, 4, 1, 2, 2), toys.cluster_machine()),
    "gather": (toys.gather(30, 4, 8, 1), toys.flat_machine()),
}


def looped(schedule: Schedule, machine: Machine) -> UnitProgram:
    return lower_unit(schedule, machine, "0" * 64, most_rows=0)


def is_countable(unit: UnitProgram) -> bool:
    """Whether streams, ports and tokens exist; what is wrong beyond that is the audit's to find."""
    try:
        check_loops(unit)
    except VerifyError:
        return False
    return True


def is_harmless(
    kind: str, schedule: Schedule, machine: Machine, good: UnitProgram, broken: UnitProgram
) -> bool:
    """By brute force; it knows no ports, which are right only as they were."""
    full = expanded(broken)
    if kind == "steps of the ports":
        ports = expanded(good).instructions["resource"]
        return np.array_equal(full.instructions["resource"], ports)
    return is_sound(schedule, machine, full)


def scheduled(
    graph: Graph, machine: Machine, kind: str | None, seed: int
) -> tuple[Schedule, UnitProgram]:
    """By naive, with loops, and a fault of that kind; rejects the example where there is none."""
    schedule = naive_answer(graph, machine)
    assume(not isinstance(schedule, Shortfall))
    assert isinstance(schedule, Schedule)
    unit = looped(schedule, machine)
    assume(len(unit.loops.table))
    if kind is not None:
        try:
            unit = LOOP_FAULTS[kind](unit, np.random.default_rng(seed))
        except ValueError:  # nothing of that kind to break
            assume(False)
    assume(is_countable(unit))
    return schedule, unit


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("block", [1, 7, 1 << 16])
def test_passes_what_is_folded(name: str, block: int) -> None:
    schedule, machine = CASES[name]
    unit = looped(schedule, machine)
    assert len(unit.loops.table)
    assert fault_in(schedule, machine, unit, block) is None


@pytest.mark.parametrize("kind", LOOP_FAULTS)
def test_finds_faults_of_every_kind(kind: str) -> None:
    """Four of each that brute force calls harmful and whose streams, ports and tokens exist."""
    # Brute force does not know which rows a gather reads.
    programs = [(s, m, looped(s, m)) for name, (s, m) in CASES.items() if name != "gather"]
    rng = np.random.default_rng(2027)
    harmful = 0
    for _ in range(300):
        schedule, machine, good = programs[int(rng.integers(len(programs)))]
        broken = LOOP_FAULTS[kind](good, rng)
        if not is_countable(broken) or is_harmless(kind, schedule, machine, good, broken):
            continue
        harmful += 1
        assert fault_in(schedule, machine, broken) is not None
        assert fault_in(schedule, machine, broken, block=5) is not None
        if harmful == 4:
            return
    pytest.fail(f"only {harmful} of 300 are harmful")


@COSTLY
@given(
    st.one_of(
        st.builds(toys.matmul_graph, st.integers(1, 70), st.integers(1, 90), st.integers(1, 70)),
        st.builds(
            conv_graph, st.integers(1, 5), st.integers(3, 24), st.sampled_from([1, 3]),
            st.integers(1, 9), st.sampled_from([1, 2]),
        ),
    ),
    st.sampled_from([
        toys.flat_machine(2, 512), toys.flat_machine(1, 300, 1), toys.cluster_machine(2, 2, 768),
    ]),
    st.sampled_from([None, *LOOP_FAULTS]), st.integers(0, 1 << 16), st.integers(1, 300),
)  # fmt: skip
def test_says_what_it_says_of_the_expansion(
    graph: Graph, machine: Machine, kind: str | None, seed: int, block: int
) -> None:
    """Word for word; and whether there is a fault does not depend on how much is seen at a time."""
    schedule, unit = scheduled(graph, machine, kind, seed)
    full = expanded(unit)
    said = fault_in(schedule, machine, full)
    assert fault_in(schedule, machine, unit) == said
    in_blocks = fault_in(schedule, machine, unit, block)
    assert in_blocks == fault_in(schedule, machine, full, block)
    assert (in_blocks is None) == (said is None)


def test_a_row_far_from_its_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing in front is not looked for through all that follows."""
    schedule, machine = CASES["deep buffers"]
    unit = looped(schedule, machine)
    rows = unit.instructions.copy()
    rows["bytes"][0] += 4
    broken = replace(unit, instructions=rows)
    monkeypatch.setattr(match, "FARTHEST", 0)
    assert fault_in(schedule, machine, unit) is None
    said = fault_in(schedule, machine, broken)
    assert said is not None
    assert "instruction 0" in said


def test_memory_does_not_grow_with_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over three times as many instructions over the same tiles of the result."""
    machine = load_preset("a100")
    monkeypatch.setattr(audit, "PART", 1 << 10)
    monkeypatch.setattr(audit, "KEPT", 1 << 12)
    monkeypatch.setattr(few_cores, "LEAST_CORES", 1 << 30)  # all of them, in either
    peaks, counts = [], []
    for inner in (2048, 2048, 10240):  # twice, for what is loaded once
        schedule = naive_schedule(toys.matmul_graph(2048, 2048, inner), machine)
        unit = looped(schedule, machine)
        tracemalloc.start()
        assert fault_in(schedule, machine, unit, 1 << 11) is None
        peaks.append(tracemalloc.get_traced_memory()[1])
        counts.append(unit.num_instructions)
        tracemalloc.stop()
    assert counts[2] > 3 * counts[1]
    assert peaks[2] < 1.3 * peaks[1]
