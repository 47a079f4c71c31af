"""What a cache holds: the rule of lowering against a cache that is played, line by line."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

import lower_toys as toys
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lower_oracle import Walk, order_of_events
from multi_layer_schedules import TREES
from naive_schedules import naive_answer
from test_lower_naive import conv_graph

from worker.compiler.audit.audit import audit
from worker.compiler.clock.run import run_unit
from worker.compiler.errors import Shortfall, VerifyError
from worker.compiler.heuristics import Heuristic
from worker.compiler.ir.affine import var
from worker.compiler.ir.axis import Axis
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Fn, Read
from worker.compiler.isa.binary import decode_program, encode_program
from worker.compiler.isa.program import Program, Resource, UnitProgram, expanded, port_numbers
from worker.compiler.isa.text import parse_program, print_program
from worker.compiler.isa.verify import verify_program
from worker.compiler.lower.grid import Grid
from worker.compiler.lower.lower import lower_unit
from worker.compiler.lower.rows.cached import equal_cores
from worker.compiler.machine.machine import Machine, Managed, MemoryLevel
from worker.compiler.schedule.nodes import Compute, Init, LoopKind, Move, Node, Place, Schedule, Seq
from worker.compiler.schedule.walk import Frame
from worker.simulator.run import simulate_unit

Line = tuple[str, int]


def with_cache(machine: Machine, capacity: int, line: int = 4, instances: int = 1) -> Machine:
    """The machine, its cache as large as said (0: the level is there, and can hold nothing)."""
    levels = tuple(
        replace(m, capacity_bytes=capacity, align_bytes=line, instances=instances)
        if m.managed is Managed.CACHE
        else m
        for m in machine.levels
    )
    return replace(machine, levels=levels)


@dataclass
class Played:
    """What the cache did, per instruction: bytes that it had to fetch; whether all were there."""

    missed: list[int]
    written: int
    """Bytes of dirty lines that left it, those that are left at the end included."""


def play(program: UnitProgram, schedule: Schedule, machine: Machine) -> Played:
    """A fully associative cache of the least recently used lines in front of home, which writes
    back what is dirty when it goes; the instructions in program order, each with its bytes."""
    (cache,) = (m for m in machine.levels if m.managed is Managed.CACHE)
    walk = Walk(schedule, machine, program)
    events = [walk.events[k] for k in order_of_events(program, walk)]
    caches: list[OrderedDict[Line, set[int]]] = [OrderedDict() for _ in range(cache.instances)]
    room = cache.usable_bytes // cache.align_bytes
    found = Played([], 0)
    for event in events:
        held = caches[event.core * cache.instances // machine.num_cores]
        missed = 0
        for used, is_write in ((event.reads, False), (event.writes, True)):
            at_home = sorted(b for b in used if b[0].startswith("home:"))
            lines: dict[Line, set[int]] = {}
            for tensor, _, byte in at_home:
                lines.setdefault((tensor, byte // cache.align_bytes), set()).add(byte)
            for line, some in lines.items():
                if line not in held:
                    missed += 0 if is_write else len(some)
                    held[line] = set()
                held.move_to_end(line)
                if is_write:
                    held[line] |= some
                if len(held) > room:
                    found.written += len(held.popitem(last=False)[1])
        found.missed.append(missed)
    found.written += sum(len(dirty) for held in caches for dirty in held.values())
    return found


def claimed(program: UnitProgram, machine: Machine) -> tuple[list[float], float]:
    """(bytes that each instruction reads from home, bytes that all write there)."""
    home = machine.home.name
    reads, writes = [], 0.0
    for row in program.instructions:
        ports = [program.resources[r] for r in row["resource"].tolist() if r >= 0]
        reads.append(sum(
            int(row["bytes"]) / p.sharers
            for p in ports if (p.level, p.direction) == (home, "read")
        ))  # fmt: skip
        writes += sum(int(row["bytes"]) for p in ports if (p.level, p.direction) == (home, "write"))
    return reads, writes


def check(schedule: Schedule, machine: Machine) -> tuple[tuple[float, float], tuple[int, int]]:
    """Nothing is claimed that the played cache does not do.

    ((read, written) as claimed, the same as played).
    """
    short = lower_unit(schedule, machine, "s" * 64, most_rows=0)
    program = lower_unit(schedule, machine, "s" * 64)
    assert (expanded(short).instructions == program.instructions).all()
    assert expanded(short).resources == program.resources
    verify_program(program, machine)
    played = play(program, schedule, machine)
    reads, writes = claimed(program, machine)
    is_load = program.instructions["src"] == -1
    for number, (mine, theirs) in enumerate(zip(reads, played.missed, strict=True)):
        if is_load[number] and not mine:
            assert not theirs, f"instruction {number} fetches {theirs} bytes"
    assert sum(reads) >= sum(played.missed) - 1e-6
    assert writes >= played.written
    for unit in (short, program):
        run = simulate_unit(unit, machine)
        failed = [c for c in run.checks if not c.passed]
        assert not failed, failed
        (home,) = (t for t in run.traffic if t.level == machine.home.name)
        assert (home.read_bytes, home.write_bytes) == (round(sum(reads)), writes)
        (passed,) = (t for t in run.traffic if t.level == "L2")
        assert passed.read_bytes == sum(
            len([b for b in (*event.reads, *event.writes) if b[0].startswith("home:")])
            for event in Walk(schedule, machine, program).events
        )
    return (sum(reads), writes), (sum(played.missed), played.written)


@pytest.mark.parametrize("capacity", [1 << 9, 1 << 16])
def test_who_has_nothing_to_do_shares_no_fetch(capacity: int) -> None:
    """16 tiles of rows for three cores, in turns of 6: in the last two the third has none, and the
    weights are brought in by two."""
    schedule = toys.naive_matmul(32, 8, 8, (2, 4, 4), 3)
    machine = with_cache(toys.flat_machine(3), capacity)
    check(schedule, machine)
    program = lower_unit(schedule, machine, "s")
    loads = program.instructions[program.instructions["bytes"] == 4 * 4 * 2]
    named = [program.resources[r].sharers for r in loads["resource"][:, 0].tolist()]
    assert set(named) >= {2, 3} if capacity == 1 << 9 else {3}


MATMULS = st.builds(
    toys.naive_matmul,
    st.integers(1, 12), st.integers(1, 12), st.integers(1, 12),
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
    st.sampled_from([1, 2, 4]), st.integers(1, 3),
)  # fmt: skip
CAPACITIES = st.sampled_from([4, 64, 128, 192, 256, 384, 512, 1 << 12])


@given(MATMULS, CAPACITIES, st.sampled_from([2, 4, 16]))
def test_nothing_is_claimed_of_products_that_no_cache_would_do(
    schedule: Schedule, capacity: int, line: int
) -> None:
    machine = with_cache(toys.flat_machine(4), capacity, line)
    check(schedule, machine)


@given(
    st.one_of(
        st.builds(toys.matmul_graph, st.integers(1, 20), st.integers(1, 20), st.integers(1, 20)),
        st.builds(
            conv_graph, st.integers(1, 3), st.integers(3, 10), st.sampled_from([1, 3]),
            st.integers(1, 5), st.sampled_from([1, 2]),
        ),
    ),
    CAPACITIES, st.sampled_from([2, 4, 16]), st.sampled_from([1, 2]),
)  # fmt: skip
def test_nothing_is_claimed_of_naive_kernels_that_no_cache_would_do(
    graph: Graph, capacity: int, line: int, instances: int
) -> None:
    machine = with_cache(toys.flat_machine(4, 512), capacity, line, instances)
    schedule = naive_answer(graph, machine)
    if not isinstance(schedule, Shortfall):
        check(schedule, machine)


def test_a_large_cache_brings_in_and_out_every_byte_of_a_product_once() -> None:
    schedule = toys.naive_matmul(8, 12, 6, (2, 3, 2), 2)
    machine = with_cache(toys.flat_machine(2), 1 << 12, 2)
    mine, played = check(schedule, machine)
    assert mine == played == ((8 * 6 + 6 * 12) * 2, 8 * 12 * 2)


def test_a_cache_for_a_step_alone_is_shared_and_keeps_nothing() -> None:
    """Two cores take other rows of the left operand, and the same columns of the right one."""
    schedule = toys.naive_matmul(8, 12, 6, (2, 3, 2), 2)
    machine = with_cache(toys.flat_machine(2), 16, 2)
    mine, played = check(schedule, machine)
    tiles = (8 // 2) * (12 // 3) * (6 // 2)
    assert mine[0] == tiles * 2 * 2 * 2 + tiles / 2 * 2 * 3 * 2
    assert mine == played


def repeated(rows: int, cols: int, times: int, order: str, copies: int = 1) -> Schedule:
    """One tensor becomes another row by row, on two cores, again and again; `order`: of the loops
    over rows i and repetitions r, outermost first."""
    at = var("c") * (rows // 2) + var("i")
    row = (toys.span(at, 1), toys.span(0, cols))
    node: Node = Place("t0", "L1", row, copies, Place("t1", "L1", row, copies, Seq((
        Move("t0", "DDR", "L1", row), Compute("op0", row, "vec"), Move("t1", "L1", "DDR", row),
    ))))  # fmt: skip
    for name in reversed(order):
        node = toys.time(name, times if name == "r" else rows // 2, node)
    return Schedule(toys.chain_graph(rows, cols), toys.cores("c", 2, node), "hand", 0)


@pytest.mark.parametrize("order", ["ri", "ir"])
@pytest.mark.parametrize("copies", [1, 3])
def test_a_dirty_line_leaves_once(order: str, copies: int) -> None:
    """Six rows of 32 bytes, each read and written four times: once where the cache holds what a
    turn of the outer loop moves, twelve rows, and what the next one begins with."""
    schedule = repeated(6, 8, 4, order, copies)
    size = 6 * 8 * 4
    machine = with_cache(toys.flat_machine(2), 4 * size, 2)
    mine, played = check(schedule, machine)
    assert mine == played == (size, size)
    none, _ = check(schedule, with_cache(toys.flat_machine(2), 2, 2))
    assert none == (4 * size, 4 * size)


@given(
    st.integers(1, 3), st.integers(1, 6), st.integers(1, 4), st.sampled_from(["ri", "ir"]),
    st.integers(1, 3), CAPACITIES, st.sampled_from([2, 4, 16]),
)  # fmt: skip
def test_nothing_is_claimed_of_repetitions_that_no_cache_would_do(
    rows: int, cols: int, times: int, order: str, copies: int, capacity: int, line: int
) -> None:
    machine = with_cache(toys.flat_machine(2), capacity, line)
    check(repeated(2 * rows, cols, times, order, copies), machine)


@given(st.data())
def test_cores_with_equal_keys_are_counted(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.booleans(), min_size=1, max_size=4))
    frames = tuple(
        Frame(f"v{k}", data.draw(st.integers(1, 3)),
              LoopKind.CORES if is_core else LoopKind.TIME, 1, f"0.{k}")
        for k, is_core in enumerate(sorted(kinds))
    )  # fmt: skip
    grid = Grid.of(frames)
    keys = [
        np.array(data.draw(st.lists(st.integers(-2, 2), min_size=n, max_size=n))).reshape(shape)
        for shape in data.draw(
            st.lists(st.tuples(*(st.sampled_from([1, f.trip]) for f in frames)), max_size=3)
        )
        for n in [int(np.prod(shape))]
    ]
    counts = np.broadcast_to(equal_cores(keys, grid), grid.shape)
    full = [np.broadcast_to(key, grid.shape) for key in keys]
    for where in np.ndindex(*grid.shape):
        same = sum(
            all(key[where] == key[other] for key in full)
            for other in np.ndindex(*grid.shape)
            if all(a == b for a, b, core in zip(where, other, sorted(kinds), strict=True)
                   if not core)
        )  # fmt: skip
        assert counts[where] == same


def test_what_is_held_is_there_sooner() -> None:
    """A row in each of two turns, on two cores: latency of home, then of the cache."""
    schedule = repeated(2, 8, 2, "ri")
    machine = with_cache(toys.flat_machine(2), 1 << 12, 2)
    slow, fast = (
        replace(machine, levels=(replace(machine.home, latency_cycles=far), *machine.levels[1:]))
        for far in (100, 10)
    )
    loads = lower_unit(schedule, slow, "s" * 64).instructions
    loads = loads[loads["src"] == -1]
    assert sorted(loads["latency"].tolist()) == [10, 10, 100, 100]
    apart = simulate_unit(lower_unit(schedule, slow, "s" * 64), slow).cycles
    # The first row comes at home's own pace, and the last ones go, one core's after the other's.
    assert apart - simulate_unit(lower_unit(schedule, fast, "s" * 64), fast).cycles == 3 * 90


def test_sharers_take_their_part_of_a_port_and_of_its_bytes() -> None:
    schedule = toys.naive_matmul(4, 8, 4, (2, 8, 4), 2, 1)
    machine = with_cache(toys.flat_machine(2), 1 << 12, 2)
    unit = lower_unit(schedule, machine, "s" * 64)
    home = [r for r in unit.resources if (r.level, r.direction) == ("DDR", "read")]
    assert [r.sharers for r in home] == [1, 2]
    assert len({port_numbers(unit.resources)[unit.resources.index(r)] for r in home}) == 1
    # Two tiles of 16 bytes, and one of 64 in halves: 1 + 1 + 2 + 2 cycles at 16 bytes a cycle.
    timed = run_unit(unit, machine)
    at = [unit.resources.index(r) for r in home]
    assert timed.resource_busy[at].tolist() == [2, 4]
    assert timed.resource_bytes[at].tolist() == [32, 64]
    run = simulate_unit(unit, machine)
    assert [(t.read_bytes, t.write_bytes) for t in run.traffic if t.level == "DDR"] == [(96, 64)]
    assert print_program(parse_program(print_program(unit))) == print_program(unit)
    assert parse_program(print_program(unit)).resources == unit.resources
    again = decode_program(encode_program(Program((unit,), (), 1, 1, 0))).units[0]
    assert again.resources == unit.resources


@pytest.mark.parametrize(
    "port",
    [
        Resource("DDR", 0, "write", 16.0, sharers=2), Resource("L2", 0, "read", 32.0, sharers=2),
        Resource("DDR", 0, "read", 16.0, sharers=3), Resource("DDR", 0, "read", 16.0, sharers=0),
    ],
)  # fmt: skip
def test_who_may_share_is_checked(port: Resource) -> None:
    machine = with_cache(toys.flat_machine(2), 1 << 12, 2)
    unit = lower_unit(toys.naive_matmul(4, 8, 4, (2, 8, 4), 2, 1), machine, "s" * 64)
    verify_program(unit, machine)
    at = unit.resources.index(
        next(r for r in unit.resources if (r.level, r.direction) == (port.level, port.direction))
    )
    ports = (*unit.resources[:at], port, *unit.resources[at + 1 :])
    with pytest.raises(VerifyError, match="bring the same bytes"):
        verify_program(replace(unit, resources=ports), machine)


def test_the_audit_wants_the_port_of_the_cache_where_home_is_left_out() -> None:
    schedule = toys.naive_matmul(8, 12, 6, (2, 3, 2), 2)
    machine = with_cache(toys.flat_machine(2), 1 << 12, 2)
    unit = lower_unit(schedule, machine, "s" * 64)
    audit(schedule, unit, machine)
    rows = unit.instructions.copy()
    names = [(r.level, r.direction) for r in unit.resources]
    held = next(k for k, row in enumerate(rows) if names[row["resource"][0]] == ("L2", "read"))
    rows["resource"][held, 0] = rows["resource"][held, 1]
    with pytest.raises(VerifyError, match="does not read DDR 0"):
        audit(schedule, replace(unit, instructions=rows), machine)


def test_without_a_cache_nothing_changes() -> None:
    """A machine whose cache holds nothing gives what one with a scratchpad there gives, but for the
    port that is crossed; a scratchpad's size decides nothing."""
    small, large = (
        replace(m, levels=tuple(
            replace(x, managed=Managed.SCRATCHPAD) if x.name == "L2" else x for x in m.levels
        ))
        for m in (with_cache(toys.flat_machine(2), 4), with_cache(toys.flat_machine(2), 1 << 20))
    )  # fmt: skip
    schedule = toys.naive_matmul(8, 12, 6, (2, 3, 2), 2)
    one, other = (print_program(lower_unit(schedule, m, "s" * 64)) for m in (small, large))
    assert one == other
    assert "sharers" not in one and '"L2"' not in one


def through_home(
    rows: int, cols: int, halo: int, samples: int, tiles: tuple[int, int], repeats: int = 1
) -> Schedule:
    """Two layers of `samples` x `rows` rows, one after the other for each sample, on two cores.

    The tensor between them lies at home; the second layer goes over it `repeats` times.
    """
    layers: list[Node] = []
    for k, tile in enumerate(tiles):
        at = var("s") * rows + var(f"c{k}") * (rows // 2) + var(f"i{k}") * tile
        out = (toys.span(at, tile), toys.span(0, cols))
        wide = (toys.span(at - halo * k, tile + 2 * halo * k), toys.span(0, cols))
        domain = (*out, toys.span(0, 2 * halo + 1)) if k else out
        tiled = toys.time(f"i{k}", -(-rows // 2 // tile), Place(f"t{k}", "L1", wide, 2, Place(
            f"t{k + 1}", "L1", out, 1, Seq((
                Move(f"t{k}", "DDR", "L1", wide, 0), Compute(f"op{k}", domain, "vec"),
                Move(f"t{k + 1}", "L1", "DDR", out),
            )), None, Init.IDENTITY if k else Init.UNDEFINED,
        )))  # fmt: skip
        again = toys.time("r", repeats, tiled) if k else tiled
        layers.append(toys.cores(f"c{k}", 2, again))
    graph = toys.chain_graph(samples * rows, cols, halo)
    return Schedule(graph, toys.time("s", samples, Seq(tuple(layers))), "hand", 0)


@given(
    st.builds(
        through_home, st.sampled_from([2, 4, 8]), st.integers(1, 4), st.integers(0, 2),
        st.integers(1, 3), st.tuples(st.integers(1, 4), st.integers(1, 4)), st.integers(1, 2),
    ),
    CAPACITIES, st.sampled_from([2, 4, 16]),
)  # fmt: skip
def test_nothing_is_claimed_between_layers_that_no_cache_would_do(
    schedule: Schedule, capacity: int, line: int
) -> None:
    check(schedule, with_cache(toys.flat_machine(2), capacity, line))


@pytest.mark.parametrize(("halo", "samples"), [(0, 1), (1, 1), (0, 3)])
def test_what_a_layer_wrote_the_next_one_finds(halo: int, samples: int) -> None:
    """Three tensors of 8 rows of 16 bytes a sample: one comes, one goes, and the one between goes
    but does not come back where all fit.  Of several samples the first tensor may be fetched for
    the next one already, and what is written and read between counts twice."""
    size = 8 * 4 * 4 * samples
    schedule = through_home(8, 4, halo, samples, (2, 2))
    room = (3 if samples == 1 else 5) * 8 * 4 * 4
    mine, played = check(schedule, with_cache(toys.flat_machine(2), room, 4))
    assert mine == played == (size, 2 * size)
    mine, played = check(schedule, with_cache(toys.flat_machine(2), 64, 4))
    assert mine[0] > size


def read_twice(
    rows: int, cols: int, tiles: tuple[int, int], part: int, *, is_ahead: bool
) -> Schedule:
    """Two layers that read one tensor: the second one all of it, the first one but `part` rows.

    `is_ahead`: the second one begins to fetch before the first one does.
    """
    ops = [
        TensorOp(
            f"op{k}", (Axis("a0", n), Axis("a1", cols)), (Access("t0", (var("a0"), var("a1"))),),
            Access(f"t{k + 1}", (var("a0"), var("a1"))), Apply(Fn.ADD, (Read(0), Read(0))), None,
            toys.ORIGIN,
        )
        for k, n in enumerate((rows - part, rows))
    ]  # fmt: skip
    shapes = {"t0": rows, "t1": rows - part, "t2": rows}
    graph = Graph.build(
        tuple(ops), tuple(Tensor(name, (n, cols), DType.F32) for name, n in shapes.items()),
        ("t0",), ("t1", "t2"),
    )  # fmt: skip
    layers: list[Node] = []
    for k, (tile, n) in enumerate(zip(tiles, (rows - part, rows), strict=True)):
        box = (toys.span(var(f"i{k}") * tile, tile), toys.span(0, cols))
        layers.append(toys.time(f"i{k}", -(-n // tile), Place("t0", "L1", box, 2, Place(
            f"t{k + 1}", "L1", box, 1, Seq((
                Move("t0", "DDR", "L1", box), Compute(f"op{k}", box, "vec"),
                Move(f"t{k + 1}", "L1", "DDR", box),
            )),
        ))))  # fmt: skip
    without = () if is_ahead else (Heuristic.AHEAD,)
    return Schedule(graph, Seq(tuple(layers)), "hand", 0, without)


@given(
    st.builds(
        read_twice, st.integers(3, 8), st.integers(1, 4),
        st.tuples(st.integers(1, 4), st.integers(1, 4)), st.integers(0, 2), is_ahead=st.booleans(),
    ),
    CAPACITIES, st.sampled_from([2, 4, 16]),
)  # fmt: skip
def test_nothing_is_claimed_of_second_readers_that_no_cache_would_do(
    schedule: Schedule, capacity: int, line: int
) -> None:
    check(schedule, with_cache(toys.flat_machine(1), capacity, line))


def test_a_second_reader_finds_what_the_first_one_read() -> None:
    """Eight rows of 16 bytes, read twice, written to two tensors."""
    machine = with_cache(toys.flat_machine(1), 3 * 8 * 16, 4)
    schedule = read_twice(8, 4, (2, 3), 0, is_ahead=False)
    mine, played = check(schedule, machine)
    assert mine == played == (8 * 16, 2 * 8 * 16)
    mine, _ = check(schedule, with_cache(machine, 2 * 8 * 16, 4))
    assert mine[0] == 2 * 8 * 16
    mine, _ = check(read_twice(8, 4, (1, 3), 1, is_ahead=False), machine)
    assert mine[0] == 15 * 16  # a row that the first one leaves out


@pytest.mark.parametrize("name", sorted(set(TREES) - {"chain_staged"}))
@pytest.mark.parametrize("capacity", [64, 256, 512, 1024, 2048, 1 << 14])
def test_nothing_is_claimed_of_many_layers_that_no_cache_would_do(name: str, capacity: int) -> None:
    """Fills are issued early here.  The order is that of issue: in that of simulated time, which
    such programs get afterwards, cores that share stand apart."""
    schedule, machine, _ = TREES[name]()
    schedule = replace(schedule, without=(Heuristic.TIME_ORDER,))
    home, *others = machine.levels
    cache = MemoryLevel("L2", capacity, 1, 32.0, 32.0, 10, 1.0, 1.0, Managed.CACHE, 4)
    check(schedule, replace(machine, levels=(home, cache, *others)))
