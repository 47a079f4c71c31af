"""What a search for tiles asks of the machine does not grow with the tilings that it tries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from toy_schedules import machine as toy_machine

from worker.compiler.cost.compute import EngineRate
from worker.compiler.ir.affine import var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Access, Origin, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Fn, Read
from worker.compiler.machine.machine import Machine, Managed
from worker.compiler.tiling.nest import price
from worker.compiler.tiling.nest.facts import Facts, facts_of
from worker.compiler.tiling.nest.levels import Sizes, StageFrame, levels_of
from worker.compiler.tiling.nest.plan import comes_early, stages_of
from worker.compiler.tiling.nest.price import Pricer
from worker.compiler.tiling.nest.search import MOST_LEAVES, loop_orders, ordered_plans, search


def matmul(size: int) -> Facts:
    op = TensorOp(
        "mm", (Axis("m", size), Axis("n", size), Axis("k", size, AxisKind.REDUCE)),
        (Access("a", (var("m"), var("k"))), Access("b", (var("k"), var("n")))),
        Access("c", (var("m"), var("n"))), Apply(Fn.MUL, (Read(0), Read(1))), Reduce.ADD,
        Origin((), "unit"),
    )  # fmt: skip
    return facts_of(op, {name: Tensor(name, (size, size), DType.F32) for name in "abc"})


class Counts:
    """Calls of what is looked up once, and of what is done per tiling."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: Counter[str] = Counter()
        route, pace, priced = Machine.route, price.pace_of, Pricer.best

        def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **more: Any) -> Any:
                self.of[name] += 1
                return call(*args, **more)

            return run

        monkeypatch.setattr(Machine, "route", counted("route", route))
        monkeypatch.setattr(price, "pace_of", counted("pace", pace))
        monkeypatch.setattr(Pricer, "best", counted("tilings", priced))


@pytest.mark.parametrize("size", [64, 1024])
def test_routes_and_paces_are_looked_up_once_per_search(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = toy_machine()
    counts = Counts(monkeypatch)
    memories = tuple(machine.scratchpads)
    plan = search(matmul(size), machine.engines[0], stages_of(machine, memories), machine)
    assert plan is not None
    assert counts.of["route"] <= 3 * len(memories)  # filled, drained, and sums brought back
    assert counts.of["pace"] == 1
    assert counts.of["tilings"] >= 5


def test_a_tile_is_worked_out_once_for_all_orders_and_all_tilings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine, facts = toy_machine(), matmul(64)
    stages = stages_of(machine, tuple(machine.scratchpads))
    tile, whole = (dict.fromkeys(facts.extents, size) for size in (4, 16))
    frame = StageFrame(facts, stages)
    written = [
        levels_of(frame, Sizes((outer, tile), double))
        for outer in (tile, whole)
        for double in (False, True)
    ]
    found = [levels for levels in written if levels is not None]
    assert len(found) == len(written)
    orders = loop_orders(facts)
    assert len(orders) > 1
    counts: list[tuple[int, ...]] = []
    cycles = EngineRate.cycles

    def counted(self: EngineRate, extents: tuple[int, ...], lanes: int = 1) -> int:
        counts.append(extents)
        return cycles(self, extents, lanes)

    monkeypatch.setattr(EngineRate, "cycles", counted)
    pricer = Pricer(facts, machine.engines[0], stages, machine)
    plans = ordered_plans(pricer, found, orders)
    assert counts == [(4, 4, 4)]
    assert plans == [plan for levels in found for plan in ordered_plans(pricer, [levels], orders)]


def test_only_fills_of_outer_memories_come_early() -> None:
    """Those of the cores' own wait in the queue of the activations, where there is another way."""
    machine = toy_machine()
    gb, l1 = machine.scratchpads
    facts = replace(matmul(64), early=frozenset("b"))
    staged, direct = stages_of(machine, (gb, l1)), stages_of(machine, (l1,))
    assert [comes_early(facts, "b", staged, k, machine) for k in (0, 1)] == [True, False]
    assert not comes_early(facts, "b", direct, 0, machine)
    assert not any(comes_early(facts, "a", staged, k, machine) for k in (0, 1))
    home = machine.levels[0]
    alone = replace(machine, levels=(home, replace(gb, managed=Managed.CACHE), l1))
    assert comes_early(facts, "b", stages_of(alone, (l1,)), 0, alone)


@pytest.mark.parametrize("early", [frozenset(), frozenset("b")])
def test_copies_into_the_cores_are_priced_as_any_operand_s(early: frozenset[str]) -> None:
    """What is hidden at GB is exposed again at L1: its copies cost as much as any operand's."""
    machine = toy_machine()
    stages = stages_of(machine, tuple(machine.scratchpads))
    facts = replace(matmul(64), early=early)
    found = Pricer(facts, machine.engines[0], stages, machine)
    ways = {
        (k, way.operand.tensor): way.is_early for k, p in enumerate(found.ports) for way in p.fills
    }
    assert ways == {(k, t): k == 0 and t in early for k in (0, 1) for t in "ab"}


def home_bound(*half: str) -> Machine:
    """One core behind a home that gives 1 byte a cycle and takes half of one, without latencies."""
    machine = toy_machine(1, l1_bytes=1 << 16)
    slow = {"read_bytes_per_cycle": 1.0, "write_bytes_per_cycle": 0.5}
    return replace(machine, levels=tuple(
        replace(m, latency_cycles=0, half_duplex=m.name in half,
                **(slow if m.name == "DDR" else {}))
        for m in machine.levels))  # fmt: skip


def cycles_of(machine: Machine, memories: tuple[str, ...], *, two_copies: bool) -> int:
    """A product of 16 x 16 matrices in tiles of 8 x 8, rows outside, through `memories`."""
    facts = matmul(16)
    stages = stages_of(machine, tuple(machine.level(name) for name in memories))
    tile = {"m": 8, "n": 8, "k": 16}
    levels = levels_of(StageFrame(facts, stages), Sizes((tile,) * len(stages), two_copies))
    assert levels is not None
    pricer = Pricer(facts, machine.engines[0], stages, machine)
    return int(pricer.ordered(levels, MOST_LEAVES).cycles[0])


def test_fills_and_drains_take_turns_at_a_port_of_both_directions() -> None:
    """Tiles of 512 bytes come twice (a) and four times (b), four of 256 bytes leave.

    Apart: fills take 3072 cycles, drains 2048; the last drain, 512, is not hidden, nor is the last
    step of computing, 1024 multiply-accumulates.  In turns: 3072 + 2048, of which it is one.
    """
    engine = toy_machine().engines[0]
    step = 1024 // int(engine.macs_per_cycle[DType.F32]) + engine.startup_cycles
    assert cycles_of(home_bound(), ("L1",), two_copies=True) == 3072 + step + 512
    assert cycles_of(home_bound("DDR"), ("L1",), two_copies=True) == 3072 + 2048
    # L1's port is 16 wide.
    assert cycles_of(home_bound("L1"), ("L1",), two_copies=True) == 3072 + step + 512
    # One copy takes turns anyway.
    alone = [cycles_of(home_bound(*half), ("L1",), two_copies=False) for half in ((), ("DDR",))]
    assert alone[0] == alone[1]


def test_all_that_passes_homes_port_adds_up() -> None:
    """Both operands to GB and the result from it: each byte once."""
    staged = cycles_of(home_bound("DDR"), ("GB", "L1"), two_copies=True)
    assert staged >= 6 * 512 + 4 * 256 * 2


@pytest.mark.parametrize("half", [False, True])
def test_units_that_fetch_the_same_through_a_cache_take_home_s_port_once(half: bool) -> None:
    """Two cores along m, home gives 1 byte a cycle and takes half of one: of the left operand each
    fetches its own half, of the right one both the same.  Through a cache that comes once."""
    machine = home_bound(*(("DDR",) if half else ()))
    home, gb, l1 = (replace(m, latency_cycles=0) for m in machine.levels[:3])
    cached = replace(gb, managed=Managed.CACHE, instances=1)
    for level, right in ((cached, 1024), (replace(cached, managed=Managed.SCRATCHPAD), 2048)):
        on = replace(
            machine, num_cores=2,
            levels=(home, level, replace(l1, instances=2), *machine.levels[3:]),
        )  # fmt: skip
        facts, stages = matmul(16), stages_of(on, (on.level(l1.name),))
        pricer = Pricer(facts, on.engines[0], stages, on)

        def cycles(columns: int, *, double: bool) -> float:
            tile = {"m": 8, "n": columns, "k": 16}
            levels = levels_of(StageFrame(facts, stages), Sizes((tile,), double))  # noqa: B023
            assert levels is not None
            assert levels[0].splits == {"m": 2}
            return float(pricer.ordered(levels, MOST_LEAVES).cycles[0])  # noqa: B023

        left, drained = 1024, 2048  # of both cores
        engine = on.engines[0]
        macs = int(engine.macs_per_cycle[DType.F32])
        # In one tile a core: home's port brings all; behind a cache the unit that comes first, with
        # what others ask for as well, waits for its own half alone.
        step = 8 * 16 * 16 // macs + engine.startup_cycles
        behind = left / 2 if level is cached else right / 2
        assert cycles(16, double=False) == left + right + behind + step + drained
        # In four tiles with two copies: what comes and what leaves take turns, if they have to.
        turning, found = left + right + drained, cycles(4, double=True)
        assert found == turning if half else found < turning
