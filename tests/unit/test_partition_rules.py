"""Every rule of a capability list refuses with its own code and a sentence that says what."""

from __future__ import annotations

import numpy as np
import onnx_ir
import pytest
from onnx import helper
from partition_models import model_of, refusal, target

from worker.compiler.frontend.model import OnnxModel
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.lint.terms import LIMIT_NAMES
from worker.compiler.machine.machine import AcceleratorTarget, Conversion, OpSupport
from worker.compiler.machine.pattern import AttributeRule
from worker.compiler.partition.quantities import quantity
from worker.compiler.rejection import ReasonCode


def conv_model(**attributes: object) -> OnnxModel:
    """A convolution of 4 channels in 2 groups, 6 x 10 pixels, window 3 x 5."""
    settings = {"group": 2, "strides": [1, 2], "pads": [1, 0, 2, 3], **attributes}
    weights = {"w": np.ones((8, 2, 3, 5), np.float32)}
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="stem/conv", **settings)
    return model_of([node], {"x": (1, 4, 6, 10)}, ["y"], weights)


def node_of(model: OnnxModel) -> onnx_ir.Node:
    return next(iter(model.ir.graph))


def conv(**rules: object) -> AcceleratorTarget:
    return target("npu", [OpSupport("Conv", **{"dtypes": (), **rules})])  # type: ignore[arg-type]


REFUSALS: list[tuple[str, AcceleratorTarget, ReasonCode, tuple[str, ...]]] = [
    ("not listed", target("npu", ["Relu"]), ReasonCode.CAPABILITY_OP,
     ("npu does not list Conv", "listing Conv")),
    ("dtype of the target", target("npu", ["Conv"], (DType.F16, DType.I8)),
     ReasonCode.CAPABILITY_DTYPE, ("x is f32", "npu allows Conv of f16 or i8", "a model in f16")),
    ("dtype of the op", conv(dtypes=(DType.I8,)), ReasonCode.CAPABILITY_DTYPE,
     ("x is f32", "npu allows Conv of i8")),
    ("rank", target("npu", ["Conv"], max_rank=3), ReasonCode.CAPABILITY_RANK,
     ("x has rank 4", "npu allows at most 3")),
    ("above a limit", conv(limits=(("stride_w", 1, 1),)), ReasonCode.CAPABILITY_ATTRIBUTE,
     ("stride_w is 2", "npu allows only 1", "a maximum of 2")),
    ("below a limit", conv(limits=(("macs", 10_000_000, 20_000_000),)),
     ReasonCode.CAPABILITY_ATTRIBUTE,
     ("macs is 8400", "npu allows 10000000 to 20000000", "a minimum of 8400")),
    ("attribute value", conv(attributes=(AttributeRule("group", (1,)),)),
     ReasonCode.CAPABILITY_ATTRIBUTE, ("group is 2", "npu allows 1")),
    ("attribute default", conv(attributes=(AttributeRule("dilations", (), 2.0),)),
     ReasonCode.CAPABILITY_ATTRIBUTE, ("dilations is [1, 1]", "npu allows at least 2")),
    ("attribute element", conv(attributes=(AttributeRule("strides", (1, 4)),)),
     ReasonCode.CAPABILITY_ATTRIBUTE, ("strides is [1, 2]", "npu allows 1 or 4")),
    ("constant input", conv(constant_inputs=(0,)), ReasonCode.CONSTANT_INPUT,
     ("input 0 (x) is computed", "npu allows only constants")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("offered", "code", "parts"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS]
)
def test_refusal(offered: AcceleratorTarget, code: ReasonCode, parts: tuple[str, ...]) -> None:
    found = refusal(node_of(conv_model()), offered)
    assert found is not None
    assert found.code is code
    assert found.sentence.startswith("Conv (stem/conv): ")
    for part in parts:
        assert part in found.sentence


def test_a_foreign_domain_is_refused() -> None:
    node = onnx_ir.Node("com.example", "Conv", [], name="custom")
    found = refusal(node, conv(), opset=18)
    assert found is not None
    assert found.code is ReasonCode.CAPABILITY_OP
    assert "'com.example'" in found.sentence


def test_a_node_inside_every_rule_is_allowed() -> None:
    offered = conv(
        limits=(("kernel_h", 3, 3), ("kernel_w", 5, 5), ("group", 2, 2)),
        attributes=(AttributeRule("strides", (1, 2)), AttributeRule("auto_pad", ("NOTSET",))),
        constant_inputs=(1, 2),
    )
    assert refusal(node_of(conv_model()), offered) is None


def test_the_note_and_the_label_are_in_the_sentence() -> None:
    offered = conv(limits=(("stride_w", 1, 1),), note="the window engine steps by one")
    found = refusal(node_of(conv_model()), offered, label="dpu-zu")
    assert found is not None
    assert found.sentence == (
        "Conv (stem/conv): stride_w is 2, dpu-zu allows only 1 (the window engine steps by one);"
        " a maximum of 2 for stride_w in the spec would allow it"
    )


def test_a_stand_in_takes_the_place_of_the_models_type() -> None:
    offered = target("npu", ["Conv"], (DType.I8,))
    node = node_of(conv_model())
    assert refusal(node, offered) is not None
    assert refusal(node, offered, {onnx_ir.DataType.FLOAT: DType.I8}) is None


def test_a_conversion_of_the_target_is_the_lever_of_a_type() -> None:
    node = node_of(conv_model())
    to_i8 = Conversion(DType.I8, (DType.F32,), False)
    offered = target("npu", ["Conv"], (DType.I8,), conversions=(to_i8,))
    found = refusal(node, offered)
    assert found is not None
    assert "converting it to i8 would allow it" in found.sentence
    other = Conversion(DType.I8, (DType.F32,), False, ("Gemm",))
    found = refusal(node, target("npu", ["Conv"], (DType.I8,), conversions=(other,)))
    assert found is not None
    assert "converting" not in found.sentence


def test_index_types_are_free() -> None:
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"], name="pick")]
    model = model_of(nodes, {"x": (8, 4)}, ["y"], {"i": np.array([1, 2], np.int64)})
    assert refusal(node_of(model), target("npu", ["Gather"])) is None


MEASURED = {
    "batch": 1, "depthwise": 0, "dilation_h": 1, "dilation_w": 1, "elements": 280, "group": 2,
    "height": 6, "in_channels": 4, "kernel_h": 3, "kernel_size": 15, "kernel_w": 5, "macs": 8400,
    "out_channels": 8, "pad_h": 2, "pad_w": 3, "rank": 4, "stride_h": 1, "stride_w": 2,
    "weight_elements": 240, "width": 10,
}  # fmt: skip


def test_every_limit_of_the_lint_is_measured() -> None:
    node = node_of(conv_model())
    assert {name: quantity(node, name, 18) for name in LIMIT_NAMES} == MEASURED


def test_windows_of_pools() -> None:
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], name="pool", kernel_shape=[2, 3], strides=[2, 1]),
        helper.make_node("GlobalAveragePool", ["p"], ["y"], name="mean"),
    ]
    pool, mean = model_of(nodes, {"x": (1, 4, 6, 10)}, ["y"]).ir.graph
    assert [quantity(pool, n, 18) for n in ("kernel_h", "kernel_w", "stride_h")] == [2, 3, 2]
    assert [quantity(mean, n, 18) for n in ("kernel_h", "kernel_w")] == [3, 8]
    assert quantity(mean, "stride_h", 18) is None
    assert quantity(pool, "macs", 18) is None


def test_padding_that_the_model_leaves_to_the_standard() -> None:
    model = conv_model(pads=None, auto_pad="SAME_UPPER", strides=[1, 1])
    node = node_of(model)
    assert [quantity(node, n, 18) for n in ("pad_h", "pad_w")] == [1, 2]


def test_depthwise_counts_channels() -> None:
    weights = {"w": np.ones((4, 1, 3, 3), np.float32)}
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="dw", group=4)
    assert quantity(node_of(model_of([node], {"x": (1, 4, 6, 6)}, ["y"], weights)),
                    "depthwise", 18) == 1  # fmt: skip
