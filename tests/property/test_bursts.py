"""What passes ports of home and of caches in whole bursts: every byte of a kernel, counted."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import lower_toys as toys
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from lower_oracle import Walk, order_of_events
from multi_layer_schedules import TREES
from naive_schedules import naive_answer
from test_cache_hits import MATMULS
from test_lower_naive import conv_graph

from worker.compiler.audit.audit import audit
from worker.compiler.clock.run import run_unit
from worker.compiler.errors import Shortfall, VerifyError
from worker.compiler.ir.affine import Affine, var
from worker.compiler.isa.binary import decode_program, encode_program
from worker.compiler.isa.program import Opcode, Program, expanded
from worker.compiler.isa.text import parse_program, print_program
from worker.compiler.isa.verify import verify_program
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.bursts import burst_bytes, pitch_of, strides_of
from worker.compiler.machine.machine import Machine, Managed
from worker.compiler.schedule.nodes import Schedule
from worker.simulator.run import simulate_unit

UNITS = st.sampled_from([(1, 1), (8, 1), (64, 1), (1, 8), (64, 16), (12, 32)])


def bursting(machine: Machine, home: int, cache: int = 1, align: int = 4) -> Machine:
    """The machine with bursts at home, and sectors where it has caches."""
    levels = [
        replace(level, burst_bytes=cache) if level.managed is Managed.CACHE else level
        for level in machine.levels
    ]
    levels[0] = replace(levels[0], burst_bytes=home, align_bytes=align)
    return replace(machine, levels=tuple(levels))


def touched(offsets: np.ndarray, align: int, burst: int) -> int:
    """Bytes of the bursts that hold some bytes of a tensor, wherever that is aligned."""
    return max(
        burst * len(np.unique((base + offsets) // burst)) for base in range(0, burst * align, align)
    )


def check(schedule: Schedule, machine: Machine) -> None:
    """Programs with and without loops say the same, and no instruction less than it touches."""
    unit = lower_unit(schedule, machine, "s" * 64)
    short = lower_unit(schedule, machine, "s" * 64, most_rows=0)
    assert (expanded(short).instructions == expanded(unit).instructions).all()
    unit = expanded(unit)
    rows, ports = unit.instructions, unit.resources
    for each in (unit, short):
        verify_program(each, machine)
        run = simulate_unit(each, machine)
        assert all(c.passed for c in run.checks)
        for flow in run.traffic:  # by hand: each row's, at each of its ports
            beside = sum(
                (int(row[ports[r].counted]) - int(row["bytes"])) / ports[r].sharers * ports[r].count
                for row in rows
                for r in row["resource"].tolist()
                if r >= 0 and ports[r].level == flow.level
            )
            assert beside - len(ports) <= flow.unasked_bytes <= beside
    audit(schedule, short, machine)
    walk = Walk(schedule, machine, unit)
    events = [walk.events[k] for k in order_of_events(unit, walk)]
    home = machine.home
    cache = next((m.burst_bytes for m in machine.levels if m.managed is Managed.CACHE), 1)
    for event, row in zip(events, unit.instructions, strict=True):
        if row["opcode"] == Opcode.COMPUTE:
            continue
        by_tensor: dict[str, list[int]] = {}
        for tensor, _, byte in (*event.reads, *event.writes):
            if tensor.startswith("home:"):
                by_tensor.setdefault(tensor, []).append(byte)
        for column, burst in (("drawn", home.burst_bytes), ("returned", cache)):
            if burst == 1:
                assert row[column] == 0
                continue
            least = sum(
                touched(np.array(some), home.align_bytes, burst) for some in by_tensor.values()
            )
            assert least <= row[column], (column, event)
            if by_tensor:
                assert row[column] % burst == 0
                # Each byte alone, at the worst address, takes no more than two bursts.
                assert row[column] <= 2 * burst * sum(map(len, by_tensor.values()))


@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=4), st.data(),
    st.sampled_from([1, 2, 4]), st.sampled_from([2, 8, 12, 32]), st.sampled_from([1, 2, 8, 64]),
)  # fmt: skip
def test_a_box_takes_what_it_takes_at_its_worst_address(
    shape: list[int], data: st.DataObject, item: int, burst: int, align: int
) -> None:
    extents = [data.draw(st.integers(1, n)) for n in shape]
    steps = [data.draw(st.integers(0, 3)) for _ in shape]
    firsts = [data.draw(st.integers(0, n - e)) for n, e in zip(shape, extents, strict=True)]
    strides = strides_of(shape, item)
    starts = [var("i") * step + first for step, first in zip(steps, firsts, strict=True)]
    found = burst_bytes(extents, shape, item, list(map(pitch_of, starts)), align, burst)
    inside = np.array([
        sum(k * s for k, s in zip(at, strides, strict=True)) + b
        for at in product(*map(range, extents)) for b in range(item)
    ])  # fmt: skip
    worst = 0
    for turn in range(3):
        at = [first + step * turn for first, step in zip(firsts, steps, strict=True)]
        if any(a + e > n for a, e, n in zip(at, extents, shape, strict=True)):
            break
        offset = sum(a * s for a, s in zip(at, strides, strict=True))
        worst = max(worst, touched(offset + inside, align, burst))
    assert worst <= found
    assert found % burst == 0
    rows = [k for k, (e, n) in enumerate(zip(extents, shape, strict=True)) if e < n]
    if not any(firsts) and not any(steps) and (not rows or rows == [0]):
        assert found == worst, "one run from the tensor's first byte"


def test_by_hand() -> None:
    """4-papers.md, TV-WE-6: a tile of 16 rows by 8 floats of rows of 128 is 16 transactions of 128
    bytes, 4 times its payload."""
    shape = 64, 128
    assert burst_bytes((16, 8), shape, 4, (16, 8), 128, 128) == 2048 == 4 * 16 * 8 * 4
    # 20 bytes are one transaction where they are known not to cross, else two.
    assert burst_bytes((1, 5), shape, 4, (1, 0), 128, 128) == 128
    assert burst_bytes((1, 5), shape, 4, (1, 5), 128, 128) == 256
    # Half of each short row: all between them is less than a transaction for each.
    assert burst_bytes((16, 4), (64, 8), 4, (16, 0), 512, 128) == 512
    # The other half may end in another transaction, whole rows do not.
    assert burst_bytes((16, 4), (64, 8), 4, (16, 4), 512, 128) == 512
    # Whole rows follow each other.
    assert burst_bytes((16, 128), shape, 4, (16, 0), 128, 128) == 16 * 512
    assert burst_bytes((0, 5), shape, 4, (1, 1), 128, 128) == 0
    assert burst_bytes((), (), 4, (), 4, 128) == 128 == burst_bytes((), (), 4, (), 1, 128) / 2
    assert pitch_of(var("i") * 8 + 12) == 4
    assert pitch_of(Affine.of(0)) == 0


@COSTLY
@given(MATMULS, UNITS, st.sampled_from([2, 16, 64]))
def test_products(schedule: Schedule, units: tuple[int, int], align: int) -> None:
    check(schedule, bursting(toys.flat_machine(4), *units, align))


@COSTLY
@given(
    st.builds(
        conv_graph, st.integers(1, 3), st.integers(3, 10), st.sampled_from([1, 3]),
        st.integers(1, 5), st.sampled_from([1, 2]),
    ),
    UNITS, st.sampled_from([2, 64]),
)  # fmt: skip
def test_convolutions(graph: object, units: tuple[int, int], align: int) -> None:
    machine = bursting(toys.flat_machine(4, 512), *units, align)
    schedule = naive_answer(graph, machine)  # type: ignore[arg-type]
    if not isinstance(schedule, Shortfall):
        check(schedule, machine)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("units", [(64, 1), (8, 16)])
def test_trees_of_several_layers(tree: str, units: tuple[int, int]) -> None:
    schedule, machine, _ = TREES[tree]()
    check(schedule, bursting(machine, *units))


@pytest.mark.parametrize("units", [(64, 1), (8, 16)])
@pytest.mark.parametrize(("setup", "outstanding"), [(9, 0), (0, 48), (300, 4096)])
def test_engines_that_issue_in_time_know_of_bursts(
    units: tuple[int, int], setup: int, outstanding: int
) -> None:
    """Set-ups hide behind what passes the slowest port: more, where that counts bursts."""
    machine = bursting(toys.flat_machine(2), *units)
    engines = tuple(
        replace(e, setup_cycles=setup, outstanding_bytes=outstanding) if "d" in e.name else e
        for e in machine.engines
    )
    check(toys.naive_matmul(9, 7, 10, (2, 3, 4), 2), replace(machine, engines=engines))


@pytest.mark.parametrize("units", [(64, 1), (64, 16), (8, 8)])
def test_a_multicast_draws_its_bursts_once(units: tuple[int, int]) -> None:
    machine = bursting(toys.multicast_machine(4), *units)
    schedule = toys.naive_matmul(16, 8, 12, (2, 4, 4), 4)
    unit = lower_unit(schedule, machine, "s" * 64)
    verify_program(unit, machine)
    audit(schedule, unit, machine)
    run = simulate_unit(unit, machine)
    assert all(check.passed for check in run.checks)
    rows = unit.instructions
    assert (rows["opcode"] == Opcode.MULTICAST).any()
    (home,) = (flow for flow in run.traffic if flow.level == "DDR")
    shared = [
        (int(row["drawn"]), unit.resources[int(row["resource"][0])].sharers)
        for row in rows
        if row["src"] == -1 and row["opcode"] in (Opcode.LOAD, Opcode.MULTICAST)
    ]
    assert home.read_bytes == sum(drawn / sharers for drawn, sharers in shared)


def test_gathers_take_a_burst_for_each_row_they_pick() -> None:
    """Two rows of 160 bytes at a time, each anywhere: three bursts of 64 or, across one more, four;
    sectors of 16: 11."""
    machine = bursting(toys.flat_machine(2), 64, 16, 64)
    unit = expanded(lower_unit(toys.gather(6, 40, 9, 2), machine, "s" * 64))
    verify_program(unit, machine)
    loads = unit.instructions[unit.instructions["bytes"] == 2 * 160]
    loads = loads[loads["opcode"] == Opcode.LOAD]
    assert loads["drawn"].tolist() == [2 * 4 * 64] * 3
    assert loads["returned"].tolist() == [2 * 11 * 16] * 3
    assert all(c.passed for c in simulate_unit(unit, machine).checks)


def test_bursts_take_time_and_energy_and_count_as_traffic() -> None:
    """Four loads of half rows of 8 bytes: 16 bytes a cycle pass home's port."""
    schedule = toys.naive_matmul(4, 4, 8, (4, 4, 4), 1)
    plain = toys.flat_machine(1)
    machine = bursting(plain, 64, 1, 64)
    before, after = lower_unit(schedule, plain, "s"), lower_unit(schedule, machine, "s")
    loads = after.instructions[after.instructions["opcode"] == Opcode.LOAD]
    assert loads["bytes"].tolist() == [32, 32, 32, 32]
    # The left operand's halves lie in all of its 64 bytes; the right one's are rows of its 64.
    assert loads["drawn"].tolist() == [64, 64, 64, 64]
    runs = [simulate_unit(unit, on) for unit, on in ((before, plain), (after, machine))]
    read = [next(t.read_bytes for t in run.traffic if t.level == "DDR") for run in runs]
    assert read == [4 * 32, 4 * 64]
    more = [next(t.unasked_bytes for t in run.traffic if t.level == "DDR") for run in runs]
    store = after.instructions[after.instructions["opcode"] == Opcode.STORE]
    assert more == [0, 4 * 32 + int((store["drawn"] - store["bytes"]).sum())]
    assert run_unit(after, machine).cycles > run_unit(before, plain).cycles
    spent = [sum(line.pj for line in run.energy) for run in runs]
    assert spent[1] > spent[0]


def test_plans_move_longer_rows_where_short_ones_cost_more() -> None:
    graph, plain = toys.matmul_graph(64, 512, 64), toys.flat_machine(capacity=1 << 13)
    slow = bursting(plain, 256, 1, 256)
    shares = []
    for on in (plain, slow):
        schedule = naive_answer(graph, on)
        assert not isinstance(schedule, Shortfall)
        unit = expanded(lower_unit(schedule, slow, "s"))
        rows = unit.instructions[unit.instructions["opcode"] != Opcode.COMPUTE]
        shares.append(int(rows["drawn"].sum()))
    assert shares[1] < shares[0]


def test_text_and_binary_say_what_ports_count_and_nothing_where_they_count_bytes() -> None:
    schedule = toys.naive_matmul(4, 4, 8, (4, 4, 4), 1)
    machine = bursting(toys.flat_machine(1), 64, 16)
    unit = lower_unit(schedule, machine, "s" * 64)
    text = print_program(unit)
    assert 'counted="drawn"' in text
    assert 'counted="returned"' in text
    assert print_program(parse_program(text)) == text
    program = Program((unit,), (), 0, 0, 0)
    assert decode_program(encode_program(program)).units[0].resources == unit.resources
    assert "counted" not in print_program(lower_unit(schedule, toys.flat_machine(1), "s" * 64))


def test_what_no_port_can_pass_is_refused() -> None:
    schedule = toys.naive_matmul(4, 4, 8, (4, 4, 4), 1)
    plain, machine = toys.flat_machine(1), bursting(toys.flat_machine(1), 64, 16)
    unit = lower_unit(schedule, machine, "s" * 64)
    with pytest.raises(VerifyError, match="ports of DDR count bytes, not drawn"):
        verify_program(unit, plain)
    for field, match in (("drawn", "less passes a port"), ("returned", "less passes a port")):
        rows = unit.instructions.copy()
        rows[field][rows["opcode"] == Opcode.LOAD] = 31
        with pytest.raises(VerifyError, match=match):
            verify_program(replace(unit, instructions=rows), machine)
    free = lower_unit(schedule, plain, "s" * 64)
    rows = free.instructions.copy()
    rows["drawn"][rows["opcode"] == Opcode.LOAD] = 64
    with pytest.raises(VerifyError, match="bursts of one byte"):
        verify_program(replace(free, instructions=rows), plain)
