"""Regions and host parts in order, with a reason for every node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import conv_net, saved, with_host_part

from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.simplify import simplify
from worker.compiler.ir.dtype import DType
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine, OpSupport
from worker.compiler.partition.partition import partition
from worker.compiler.partition.plan import HOST, Partitioning
from worker.compiler.rejection import ReasonCode, Rejection

TARGET = "accelerator"


def read(model: onnx.ModelProto, folder: Path) -> OnnxModel:
    return simplify(bind(load_model(saved(model, folder), Limits()), {}))


def _offering(machine: Machine, **changes: Any) -> Machine:
    target = machine.targets[0]
    offered = replace(target, capabilities=replace(target.capabilities, **changes))
    return replace(machine, targets=(offered,))


def with_support(machine: Machine, *changes: OpSupport) -> Machine:
    replaced = {c.op_type: c for c in changes}
    ops = tuple(replaced.get(s.op_type, s) for s in machine.targets[0].capabilities.ops)
    return _offering(machine, ops=ops)


def reasons(parts: Partitioning) -> dict[str, ReasonCode]:
    return {row.node: row.reason_code for row in parts.placement}


def ladder() -> onnx.ModelProto:
    """Two branches from x: relu -> topk -> relu, and sigmoid; joined at the end."""
    k = numpy_helper.from_array(np.array([4], dtype=np.int64), "k")
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="a"),
        helper.make_node("TopK", ["a", "k"], ["b", "i"], name="b"),
        helper.make_node("Relu", ["b"], ["c"], name="c"),
        helper.make_node("Sigmoid", ["x"], ["d"], name="d"),
        helper.make_node("Add", ["c", "d"], ["y"], name="e"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "ladder",
        [value("x", TensorProto.FLOAT, [2, 4])],
        [value("y", TensorProto.FLOAT, [2, 4])],
        [k],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_parts_alternate_and_a_side_branch_joins_its_reader(tmp_path: Path) -> None:
    model = read(ladder(), tmp_path)
    names = [node.name for node in model.ir.graph]
    parts = partition(model, load_preset("kapla-edge"), {}).parts
    assert [(p.target, sorted(str(names[k]) for k in p.nodes)) for p in parts] == [
        (TARGET, ["a"]),
        (HOST, ["b"]),
        (TARGET, ["c", "d", "e"]),
    ]
    assert parts[0].inputs == ("x",)
    assert parts[0].outputs == ("a",)
    assert parts[1].inputs == ("a",)
    assert set(parts[2].inputs) == {"b", "x"}
    assert parts[2].outputs == ("y",)


def test_everything_offered_is_one_region(tmp_path: Path) -> None:
    parts = partition(read(conv_net(), tmp_path), load_preset("a100"), {})
    assert len(parts.parts) == 1
    assert set(reasons(parts).values()) == {ReasonCode.OFFLOADED}


def test_refusals_found_later_move_a_node_to_the_host(tmp_path: Path) -> None:
    model = read(conv_net(), tmp_path)
    refused = {"pool": Rejection(ReasonCode.DOES_NOT_FIT, "too large")}
    parts = partition(model, load_preset("a100"), refused)
    assert [p.target for p in parts.parts] == [TARGET, HOST, TARGET]
    assert reasons(parts)["pool"] is ReasonCode.DOES_NOT_FIT


@pytest.mark.parametrize(
    ("support", "node", "code"),
    [
        (OpSupport("Conv", (), (("kernel_h", 1, 2),)), "stem/conv", "CAPABILITY_ATTRIBUTE"),
        (OpSupport("Conv", (), (("in_channels", 1, 4),)), "block/conv", "CAPABILITY_ATTRIBUTE"),
        (OpSupport("MaxPool", (), (("stride_w", 1, 1),)), "pool", "CAPABILITY_ATTRIBUTE"),
        (OpSupport("Relu", (DType.I8,)), "relu", "CAPABILITY_DTYPE"),
    ],
)
def test_limits_of_the_capability_list_refuse_with_a_sentence(
    tmp_path: Path, support: OpSupport, node: str, code: str
) -> None:
    machine = with_support(load_preset("a100"), support)
    parts = partition(read(conv_net(), tmp_path), machine, {})
    row = next(r for r in parts.placement if r.node == node)
    assert row.target == HOST
    assert row.reason_code == code
    assert "allows" in row.reason or "offered" in row.reason


def test_rank_limit_and_missing_operator(tmp_path: Path) -> None:
    machine = load_preset("a100")
    flat = _offering(machine, max_rank=2)
    found = reasons(partition(read(conv_net(), tmp_path), flat, {}))
    assert found["stem/conv"] is ReasonCode.CAPABILITY_RANK
    assert found["head"] is ReasonCode.OFFLOADED
    none = _offering(machine, ops=())
    found = reasons(partition(read(conv_net(), tmp_path), none, {}))
    assert set(found.values()) == {ReasonCode.CAPABILITY_OP}


def test_host_part_reads_and_gives_what_others_need(tmp_path: Path) -> None:
    parts = partition(read(with_host_part(), tmp_path), load_preset("a100"), {}).parts
    host = next(p for p in parts if p.target == HOST)
    assert host.inputs == ("m0",)
    assert host.outputs == ("v",)
