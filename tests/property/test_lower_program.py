"""Lowering against a plain walk of the tree: same instructions, safe order, disjoint buffers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import lower_toys as toys
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lower_oracle import Walk, finish_before, listed, order_of_events

from worker.compiler.cost.compute import engine_cycles
from worker.compiler.errors import Infeasible, VerifyError
from worker.compiler.isa.binary import decode_program, encode_program
from worker.compiler.isa.program import Binding, HostCall, Opcode, Program, UnitCall, UnitProgram
from worker.compiler.isa.text import parse_program, print_program
from worker.compiler.isa.verify import verify_program
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.verify import verify

Case = tuple[Schedule, Machine]

sizes = st.integers(1, 9)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A toy schedule of one of the shapes lowering must handle."""
    rows, cols, tile = draw(sizes), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    num_cores = draw(st.integers(1, 3))
    dmas = draw(st.integers(1, 2))
    tight = draw(st.booleans())
    flat = toys.flat_machine(max(num_cores, 2), 1 << 16, dmas)
    match draw(st.integers(0, 8)):
        case 0:
            tiles = (tile, draw(st.integers(1, 4)), draw(st.integers(1, 4)))
            copies = draw(st.integers(1, 3))
            schedule = toys.naive_matmul(rows, cols, draw(sizes), tiles, num_cores, copies)
            return schedule, flat
        case 1:
            clusters, per_cluster = draw(st.integers(1, 2)), 2
            schedule = toys.cluster_matmul(clusters, per_cluster, draw(st.sampled_from([1, 2, 4])))
            return schedule, toys.cluster_machine(clusters, per_cluster)
        case 2:
            # Tight: two tiles fit, so t2 must take the place of t0, which is dead by then.
            capacity = tile * cols * 4 * 2 if tight else 1 << 16
            copies = 1 if tight else draw(st.integers(1, 3))
            schedule = toys.fused_rows(rows, cols, tile, copies)
            return schedule, toys.flat_machine(2, capacity, dmas)
        case 3:
            return toys.split_halo(max(rows, 2), cols), toys.flat_machine(2, 1 << 16, dmas)
        case 4:
            depth = draw(st.integers(1, 3))
            return toys.piped(rows, cols, tile, depth, "L1"), flat
        case 5:
            depth = draw(st.integers(1, 3))
            return toys.piped(rows, cols, tile, depth, "LLB", 2), toys.cluster_machine()
        case 6:
            copies = draw(st.integers(1, 2))
            return toys.private_rows(rows, cols, tile, 4, copies), toys.cluster_machine()
        case 7:
            depths = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
            where = draw(st.sampled_from(["L1", "LLB"]))
            machine = toys.flat_machine(3) if where == "L1" else toys.cluster_machine(1, 3)
            return toys.skipping(rows, cols, tile, depths, where), machine
        case _:
            return toys.in_place(rows, cols, tile), flat


def lowered(case: Case) -> UnitProgram:
    schedule, machine = case
    verify(schedule, machine)
    program = lower_unit(schedule, machine, "0" * 64)
    verify_program(program, machine)
    return program


@given(cases())
def test_same_instructions_as_the_walk(case: Case) -> None:
    program = lowered(case)
    walk = Walk(*case, program)
    expected = Counter(
        (e.path, e.core, e.opcode, e.num_bytes, e.src_address, e.dst_address) for e in walk.events
    )
    assert Counter(listed(program)) == expected


@given(cases())
def test_tokens_order_every_conflict(case: Case) -> None:
    check_conflicts(case)


def test_shared_addresses_are_guarded() -> None:
    """Two tiles fit: the third buffer takes the place of the first, and waits for it."""
    tight = toys.flat_machine(2, 2 * 4 * 4 * 2)
    case = toys.fused_rows(8, 4, 2, 1), tight
    first, _, third = lowered(case).buffers
    assert (first.tensor, third.tensor) == ("t0", "t2")
    assert first.address == third.address
    check_conflicts(case)
    roomy = lowered((case[0], toys.flat_machine())).buffers
    assert len({b.address for b in roomy}) == 3, "nothing is shared without need"


def test_partial_sums_start_after_the_last_drain() -> None:
    """A read of the identity begins a new value: it waits for the drain of the previous one."""
    check_conflicts((toys.cluster_matmul(2, 2, 4), toys.cluster_machine()))


def test_overflow_names_memory_and_terms() -> None:
    with pytest.raises(Infeasible) as caught:
        lower_unit(toys.fused_rows(8, 4, 2, 2), toys.flat_machine(2, 100), "s")
    shortfall = caught.value.shortfall
    assert shortfall.resource == "memory:L1"
    assert (shortfall.demand, shortfall.bound) == (5 * 32, 100)
    assert dict(shortfall.terms)["t0@0.0"] == 64
    assert "160" in shortfall.levers[0]


def check_conflicts(case: Case) -> None:
    """Whatever touches the same byte, one writing, is ordered as in the sequential meaning."""
    program = lowered(case)
    walk = Walk(*case, program)
    order = order_of_events(program, walk)
    before = finish_before(program)
    for late in range(program.num_instructions):
        b = walk.events[order[late]]
        for early in range(late):
            a = walk.events[order[early]]
            if a.writes & b.reads or a.writes & b.writes or a.reads & b.writes:
                assert order[early] < order[late], (early, late, a.path, b.path)
                assert before[late] >> early & 1, (early, late, a.path, b.path)


@given(cases())
def test_text_and_bytes_round_trip(case: Case) -> None:
    program = lowered(case)
    text = print_program(program)
    again = parse_program(text)
    assert print_program(again) == text
    assert (again.instructions == program.instructions).all()
    calls = (
        UnitCall(0, (Binding("x", 64),), ('conv "1"\n',), "Conv"),
        HostCall(0, ("a",), ("b",), 1, 2, 3, 4, ("n",), ("Loop",)),
    )
    model = Program((program, again), calls, 1000, 600, 400)
    data = encode_program(model)
    decoded = decode_program(data)
    assert encode_program(decoded) == data
    assert decoded.calls == calls
    assert print_program(decoded.units[0]) == text


def test_loads_run_ahead_of_the_compute() -> None:
    program = lowered((toys.naive_matmul(4, 4, 8, (2, 2, 2), 1), toys.flat_machine()))
    opcodes = program.instructions["opcode"].tolist()
    first = opcodes.index(Opcode.COMPUTE)
    assert opcodes[:first].count(Opcode.LOAD) == 4, "two operands of two entries"
    last_store = len(opcodes) - 1 - opcodes[::-1].index(Opcode.STORE)
    assert opcodes[last_store - 1] == Opcode.COMPUTE, "nothing is left to load at the end"


def test_stores_of_different_cores_do_not_wait_for_each_other() -> None:
    program = lowered((toys.naive_matmul(8, 4, 4, (2, 2, 2), 2), toys.flat_machine()))
    before = finish_before(program)
    stores = [i for i, op in enumerate(program.instructions["opcode"]) if op == Opcode.STORE]
    core = [program.streams[int(program.instructions["stream"][i])].core for i in stores]
    assert {core[0], core[1]} == {0, 1}
    assert not before[stores[1]] >> stores[0] & 1


def test_cores_of_a_cluster_drain_independently() -> None:
    program = lowered((toys.cluster_matmul(), toys.cluster_machine()))
    before = finish_before(program)
    drains = [
        i
        for i, row in enumerate(program.instructions)
        if row["opcode"] == Opcode.STORE and row["dst"] >= 0
    ]
    assert len(drains) >= 4
    assert not before[drains[1]] >> drains[0] & 1


def test_pipe_stages_overlap() -> None:
    """Stage 0 issues iteration 1 before stage 1 stores iteration 0 is waited for."""
    program = lowered((toys.piped(8, 4, 2, 2, "L1"), toys.flat_machine()))
    before = finish_before(program)
    rows = program.instructions
    pushes = [i for i, op in enumerate(rows["opcode"]) if op == Opcode.PUSH]
    stores = [i for i, op in enumerate(rows["opcode"]) if op == Opcode.STORE]
    assert not before[pushes[1]] >> stores[0] & 1
    assert pushes[2] > stores[0]


def test_lanes_are_one_instruction() -> None:
    """Seven rows on four lanes: work of all lanes, time of the fullest."""
    schedule, machine = toys.laned(7, 8, 4), toys.flat_machine()
    program = lowered((schedule, machine))
    rows = program.instructions[program.instructions["opcode"] == Opcode.COMPUTE]
    assert len(rows) == 2
    assert rows["macs"][0] == 7 * 8
    graph = schedule.graph
    assert rows["cycles"][0] == engine_cycles(
        graph.op("op0"), (2, 8), machine.engine("vec"), graph.tensors, 4
    )


def test_gather_loads_what_its_points_touch() -> None:
    program = lowered((toys.gather(10, 8, 1000, 4), toys.flat_machine()))
    rows = program.instructions
    in_place = rows[(rows["opcode"] == Opcode.LOAD) & (rows["dst"] < 0)]
    assert in_place["bytes"].tolist() == [4 * 8 * 4, 4 * 8 * 4, 2 * 8 * 4]
    before = finish_before(program)
    computes = np.flatnonzero(rows["opcode"] == Opcode.COMPUTE).tolist()
    loads = np.flatnonzero((rows["opcode"] == Opcode.LOAD) & (rows["dst"] < 0)).tolist()
    assert all(before[c] >> load & 1 for c, load in zip(computes, loads, strict=True))


def test_cores_of_one_instance_get_private_blocks() -> None:
    program = lowered((toys.private_rows(16, 4, 2, 4, 2), toys.cluster_machine()))
    shared = next(b for b in program.buffers if b.level == "LLB")
    assert (shared.blocks, shared.block_stride, shared.copies) == (2, 1, 2)
    assert shared.size_bytes == 2 * 2 * 2 * 4 * 4
    assert [shared.block_of(core, 2) for core in range(4)] == [0, 1, 0, 1]


def test_single_dma_engine_is_shared() -> None:
    program = lowered((toys.naive_matmul(4, 4, 4, (2, 2, 2), 1), toys.flat_machine(2, 1 << 16, 1)))
    assert {s.engine for s in program.streams} == {"din", "mme"}


@pytest.mark.parametrize("damage", ["late", "stream", "offset", "ports"])
def test_verify_refuses(damage: str) -> None:
    schedule, machine = toys.naive_matmul(4, 4, 4, (2, 2, 2), 1), toys.flat_machine()
    program = lower_unit(schedule, machine, "s")
    rows = program.instructions.copy()
    rule = {"late": "backward", "stream": "stream", "offset": "dst_offset", "ports": "resource"}
    match damage:
        case "late":
            pointer = program.wait_ptr.copy()
            pointer[1:] += 1
            program = replace(
                program, wait_ptr=pointer,
                wait_token=np.concatenate([[0], program.wait_token]),
            )  # fmt: skip
        case "stream":
            rows["stream"][3] = 99
        case "offset":
            rows["dst_offset"][0] = 1 << 40
        case _:
            rows["resource"][0] = -1
    with pytest.raises(VerifyError) as caught:
        verify_program(replace(program, instructions=rows), machine)
    assert caught.value.rule == rule[damage]
