"""Annotation: priorities, fallback to a second target, composites, clusters, conversions, notes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir
import pytest
from onnx import helper
from partition_models import machine_of, model_of, target

from worker.compiler.frontend.express import rejection
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import AcceleratorTarget, Conversion, Machine, OpSupport
from worker.compiler.machine.pattern import AnyValue, OpMatch, PatternRule, ValueRule
from worker.compiler.partition.annotate import INSERTED, Annotation, annotate
from worker.compiler.partition.partition import partition
from worker.compiler.partition.plan import HOST, CompositeKind, Placement
from worker.compiler.partition.trials import Trials, kind_of
from worker.compiler.rejection import ReasonCode, Rejection

SMALL = {"x": (1, 4, 6, 6)}
CONV_RELU = PatternRule("conv_relu", OpMatch(("Relu",), (OpMatch(("Conv",)),)))


def chain() -> OnnxModel:
    """conv -> relu -> sigmoid -> top (not expressible)."""
    weights = {"w": np.ones((4, 4, 1, 1), np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Sigmoid", ["r"], ["s"], name="sigmoid"),
        helper.make_node("Det", ["s"], ["y"], name="top"),
    ]
    return model_of(nodes, SMALL, ["y"], weights)


def row(found: Annotation, name: str) -> Placement:
    return next(r for r in found.placement if r.node == name)


def targets_of(found: Annotation) -> list[str]:
    return [r.target for r in found.placement]


def test_an_operator_goes_to_the_highest_target_that_takes_it() -> None:
    big = target("big", ["Conv"])
    small = target("small", ["Conv", "Relu", "Sigmoid"])
    found = annotate(chain(), machine_of(big, small), {})
    assert targets_of(found) == ["big", "small", "small", HOST]
    swapped = annotate(chain(), machine_of(small, big), {})
    assert targets_of(swapped) == ["small", "small", "small", HOST]


def test_a_limit_of_the_first_target_falls_back_to_the_second() -> None:
    narrow = target("narrow", [OpSupport("Conv", (), (("in_channels", 1, 3),)), "Relu"])
    wide = target("wide", ["Conv"])
    assert targets_of(annotate(chain(), machine_of(narrow, wide), {}))[:2] == ["wide", "narrow"]


def test_a_host_row_gives_the_first_refusal_and_names_the_others() -> None:
    first = target("first", [OpSupport("Sigmoid", (DType.F16,))])
    second = target("second", ["Conv"])
    found = row(annotate(chain(), machine_of(first, second), {}), "sigmoid")
    assert found.reason_code is ReasonCode.CAPABILITY_DTYPE
    assert "Sigmoid (sigmoid): r is f32, first allows Sigmoid of f16" in found.reason
    assert found.reason.endswith("(also refused by second)")


def test_what_the_algebra_cannot_say_is_not_promised() -> None:
    found = annotate(chain(), machine_of(target("npu", ["Det"])), {})
    listed = row(found, "top")
    assert (listed.target, listed.reason_code) == (HOST, ReasonCode.DATA_DEPENDENT) or (
        listed.reason_code is ReasonCode.UNSUPPORTED_OP
    )
    assert listed.reason.startswith("Det (top): ")
    unlisted = row(annotate(chain(), machine_of(target("npu", ["Conv"])), {}), "top")
    assert unlisted.reason_code is ReasonCode.CAPABILITY_OP
    assert "nor can it be compiled" in unlisted.reason
    assert "would allow it" not in unlisted.reason


def test_refusals_found_later_keep_a_node_on_the_host() -> None:
    why = Rejection(ReasonCode.DOES_NOT_FIT, "too large")
    both = machine_of(target("a", ["Conv"]), target("b", ["Conv"]))
    found = row(annotate(chain(), both, {"conv": why}), "conv")
    assert (found.target, found.reason_code, found.reason) == (HOST, why.code, why.sentence)


def with_pattern(accelerator: AcceleratorTarget, rule: PatternRule) -> AcceleratorTarget:
    capabilities = replace(accelerator.capabilities, patterns=(rule,))
    return replace(accelerator, capabilities=capabilities)


def test_a_pattern_takes_nodes_that_the_list_does_not_name() -> None:
    npu = with_pattern(target("npu", ["Sigmoid"]), CONV_RELU)
    other = target("other", ["Conv", "Relu"])
    found = annotate(chain(), machine_of(npu, other), {})
    assert targets_of(found) == ["npu", "npu", "npu", HOST]
    assert [(t, c.name, c.kind, c.nodes) for t, c in found.composites] == [
        ("npu", "conv_relu", CompositeKind.PATTERN, (0, 1))
    ]
    assert row(found, "conv").reason_code is ReasonCode.COMPOSITE
    assert row(found, "conv").composite == "conv_relu"
    assert row(found, "sigmoid").composite == ""


@pytest.mark.parametrize(
    ("dtypes", "max_rank", "refused"),
    [((DType.F16,), 4, False), ((DType.F32,), 3, False), ((DType.F32,), 4, True)],
)
def test_a_pattern_needs_types_ranks_and_unrefused_nodes(
    dtypes: tuple[DType, ...], max_rank: int, refused: bool
) -> None:
    npu = with_pattern(target("npu", ["Exp"], dtypes, max_rank), CONV_RELU)
    why = {"relu": Rejection(ReasonCode.DOES_NOT_FIT, "too large")} if refused else {}
    found = annotate(chain(), machine_of(npu), why)
    assert found.composites == ()
    assert targets_of(found) == [HOST] * 4


def test_a_pattern_of_a_lower_target_cannot_take_a_node_of_a_higher_one() -> None:
    low = with_pattern(target("low", ["Exp"]), CONV_RELU)
    found = annotate(chain(), machine_of(target("high", ["Relu"]), low), {})
    assert found.composites == ()
    assert targets_of(found) == [HOST, "high", HOST, HOST]


def test_a_pattern_holds_only_what_can_be_expressed() -> None:
    rule = PatternRule("top", OpMatch(("Det",), (AnyValue(),)))
    found = annotate(chain(), machine_of(with_pattern(target("npu", ["Exp"]), rule)), {})
    assert found.composites == ()


def quantised(reader: str | None = None) -> OnnxModel:
    """Q -> DQ -> conv -> relu -> Q -> DQ; `reader`: an op that also reads the first DQ."""
    weights: dict[str, np.ndarray] = {
        "s": np.array(0.1, np.float32), "z": np.array(0, np.int8),
        "w": np.ones((4, 4, 1, 1), np.int8),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q0"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="dq0"),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["dw"], name="dqw"),
        helper.make_node("Conv", ["d", "dw"], ["c"], name="conv"),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("QuantizeLinear", ["r", "s", "z"], ["q1"], name="q1"),
        helper.make_node("DequantizeLinear", ["q1", "s", "z"], ["y"], name="dq1"),
    ]
    outputs = ["y"]
    if reader is not None:
        nodes.append(helper.make_node(reader, ["d"], ["e"], name="reader"))
        outputs.append("e")
    return model_of(nodes, SMALL, outputs, weights)


INTEGERS = (DType.I8, DType.I32)


def test_a_cluster_is_the_composite_of_the_pattern_that_its_float_nodes_match() -> None:
    constant = AnyValue(ValueRule(constant=True))
    conv = OpMatch(("Conv",), (AnyValue(), constant))
    rule = PatternRule("conv_relu", OpMatch(("Relu",), (conv,)), intrinsic="cv")
    npu = target("npu", ["Conv", "Relu"], INTEGERS)
    found = annotate(quantised(), machine_of(with_pattern(npu, rule)), {})
    ((_, composite),) = found.composites
    assert (composite.name, composite.kind) == ("conv_relu", CompositeKind.CLUSTER)
    assert (composite.nodes, composite.intrinsic) == ((1, 2, 3, 4, 5), "cv")
    part = replace(rule, root=conv)
    ((_, composite),) = annotate(quantised(), machine_of(with_pattern(npu, part)), {}).composites
    assert (composite.name, composite.intrinsic) == ("qdq_Conv", None)


def test_a_cluster_runs_where_its_core_runs_in_integers() -> None:
    found = annotate(quantised(), machine_of(target("npu", ["Conv", "Relu"], INTEGERS)), {})
    assert targets_of(found) == [HOST, "npu", "npu", "npu", "npu", "npu", HOST]
    ((name, composite),) = found.composites
    assert (name, composite.name, composite.kind) == ("npu", "qdq_Conv", CompositeKind.CLUSTER)
    assert composite.nodes == (1, 2, 3, 4, 5)
    assert row(found, "dq0").reason == "part of the integer operator conv"
    assert row(found, "conv").reason == "runs as an integer operator of i8"


@pytest.mark.parametrize(
    ("accelerator", "part"),
    [
        (target("npu", ["Relu"], INTEGERS), "npu does not list Conv"),
        (target("npu", ["Conv"], INTEGERS), "npu does not list Relu"),
        (target("npu", ["Conv", "Relu"], (DType.U8, DType.I32)), "npu allows Conv of u8 or i32"),
        (
            target("npu", [OpSupport("Conv", (), (("in_channels", 1, 3),)), "Relu"], INTEGERS),
            "in_channels is 4, npu allows 1 to 3",
        ),
    ],
)
def test_a_cluster_is_refused_by_the_rules_of_its_operators(
    accelerator: AcceleratorTarget, part: str
) -> None:
    found = annotate(quantised(), machine_of(accelerator), {})
    assert found.composites == ()
    assert set(targets_of(found)) == {HOST}
    assert part in row(found, "conv").reason


def test_a_dequantisation_read_elsewhere_needs_a_target_that_computes_it() -> None:
    integer = target("npu", ["Conv", "Relu"], INTEGERS)
    found = annotate(quantised("Exp"), machine_of(integer), {})
    assert found.composites == ()
    assert "is also read outside the integer operator, by Exp (reader)" in row(found, "conv").reason
    able = target("npu", ["Conv", "Relu", "DequantizeLinear"], (*INTEGERS, DType.F32))
    found = annotate(quantised("Exp"), machine_of(able), {})
    assert [c.nodes for _, c in found.composites] == [(1, 2, 3, 4, 5)]


def test_a_refused_member_dissolves_its_cluster() -> None:
    why = {"q1": Rejection(ReasonCode.DOES_NOT_FIT, "too large")}
    found = annotate(quantised(), machine_of(target("npu", ["Conv", "Relu"], INTEGERS)), why)
    assert found.composites == ()


TO_I8 = Conversion(DType.I8, (DType.F32,), False)


def test_a_conversion_is_asked_for_as_if_it_had_happened() -> None:
    npu = target("npu", ["Conv", "Relu"], INTEGERS, conversions=(TO_I8,))
    assert targets_of(annotate(chain(), machine_of(npu), {}))[:2] == [HOST, HOST]
    assert targets_of(annotate(chain(), machine_of(npu), {}, {"npu": TO_I8}))[:2] == ["npu", "npu"]
    only_conv = replace(TO_I8, op_types=("Conv",))
    assert targets_of(annotate(chain(), machine_of(npu), {}, {"npu": only_conv}))[:2] == [
        "npu",
        HOST,
    ]
    assert targets_of(annotate(chain(), machine_of(npu), {}, {"other": TO_I8}))[:2] == [HOST, HOST]
    floats = target("npu", ["Conv", "Relu"])
    assert targets_of(annotate(chain(), machine_of(floats), {}, {"npu": TO_I8}))[:2] == [
        "npu",
        "npu",
    ]


def marked(model: OnnxModel, *names: str) -> OnnxModel:
    for node in model.ir.graph:
        if node.name in names:
            node.metadata_props[INSERTED] = "1"
    return model


def both_sides(on_accelerator: bool) -> Machine:
    ops = ["QuantizeLinear", "DequantizeLinear", "Conv", "Relu"]
    conversion = replace(TO_I8, on_accelerator=on_accelerator)
    return machine_of(target("npu", ops, (*INTEGERS, DType.F32), conversions=(conversion,)))


def test_inserted_conversions_stay_at_the_boundary() -> None:
    model = marked(quantised(), "q0", "dq0", "dqw", "q1", "dq1")
    found = annotate(model, both_sides(False), {})
    edge = row(found, "q0")
    assert (edge.target, edge.reason_code, edge.is_inserted) == (HOST, ReasonCode.BOUNDARY, True)
    inside = row(found, "dq0")
    assert (inside.target, inside.reason_code, inside.is_inserted) == (
        "npu", ReasonCode.COMPOSITE, True,
    )  # fmt: skip
    assert not row(found, "conv").is_inserted
    crossing = row(annotate(model, both_sides(True), {}), "q0")
    assert (crossing.target, crossing.reason_code) == ("npu", ReasonCode.OFFLOADED)


def test_partition_uses_the_annotation() -> None:
    machine = machine_of(target("npu", ["Conv", "Relu"], INTEGERS))
    parts = partition(quantised(), machine, {})
    assert [p.target for p in parts.parts] == [HOST, "npu", HOST]
    assert [c.nodes for c in parts.regions[0].composites] == [(1, 2, 3, 4, 5)]


def test_equal_nodes_are_tried_once_and_unequal_ones_apart() -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "to"], ["a"], name="a"),
        helper.make_node("Reshape", ["x", "to"], ["b"], name="b"),
        helper.make_node("Reshape", ["x", "flat"], ["c"], name="c"),
        helper.make_node("Mul", ["x", "x"], ["d"], name="d"),
        helper.make_node("Mul", ["x", "a2"], ["e"], name="e"),
        helper.make_node("Neg", ["x"], ["a2"], name="neg"),
    ]
    nodes = [nodes[-1], *nodes[:-1]]
    weights = {"to": np.array([1, 4, 36], np.int64), "flat": np.array([144], np.int64)}
    model = model_of(nodes, SMALL, ["a", "b", "c", "d", "e"], weights)
    kinds = {node.name: kind_of(node) for node in model.ir.graph}
    assert kinds["a"] == kinds["b"] is not None
    assert len({kinds["a"], kinds["c"], kinds["d"], kinds["e"]}) == 4


def test_shared_trials_agree_with_single_ones() -> None:
    for model in (chain(), quantised()):
        nodes = tuple(model.ir.graph)
        trials = Trials(nodes, model.opset)
        for k, node in enumerate(nodes):
            assert trials.rejection(k) == rejection(node, model.opset)


def test_a_node_with_an_attribute_that_is_no_number_or_text_is_like_no_other() -> None:
    node = onnx_ir.Node(
        "", "Constant", [], [onnx_ir.AttrTensor("value", onnx_ir.tensor(np.ones(2)))]
    )
    assert kind_of(node) is None
