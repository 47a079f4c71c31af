"""Programs with loops: they say and take exactly what their expansion does."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from looped_programs import PORTS, STREAMS, WRONG, hand_made, in_turns, looped, one_after_the_other
from looped_trees import TREES
from lower_toys import (
    cluster_machine,
    flat_machine,
    matmul_graph,
    naive_matmul,
)
from machine_rates import with_every_format
from naive_schedules import naive_answer
from test_lower_naive import conv_graph
from timing_oracle import Step, unit_program

from worker.compiler.clock.copies import BACK, MANY, locate
from worker.compiler.clock.run import run_unit
from worker.compiler.errors import InputError, Shortfall, VerifyError
from worker.compiler.ir.graph import Graph
from worker.compiler.isa.binary import decode_program, encode_program
from worker.compiler.isa.loops import LOOP, STRIDE, Loops, repetitions, unrolled
from worker.compiler.isa.program import Program, UnitProgram, excerpt, expanded
from worker.compiler.isa.text import parse_program, print_program
from worker.compiler.isa.verify import verify_program
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.compiler.package.stream.text import print_unit
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.text import parse_schedule
from worker.simulator.repeats import Repeats, compute_cycles, spread
from worker.simulator.results import UnitSimulation
from worker.simulator.run import simulate_unit

EVERYTHING = 1 << 62


def as_bytes(unit: UnitProgram) -> bytes:
    return encode_program(Program((unit,), (), 0, 0, 0))


def same_simulation(unit: UnitProgram, machine: Machine) -> None:
    for on in (machine, replace(machine, signal_cycles=9)):
        short, full = simulate_unit(unit, on), simulate_unit(expanded(unit), on)
        for field in UnitSimulation.__struct_fields__:
            assert getattr(short, field) == getattr(full, field), field


def check_lowered(schedule: Schedule, machine: Machine) -> UnitProgram:
    """Folded as far as it goes it is what it would be listed in full; returns it."""
    unit = lower_unit(schedule, machine, "s" * 64, most_rows=0)
    full = lower_unit(schedule, machine, "s" * 64, most_rows=EVERYTHING)
    assert not len(full.loops.table)
    assert as_bytes(expanded(unit)) == as_bytes(full)
    assert unit.num_instructions == full.num_rows
    verify_program(unit, machine)
    same_simulation(unit, machine)
    assert all(check.passed for check in simulate_unit(unit, machine).checks)
    return unit


@pytest.mark.parametrize("name", TREES)
def test_trees_fold_to_what_they_are(name: str) -> None:
    check_lowered(*TREES[name])


@given(
    st.one_of(
        st.builds(matmul_graph, st.integers(1, 70), st.integers(1, 90), st.integers(1, 70)),
        st.builds(
            conv_graph, st.integers(1, 5), st.integers(3, 24), st.sampled_from([1, 3]),
            st.integers(1, 9), st.sampled_from([1, 2]),
        ),
    ),
    st.sampled_from([flat_machine(2, 512), flat_machine(1, 300, 1), cluster_machine(2, 2, 768)]),
)  # fmt: skip
def test_naive_folds_to_what_it_is(graph: Graph, machine: Machine) -> None:
    schedule = naive_answer(graph, machine)
    if not isinstance(schedule, Shortfall):
        check_lowered(schedule, machine)


@pytest.mark.parametrize("depth", [320, 317])
def test_a_loop_folds_whose_last_tile_is_cut(depth: int) -> None:
    """It is brought a block ahead, so that the last two blocks are no more like the others."""
    unit = check_lowered(naive_matmul(8, 8, depth, (8, 8, 8), 1), flat_machine(1))
    assert len(unit.loops.table)


COPY = """schedule naive cycles=1
graph
  input t0: f32[{rows},28]
  tensor t1: f32[{whole},28]
  op op0 (a0:{rows}:parallel, a1:28:parallel) write t1[a0, a1] = $0 from unit {{}}
    read t0[a0, a1]
  op op1 (a0:{rows}:parallel, a1:28:parallel) write t1[a0 + {rows}, a1] = $0 from unit {{}}
    read t0[a0, a1]
  output t1
tree
  seq
    loop cores c0 6 stride=1
      loop time i 60
        place t1 SMEM [240*c0 + 4*i:4, 0:28] copies=2
          seq
            place t0 SMEM [240*c0 + 4*i:4, 0:28] copies=2
              seq
                move t0 DRAM : SMEM [240*c0 + 4*i:4, 0:28]
                compute op0 CUDA [240*c0 + 4*i:4, 0:28]
            move t1 SMEM : DRAM [240*c0 + 4*i:4, 0:28]
    loop cores c1 6 stride=1
      loop time j 60
        place t1 SMEM [240*c1 + 4*j + {rows}:4, 0:28] copies=2
          seq
            place t0 SMEM [240*c1 + 4*j:4, 0:28] copies=2
              seq
                move t0 DRAM : SMEM [240*c1 + 4*j:4, 0:28]
                compute op1 CUDA [240*c1 + 4*j:4, 0:28]
            move t1 SMEM : DRAM [240*c1 + 4*j + {rows}:4, 0:28]
"""
"""A tensor beside itself: moves only, on six cores of which the last has less to do."""


@pytest.mark.parametrize("last", [60, 59, 58, 40, 7, 1])
def test_a_core_that_is_done_early_leaves_the_others_their_loops(
    last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.compiler.lower.lower.LISTED_ROWS", 64)
    rows = 1200 + 4 * last
    schedule = parse_schedule(COPY.format(rows=rows, whole=2 * rows))
    unit = check_lowered(schedule, load_preset("a100"))
    if last >= 40:
        assert unit.num_rows <= unit.num_instructions // 3


def test_what_only_moves_data_has_loops_across_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Overlapping them would hide one tile's way at a seam, and list their program in full."""
    monkeypatch.setattr("worker.compiler.lower.lower.LISTED_ROWS", 64)
    schedule = parse_schedule(COPY.format(rows=1440, whole=2880))
    unit = lower_unit(schedule, load_preset("a100"), "s" * 64, most_rows=64)
    assert unit.num_rows <= unit.num_instructions // 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("worker.compiler.lower.lower.hardly_computes", lambda nest: False)
        overlapping = lower_unit(schedule, load_preset("a100"), "s" * 64, most_rows=64)
    assert overlapping.num_rows == unit.num_instructions
    cycles = [run_unit(u, load_preset("a100")).cycles for u in (unit, overlapping)]
    assert cycles[1] < cycles[0] <= 1.02 * cycles[1]
    added = COPY.replace("= $0 from unit {{}}", "= add($0, $0) from unit {{}}")
    schedule = parse_schedule(added.format(rows=1440, whole=2880))
    computing = lower_unit(schedule, load_preset("a100"), "s" * 64, most_rows=64)
    assert computing.num_rows == computing.num_instructions == unit.num_instructions


@pytest.mark.parametrize("preset", ["a100", "kapla-16x16", "dpu-u250"])
def test_large_ones_are_short(preset: str) -> None:
    """Rows do not grow with the work: 64 times as much has at most four times as many."""
    machine = with_every_format(load_preset(preset))
    units = []
    for size in (512, 2048):
        schedule = naive_answer(matmul_graph(size, size, size), machine)
        assert isinstance(schedule, Schedule)
        units.append(lower_unit(schedule, machine, "s" * 64, most_rows=0))
    small, large = units
    assert large.num_instructions > 4 * large.num_rows
    assert large.num_rows <= 4 * max(small.num_rows, 100)
    same_simulation(large, machine)


@COSTLY
@given(looped())
def test_loops_take_what_their_expansion_takes(unit: UnitProgram) -> None:
    same_simulation(unit, flat_machine())


@given(looped())
def test_a_clock_that_runs_out_of_room_goes_on(unit: UnitProgram) -> None:
    """Log and rings begin with almost nothing and grow in the middle of the run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("worker.compiler.clock.run.FIRST_LOG", 1)
        patch.setattr("worker.compiler.clock.run.FIRST_KNOWN", 2)
        tight = simulate_unit(unit, flat_machine())
        assert tight == simulate_unit(expanded(unit), flat_machine())
    assert tight == simulate_unit(unit, flat_machine())


@given(looped())
def test_what_was_skipped_is_found(unit: UnitProgram) -> None:
    """Every instruction of a stream, by its number, is where the full run has it."""
    short, full = (run_unit(u, flat_machine()) for u in (unit, expanded(unit)))
    for stream in range(len(unit.streams)):
        runs = Repeats(np.flatnonzero(short.stream == stream), short.copies)
        places = [runs.find(k) for k in range(int(short.stream_count[stream]))]
        begins = [int(short.begin[entry]) + moved for entry, moved in places]
        assert begins == full.begin[full.stream == stream].tolist()


TURNED = (4, 190, 205, 465, 1408, 1842, 2233)
"""Seeds of `in_turns`: a run of the inner loop begins in the middle of a cycle that is known."""


@pytest.mark.parametrize("seed", [66, 258, 304])
def test_loops_of_other_bursts_are_not_taken_for_one_another(seed: int) -> None:
    """Equal rows but for what passes home: cycles of the first loop are not those of the second."""
    unit = one_after_the_other(seed)
    short, full = run_unit(unit, flat_machine()), run_unit(expanded(unit), flat_machine())
    assert not short.in_order
    assert short.cycles == full.cycles
    assert short.resource_busy.tolist() == full.resource_busy.tolist()


@pytest.mark.parametrize("seed", TURNED)
def test_cycles_of_earlier_runs_are_copied(seed: int) -> None:
    """The rest of one first, then its beginning, then whole ones."""
    unit = in_turns(seed)
    run = run_unit(unit, flat_machine())
    assert (run.copies[:, MANY] < run.copies[:, BACK]).any()
    assert len(run.row) < unit.num_instructions // 2
    same_simulation(unit, flat_machine())
    short, full = run, run_unit(expanded(unit), flat_machine())
    for stream in range(len(unit.streams)):
        runs = Repeats(np.flatnonzero(short.stream == stream), short.copies)
        places = [runs.find(k) for k in range(int(short.stream_count[stream]))]
        begins = [int(short.begin[entry]) + moved for entry, moved in places]
        assert begins == full.begin[full.stream == stream].tolist()
    everything = np.arange(len(short.row))
    start, end = spread(everything, short.begin, short.begin + 1, short.copies)
    assert start.tolist() == full.begin.tolist() == (end - 1).tolist()
    found = [locate(short.copies, k) for k in range(len(full.row))]
    assert [int(short.begin[k]) + moved for k, moved in found] == full.begin.tolist()


@given(looped())
def test_spreading_gives_every_interval(unit: UnitProgram) -> None:
    short, full = (run_unit(u, flat_machine()) for u in (unit, expanded(unit)))
    place = np.arange(len(short.row))
    start, _ = spread(place, short.begin, short.begin, short.copies)
    assert start.tolist() == full.begin.tolist()
    assert compute_cycles(unit, short) == compute_cycles(expanded(unit), full)


@given(looped())
def test_looped_programs_survive_their_formats(unit: UnitProgram) -> None:
    stored = as_bytes(unit)
    assert as_bytes(decode_program(stored).units[0]) == stored
    assert as_bytes(parse_program(print_program(unit))) == stored


@given(looped(), st.data())
def test_a_cut_listing_is_a_program(unit: UnitProgram, data: st.DataObject) -> None:
    limit = data.draw(st.integers(0, unit.num_rows))
    text = print_unit(unit, limit).split("# ", maxsplit=1)[0]
    assert parse_program(text).num_rows == limit


@given(looped())
def test_expansion_counts(unit: UnitProgram) -> None:
    rows, counters = unrolled(unit.loops)
    if not len(unit.loops.table):
        return
    assert np.bincount(rows, minlength=unit.num_rows).tolist() == repetitions(unit.loops).tolist()
    assert len({(r, *c) for r, c in zip(rows.tolist(), map(tuple, counters), strict=True)}) == len(
        rows
    )


@given(looped(), st.lists(st.integers(0, 400), max_size=6))
def test_excerpts_are_the_expansion_in_pieces(unit: UnitProgram, cuts: list[int]) -> None:
    count = unit.num_instructions
    edges = [0, *sorted(min(cut, count) for cut in cuts), count]
    pieces = [excerpt(unit, a, b) for a, b in pairwise(edges)]
    full = expanded(unit)
    assert np.array_equal(np.concatenate([p.instructions for p in pieces]), full.instructions)
    for name in ("wait", "signal"):
        lengths = np.concatenate([np.diff(getattr(p, f"{name}_ptr")) for p in pieces])
        assert lengths.tolist() == np.diff(getattr(full, f"{name}_ptr")).tolist()
        tokens = np.concatenate([getattr(p, f"{name}_token") for p in pieces])
        assert tokens.tolist() == getattr(full, f"{name}_token").tolist()


@pytest.mark.parametrize("name", WRONG)
def test_wrong_loops_are_refused(name: str) -> None:
    unit, rule = WRONG[name]
    with pytest.raises(VerifyError) as error:
        verify_program(unit, flat_machine())
    assert error.value.rule == rule


def test_a_cut_file_is_refused() -> None:
    unit = lower_unit(*TREES["matmul"], "s" * 64, most_rows=0)
    assert len(unit.loops.table)
    stored = as_bytes(unit)
    for size in (len(stored) - 1, len(stored) - 40):
        with pytest.raises(InputError):
            decode_program(stored[:size])


def test_engines_that_drift_apart_are_run_in_full() -> None:
    """Nothing is skipped where one engine falls behind another for ever."""
    steps = [Step(0, cycles=3), Step(1, cycles=5)]
    table = np.array([(0, 2, 50)], dtype=LOOP)
    nothing = np.zeros((0, 1), dtype=np.int32)
    unit = unit_program(steps, STREAMS, PORTS)
    unit = replace(unit, loops=Loops(table, np.zeros((2, 1), dtype=STRIDE), nothing, nothing))
    run = run_unit(unit, flat_machine())
    assert (len(run.copies), len(run.row), run.cycles) == (0, 100, 250)
    same_simulation(unit, flat_machine())


def test_a_loop_by_hand() -> None:
    """Loads of 16 cycles share a port of two cores, so an iteration takes 32; the last compute
    starts 5 cycles after the last load."""
    unit = hand_made(trip=40)
    run = run_unit(unit, flat_machine())
    assert run.cycles == 40 * 32 + 5 + 9
    assert len(run.copies) == 1
    assert len(run.row) < 40
    assert run.stream_count.tolist() == [40, 0, 40, 0, 40, 0, 40, 0]
    assert run.resource_bytes.tolist() == [80 * 16, 0, 40 * 16, 40 * 16, 0]
    same_simulation(unit, flat_machine())
