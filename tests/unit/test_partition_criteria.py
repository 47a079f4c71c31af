"""Region rules: splits between sequences, fallback, one region per model; limit against actual."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import saved

from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine, PartitionMode
from worker.compiler.partition.partition import partition, partition_annotated
from worker.compiler.partition.plan import (
    HOST,
    Action,
    Composite,
    CompositeKind,
    Partitioning,
    Placement,
)
from worker.compiler.rejection import ReasonCode, Rejection

Node = tuple[str, str, list[str]]
"""(name, op type, inputs); its output has the node's name."""


def model_of(nodes: list[Node], outputs: list[str], folder: Path) -> OnnxModel:
    """A model on [8, 8] matrices; `w` is a constant matrix of 256 bytes."""
    value = helper.make_tensor_value_info
    weight = numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")
    other = numpy_helper.from_array(np.eye(8, dtype=np.float32), "u")
    made = [helper.make_node(op, inputs, [name], name=name) for name, op, inputs in nodes]
    graph = helper.make_graph(
        made,
        "criteria",
        [value("x", TensorProto.FLOAT, [8, 8])],
        [value(name, TensorProto.FLOAT, [8, 8]) for name in outputs],
        [weight, other],
        value_info=[value(n, TensorProto.FLOAT, [8, 8]) for n, _, _ in nodes if n not in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return load_model(saved(model, folder), Limits(), "m")


def machine_with(**criteria: Any) -> Machine:
    machine = load_preset("a100")
    target = machine.targets[0]
    changed = replace(target, criteria=replace(target.criteria, **criteria))
    return replace(machine, targets=(changed,))


def chains(count: int, length: int) -> list[Node]:
    """`stem`, then `count` chains of `length` operators that all read it."""
    nodes: list[Node] = [("stem", "Relu", ["x"])]
    for c in range(count):
        for k in range(length):
            source = f"c{c}_{k - 1}" if k else "stem"
            nodes.append((f"c{c}_{k}", "Relu", [source]))
    return nodes


def regions(found: Partitioning) -> list[list[str]]:
    return [[found.placement[k].node for k in part.nodes] for part in found.regions]


def host(names: list[str]) -> dict[str, Rejection]:
    return {name: Rejection(ReasonCode.DOES_NOT_FIT, "chosen by the test") for name in names}


def test_tv_by_3_whole_sequences_are_packed_greedily(tmp_path: Path) -> None:
    """[1, N, N, N, N] with N = 2 and limit 6: [1, 2, 2] and [2, 2], that is 5 + 4."""
    model = model_of(chains(4, 2), [f"c{c}_1" for c in range(4)], tmp_path)
    found = partition(model, machine_with(max_ops=6), {})
    assert regions(found) == [
        ["stem", "c0_0", "c0_1", "c1_0", "c1_1"],
        ["c2_0", "c2_1", "c3_0", "c3_1"],
    ]
    assert [(d.action, d.rule, d.num_ops) for d in found.decisions] == [
        (Action.SPLIT, "max_ops", 5),
        (Action.SPLIT, "max_ops", 4),
    ]
    assert "9 operators (max_ops is 6)" in found.decisions[0].sentence
    assert "kept whole" in found.decisions[0].sentence


@pytest.mark.parametrize("big", [3, 5])
def test_tv_by_3_with_the_figure_s_limit_of_three_n(tmp_path: Path, big: int) -> None:
    model = model_of(chains(4, big), [f"c{c}_{big - 1}" for c in range(4)], tmp_path)
    found = partition(model, machine_with(max_ops=3 * big), {})
    assert [len(nodes) for nodes in regions(found)] == [2 * big + 1, 2 * big]


def test_a_sequence_that_breaks_the_limit_alone_is_cut_between_operators(tmp_path: Path) -> None:
    nodes = [(f"r{k}", "Relu", [f"r{k - 1}" if k else "x"]) for k in range(7)]
    found = partition(model_of(nodes, ["r6"], tmp_path), machine_with(max_ops=3), {})
    assert [len(names) for names in regions(found)] == [3, 3, 1]
    assert "cut between operators" in found.decisions[0].sentence


def test_a_composite_counts_once_and_is_never_cut(tmp_path: Path) -> None:
    nodes: list[Node] = [(f"r{k}", "Relu", [f"r{k - 1}" if k else "x"]) for k in range(6)]
    model = model_of(nodes, ["r5"], tmp_path)
    machine = machine_with(max_ops=2)
    rows = [
        Placement(name, op, "accelerator", ReasonCode.OFFLOADED, "chosen by the test")
        for name, op, _ in nodes
    ]
    three = Composite("three", CompositeKind.PATTERN, (1, 2, 3))
    found = partition_annotated(model, machine, rows, [("accelerator", three)])
    assert regions(found) == [["r0", "r1", "r2", "r3"], ["r4", "r5"]]
    assert [part.composites for part in found.regions] == [(three,), ()]
    assert [d.num_ops for d in found.decisions] == [2, 2]


def test_macs_and_weights_are_limited_per_region(tmp_path: Path) -> None:
    nodes: list[Node] = [
        ("a", "MatMul", ["x", "w"]),
        ("b", "MatMul", ["x", "w"]),
        ("c", "MatMul", ["x", "u"]),
        ("ab", "Add", ["a", "b"]),
        ("abc", "Add", ["ab", "c"]),
    ]
    model = model_of(nodes, ["abc"], tmp_path)
    by_macs = partition(model, machine_with(max_macs=1024), {})
    assert [d.macs for d in by_macs.decisions] == [1024, 512]
    assert "1536 MACs (max_macs is 1024)" in by_macs.decisions[0].sentence
    # two of the three products share their weights, so they count once
    by_weights = partition(model, machine_with(max_weight_bytes=256), {})
    assert [d.weight_bytes for d in by_weights.decisions] == [256, 256]
    assert regions(by_weights)[0] == ["a", "b"]


def test_sequences_must_fit_a_memory(tmp_path: Path) -> None:
    level = machine_with().scratchpads[-1]
    machine = machine_with(buffer_fit=level.name)
    small = replace(level, capacity_bytes=800, reserve_fraction=0.0)
    machine = replace(
        machine, levels=tuple(small if m.name == level.name else m for m in machine.levels)
    )
    nodes: list[Node] = [(f"r{k}", "Relu", [f"r{k - 1}" if k else "x"]) for k in range(4)]
    found = partition(model_of(nodes, ["r3"], tmp_path), machine, {})
    # x, r0, r1 are 768 bytes, a fourth tensor makes 1024
    assert regions(found) == [["r0", "r1"], ["r2", "r3"]]
    assert f"1280 bytes together in {level.name} (buffer_fit is 800)" in found.decisions[0].sentence


def test_an_operator_that_breaks_a_limit_alone_goes_to_the_host(tmp_path: Path) -> None:
    nodes: list[Node] = [
        ("a", "Relu", ["x"]),
        ("m", "MatMul", ["a", "w"]),
        ("z", "Relu", ["m"]),
    ]
    found = partition(model_of(nodes, ["z"], tmp_path), machine_with(max_macs=100), {})
    assert regions(found) == [["a"], ["z"]]
    row = found.placement[1]
    assert (row.target, row.reason_code) == (HOST, ReasonCode.CRITERION)
    assert "512 MACs (max_macs is 100)" in row.reason
    assert [d.action for d in found.decisions] == [Action.SPLIT, Action.DROPPED, Action.SPLIT]


def backbone() -> tuple[list[Node], list[str]]:
    """A backbone with MACs, then five regions without, each behind a host operator."""
    nodes: list[Node] = [("conv", "MatMul", ["x", "w"]), ("act", "Relu", ["conv"])]
    for k in range(5):
        nodes += [
            (f"h{k}", "Sigmoid", ["act" if k == 0 else f"b{k - 1}"]),
            (f"a{k}", "Transpose", [f"h{k}"]),
            (f"b{k}", "Relu", [f"a{k}"]),
        ]
    return nodes, [f"h{k}" for k in range(5)]


def test_tv_by_4_regions_without_macs_fall_back(tmp_path: Path) -> None:
    nodes, on_host = backbone()
    model = model_of(nodes, ["b4"], tmp_path)
    without = partition(model, machine_with(), host(on_host))
    assert len(without.regions) == 6
    found = partition(model, machine_with(min_macs=1), host(on_host))
    assert regions(found) == [["conv", "act"]]
    assert len(found.parts) == 2
    row = next(r for r in found.placement if r.node == "a0")
    assert row.reason_code is ReasonCode.CRITERION
    assert "0 MACs" in row.reason
    assert "at least 1 (min_macs)" in row.reason
    assert [d.action for d in found.decisions] == [Action.KEPT] + [Action.DROPPED] * 5


def test_small_regions_fall_back(tmp_path: Path) -> None:
    nodes, on_host = backbone()
    model = model_of([*nodes, ("last", "Relu", ["b4"])], ["last"], tmp_path)
    found = partition(model, machine_with(min_ops=3), host(on_host))
    assert regions(found) == [["a4", "b4", "last"]]
    assert found.decisions[0].rule == "min_ops"
    assert "2 operators" in found.decisions[0].sentence


def test_one_region_per_model_keeps_the_one_with_most_macs(tmp_path: Path) -> None:
    nodes: list[Node] = [
        ("p", "Relu", ["x"]),
        ("q", "Relu", ["p"]),
        ("h0", "Sigmoid", ["q"]),
        ("m", "MatMul", ["h0", "w"]),
        ("h1", "Sigmoid", ["m"]),
        ("n", "MatMul", ["h1", "w"]),
        ("o", "Relu", ["n"]),
        ("h2", "Sigmoid", ["o"]),
        ("s", "MatMul", ["h2", "w"]),
        ("t", "Relu", ["s"]),
    ]
    model = model_of(nodes, ["t"], tmp_path)
    found = partition(model, machine_with(single_region=True), host(["h0", "h1", "h2"]))
    assert regions(found) == [["n", "o"]]
    gone = {r.node: r for r in found.placement if r.reason_code is ReasonCode.SINGLE_REGION}
    assert sorted(gone) == ["m", "p", "q", "s", "t"]
    assert "512 MACs in 2 operators" in gone["p"].reason


def test_greedy_ignores_every_rule(tmp_path: Path) -> None:
    nodes, on_host = backbone()
    model = model_of(nodes, ["b4"], tmp_path)
    machine = machine_with(min_macs=1, max_ops=1, single_region=True)
    found = partition(model, machine, host(on_host), PartitionMode.GREEDY)
    assert [len(names) for names in regions(found)] == [2] * 6
    assert {d.rule for d in found.decisions} == {"greedy"}
    own = machine_with(mode=PartitionMode.GREEDY, min_macs=1)
    assert len(partition(model, own, host(on_host)).regions) == 6
    forced = partition(model, own, host(on_host), PartitionMode.CRITERIA)
    assert len(forced.regions) == 1
