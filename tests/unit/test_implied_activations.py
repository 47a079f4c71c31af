"""A quantised operator without an activation is one of a row whose activation its saturation is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper
from partition_models import machine_of, model_of, target

from worker.compiler.frontend.model import OnnxModel
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import AcceleratorTarget
from worker.compiler.machine.pattern import AnyValue, AttributeRule, OpMatch, PatternRule, ValueRule
from worker.compiler.partition.annotate import annotate
from worker.compiler.partition.missed import missed_rows

SCALE = 0.1
CONSTANT = AnyValue(ValueRule(constant=True))
CONV = OpMatch(("Conv",), (AnyValue(), CONSTANT), (AttributeRule("group", (1,)),))
WITH_BIAS = OpMatch(("Add",), (CONV, CONSTANT), optional=True, commutative=True)


def row(*op_types: str, **changes: object) -> PatternRule:
    root = OpMatch(op_types, (WITH_BIAS,))
    return PatternRule("conv_act", replace(root, **changes), intrinsic="cv")  # type: ignore[arg-type]


def npu(*rules: PatternRule) -> AcceleratorTarget:
    found = target("npu", ["Conv", "Relu", "Clip"], (DType.I8, DType.U8, DType.I32))
    return replace(found, capabilities=replace(found.capabilities, patterns=rules))


def quantised(zero: int = 3, dtype: type = np.int8, group: int = 1) -> OnnxModel:
    """DQ -> conv -> Q with a zero point of the result's own, between quantised ends."""
    weights: dict[str, np.ndarray] = {
        "s": np.array(SCALE, np.float32), "z": np.array(0, np.int8),
        "end": np.array(zero, dtype), "w": np.ones((4, 4 // group, 1, 1), np.int8),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q0"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="dq0"),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["dw"], name="dqw"),
        helper.make_node("Conv", ["d", "dw"], ["c"], name="conv", group=group),
        helper.make_node("QuantizeLinear", ["c", "s", "end"], ["q1"], name="q1"),
        helper.make_node("DequantizeLinear", ["q1", "s", "end"], ["y"], name="dq1"),
    ]
    return model_of(nodes, {"x": (1, 4, 6, 6)}, ["y"], weights)


CASES = [
    ("a clip", row("Clip"), {}, "cv"),
    ("a clip or a relu", row("Relu", "Clip"), {}, "cv"),
    ("a relu, numbers below zero", row("Relu"), {}, None),
    ("a relu, none below zero", row("Relu"), {"zero": -128}, "cv"),
    ("a relu, unsigned from zero", row("Relu"), {"zero": 0, "dtype": np.uint8}, "cv"),
    ("a relu, unsigned from below", row("Relu"), {"zero": 1, "dtype": np.uint8}, None),
    ("another activation", row("Sigmoid"), {"zero": -128}, None),
    ("limits that the row asks for", row("Clip", inputs=(WITH_BIAS, CONSTANT)), {}, None),
    ("a result that the row asks for", row("Clip", value=ValueRule(rank=(4, 4))), {}, None),
    ("a group that the row refuses", row("Clip"), {"group": 4}, None),
]


@pytest.mark.parametrize(
    ("rule", "changes", "intrinsic"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_saturation_is_the_activation_that_it_is(
    rule: PatternRule, changes: dict[str, object], intrinsic: str | None
) -> None:
    found = annotate(quantised(**changes), machine_of(npu(rule)), {})  # type: ignore[arg-type]
    ((_, composite),) = found.composites
    assert composite.intrinsic == intrinsic
    assert composite.nodes == (1, 2, 3, 4)
    assert [m.rule for _, m in found.matches] == ([rule] if intrinsic else [])


def test_a_row_of_the_bare_operator_comes_first() -> None:
    bare = PatternRule("conv", CONV, priority=-5)
    found = annotate(quantised(), machine_of(npu(row("Clip"), bare)), {})
    assert [c.name for _, c in found.composites] == ["conv"]


@pytest.mark.parametrize("zero", [-128, 3, 100])
def test_a_clip_to_the_range_of_the_integers_changes_no_bit(zero: int) -> None:
    x = np.random.default_rng(3).normal(0, 30, 4096).astype(np.float32)
    ends = (np.array([-128, 127]) - zero).astype(np.float32) * np.float32(SCALE)

    def quantise(values: np.ndarray) -> np.ndarray:
        return np.clip(np.rint(values / np.float32(SCALE)) + zero, -128, 127)

    assert (quantise(x) == quantise(np.clip(x, *ends))).all()
    relu = quantise(np.maximum(x, 0))
    assert (quantise(x) == relu).all() is np.bool_(zero == -128)


@pytest.mark.parametrize(
    ("changes", "rule", "text"),
    [
        ({}, row("Relu"), "conv: it ends in no activation"),
        ({"group": 4}, row("Clip"), "conv: group is 4, the rule wants 1"),
    ],
)
def test_a_near_miss_says_why(changes: dict[str, int], rule: PatternRule, text: str) -> None:
    model = quantised(**changes)  # type: ignore[arg-type]
    offered = npu(rule)
    found = annotate(model, machine_of(offered), {})
    misses = missed_rows(tuple(model.ir.graph), ("y",), offered, found)
    assert [miss.sentence[: len(text)] for miss in misses] == [text]


def test_a_match_that_the_target_refuses_is_a_near_miss_with_its_reason() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    model = model_of(
        nodes, {"x": (1, 4, 6, 6)}, ["y"], {"w": np.ones((4, 4, 1, 1), np.float32)}
    )  # fmt: skip
    offered = npu(row("Relu"))
    found = annotate(model, machine_of(offered), {})
    assert found.matches == ()
    (miss,) = missed_rows(tuple(model.ir.graph), ("y",), offered, found)
    assert (miss.pattern, miss.root_node, miss.at_node) == ("conv_act", "relu", "conv")
    assert "x is f32, npu allows Conv of i8 or u8" in miss.sentence
