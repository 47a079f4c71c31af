"""The audit of a few cores that stand for all: it says what the audit of all says."""

from __future__ import annotations

from dataclasses import replace

import lower_toys as toys
import numpy as np
import pytest
from audit_oracle import fault_in, is_sound
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from loop_faults import LOOP_FAULTS, relisted
from naive_schedules import naive_schedule
from test_audit_loops import is_countable, is_harmless, looped, scheduled
from test_lower_naive import conv_graph

from worker.compiler.audit import audit, few_cores
from worker.compiler.audit.translated import is_translated
from worker.compiler.ir.graph import Graph
from worker.compiler.isa.program import UnitProgram, expanded
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Compute, Init, Move, Place, Schedule, Seq
from worker.compiler.schedule.walk import walk


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_cores, "LEAST_CORES", 5)
    monkeypatch.setattr(few_cores, "LEAST_RUNS", 0)
    monkeypatch.setattr(few_cores, "RUNS_PER_ROW", 0)


def _naive(graph: Graph, machine: Machine) -> tuple[Schedule, Machine]:
    return naive_schedule(graph, machine), machine


CASES = {
    "rows": _naive(toys.matmul_graph(200, 3, 12), toys.flat_machine(13, 512)),
    "columns": _naive(toys.matmul_graph(200, 70, 12), toys.flat_machine(13, 512)),
    "two loops, the outer": _naive(toys.matmul_graph(200, 70, 12), toys.flat_machine(24)),
    "two loops, the inner": _naive(toys.matmul_graph(60, 300, 8), toys.flat_machine(24)),
    "edges": _naive(toys.matmul_graph(40, 300, 8), toys.flat_machine(24, 512, 1)),
    "windows": _naive(conv_graph(8, 56, 3, 9, 2), toys.flat_machine(13, 2048)),
}


def few_of(schedule: Schedule, machine: Machine, unit: UnitProgram) -> few_cores.FewCores | None:
    return few_cores.few_cores(schedule, walk(schedule), unit, machine)


def without(schedule: Schedule, machine: Machine, unit: UnitProgram) -> str | None:
    """What the audit of all cores says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(few_cores, "LEAST_CORES", 1 << 30)
        return fault_in(schedule, machine, unit)


@pytest.mark.parametrize("name", CASES)
def test_few_cores_are_enough(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    schedule, machine = CASES[name]
    unit = looped(schedule, machine)
    few = few_of(schedule, machine, unit)
    assert few is not None
    assert few.runs.count < unit.num_instructions
    assert few.times.sum() == max(
        frame.trip for frame in walk(schedule).leaves[0].frames if frame.var == few.var
    )
    made = []
    expected = audit.Expected
    monkeypatch.setattr(
        audit, "Expected", lambda *a, **k: made.append(k["chosen"]) or expected(*a, **k)
    )
    assert fault_in(schedule, machine, unit) is None
    assert [list(chosen) for chosen in made] == [[few.var]], "all cores were looked at"


@pytest.mark.parametrize("kind", LOOP_FAULTS)
def test_finds_faults_of_every_kind(kind: str) -> None:
    programs = [(s, m, looped(s, m)) for s, m in CASES.values()]
    rng = np.random.default_rng(2028)
    harmful = 0
    for _ in range(400):
        schedule, machine, good = programs[int(rng.integers(len(programs)))]
        broken = LOOP_FAULTS[kind](good, rng)
        if not is_countable(broken):
            continue
        said = fault_in(schedule, machine, broken)
        assert said == without(schedule, machine, broken)
        if said is None:
            continue
        harmful += 1
        if harmful == 20:
            return
    assert harmful > 3, f"only {harmful} of 400 are harmful"


def test_brute_force_agrees() -> None:
    schedule, machine = CASES["rows"]
    good = looped(schedule, machine)
    assert is_sound(schedule, machine, expanded(good))
    rng = np.random.default_rng(5)
    for kind, fault in LOOP_FAULTS.items():
        broken = fault(good, rng)
        if is_countable(broken) and not is_harmless(kind, schedule, machine, good, broken):
            assert fault_in(schedule, machine, broken) is not None, kind


def test_a_fault_of_one_core_between() -> None:
    """One row of a loop over all cores becomes a loop before core 3, core 3 and a loop behind, of
    which core 3 alone is wrong: in bytes, in what it waits for, in where it writes."""
    schedule, machine = CASES["rows"]
    unit = looped(schedule, machine)
    found = 0
    for number in range(len(unit.loops.table)):
        first, end, trip = unit.loops.table[number].tolist()
        if end - first > 1 or trip != 5:
            continue
        apart = _apart(unit, number, 3)
        assert without(schedule, machine, apart) is None
        assert fault_in(schedule, machine, apart) is None
        for name, amount in (("bytes", 2), ("dst_offset", 4), ("src_offset", 4)):
            rows = apart.instructions.copy()
            rows[name][first + 1] += amount
            broken = replace(apart, instructions=rows)
            said = fault_in(schedule, machine, broken)
            assert said == without(schedule, machine, broken)
            found += said is not None
    assert found > 3


def _apart(unit: UnitProgram, number: int, core: int) -> UnitProgram:
    """The same; a loop of one row stands as three, the one between for one core."""
    table = [tuple(loop) for loop in unit.loops.table.tolist()]
    row, _, trip = table.pop(number)
    rows = [*range(row + 1), row, *range(row, unit.num_rows)]
    moved = [(f + 2 * (f > row), e + 2 * (e > row), t) for f, e, t in table]
    moved += [(row, row + 1, core), (row + 1, row + 2, 1), (row + 2, row + 3, trip - core - 1)]
    longer = relisted(unit, rows, moved)
    loops = longer.loops
    depth = max(k for k in range(loops.depth) if loops.stride["stream"][row, k])
    table_rows = longer.instructions.copy()
    for at, turns in ((row + 1, core), (row + 2, core + 1)):
        for name in ("stream", "src_offset", "dst_offset", "resource"):
            table_rows[name][at] += turns * loops.stride[name][at, depth]
    lists = {}
    for name in ("wait", "signal"):
        pointer = getattr(longer, f"{name}_ptr")
        token = getattr(longer, f"{name}_token").copy()
        for at, turns in ((row + 1, core), (row + 2, core + 1)):
            own = slice(pointer[at], pointer[at + 1])
            token[own] += turns * getattr(loops, f"{name}_stride")[own, depth]
        lists[f"{name}_token"] = token
    return replace(longer, instructions=table_rows, **lists)


def test_not_where_a_memory_is_shared() -> None:
    schedule, machine = toys.private_rows(320, 4, 1, 8, 2), toys.cluster_machine(1, 8)
    unit = looped(schedule, machine)
    assert len(unit.loops.table)
    assert few_of(schedule, machine, unit) is None


@pytest.mark.parametrize(("step", "is_one"), [(16, True), (17, False)])
def test_not_where_a_read_moves_through_its_tile(step: int, *, is_one: bool) -> None:
    """Core 6 would read other rows of what it holds than core 1."""
    held = (toys.span(toys.var("c") * 16, 24), toys.span(0, 4))
    row = (toys.span(toys.var("c") * step, 1), toys.span(0, 4))
    body = Place("t0", "L1", held, 1, Place("t1", "L1", row, 1, Seq((
        Move("t0", "DDR", "L1", held), Compute("op0", row, "vec"), Move("t1", "L1", "DDR", row),
    ))))  # fmt: skip
    schedule = Schedule(toys.chain_graph(150, 4), toys.cores("c", 8, body), "hand", 0)
    flat = walk(schedule)
    frame = flat.leaves[0].frames[0]
    assert is_translated(schedule, flat, frame, toys.flat_machine(8)) == is_one


def _spilled(halo: int) -> Schedule:
    """Eight cores; an intermediate waits at home, and is read there with some rows of its
    neighbours."""
    own = (toys.span(toys.var("c") * 16 + toys.var("i"), 1), toys.span(0, 4))
    row = toys.var("c") * 16 + toys.var("j")
    wide = (toys.span(row - halo, 2 * halo + 1), toys.span(0, 4))
    second = (toys.span(row, 1), toys.span(0, 4))
    first = Place("t0", "L1", own, 1, Place("t1", "L1", own, 1, Seq((
        Move("t0", "DDR", "L1", own), Compute("op0", own, "vec"), Move("t1", "L1", "DDR", own),
    ))))  # fmt: skip
    then = Place("t1", "L1", wide, 1, Place("t2", "L1", second, 1, Seq((
        Move("t1", "DDR", "L1", wide, 0),
        Compute("op1", (*second, toys.span(0, 2 * halo + 1)), "vec"),
        Move("t2", "L1", "DDR", second),
    )), None, Init.IDENTITY))  # fmt: skip
    body = Seq((toys.time("i", 16, first), toys.time("j", 16, then)))
    return Schedule(toys.chain_graph(128, 4, halo), toys.cores("c", 8, body), "hand", 0)


@pytest.mark.parametrize(("halo", "are_enough"), [(0, True), (1, False)])
def test_not_where_cores_read_what_their_neighbours_write(halo: int, *, are_enough: bool) -> None:
    schedule, machine = _spilled(halo), toys.flat_machine(8)
    flat = walk(schedule)
    frame = flat.leaves[0].frames[0]
    assert is_translated(schedule, flat, frame, machine) == are_enough


@COSTLY
@given(
    st.one_of(
        st.builds(toys.matmul_graph, st.integers(40, 300), st.integers(1, 90), st.integers(1, 40)),
        st.builds(
            conv_graph, st.integers(1, 8), st.integers(5, 24), st.sampled_from([1, 3]),
            st.integers(1, 9), st.sampled_from([1, 2]),
        ),
    ),
    st.sampled_from([toys.flat_machine(7, 512), toys.flat_machine(8, 300, 1),
                     toys.flat_machine(13, 1024)]),
    st.sampled_from([None, *LOOP_FAULTS]), st.integers(0, 1 << 16),
)  # fmt: skip
def test_says_what_the_audit_of_all_says(
    graph: Graph, machine: Machine, kind: str | None, seed: int
) -> None:
    schedule, unit = scheduled(graph, machine, kind, seed)
    assert fault_in(schedule, machine, unit) == without(schedule, machine, unit)
