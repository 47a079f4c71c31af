"""Weighing against an independent count of a program's cycles and against every possible trim."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import ceil
from pathlib import Path

import numpy as np
import onnx
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx_models import saved

from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import LaunchUnit, Machine
from worker.compiler.partition.balance import NodeCosts
from worker.compiler.partition.mincut import CutProblem
from worker.compiler.partition.partition import partition
from worker.compiler.partition.plan import HOST, Action, Partitioning
from worker.compiler.partition.weigh import weigh
from worker.compiler.rejection import ReasonCode, Rejection

Edges = list[tuple[int, int]]
COPY = 40
"""Cycles to copy one value of the toy models over the toy link."""


def toy_model(edges: Edges, outputs: list[int], folder: Path) -> OnnxModel:
    """Node k adds two earlier values; value 0 is the model's input, value k + 1 node k's."""
    nodes = [
        helper.make_node("Add", [f"v{a}", f"v{b}"], [f"v{k + 1}"], name=f"n{k}")
        for k, (a, b) in enumerate(edges)
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "toy",
        [value("v0", TensorProto.FLOAT, [4])],
        [value(f"v{k + 1}", TensorProto.FLOAT, [4]) for k in outputs],
        value_info=[
            value(f"v{k + 1}", TensorProto.FLOAT, [4])
            for k in range(len(edges))
            if k not in outputs
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return load_model(saved(model, folder), Limits(), "toy")


def toy_machine(
    unit: LaunchUnit, launch: int, invocation: int, shared_memory: bool = False,
    gap: int | None = None,
) -> Machine:  # fmt: skip
    machine = load_preset("a100")
    target = replace(
        machine.targets[0], launch_unit=unit, launch_latency_cycles=launch, launch_gap_cycles=gap
    )
    host = replace(
        machine.host, link_latency_s=0.0, link_bytes_per_s=16 / COPY,
        launch_overhead_s=float(invocation), shared_memory=shared_memory,
    )  # fmt: skip
    return replace(machine, clock_hz=1.0, targets=(target,), host=host)


def count_cycles(
    edges: Edges, outputs: list[int], region_of: list[int], machine: Machine, costs: NodeCosts
) -> int:
    """The program's cycles by the rules of the documentation, counted from scratch.

    `region_of` is the region of every node, -1 on the host.
    """
    cycles = 0
    target = machine.targets[0]
    latency, gap = machine.launch_latency(target), machine.launch_gap(target)
    for k, region in enumerate(region_of):
        work = costs.host_cycles[k] if region < 0 else costs.accelerator_cycles[k]
        cycles += work
        if region >= 0 and work and target.launch_unit is LaunchUnit.KERNEL:
            cycles += gap
    busy = {r for k, r in enumerate(region_of) if r >= 0 and costs.accelerator_cycles[k]}
    # The first kernel of a region finds the device idle.
    cycles += (latency - gap * (target.launch_unit is LaunchUnit.KERNEL)) * len(busy)
    for value in range(len(edges) + 1):
        users = [k for k, sources in enumerate(edges) if value in sources]
        sides = [region_of[k] >= 0 for k in users]
        made_on_host = value == 0 or region_of[value - 1] < 0
        leaves = value > 0 and value - 1 in outputs
        crosses = any(sides) if made_on_host else leaves or not all(sides)
        if crosses and not machine.host.shared_memory:
            cycles += COPY
    return cycles + host_parts(edges, region_of) * ceil(machine.host.launch_overhead_s)


def host_parts(edges: Edges, region_of: list[int]) -> int:
    """Most changes from not-host to host on any path, found by walking backwards."""
    step = [("h", k) if r < 0 else ("r", r) for k, r in enumerate(region_of)]
    before: dict[tuple[str, int], set[tuple[str, int]]] = {s: set() for s in step}
    for k, sources in enumerate(edges):
        before[step[k]].update(step[s - 1] for s in sources if s and step[s - 1] != step[k])

    def most(at: tuple[str, int], host_follows: bool) -> int:
        is_host = at[0] == "h"
        inner = max((most(b, is_host) for b in before[at]), default=0)
        return inner + int(is_host and not host_follows)

    return max((most(at, False) for at in before), default=0)


def regions_of(found: Partitioning, count: int) -> list[int]:
    region_of = [-1] * count
    for number, part in enumerate(found.regions):
        for node in part.nodes:
            region_of[node] = number
    return region_of


def convex_subsets(region: tuple[int, ...], edges: Edges) -> Iterator[tuple[int, ...]]:
    """Every subset of a region that no path of the model leaves and enters again."""
    count = len(edges)
    reach = [[False] * count for _ in range(count)]
    for k, sources in enumerate(edges):
        for s in {s - 1 for s in sources if s}:
            for a in range(count):
                reach[a][k] = reach[a][k] or a == s or reach[a][s]
    for bits in product([False, True], repeat=len(region)):
        kept = {node for node, bit in zip(region, bits, strict=True) if bit}
        between = {
            k
            for k in range(count)
            if any(reach[a][k] for a in kept) and any(reach[k][b] for b in kept)
        }
        if between <= kept:
            yield tuple(sorted(kept))


def cheapest(
    edges: Edges, outputs: list[int], base: Partitioning, machine: Machine, costs: NodeCosts
) -> int:
    """Least cycles over every choice of a convex subset of every region."""
    best = None
    choices = [list(convex_subsets(part.nodes, edges)) for part in base.regions]
    for picked in product(*choices):
        region_of = [-1] * len(edges)
        for number, nodes in enumerate(picked):
            for node in nodes:
                region_of[node] = number
        cycles = count_cycles(edges, outputs, region_of, machine, costs)
        best = cycles if best is None else min(best, cycles)
    assert best is not None
    return best


def sinks(edges: Edges) -> list[int]:
    return [k for k in range(len(edges)) if all(k + 1 not in sources for sources in edges)]


Problem = tuple[Edges, list[int], list[int], list[int], LaunchUnit, tuple[int, int], int]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    count = draw(st.integers(1, 9))
    edges = [(draw(st.integers(0, k)), draw(st.integers(0, k))) for k in range(count)]
    on_host = [k for k in range(count) if draw(st.integers(0, 3)) == 0]
    cycles = st.lists(st.integers(0, 200), min_size=count, max_size=count)
    unit = draw(st.sampled_from(list(LaunchUnit)))
    return (
        edges, on_host, draw(cycles), draw(cycles), unit,
        draw(st.sampled_from([(0, 0), (5, 5), (60, 60), (60, 5), (25, 0)])),
        draw(st.sampled_from([0, 30])),
    )  # fmt: skip


def solve(problem: Problem) -> tuple[Partitioning, Partitioning, Machine, NodeCosts]:
    edges, on_host, fast, slow, unit, (launch, gap), invocation = problem
    machine = toy_machine(unit, launch, invocation, gap=gap)
    costs = NodeCosts(tuple(fast), tuple(slow))
    refused = {f"n{k}": Rejection(ReasonCode.DOES_NOT_FIT, "by the test") for k in on_host}
    with tempfile.TemporaryDirectory() as folder:
        model = toy_model(edges, sinks(edges), Path(folder))
        base = partition(model, machine, refused)
        return base, weigh(model, machine, base, costs), machine, costs


@given(problems())
def test_weighing_never_costs_more_and_every_row_says_why(problem: Problem) -> None:
    edges, on_host, *_ = problem
    base, found, machine, costs = solve(problem)
    outputs = sinks(edges)
    before = count_cycles(edges, outputs, regions_of(base, len(edges)), machine, costs)
    after = count_cycles(edges, outputs, regions_of(found, len(edges)), machine, costs)
    assert after <= before
    assert sorted(k for part in found.parts for k in part.nodes) == list(range(len(edges)))
    part_of = {k: p for p, part in enumerate(found.parts) for k in part.nodes}
    for k, sources in enumerate(edges):
        assert all(part_of[s - 1] <= part_of[k] for s in sources if s)
    on_accelerator = {k for part in found.regions for k in part.nodes}
    for k, row in enumerate(found.placement):
        assert (row.target != HOST) is (k in on_accelerator)
        if k in on_host:
            assert row.reason_code is ReasonCode.DOES_NOT_FIT
        elif k not in on_accelerator:
            assert row.reason_code is ReasonCode.WEIGHED
            assert "cheaper" in row.reason
    assert len(found.decisions) == len(base.regions)
    in_model_order = sorted(base.regions, key=lambda part: part.nodes[0])
    for part, decision in zip(in_model_order, found.decisions, strict=True):
        left = on_accelerator & set(part.nodes)
        if decision.action is Action.DROPPED:
            assert not left
        elif decision.action is Action.TRIMMED:
            assert 0 < len(left) < len(part.nodes)
        else:
            assert left == set(part.nodes)
        assert decision.host_cycles == sum(costs.host_cycles[k] for k in part.nodes)
        assert decision.accelerator_cycles == sum(costs.accelerator_cycles[k] for k in part.nodes)


def random_problems(count: int, seed: int) -> Iterator[Problem]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        size = int(rng.integers(4, 9))
        edges = [
            (int(rng.integers(0, k + 1)), int(rng.integers(max(0, k - 2), k + 1)))
            for k in range(size)
        ]
        on_host = [k for k in range(size) if rng.random() < 0.25]
        fast = [int(c) for c in rng.integers(0, 60, size)]
        slow = [int(c) for c in rng.integers(0, 150, size)]
        unit = LaunchUnit.KERNEL if rng.random() < 0.5 else LaunchUnit.REGION
        launch, invocation = int(rng.integers(0, 40)), int(rng.integers(0, 40))
        yield edges, on_host, fast, slow, unit, (launch, launch // (1 + size % 3)), invocation


def test_weighing_finds_the_cheapest_trim_nearly_always() -> None:
    """Against every combination of convex subsets, joins excluded (they only lower it)."""
    equal = total = worst = 0
    for problem in random_problems(100, 11):
        edges = problem[0]
        base, found, machine, costs = solve(problem)
        if not base.regions:
            continue
        outputs = sinks(edges)
        least = cheapest(edges, outputs, base, machine, costs)
        got = count_cycles(edges, outputs, regions_of(found, len(edges)), machine, costs)
        total += 1
        equal += got <= least
        worst = max(worst, 100 * (got - least) // max(1, least))
    assert total >= 80
    assert equal >= 0.95 * total, f"{equal} of {total} are optimal"
    assert worst <= 10, f"{worst} % above the cheapest"


def test_without_invocations_one_cut_is_optimal_for_one_region() -> None:
    """Head and tail trims, one region, no host part costs: the cuts must reach the optimum."""
    edges = [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]
    problem: Problem = (
        edges, [], [90, 10, 10, 10, 90], [5, 99, 99, 99, 5], LaunchUnit.REGION, (7, 7), 0
    )  # fmt: skip
    base, found, machine, costs = solve(problem)
    assert [part.nodes for part in found.regions] == [(1, 2, 3)]
    assert found.decisions[0].action is Action.TRIMMED
    got = count_cycles(edges, [4], regions_of(found, 5), machine, costs)
    assert got == cheapest(edges, [4], base, machine, costs) == 5 + 30 + 5 + 7 + 2 * COPY


def test_a_region_not_worth_its_transfers_is_dropped(tmp_path: Path) -> None:
    model = toy_model([(0, 0), (1, 1)], [1], tmp_path)
    machine = toy_machine(LaunchUnit.KERNEL, 10, 0)
    base = partition(model, machine, {})
    found = weigh(model, machine, base, NodeCosts((5, 5), (50, 50)))
    # 10 work + 20 launches + 80 copies against 100
    assert not found.regions
    decision = found.decisions[0]
    assert (decision.accelerator_cycles, decision.transfer_cycles) == (10, 2 * COPY)
    assert (decision.launch_cycles, decision.host_cycles) == (20, 100)
    assert decision.action is Action.DROPPED
    assert "110 cycles" in decision.sentence
    assert "100 on the host" in decision.sentence
    assert "by 10 cycles" in decision.sentence
    shared = toy_machine(LaunchUnit.KERNEL, 10, 0, shared_memory=True)
    kept = weigh(model, shared, base, NodeCosts((5, 5), (50, 50)))
    assert kept.decisions[0].action is Action.KEPT
    assert kept.decisions[0].transfer_cycles == 0


def test_one_region_pays_the_latency_once_and_a_gap_a_kernel(tmp_path: Path) -> None:
    model = toy_model([(0, 0), (1, 1)], [1], tmp_path)
    machine = toy_machine(LaunchUnit.KERNEL, 40, 0, shared_memory=True, gap=3)
    found = weigh(model, machine, partition(model, machine, {}), NodeCosts((5, 5), (50, 50)))
    # 10 work + 40 for the first + 3 behind it against 100
    assert found.decisions[0].launch_cycles == 40 + 3
    assert found.decisions[0].action is Action.KEPT


def test_two_regions_are_dropped_together_where_neither_alone_pays(tmp_path: Path) -> None:
    # region, host, region with a value that goes around: one region alone would still copy it
    edges = [(0, 0), (1, 1), (2, 1)]
    model = toy_model(edges, [2], tmp_path)
    machine = toy_machine(LaunchUnit.KERNEL, 0, 0)
    refused = {"n1": Rejection(ReasonCode.DOES_NOT_FIT, "by the test")}
    base = partition(model, machine, refused)
    assert len(base.regions) == 2
    found = weigh(model, machine, base, NodeCosts((0, 0, 0), (60, 10, 60)))
    assert not found.regions


def test_independent_regions_share_one_launch(tmp_path: Path) -> None:
    edges = [(0, 0), (0, 0)]
    model = toy_model(edges, [0, 1], tmp_path)
    costs = NodeCosts((5, 5), (900, 900))
    for unit, count in ((LaunchUnit.REGION, 1), (LaunchUnit.KERNEL, 2)):
        machine = toy_machine(unit, 50, 0)
        found = weigh(model, machine, partition(model, machine, {}), costs)
        assert len(found.regions) == count
        expected = Action.JOINED if count == 1 else Action.KEPT
        assert [d.action for d in found.decisions] == [expected] * 2


def test_cut_keeps_ties_on_the_source_side_and_scales_large_costs() -> None:
    problem = CutProblem(2)
    problem.costs_on_source_side(0, 5)
    problem.costs_on_sink_side(0, 5)
    problem.costs_on_source_side(1, 2**45)
    problem.costs_on_sink_side(1, 2**40)
    assert problem.solve() == [True, False]


@given(st.data())
def test_cuts_are_cheapest(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    cost = st.integers(0, 9)
    single = [(data.draw(cost), data.draw(cost)) for _ in range(count)]
    index = st.integers(0, count - 1)
    pairs = data.draw(st.lists(st.tuples(index, index, cost), max_size=6))
    forced = data.draw(st.lists(st.tuples(index, index), max_size=3))
    problem = CutProblem(count)
    for item, (on_source, on_sink) in enumerate(single):
        problem.costs_on_source_side(item, on_source)
        problem.costs_on_sink_side(item, on_sink)
    for a, b, c in pairs:
        if a != b:
            problem.costs_when_split(a, b, c)
    for a, b in forced:
        if a != b:
            problem.implies(a, b)

    def price(stays: tuple[bool, ...]) -> int | None:
        if any(stays[a] and not stays[b] for a, b in forced):
            return None
        own = sum(s if keep else t for (s, t), keep in zip(single, stays, strict=True))
        return own + sum(c for a, b, c in pairs if stays[a] and not stays[b])

    prices = {s: p for s in product([False, True], repeat=count) if (p := price(s)) is not None}
    least = min(prices.values())
    got = tuple(problem.solve())
    assert prices[got] == least
    assert sum(got) == max(sum(s) for s, p in prices.items() if p == least)
