"""Fills of a cluster's buffer are issued as late as home's port allows."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multi_layer_schedules import ChainShape, chain, machine

from worker.compiler.isa.program import Opcode, UnitProgram
from worker.compiler.lower.issue import prefetches
from worker.compiler.lower.lower import lower_unit
from worker.compiler.lower.order.layers import early_fills
from worker.compiler.lower.order.level import latest_starts, leveled, stretched
from worker.compiler.lower.resolve import flatten, resolve
from worker.compiler.machine.machine import EngineKind, Machine
from worker.simulator.run import simulate_unit

JOBS = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), max_size=8)


def is_feasible(spare: list[int], jobs: list[tuple[int, int]], first: int, start: int) -> bool:
    """Whether jobs from `first` on, in order, meet their deadlines when the first begins then."""
    for last in range(first, len(jobs)):
        deadline = jobs[last][0]
        if sum(time for _, time in jobs[first : last + 1]) > sum(spare[start:deadline]):
            return False
    return True


@given(st.lists(st.integers(0, 12), min_size=6, max_size=6), JOBS)
def test_starts_are_the_latest_that_meet_every_deadline(
    spare: list[int], jobs: list[tuple[int, int]]
) -> None:
    jobs = sorted(jobs)
    starts = latest_starts(spare, jobs)
    assert all(a <= b for a, b in pairwise(starts) if b)
    for k, start in enumerate(starts):
        assert 0 <= start < jobs[k][0]
        if is_feasible(spare, jobs, k, 0):
            assert is_feasible(spare, jobs, k, start)
            later = start + 1
            assert later == jobs[k][0] or not is_feasible(spare, jobs, k, later)
        else:
            assert start == 0


@given(st.lists(st.integers(0, 12), min_size=6, max_size=6), JOBS)
def test_periods_are_stretched_by_the_worst_lateness_and_no_more(
    spare: list[int], jobs: list[tuple[int, int]]
) -> None:
    jobs = sorted(jobs)
    found = [int(time) for time in stretched(spare, jobs)]
    late = [
        sum(time for _, time in jobs[: k + 1]) - sum(spare[:deadline])
        for k, (deadline, _) in enumerate(jobs)
    ]
    assert all(new >= old for new, old in zip(found, spare, strict=True))
    assert sum(found) - sum(spare) == max([0, *late])
    assert is_feasible(found, jobs, 0, 0)


def reach(on: Machine, layers: int = 6) -> dict[int, int]:
    """Layers ahead by layer, for a chain whose weights pass the cluster's buffer."""
    schedule, on, _ = chain(ChainShape(layers=layers, staged=True), on)
    nest = flatten(schedule, on)
    refs = resolve(nest, on)
    early = early_fills(nest, refs, prefetches(nest, refs), on)
    found = leveled(nest, early, on, len(nest.leaves))
    layer_of = {fill.leaf: fill.layer for fill in early}
    return {layer_of[leaf]: ahead for leaf, ahead in found.items()}


def fed(on: Machine, rate: float) -> Machine:
    """Transfers into GB get an engine of their own, home's port that many bytes per cycle."""
    home, *others = on.levels
    home = replace(home, read_bytes_per_cycle=rate, latency_cycles=0)
    (load,) = on.engines_of(EngineKind.DMA_IN)
    engines = (*on.engines, replace(load, name="gb_in", memory="GB"))
    return replace(on, levels=(home, *others), engines=engines)


def test_fills_are_asked_one_layer_ahead_of_a_fast_home_and_a_hopeless_one() -> None:
    """What comes late anyway shall not hold buffers of the first layers."""
    on = machine(2, 1, gb_bytes=1 << 16)
    for rate in (1e6, 1e-3):
        found = reach(fed(on, rate))
        assert found and set(found.values()) == {1}


def test_a_long_latency_makes_no_layer_longer() -> None:
    """Latencies of fills run side by side: all are asked for as early as there are layers."""
    on = fed(machine(2, 1, gb_bytes=1 << 16), 1e6)
    home, *others = on.levels
    late = replace(on, levels=(replace(home, latency_cycles=100_000), *others))
    assert reach(late) == {layer: layer for layer in range(1, 6)}


def test_what_comes_late_anyway_is_not_asked_for_first() -> None:
    spare, jobs = [4.0, 4.0, 4.0], [(1, 2.0), (2, 20.0), (3, 20.0)]
    assert latest_starts(spare, jobs) == [0, 0, 0]
    assert stretched(spare, jobs) == [4, 18, 20]
    assert latest_starts(stretched(spare, jobs), jobs) == [0, 0, 2]


def test_the_second_layer_s_weights_come_under_the_first_layer_s_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are listed in front of it (before the program is put in the order of time, which is
    switched off here); their engine is their own, so the list alone costs no cycles."""
    monkeypatch.setattr(
        "worker.compiler.lower.lower.in_time_order", lambda table, tokens, *_: (table, tokens)
    )
    on = fed(machine(2, 1, gb_bytes=1 << 20, l1_bytes=1 << 16), 4.0)
    schedule, _, _ = chain(ChainShape(layers=2, rows=16, width=64, chunk=16, staged=True), on)
    early = lower_unit(schedule, on, "s")
    monkeypatch.setattr("worker.compiler.lower.order.layers.first_work", lambda root: "")
    late = lower_unit(schedule, on, "s")
    first, behind = (order_of_second_weights(program) for program in (early, late))
    assert first[0] < first[1]
    assert behind[0] > behind[2]
    assert simulate_unit(early, on).cycles <= simulate_unit(late, on).cycles


def test_weights_of_later_layers_come_behind_the_first_layer_s_input() -> None:
    """The input of a section is brought in inside of its loop over clusters."""
    on = fed(machine(2, 1, gb_bytes=1 << 20, l1_bytes=1 << 16), 4.0)
    shape = ChainShape(layers=3, rows=16, width=64, chunk=16, staged=True, given_in_gb=True)
    program = lower_unit(chain(shape, on)[0], on, "s")
    assert fills_of_gb(program) == ["x0", "w1", "w2", "w3"]
    fill, first_product, _ = order_of_second_weights(program)
    assert fill < first_product


def fills_of_gb(program: UnitProgram) -> list[str]:
    """Tensors brought to GB from home, in program order."""
    rows = program.instructions
    buffers = [program.buffers[k] for k in rows["dst"][rows["src"] < 0].tolist() if k >= 0]
    return [b.tensor for b in buffers if b.level == "GB"]


def order_of_second_weights(program: UnitProgram) -> tuple[int, int, int]:
    """Positions of the fill of w2 in GB, and of the first layer's first and last product."""
    rows = program.instructions
    to = [program.buffers[int(k)] if k >= 0 else None for k in rows["dst"]]
    (fill,) = (k for k, b in enumerate(to) if b and (b.tensor, b.level) == ("w2", "GB"))
    products = [
        k for k, row in enumerate(rows) if row["opcode"] == Opcode.COMPUTE and int(row["op"]) == 0
    ]
    return fill, products[0], products[-1]
