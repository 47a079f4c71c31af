"""Weighing by hand-made costs: composites, least sizes, joins, unknown sizes, refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import saved

from worker.compiler.errors import InternalError
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import LaunchUnit, Machine
from worker.compiler.partition.balance import NodeCosts
from worker.compiler.partition.partition import partition_annotated
from worker.compiler.partition.plan import (
    HOST,
    Action,
    Composite,
    CompositeKind,
    Partitioning,
    Placement,
)
from worker.compiler.partition.weigh import weigh
from worker.compiler.rejection import ReasonCode

COPY = 40


def relus(sources: list[int], folder: Path, dims: list[int | str] | None = None) -> OnnxModel:
    """Node k is a Relu of node `sources[k]` (-1: the input); every node is an output."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Relu", ["x" if s < 0 else f"v{s}"], [f"v{k}"], name=f"n{k}")
        for k, s in enumerate(sources)
    ]
    shape = dims or [4]
    last = len(sources) - 1
    unread = [k for k in range(len(sources)) if k not in sources]
    graph = helper.make_graph(
        nodes,
        "relus",
        [value("x", TensorProto.FLOAT, shape)],
        [value(f"v{k}", TensorProto.FLOAT, shape) for k in unread],
        value_info=[value(f"v{k}", TensorProto.FLOAT, shape) for k in range(last)
                    if k not in unread],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return load_model(saved(model, folder), Limits(), "relus")


def machine_with(unit: LaunchUnit, launch: int, invocation: int = 0, **criteria: Any) -> Machine:
    """One value of four floats takes COPY cycles to copy."""
    machine = load_preset("a100")
    target = machine.targets[0]
    target = replace(
        target, launch_unit=unit, launch_latency_cycles=launch,
        criteria=replace(target.criteria, **criteria),
    )  # fmt: skip
    host = replace(
        machine.host, link_latency_s=0.0, link_bytes_per_s=16 / COPY,
        launch_overhead_s=float(invocation), shared_memory=False,
    )  # fmt: skip
    return replace(machine, clock_hz=1.0, targets=(target,), host=host)


def placed(
    model: OnnxModel, machine: Machine, on_host: tuple[int, ...] = (), *composites: Composite
) -> Partitioning:
    name = machine.targets[0].name
    rows = [
        Placement(node.name or "", node.op_type, HOST if k in on_host else name,
                  ReasonCode.OFFLOADED, "chosen by the test")
        for k, node in enumerate(model.ir.graph)
    ]  # fmt: skip
    return partition_annotated(model, machine, rows, [(name, c) for c in composites])


def nodes_of(found: Partitioning) -> list[tuple[int, ...]]:
    return [part.nodes for part in found.regions]


def test_a_composite_is_trimmed_as_a_whole(tmp_path: Path) -> None:
    model = relus([-1, 0, 1, 2], tmp_path)
    machine = machine_with(LaunchUnit.KERNEL, 0)
    pair = Composite("pair", CompositeKind.PATTERN, (0, 1))
    # alone, node 0 would leave and node 1 stay
    costs = NodeCosts((90, 5, 5, 5), (1, 200, 200, 200))
    apart = weigh(model, machine, placed(model, machine), costs)
    assert nodes_of(apart) == [(1, 2, 3)]
    together = weigh(model, machine, placed(model, machine, (), pair), costs)
    assert nodes_of(together) == [(0, 1, 2, 3)]
    assert together.regions[0].composites == (pair,)
    dear = NodeCosts((290, 5, 5, 5), (1, 200, 200, 200))
    gone = weigh(model, machine, placed(model, machine, (), pair), dear)
    assert nodes_of(gone) == [(2, 3)]
    assert gone.regions[0].composites == ()
    assert [row.reason_code for row in gone.placement[:2]] == [ReasonCode.WEIGHED] * 2


def test_a_shared_node_stays_with_the_composites_that_need_it(tmp_path: Path) -> None:
    # node 0 (a dequantisation, say) is read by 1 and 2, and belongs to both composites
    model = relus([-1, 0, 0], tmp_path)
    machine = machine_with(LaunchUnit.KERNEL, 0)
    both = (
        Composite("a", CompositeKind.CLUSTER, (0, 1)),
        Composite("b", CompositeKind.CLUSTER, (0, 2)),
    )
    base = placed(model, machine, (), *both)
    assert base.regions[0].composites == both
    assert base.decisions[0].num_ops == 2
    costs = NodeCosts((130, 5, 50), (0, 300, 1))
    found = weigh(model, machine, base, costs)
    # leaving node 0 alone on the host would be cheapest, but composite a needs it
    assert nodes_of(found) == [(0, 1)]
    assert [c.name for c in found.regions[0].composites] == ["a"]


def test_a_composite_cut_off_from_its_shared_node_runs_on_the_host(tmp_path: Path) -> None:
    # 0 is shared; 0 -> 1 -> 2(host) -> 4 and 0 -> 4: composite (0, 4) cannot be in 0's region
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Relu", ["x"], ["v0"], name="n0"),
        helper.make_node("Relu", ["v0"], ["v1"], name="n1"),
        helper.make_node("Relu", ["v1"], ["v2"], name="n2"),
        helper.make_node("Add", ["v0", "v2"], ["y"], name="n3"),
    ]
    graph = helper.make_graph(
        nodes, "torn", [value("x", TensorProto.FLOAT, [4])], [value("y", TensorProto.FLOAT, [4])],
        value_info=[value(f"v{k}", TensorProto.FLOAT, [4]) for k in range(3)],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    model = load_model(saved(proto, tmp_path), Limits(), "torn")
    first = Composite("first", CompositeKind.CLUSTER, (0, 1))
    second = Composite("second", CompositeKind.CLUSTER, (0, 3))
    found = placed(model, machine_with(LaunchUnit.KERNEL, 0), (2,), first, second)
    assert nodes_of(found) == [(0, 1)]
    assert found.regions[0].composites == (first,)
    row = found.placement[3]
    assert (row.target, row.reason_code) == (HOST, ReasonCode.CRITERION)
    assert "n0, which runs in another region" in row.reason


def test_a_trim_below_the_target_s_least_size_is_not_taken(tmp_path: Path) -> None:
    model = relus([-1, 0, 1], tmp_path)
    costs = NodeCosts((300, 5, 300), (5, 400, 5))
    free = machine_with(LaunchUnit.KERNEL, 0)
    assert nodes_of(weigh(model, free, placed(model, free), costs)) == [(1,)]
    three = machine_with(LaunchUnit.KERNEL, 0, min_ops=2)
    found = weigh(model, three, placed(model, three), costs)
    assert nodes_of(found) in ([(0, 1)], [(1, 2)])


def test_joins_respect_the_limits_of_a_region(tmp_path: Path) -> None:
    model = relus([-1, -1, -1, 0, 1, 2], tmp_path)
    costs = NodeCosts((5,) * 6, (900,) * 6)
    for most, regions in ((None, 1), (4, 2), (2, 3)):
        machine = machine_with(LaunchUnit.REGION, 50, max_ops=most)
        base = placed(model, machine)
        found = weigh(model, machine, base, costs)
        assert len(found.regions) == regions
        assert len(found.decisions) == len(base.decisions)
    assert "in one invocation" in weigh(
        model, machine_with(LaunchUnit.REGION, 50), placed(
            model, machine_with(LaunchUnit.REGION, 50)), costs).decisions[0].sentence  # fmt: skip


def test_an_extra_host_part_can_outweigh_a_trim(tmp_path: Path) -> None:
    model = relus([-1, 0, 1], tmp_path)
    costs = NodeCosts((30, 5, 5), (5, 400, 400))
    cheap = machine_with(LaunchUnit.KERNEL, 0, invocation=0)
    assert nodes_of(weigh(model, cheap, placed(model, cheap), costs)) == [(1, 2)]
    dear = machine_with(LaunchUnit.KERNEL, 0, invocation=100)
    found = weigh(model, dear, placed(model, dear), costs)
    assert nodes_of(found) == [(0, 1, 2)]
    assert found.decisions[0].action is Action.KEPT


def test_values_of_unknown_size_cost_nothing_and_the_decision_says_so(tmp_path: Path) -> None:
    model = relus([-1, 0], tmp_path, ["batch"])
    machine = machine_with(LaunchUnit.KERNEL, 0)
    found = weigh(model, machine, placed(model, machine), NodeCosts((1, 1), (2, 2)))
    assert nodes_of(found) == [(0, 1)]
    assert found.decisions[0].transfer_cycles == 0
    assert "2 of its values have sizes known only at run time" in found.decisions[0].sentence


def test_split_regions_keep_their_rule_and_gain_costs(tmp_path: Path) -> None:
    model = relus([-1, 0, 1, 2], tmp_path)
    machine = machine_with(LaunchUnit.KERNEL, 1, max_ops=2)
    found = weigh(model, machine, placed(model, machine), NodeCosts((5,) * 4, (900,) * 4))
    assert [(d.action, d.rule) for d in found.decisions] == [(Action.SPLIT, "max_ops")] * 2
    first, second = found.decisions
    assert (first.accelerator_cycles, first.launch_cycles, first.host_cycles) == (10, 2, 1800)
    # one copy each: the value between the pieces stays on the accelerator
    assert (first.transfer_cycles, second.transfer_cycles) == (COPY, COPY)


def test_costs_must_cover_the_model(tmp_path: Path) -> None:
    model = relus([-1, 0], tmp_path)
    machine = machine_with(LaunchUnit.KERNEL, 0)
    with pytest.raises(InternalError, match="do not cover"):
        weigh(model, machine, placed(model, machine), NodeCosts((1,), (2,)))


def test_nothing_on_the_accelerator_is_nothing_to_weigh(tmp_path: Path) -> None:
    model = relus([-1, 0], tmp_path)
    machine = machine_with(LaunchUnit.KERNEL, 0)
    base = placed(model, machine, (0, 1))
    assert weigh(model, machine, base, NodeCosts((1, 1), (2, 2))) == base


def test_regions_of_other_targets_stay_as_they_are(tmp_path: Path) -> None:
    model = relus([-1, 0, 1], tmp_path)
    machine = machine_with(LaunchUnit.KERNEL, 0)
    first = machine.targets[0]
    machine = replace(machine, targets=(first, replace(first, name="second")))
    rows = [
        Placement(f"n{k}", "Relu", target, ReasonCode.OFFLOADED, "chosen by the test")
        for k, target in enumerate((first.name, HOST, "second"))
    ]
    base = partition_annotated(model, machine, rows, [])
    costs = NodeCosts((50, 0, 50), (1, 1, 1))
    assert nodes_of(weigh(model, machine, base, costs)) == []
    found = weigh(model, machine, base, costs, ["second"])
    assert nodes_of(found) == [(0,)]
    assert [d.action for d in found.decisions] == [Action.KEPT, Action.DROPPED]
    assert found.decisions[0] == base.decisions[0]
    assert weigh(model, machine, base, costs, []) == base
