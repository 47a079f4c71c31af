"""The variant `paper`: the order of instances decides the tree, what is on chip, and cycles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest
from graphturbo_nets import (
    Net,
    check_as_c,
    check_meaning,
    clustered,
    down_sampled,
    lowered,
    scheduled,
    towers,
    unit_context,
)

from worker.compiler.errors import Shortfall, VerifyError
from worker.compiler.ir.graph import Graph
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Compute, Loop, Move, Node, Place, Schedule, Seq
from worker.compiler.schedule.text import print_schedule
from worker.compiler.schedule.verify import verify
from worker.compiler.schedule.walk import walk
from worker.compiler.strategies.graphturbo import paper
from worker.compiler.strategies.graphturbo.descriptor import GraphTurboOptions, Variant
from worker.compiler.strategies.graphturbo.paper import paper_plans
from worker.compiler.strategies.graphturbo.section_plan import SectionPlan
from worker.compiler.strategies.graphturbo.strategy import GraphTurboStrategy
from worker.compiler.strategies.graphturbo.summary import OrderName, UnitSummary, read_summary
from worker.simulator.results import UnitSimulation
from worker.simulator.run import simulate_unit

BFS, DFS, EXACT = OrderName.BFS, OrderName.DFS, OrderName.EXACT
NARROW = clustered(clusters=2, cores=2, gb_bytes=8 << 10, l1_bytes=1 << 11)
ROOMY = clustered(clusters=2, cores=2, gb_bytes=11 << 10, l1_bytes=1 << 11)


CASES = {
    "towers": (towers, NARROW),
    "towers, roomy": (towers, ROOMY),
    "down": (down_sampled, ROOMY),
}


def offered(graph: Graph, on: Machine) -> list[Schedule | Shortfall]:
    return list(GraphTurboStrategy().candidates(graph, on, GraphTurboOptions(Variant.PAPER)))


@cache
def candidates(case: str) -> tuple[Schedule, ...]:
    net, on = CASES[case]
    return tuple(found for found in offered(net(), on) if isinstance(found, Schedule))


def summary_of(schedule: Schedule) -> UnitSummary:
    return read_summary(schedule.notes[0])


def order_of(schedule: Schedule) -> OrderName:
    [chosen] = [o.name for o in summary_of(schedule).orders if o.chosen]
    return chosen


def by_order(case: str) -> dict[OrderName, Schedule]:
    """The first candidate of each order."""
    found: dict[OrderName, Schedule] = {}
    for schedule in candidates(case):
        found.setdefault(order_of(schedule), schedule)
    return found


def simulated(schedule: Schedule, on: Machine) -> UnitSimulation:
    return simulate_unit(lowered(schedule, on), on)


def plans(graph: Graph, on: Machine) -> dict[OrderName, SectionPlan]:
    found = paper_plans(unit_context(graph, on, Variant.PAPER))
    return {next(o.name for o in orders if o.chosen): plan for plan, orders in found}


# -- the order runs --------------------------------------------------------------------------------


def test_every_order_is_a_candidate_the_least_peak_first() -> None:
    first = candidates("towers")[0]
    orders = summary_of(first).orders
    assert [(o.name, o.peak_bytes, o.chosen) for o in orders] == [
        (EXACT, 3584, True), (DFS, 4096, False), (BFS, 5120, False),
    ]  # fmt: skip
    found = by_order("towers")
    assert list(found) == [EXACT, DFS, BFS]
    assert len({print_schedule(replace(s, notes=())) for s in found.values()}) == 3


@pytest.mark.parametrize("order", [DFS, BFS])
def test_instances_run_as_the_order_says(order: OrderName) -> None:
    plan, schedule = plans(towers(), NARROW)[order], by_order("towers")[order]
    part_of = {
        name: number
        for number, part in enumerate(plan.parts)
        for k in part.layers
        for name in plan.layers[k].layer.ops
    }
    ran = [
        part_of[leaf.node.op] for leaf in walk(schedule).leaves if isinstance(leaf.node, Compute)
    ]
    assert plan.order
    assert runs(ran) == runs([instance.group for instance in plan.order])
    if order is BFS:
        assert runs(ran) == list(range(len(plan.parts)))


def runs(values: Sequence[int]) -> list[int]:
    return [value for value, _ in groupby(values)]


def test_an_order_that_is_a_nest_runs_as_loops() -> None:
    schedule = by_order("towers")[EXACT]
    assert plans(towers(), NARROW)[EXACT].order == ()
    assert any(f.var.startswith("s0i") for leaf in walk(schedule).leaves for f in leaf.frames)


def test_least_peak_wins_where_depth_first_search_spills() -> None:
    """Algorithm 3 keeps all of one tower; the order of least peak lets the towers take turns."""
    found = by_order("towers")
    cost = {name: simulated(schedule, NARROW) for name, schedule in found.items()}
    assert cost[EXACT].cycles < cost[BFS].cycles < cost[DFS].cycles
    moved = {n: c.traffic[0].read_bytes + c.traffic[0].write_bytes for n, c in cost.items()}
    assert moved[EXACT] < min(moved[DFS], moved[BFS])
    assert found[EXACT].predicted_cycles < found[DFS].predicted_cycles


def test_breadth_first_wins_where_everything_fits() -> None:
    """Instances one after the other need not wait for each other's results."""
    found = by_order("down")
    assert list(found) == [DFS, BFS]
    assert not any(summary_of(schedule).spills for schedule in found.values())
    assert simulated(found[BFS], ROOMY).cycles < simulated(found[DFS], ROOMY).cycles


@pytest.mark.parametrize("order", list(OrderName))
def test_numbers_of_every_order(order: OrderName, tmp_path: Path) -> None:
    schedule = by_order("towers")[order]
    verify(schedule, NARROW)
    check_meaning(schedule)
    check_as_c(schedule, NARROW, tmp_path)


def test_too_many_layers_are_not_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper, "MAX_WRITTEN", 1)
    assert list(plans(towers(), NARROW)) == [EXACT]


def test_many_instances_run_as_a_nest_without_a_search() -> None:
    [(plan, orders)] = paper_plans(unit_context(down_sampled(2048, depth=3), ROOMY, Variant.PAPER))
    assert (plan.order, orders) == ((), ())
    assert len(plan.parts) > 1


# -- where tensors are -----------------------------------------------------------------------------


def test_the_order_decides_how_much_of_a_tensor_is_there_at_once() -> None:
    """The towers' results, breadth first: all samples of a cluster; else those of a reader."""
    held = {}
    for name, schedule in by_order("towers, roomy").items():
        [whole] = {op.write.tensor for op in schedule.graph.ops if op.name.startswith("into")}
        places = [s for s in walk(schedule).scopes if (s.tensor, s.memory) == (whole, "GB")]
        held[name] = {s.tile[0].extent for s in places if s.tile is not None}
    assert held == {BFS: {8}, DFS: {4}, EXACT: {4}}


def test_whatever_one_binding_reaches_stays_in_local_buffers() -> None:
    """Even where predictions say that it is slower."""
    eager, plain, *_ = candidates("down")
    assert summary_of(eager).num_handed > summary_of(plain).num_handed == 0
    assert eager.predicted_cycles > plain.predicted_cycles
    full = scheduled(down_sampled(), ROOMY, Variant.FULL)
    assert summary_of(full).num_handed == 0


def test_an_output_in_pieces_is_checked_piece_by_piece() -> None:
    """Clusters write slices apart; a slice that nobody stores is missed."""
    net = Net()
    ends = [net.relu(net.conv(net.given(16, 2, 8, 8), 4)) for _ in range(2)]
    joined = net.relu(net.conv(net.add(*ends), 8, 3, 2))
    found = plans(net.graph(net.relu(net.conv(joined, 16, 3, 2))), NARROW)[BFS]
    assert found.order[-1].number == 1
    [output] = found.graph.outputs
    way = GraphTurboStrategy().candidates(found.graph, NARROW, GraphTurboOptions(Variant.PAPER))
    [schedule, *_] = [s for s in way if isinstance(s, Schedule) and order_of(s) is BFS]
    verify(schedule, NARROW)
    stores = [n for n in walk(schedule).leaves if n.node == _last_store(schedule, output)]
    broken = replace(schedule, root=_without(schedule.root, stores[-1].node))
    with pytest.raises(VerifyError, match=f"output {output} is not all written"):
        verify(broken, NARROW)


def _last_store(schedule: Schedule, tensor: str) -> Node:
    moves = [leaf.node for leaf in walk(schedule).leaves if isinstance(leaf.node, Move)]
    return [m for m in moves if m.tensor == tensor and m.dst == "DDR"][-1]


def _without(node: Node, gone: Node) -> Node:
    match node:
        case Seq(parts):
            return Seq(tuple(_without(part, gone) for part in parts if part != gone))
        case Loop() | Place():
            return replace(node, body=_without(node.body, gone))
        case _:
            return node


# -- no instances ----------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["stcp920-inferred", "a100", "kapla-16x16"])
def test_one_sample_keeps_one_cluster_and_has_no_order(preset: str) -> None:
    on = load_preset(preset)
    schedule = scheduled(down_sampled(1), on, Variant.PAPER)
    check = summary_of(schedule)
    assert (check.orders, check.groups, len(check.sections)) == ((), (), 1)
    assert simulated(schedule, on).active_cores <= on.num_cores


def test_what_no_engine_runs_is_a_shortfall() -> None:
    tiny = clustered(clusters=2, cores=2, gb_bytes=8, l1_bytes=8)
    assert [type(answer) for answer in offered(down_sampled(), tiny)] == [Shortfall]
