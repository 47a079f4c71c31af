"""Accesses to the same bytes stay apart in time, in every order that lowering considers.

Which accesses those are is found by walking the tree (`lower_oracle`): nothing here knows of
storages, tiles or tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest
from graphturbo_nets import Net, clustered, scheduled
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from lower_oracle import Byte, Walk, order_of_events
from multi_layer_schedules import TREES
from random_nets import images, machines, rows
from tiled_schedules import two_layers

from worker.compiler.audit.audit import audit
from worker.compiler.clock.run import run_unit
from worker.compiler.errors import VerifyError
from worker.compiler.heuristics import Heuristic
from worker.compiler.ir.graph import Graph
from worker.compiler.isa.program import UnitProgram
from worker.compiler.lower import lower as lowering
from worker.compiler.lower.lower import lower_unit
from worker.compiler.lower.order.sync import Tokens
from worker.compiler.lower.order.time_order import Moves, orders
from worker.compiler.lower.rows import storage
from worker.compiler.lower.rows.tiles import TilePieces
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule
from worker.simulator.repeats import busy_cycles

TIGHT = clustered(clusters=2, cores=2, gb_bytes=1 << 14, l1_bytes=1 << 12)
"""Its buffers are used by one tensor after the other."""


def meetings(schedule: Schedule, machine: Machine, program: UnitProgram) -> int:
    """How many accesses have to come after another one of the same byte; asserts that each starts
    when all of those have finished."""
    walk = Walk(schedule, machine, program)
    begin, end = times(program, machine)
    late: dict[Byte, int] = {}
    """When the last write of a byte ends."""
    later: dict[Byte, int] = {}
    """When the last access of it does."""
    found = 0
    of_event = {e: k for k, e in enumerate(order_of_events(program, walk))}
    for number, event in enumerate(walk.events):
        k = of_event[number]
        for bytes_, ends in ((event.reads, late), (event.writes, later)):
            for byte in bytes_ & ends.keys():
                assert ends[byte] <= begin[k], (event.path, byte)
                found += 1
        for byte in event.writes:
            late[byte] = max(late.get(byte, 0), end[k])
        for byte in event.reads | event.writes:
            later[byte] = max(later.get(byte, 0), end[k])
    return found


def times(program: UnitProgram, machine: Machine) -> tuple[list[int], list[int]]:
    """Start and finish of every instruction, by the simulator's clock."""
    run = run_unit(program, machine)
    entry = np.argsort(run.row)
    busy = [busy_cycles(program, run, e) for e in entry.tolist()]
    latency = program.instructions["latency"]
    return run.begin[entry].tolist(), (run.begin[entry] + busy + latency).tolist()


def residual(samples: int, size: int) -> Graph:
    net = Net()
    x = net.given(samples, 4, size, size)
    for k in range(3):
        stride = 2 if k == 2 else 1
        y = net.relu(net.conv(x, 8 * (1 + k // 2), 3, stride))
        x = net.add(y, net.conv(x, 8 * (1 + k // 2), 1, stride))
    return net.graph(x)


@cache
def tight_schedule(samples: int, size: int) -> Schedule:
    return scheduled(residual(samples, size), TIGHT)


@pytest.mark.parametrize("number", range(3))
def test_in_each_order_by_time(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def ordered(table: Any, tokens: Tokens, ports: Any, moves: Moves) -> Any:
        order = list(orders(table, tokens, ports, moves))[number]
        assert not np.array_equal(order, np.arange(len(table)))
        return table[order], moves.tokens(order)

    monkeypatch.setattr(lowering, "in_time_order", ordered)
    schedule = tight_schedule(2, 8)
    assert meetings(schedule, TIGHT, lower_unit(schedule, TIGHT, "s")) > 10000


BROKEN: dict[str, tuple[object, str, Callable[..., object]]] = {
    "windows meet one piece": (
        TilePieces, "met", lambda *args, found=TilePieces.met: islice(found(*args), 1)
    ),
    "addresses are not shared": (storage.Storages, "shares_addresses", lambda *_: False),
}  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN)
def test_it_is_seen_where_they_do_not(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*BROKEN[broken])
    schedules = [(tight_schedule(2, 8), TIGHT), two_layers(halo=9, vector=64.0)]
    harmful = 0
    for schedule, machine in schedules:
        program = lower_unit(schedule, machine, "s")
        try:
            meetings(schedule, machine, program)
        except AssertionError:
            harmful += 1
    assert harmful, "this change breaks nothing here"


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("without", [(), (Heuristic.TILES,)])
def test_in_trees_written_by_hand(name: str, without: tuple[Heuristic, ...]) -> None:
    made, machine, _ = TREES[name]()
    schedule = Schedule(made.graph, made.root, "hand", 0, without)
    assert meetings(schedule, machine, lower_unit(schedule, machine, "s")) > 0


@given(graph=st.one_of(images(), rows()), machine=machines(), number=st.integers(0, 3))
@COSTLY
def test_in_random_units(graph: Graph, machine: Machine, number: int) -> None:
    try:
        schedule = scheduled(graph, machine, number=number)
    except AssertionError:
        return  # nothing fits
    plain = replace(schedule, without=(Heuristic.TILES,))
    try:
        audit(plain, lower_unit(plain, machine, "s"), machine)
    except VerifyError:
        return  # the schedule itself is wrong: it stores what is recomputed twice
    assert meetings(schedule, machine, lower_unit(schedule, machine, "s")) > 0
