"""Program order that follows time: never slower, dependences as they were."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import timing_oracle
from graphturbo_nets import Net, clustered, scheduled
from hypothesis import given
from hypothesis import strategies as st
from wait_reference import all_waits

from worker.compiler.clock.run import Wiring
from worker.compiler.ir.graph import Graph
from worker.compiler.isa.program import INSTRUCTION, Opcode, Resource
from worker.compiler.lower import lower as lowering
from worker.compiler.lower.lower import lower_unit
from worker.compiler.lower.order.conflicts import latest_conflicts
from worker.compiler.lower.order.sync import Tokens
from worker.compiler.lower.order.time_order import Moves, in_time_order, orders
from worker.compiler.lower.rows.storage import Storages
from worker.compiler.lower.rows.touches import Touches
from worker.compiler.schedule.nodes import Schedule
from worker.simulator.run import simulate_unit

STREAMS, TOKENS = 4, 5
RATES = [1.0, 2.0, 4.0]
PORTS = tuple(Resource("M", k, "read", rate) for k, rate in enumerate(RATES))
WIRING = Wiring(PORTS, (0,) * STREAMS, (0, 0))


@dataclass(frozen=True)
class Step:
    """One instruction of a made-up program."""

    stream: int
    size: int
    ports: tuple[int, ...]
    cycles: int
    latency: int
    waits: tuple[int, ...]
    signals: tuple[int, ...]


def program(steps: list[Step]) -> tuple[np.ndarray, Tokens]:
    table = np.zeros(len(steps), dtype=INSTRUCTION)
    table["resource"] = -1
    seen: set[int] = set()
    waits: list[list[int]] = []
    for row, step in zip(table, steps, strict=True):
        row["stream"], row["bytes"], row["cycles"] = step.stream, step.size, step.cycles
        row["latency"] = step.latency
        row["resource"][: len(step.ports)] = step.ports
        waits.append([t for t in step.waits if t in seen])
        seen.update(step.signals)
    signals = [list(step.signals) for step in steps]
    return table, Tokens(*csr(waits), *csr(signals), TOKENS)


def csr(lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    pointer = np.cumsum([0, *(len(one) for one in lists)]).astype(np.int32)
    return pointer, np.array([t for one in lists for t in one], dtype=np.int32)


def starts(table: np.ndarray, tokens: Tokens) -> tuple[list[int], int]:
    """Start of every instruction and the last finish, by the plain rules."""
    steps = [
        timing_oracle.Step(
            int(row["stream"]), Opcode.LOAD, int(row["cycles"]), int(row["bytes"]), 0,
            int(row["latency"]), tuple(int(r) for r in row["resource"] if r >= 0),
            tuple(tokens.wait_token[tokens.wait_ptr[k] : tokens.wait_ptr[k + 1]].tolist()),
            tuple(tokens.signal_token[tokens.signal_ptr[k] : tokens.signal_ptr[k + 1]].tolist()),
        )
        for k, row in enumerate(table)
    ]  # fmt: skip
    found = timing_oracle.oracle(steps, RATES)
    return found.start, found.cycles


def some(most: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, most - 1), max_size=2, unique=True).map(tuple)


STEPS = st.lists(
    st.builds(
        Step, st.integers(0, STREAMS - 1), st.integers(0, 40), some(len(PORTS)), st.integers(0, 30),
        st.integers(0, 9), some(TOKENS), some(TOKENS),
    ),
    min_size=1, max_size=40,
)  # fmt: skip


def moves(tokens: Tokens, moving: tuple[int, ...]) -> Moves:
    """Streams that may change their order; an instruction stays behind all that it waits for."""
    signalled: dict[int, int] = {}
    latest = []
    for k in range(len(tokens.wait_ptr) - 1):
        waits = tokens.wait_token[tokens.wait_ptr[k] : tokens.wait_ptr[k + 1]].tolist()
        latest.append(max((signalled[t] for t in waits), default=-1))
        for t in tokens.signal_token[tokens.signal_ptr[k] : tokens.signal_ptr[k + 1]].tolist():
            signalled[t] = k

    def of(order: np.ndarray) -> Tokens:
        def lists(pointer: np.ndarray, token: np.ndarray) -> list[list[int]]:
            return [token[pointer[k] : pointer[k + 1]].tolist() for k in order]

        waits = csr(lists(tokens.wait_ptr, tokens.wait_token))
        return Tokens(*waits, *csr(lists(tokens.signal_ptr, tokens.signal_token)), TOKENS)

    streams = np.isin(np.arange(STREAMS), moving)
    return Moves(streams, np.array(latest, dtype=np.int64), of)


@pytest.mark.parametrize("moving", [(), (0, 1), (0, 1, 2, 3)])
@given(steps=STEPS)
def test_any_program_keeps_its_dependences_and_never_ends_later(
    moving: tuple[int, ...], steps: list[Step]
) -> None:
    table, tokens = program(steps)
    table["node"] = np.arange(len(table))  # numbers them, to be found again
    free = moves(tokens, moving)
    for order in orders(table, tokens, WIRING, free):
        is_kept(table, tokens, (table[order], free.tokens(order)), moving)
    new, found = in_time_order(table, tokens, WIRING, free)
    assert starts(new, found)[1] <= starts(table, tokens)[1]


def is_kept(
    table: np.ndarray, tokens: Tokens, order: tuple[np.ndarray, Tokens], moving: tuple[int, ...]
) -> None:
    """Asserts that a program in another order has all its instructions and dependences."""
    new, found = order
    assert sorted(new["node"].tolist()) == list(range(len(table)))
    place = {int(row["node"]): k for k, row in enumerate(new)}
    for s in range(STREAMS):
        numbers = new["node"][new["stream"] == s].tolist()
        assert s in moving or numbers == sorted(numbers), "the stream keeps its order"
    for k in range(len(table)):
        waits = tokens.wait_token[tokens.wait_ptr[k] : tokens.wait_ptr[k + 1]].tolist()
        at = place[k]
        assert found.wait_token[found.wait_ptr[at] : found.wait_ptr[at + 1]].tolist() == waits
        for j in range(k):
            signals = tokens.signal_token[tokens.signal_ptr[j] : tokens.signal_ptr[j + 1]]
            if set(waits).intersection(signals.tolist()):
                assert place[j] < at, "it comes after all that it waited for"


@pytest.mark.parametrize(("size", "expected"), [(50, 200), (60, 210)])
def test_a_transfer_passes_one_that_has_to_wait_if_it_is_done_before(
    size: int, expected: int
) -> None:
    """Stream 0's first transfer (10 bytes) waits for stream 1 until cycle 100.  The second one is
    done before, so it goes first, and the 150 cycles of stream 2 behind it begin early; one of 120
    bytes would not be done in time and stays behind."""
    steps = [
        Step(1, 0, (), 100, 0, (), (0,)),
        Step(0, 10, (0,), 0, 0, (0,), ()),
        Step(0, size, (0,), 0, 0, (), (1,)),
        Step(2, 0, (), 150, 0, (1,), ()),
    ]
    table, tokens = program(steps)
    assert starts(table, tokens) == ([0, 100, 110, 110 + size], 260 + size)
    kept, same = in_time_order(table, tokens, WIRING, moves(tokens, ()))
    assert starts(kept, same)[1] == 260 + size
    new, found = in_time_order(table, tokens, WIRING, moves(tokens, (0,)))
    assert starts(new, found) == ([0, 0, size, 100], expected)
    steps[2] = Step(0, 120, (0,), 0, 0, (), (1,))
    table, tokens = program(steps)
    kept, same = in_time_order(table, tokens, WIRING, moves(tokens, (0,)))
    assert starts(kept, same) == ([0, 100, 110, 230], 380)


def test_a_transfer_passes_one_that_waits_for_what_has_not_run() -> None:
    """Stream 0's first transfer waits for stream 1, which waits for stream 2 for 100 cycles: when
    it can start is not known at first.  Behind it stands one of 50 bytes that 150 cycles of stream
    3 wait for, and stream 3 uses the port from cycle 60 to 90.  In the first order it is too late
    for it at cycle 100; in the second it goes at once, as it is done before cycle 101, at which the
    one in front of it started in the first."""
    steps = [
        Step(2, 0, (), 100, 0, (), (0,)),
        Step(1, 0, (), 1, 0, (0,), (1,)),
        Step(0, 10, (0,), 0, 0, (1,), ()),
        Step(0, 50, (0,), 0, 0, (), (2,)),
        Step(3, 0, (), 60, 0, (), ()),
        Step(3, 30, (0,), 0, 0, (), ()),
        Step(3, 0, (), 150, 0, (2,), ()),
    ]
    table, tokens = program(steps)
    free = moves(tokens, (0,))
    ends = [starts(table[o], free.tokens(o))[1] for o in orders(table, tokens, WIRING, free)]
    assert ends == [101 + 10 + 50 + 150, 60 + 30 + 150, 60 + 30 + 150]
    assert starts(*in_time_order(table, tokens, WIRING, free))[1] == 240


@pytest.mark.parametrize("size", [101, 102])
def test_who_is_not_done_in_time_passes_in_the_last_order_alone(size: int) -> None:
    """As above, but 200 cycles of stream 1 wait for the transfer that is passed at cycle 101, and
    nobody for the other: to be passed by one that takes a cycle too long costs that cycle."""
    steps = [
        Step(2, 0, (), 100, 0, (), (0,)),
        Step(1, 0, (), 1, 0, (0,), (1,)),
        Step(0, 10, (0,), 0, 0, (1,), (3,)),
        Step(0, size, (0,), 0, 0, (), ()),
        Step(1, 0, (), 200, 0, (3,), ()),
    ]
    table, tokens = program(steps)
    free = moves(tokens, (0,))
    _, passed, eager = orders(table, tokens, WIRING, free)
    assert (passed.tolist().index(3) < passed.tolist().index(2)) == (size <= 101)
    assert starts(table[passed], free.tokens(passed))[1] == 101 + 10 + 200
    assert starts(table[eager], free.tokens(eager))[1] == size + 10 + 200
    assert starts(*in_time_order(table, tokens, WIRING, free))[1] == 311


def test_a_passing_transfer_waits_for_the_reader_of_its_bytes() -> None:
    """Stream 0's second transfer overwrites what stream 1 reads until cycle 30 (token 1); the first
    one waits for stream 2, and that for stream 3.  It may pass only when the reader is done."""
    steps = [
        Step(3, 0, (), 100, 0, (), (0,)),
        Step(1, 0, (), 30, 0, (), (1,)),
        Step(2, 0, (), 1, 0, (0,), (2,)),
        Step(0, 10, (0,), 0, 0, (2,), ()),
        Step(0, 20, (0,), 0, 0, (1,), (3,)),
        Step(1, 0, (), 200, 0, (3,), ()),
    ]
    table, tokens = program(steps)
    new, found = in_time_order(table, tokens, WIRING, moves(tokens, (0,)))
    new_starts, end = starts(new, found)
    place = {int(b): s for b, s in zip(new["bytes"], new_starts, strict=True) if b}
    assert (place[20], end) == (30, 250)


def test_a_stream_is_asked_again_when_a_conflict_is_over() -> None:
    """Stream 0's second transfer overwrites what stream 3 reads in cycles 5 to 35, its first one
    waits until cycle 101, and stream 2 uses their port from cycle 60 to 100.  When stream 0 is
    asked, at cycle 0, the reader has not run; who asks at cycle 100 again finds the port taken."""
    steps = [
        Step(3, 0, (), 5, 0, (), ()),
        Step(3, 0, (), 30, 0, (), (2,)),
        Step(2, 0, (), 60, 0, (), ()),
        Step(2, 40, (0,), 0, 0, (), (0,)),
        Step(1, 0, (), 1, 0, (0,), (1,)),
        Step(0, 10, (0,), 0, 0, (1,), ()),
        Step(0, 20, (0,), 0, 0, (2,), (3,)),
        Step(3, 0, (), 200, 0, (3,), ()),
    ]
    table, tokens = program(steps)
    free = moves(tokens, (0,))
    ends = [starts(table[o], free.tokens(o))[1] for o in orders(table, tokens, WIRING, free)]
    assert ends == [101 + 10 + 20 + 200, 35 + 20 + 200, 35 + 20 + 200]


def residual(samples: int, size: int) -> Graph:
    net = Net()
    x = net.given(samples, 4, size, size)
    for k in range(3):
        stride = 2 if k == 2 else 1
        y = net.relu(net.conv(x, 8 * (1 + k // 2), 3, stride))
        x = net.add(y, net.conv(x, 8 * (1 + k // 2), 1, stride))
    return net.graph(x)


TIGHT = clustered(clusters=2, cores=2, gb_bytes=1 << 14, l1_bytes=1 << 12)


@cache
def tight_schedule(samples: int, size: int) -> Schedule:
    """On a machine whose buffers are used by one tensor after the other."""
    return scheduled(residual(samples, size), TIGHT)


@pytest.mark.parametrize(("samples", "size"), [(1, 12), (4, 12)])
def test_units_of_many_layers_end_earlier_and_nothing_else_changes(
    samples: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = clustered(clusters=2, cores=2, gb_bytes=1 << 16, l1_bytes=1 << 13)
    schedule = scheduled(residual(samples, size), machine)
    new = simulate_unit(lower_unit(schedule, machine, "s"), machine)
    monkeypatch.setattr(lowering, "in_time_order", lambda table, tokens, *_: (table, tokens))
    old = simulate_unit(lower_unit(schedule, machine, "s"), machine)
    assert new.cycles < old.cycles
    assert (new.traffic, new.macs, new.instructions) == (old.traffic, old.macs, old.instructions)
    assert all(check.passed for check in new.checks), new.checks


@pytest.mark.parametrize("most", [0, 1 << 40])
def test_who_passes_waits_for_everything_where_that_can_be_listed(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeated waits, which tokens leave out, hold back what comes out of its stream's order."""
    seen: dict[str, Any] = {}

    def kept(table: Any, tokens: Tokens, wiring: Any, moves: Moves) -> Any:
        seen.update(tokens=tokens, moves=moves)
        return table, tokens

    def all_conflicts(touches: Touches, storages: Storages) -> Any:
        seen.update(touches=touches, storages=storages)
        return latest_conflicts(touches, storages)

    monkeypatch.setattr(lowering, "MANY_WAITS", most)
    monkeypatch.setattr(lowering, "latest_conflicts", all_conflicts)
    monkeypatch.setattr(lowering, "in_time_order", kept)
    lower_unit(tight_schedule(4, 8), TIGHT, "s")
    full = seen["moves"].full
    if not most:
        assert full is None
        return
    order = list(range(seen["touches"].count))
    want = all_waits(seen["touches"], seen["storages"].extents, order)
    assert np.diff(full.wait_ptr).tolist() == [len(tokens) for tokens in want]
    assert len(full.wait_token) > len(seen["tokens"].wait_token)
