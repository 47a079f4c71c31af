"""Recipes of the conformance suite: every expressible operator has one, and it aims well."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from worker.compiler.frontend.ops.registry import EXPRESSIONS
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.pattern import AttributeRule
from worker.compiler.partition.quantities import quantity
from worker.conformance.case import Form
from worker.conformance.claims import (
    AFFORDABLE,
    NUMPY,
    Claim,
    corner_values,
    node_named,
    rule_values,
)
from worker.conformance.form import NODE, NoForm, native_form, quantized_form, run_onnx
from worker.conformance.recipes import RECIPES
from worker.conformance.sample import OPSET, Request, Sample

_TRIED = (DType.F32, DType.I8, DType.U8, DType.BOOL, DType.I32)


def sample(op_type: str, variant: str = "", **quantities: int) -> Sample:
    """The recipe's instance of the first type that ONNX has for the operator."""
    for dtype in _TRIED:
        claim = Claim(op_type, dtype, Form.NATIVE, "x", quantities=quantities, variant=variant)
        made = claim.sample(RECIPES[op_type], ())
        try:
            native_form(op_type, made)
        except NoForm:
            continue
        return made
    raise AssertionError(f"no type of {_TRIED} does for {op_type}")


def test_every_expressible_operator_has_a_recipe_and_no_other() -> None:
    assert set(RECIPES) == set(EXPRESSIONS)


@pytest.mark.parametrize("op_type", sorted(RECIPES))
def test_the_plain_instance_and_every_variant_are_valid_onnx(op_type: str) -> None:
    for variant in ("", *RECIPES[op_type].variants):
        made = sample(op_type, variant) if isinstance(variant, str) else sample(op_type, **variant)
        built = native_form(op_type, made)
        model = onnx.load_from_string(built.model)
        (node,) = model.graph.node
        context = onnx.checker.C.CheckerContext()
        context.ir_version = model.ir_version
        context.opset_imports = {"": model.opset_import[0].version}
        onnx.checker.check_node(node, context)
        assert node.op_type == op_type and len(node.output) == made.outputs


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose", "MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kernel_h", 1), ("kernel_h", 7), ("kernel_w", 64), ("stride_h", 3), ("stride_w", 4),
        ("dilation_h", 2), ("dilation_w", 3), ("pad_h", 0), ("pad_w", 2), ("batch", 3),
        ("in_channels", 17), ("height", 33), ("width", 40), ("rank", 3), ("rank", 5),
        ("kernel_size", 35),
    ],
)  # fmt: skip
def test_windows_have_the_quantity_that_is_asked_for(op_type: str, name: str, value: int) -> None:
    made = sample(op_type, **{name: value})
    built = native_form(op_type, made)
    assert quantity(node_named(built.model, NODE), name, OPSET) == value
    assert run_onnx(built.model, built.feeds)["y0"].size


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("group", 3), ("depthwise", 1), ("depthwise", 0), ("out_channels", 31),
        ("weight_elements", 77), ("macs", 100), ("elements", 19),
    ],
)  # fmt: skip
def test_convolutions_have_the_quantity_that_is_asked_for(name: str, value: int) -> None:
    built = native_form("Conv", sample("Conv", **{name: value}))
    assert quantity(node_named(built.model, NODE), name, OPSET) == value


def test_quantities_combine() -> None:
    wanted = {"kernel_h": 5, "stride_w": 3, "group": 2, "in_channels": 6, "out_channels": 8}
    node = node_named(native_form("Conv", sample("Conv", **wanted)).model, NODE)
    assert {name: quantity(node, name, OPSET) for name in wanted} == wanted


def test_corners_are_the_ends_and_a_middle_clipped_where_unaffordable() -> None:
    assert [v for v, _ in corner_values("kernel_h", 1, 7)] == [1, 4, 7]
    assert [v for v, _ in corner_values("kernel_h", 3, 3)] == [3]
    assert [v for v, _ in corner_values("batch", 0, 2)] == [1, 2]
    most = AFFORDABLE["height"]
    assert corner_values("height", 1, 9999)[-1] == (most, f"height={most} (of 9999)")
    assert corner_values("height", most + 1, most + 5) == ()


def test_attribute_rules_give_every_allowed_value_and_both_bounds() -> None:
    assert rule_values(AttributeRule("mode", ("edge", "wrap"))) == ("edge", "wrap")
    assert rule_values(AttributeRule("axis", (), 0.0, 3.0)) == (0, 3)
    assert rule_values(AttributeRule("alpha", (), 0.5)) == (0.5,)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose", "Gemm", "Add", "MaxPool", "Split"])
def test_the_quantised_form_means_the_float_operator(op_type: str, dtype: Any) -> None:
    """Within two steps of the result: rounding of operands and of the result."""
    made = RECIPES[op_type].build(Request(NUMPY[DType.F32], np.random.default_rng(1)))
    plain = native_form(op_type, made)
    built = quantized_form(op_type, made, np.dtype(dtype))
    real, stored = run_onnx(plain.model, plain.feeds), run_onnx(built.model, built.feeds)
    tensors = {
        t.name: onnx.numpy_helper.to_array(t)
        for t in onnx.load_from_string(built.model).graph.initializer
    }
    for k in range(made.outputs):
        scale, zero = tensors[f"z{k}_scale"], tensors[f"z{k}_zero"]
        assert stored[f"z{k}"].dtype == dtype
        found = (stored[f"z{k}"].astype(np.float64) - zero.astype(np.float64)) * scale
        slack = 0.03 * np.abs(real[f"y{k}"]).max() + 2 * float(scale)
        assert np.abs(found - real[f"y{k}"]).max() <= slack


def test_types_that_onnx_does_not_have_are_no_form() -> None:
    x = np.zeros((1, 4, 6, 6), np.int8)
    weights = np.zeros((2, 4, 3, 3), np.int8)
    with pytest.raises(NoForm, match="ONNX has no Conv whose X is int8"):
        native_form("Conv", Sample((x, weights)))


def test_instances_are_the_same_every_time() -> None:
    claim = Claim("Conv", DType.F32, Form.NATIVE, "plain")
    first, second = (native_form("Conv", claim.sample(RECIPES["Conv"], ())) for _ in range(2))
    assert first.model == second.model
    assert all(np.array_equal(first.feeds[n], second.feeds[n]) for n in first.feeds)
