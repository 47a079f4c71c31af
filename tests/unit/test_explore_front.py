"""The Pareto front, the proxy of areas, and estimates of kernels beside what is scheduled."""

from __future__ import annotations

from dataclasses import replace

import lower_toys as toys
import pytest
from algebra_graphs import conv
from hypothesis import given
from hypothesis import strategies as st
from machine_rates import with_every_format

from worker.compiler import descriptors
from worker.compiler.descriptors import StrategyDescriptor
from worker.compiler.errors import Shortfall
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.signature import canonicalize
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import load_preset, preset_document
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.strategies.base import Budget, Estimated
from worker.compiler.strategies.naive.descriptor import NaiveOptions
from worker.compiler.strategies.naive.estimate import estimate
from worker.compiler.strategies.naive.strategy import NAIVE
from worker.explore import chips
from worker.explore.area import ARRAY_SHARE, area_mm2, on_chip_bytes
from worker.explore.chips import unpriced
from worker.explore.front import front
from worker.simulator.run import simulate_unit

costs = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.tuples(*[st.integers(0, 4)] * width), max_size=40)
)


@given(costs)
def test_the_front_is_what_nobody_is_better_than(rows: list[tuple[int, ...]]) -> None:
    def is_better(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
        return one != other and all(a <= b for a, b in zip(one, other, strict=True))

    expected = [
        k for k, row in enumerate(rows)
        if row not in rows[:k] and not any(is_better(other, row) for other in rows)
    ]  # fmt: skip
    assert list(front(rows)) == expected


def test_areas_are_of_bit_cells_and_multipliers() -> None:
    machine = load_preset("kapla-16x16")
    only = replace(machine, engines=())
    cells_mm2 = 8 * on_chip_bytes(machine) * 0.127e-6 / ARRAY_SHARE  # TSMC's 28 nm cell
    assert on_chip_bytes(machine) == 256 * (32768 + 4096)
    assert area_mm2(only, 28) == pytest.approx(cells_mm2)
    # 64 products of fp16 need the most of the array, 4 of fp32 as much of the vector unit or more
    macs = 64 * (1640 + 1360) + max(4 * (7700 + 4184), 8 * (1640 + 1360))
    shrunk = (28 / 45) ** 2 * 256 * 1e-6
    formats = load_preset("kapla-16x16").engine("PE").macs_per_cycle
    assert max(formats.values()) == 64
    assert area_mm2(machine, 28) == pytest.approx(cells_mm2 + macs * shrunk)
    sizes = [area_mm2(only, nm) for nm in (5, 7, 10, 16, 20, 28, 45, 65)]
    assert sizes == sorted(sizes)


LAYERS = {
    "product": toys.matmul_graph(96, 200, 128),
    "convolution": conv(1, 24, 40, 28, 3, 1, 1),
}


@pytest.mark.parametrize("preset", ["kapla-16x16", "stcp920-inferred", "a100", "eyeriss"])
@pytest.mark.parametrize("name", LAYERS)
def test_an_estimate_is_near_what_is_simulated(preset: str, name: str) -> None:
    machine = with_every_format(load_preset(preset))
    graph = canonicalize(LAYERS[name]).graph
    found = estimated(graph, machine)
    offered = [
        one for one in NAIVE.candidates(graph, machine, budget=Budget(9)) if
        isinstance(one, Schedule)
    ]  # fmt: skip
    launch = machine.launch_latency_cycles
    best = min(offered, key=lambda one: one.predicted_cycles)
    assert found.cycles + launch == best.predicted_cycles
    assert 0 < found.least_cycles <= found.cycles
    run = simulate_unit(lower_unit(best, machine, "estimate"), machine)
    assert found.cycles == pytest.approx(run.cycles, rel=0.25)
    home = machine.home.name
    [traffic] = [row for row in run.traffic if row.level == home]
    # tiles that are cut at the end of an axis are predicted whole
    assert found.moved[home, "read"] == pytest.approx(traffic.read_bytes, rel=0.15)
    assert found.moved[home, "write"] == pytest.approx(traffic.write_bytes, rel=0.15)


@pytest.mark.parametrize(
    "preset", ["kapla-16x16", "kapla-edge", "eyeriss", "stcp920-inferred", "ipu-gc200"]
)
def test_energies_and_the_clock_decide_no_tiling_by_cycles(preset: str) -> None:
    machine = with_every_format(load_preset(preset))
    graph = canonicalize(LAYERS["convolution"]).graph
    plain = unpriced(machine)
    assert plain.port_energy(machine.home.name, "read") == 0 == plain.static_power_w
    assert estimated(graph, plain) == estimated(graph, machine)


def test_what_has_no_room_is_a_shortfall() -> None:
    machine = load_preset("kapla-16x16")
    small = replace(
        machine,
        levels=(machine.home, *(replace(m, capacity_bytes=16) for m in machine.levels[1:])),
    )
    graph = canonicalize(conv(1, 3, 4, 28, 7, 1, 0)).graph
    assert isinstance(estimate(graph, with_every_format(small), NaiveOptions()), Shortfall)


def estimated(graph: Graph, machine: Machine) -> Estimated:
    found = estimate(graph, machine, NaiveOptions())
    assert isinstance(found, Estimated)
    return found


def broken_estimate(*_: object) -> Estimated:
    raise RuntimeError("no idea")


def test_a_strategy_that_breaks_is_named_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chip that it breaks on has no figures; its name sorts before the last resort's."""
    plugin = StrategyDescriptor(
        name="aaa", version="7", help="breaks", implementation="x:y",
        estimate=f"{__name__}:broken_estimate",
    )  # fmt: skip
    every = {"aaa": plugin, **descriptors.strategies()}
    monkeypatch.setattr(descriptors, "strategies", lambda: every)
    monkeypatch.setattr(chips, "strategies", lambda: every)
    assert descriptors.estimating().is_last_resort
    machine = with_every_format(load_preset("kapla-16x16"))
    kernel = chips.Kernel(
        "k", ("n",), canonicalize(LAYERS["convolution"]).graph, "aaa", machine.targets[0].name, 1, 0
    )
    estimator = chips.Estimator(chips.Base((kernel,), 0.0, 0.0))
    row = estimator.row(preset_document("kapla-16x16"))
    assert row["refused"] == "aaa 7 failed at step estimate: RuntimeError: no idea"
