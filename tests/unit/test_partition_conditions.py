"""Conditions of a row: comparisons and alternatives, as compiled, refused and described."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from partition_models import model_of

from worker.compiler.frontend.model import OnnxModel
from worker.compiler.machine.build import load_machine
from worker.compiler.machine.machine import Machine
from worker.compiler.partition.annotate import annotate
from worker.compiler.partition.manual import manual_document
from worker.compiler.partition.plan import HOST
from worker.compiler.partition.unlock import Lift, allowing
from worker.compiler.rejection import ReasonCode


def chip(*conditions: Mapping[str, Any], **row: Any) -> Machine:
    """A machine that runs convolutions under some conditions."""
    conv = {"op_type": "Conv", "conditions": list(conditions), **row}
    capabilities = {"groups": [], "ops": [conv], "patterns": []}
    return load_machine({"name": "mine", "inherits": "a100", "capabilities": capabilities})


def conv_model(
    channels: int = 4, out: int = 8, group: int = 1, size: int = 6, kernel: int = 3
) -> OnnxModel:
    weights = {"w": np.ones((out, channels // group, kernel, kernel), np.float32)}
    node = helper.make_node(
        "Conv", ["x", "w"], ["y"], name="stem/conv", group=group, pads=[kernel // 2] * 4
    )
    return model_of([node], {"x": (1, channels, size, size)}, ["y"], weights)


def reason(model: OnnxModel, machine: Machine) -> str:
    """Why the node is on the host; empty when it is not."""
    (row,) = annotate(model, machine, {}).placement
    if row.target != HOST:
        return ""
    assert row.reason_code is ReasonCode.CAPABILITY_ATTRIBUTE
    return row.reason


def place(machine: Machine) -> str:
    (conv,) = (op for op in machine.targets[0].capabilities.ops if op.op_type == "Conv")
    return f"[rule {conv.pointer}/conditions/0]"


REFUSED: list[tuple[str, dict[str, Any], dict[str, int], dict[str, int], str]] = [
    ("a multiple", {"compare": "out_channels", "multiple_of": 16}, {"out": 32}, {"out": 24},
     "out_channels is 24, mine allows only multiples of 16"),
    ("across attributes and operands", {"compare": "kernel_h", "at_most": "height"},
     {"kernel": 5, "size": 5}, {"kernel": 7, "size": 5},
     "kernel_h is 7, mine allows at most height = 5"),
    ("equal quantities", {"compare": "group", "equals": "in_channels"}, {"group": 4}, {"group": 2},
     "group is 2, mine allows only in_channels = 4"),
    ("operands", {"compare": "input0.dim1", "equals": "input1.dim0"}, {"out": 4}, {"out": 8},
     "input0.dim1 is 4, mine allows only input1.dim0 = 8"),
    ("an attribute", {"compare": "attribute.pads.0", "at_least": 1}, {"kernel": 3}, {"kernel": 1},
     "attribute.pads.0 is 0, mine allows at least 1"),
    ("a product", {"compare": ["in_channels", "kernel_size"], "at_most": 100},
     {"channels": 4}, {"channels": 12},
     "in_channels x kernel_size is 108, mine allows at most 100"),
    ("bytes of a memory", {"compare": "input1.bytes", "at_most": [0.01, "SMEM.bytes"]},
     {"out": 8}, {"out": 64}, "input1.bytes is 9216, mine allows at most 0.01 x SMEM.bytes = "),
]  # fmt: skip


@pytest.mark.parametrize(
    ("condition", "good", "bad", "fact"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_a_comparison_decides(
    condition: dict[str, Any], good: dict[str, int], bad: dict[str, int], fact: str
) -> None:
    machine = chip(condition)
    assert reason(conv_model(**good), machine) == ""
    refused = reason(conv_model(**bad), machine)
    assert refused.startswith(f"Conv (stem/conv): {fact}")
    assert refused.endswith(place(machine))


EITHER = {
    "any_of": [
        {"limits": {"group": {"min": 1, "max": 1}}},
        {"conditions": [{"compare": "group", "equals": "in_channels"}],
         "attributes": {"kernel_shape": {"allowed": [3]}}},
    ]
}  # fmt: skip


def test_one_of_several_clauses_is_enough_and_a_refusal_says_what_each_lacks() -> None:
    machine = chip(EITHER)
    assert reason(conv_model(group=1, kernel=5), machine) == ""
    assert reason(conv_model(group=4, kernel=3), machine) == ""
    refused = reason(conv_model(group=4, kernel=5), machine)
    assert "none of 2 alternatives holds: group is 4, mine allows only 1; or" in refused
    assert "kernel_shape is [5, 5], mine allows 3" in refused
    assert refused.endswith(place(machine))


def test_a_quantity_that_the_node_lacks_does_not_concern_it() -> None:
    machine = chip(
        {"compare": "input0.dim7", "equals": 1}, {"compare": "input2.bytes", "at_most": 1}
    )
    assert reason(conv_model(), machine) == ""


@pytest.mark.parametrize("alpha", [float("inf"), float("nan"), 3.0])
@pytest.mark.parametrize("relation", ["at_least", "equals", "multiple_of"])
def test_an_attribute_that_is_no_number_is_refused(alpha: float, relation: str) -> None:
    """A model may say anything: `multiple_of` ended in an OverflowError."""
    row = {"op_type": "LeakyRelu", "conditions": [{"compare": "attribute.alpha", relation: 4}]}
    capabilities = {"groups": [], "ops": [row], "patterns": []}
    machine = load_machine({"name": "mine", "inherits": "a100", "capabilities": capabilities})
    node = helper.make_node("LeakyRelu", ["x"], ["y"], name="act", alpha=alpha)
    refused = reason(model_of([node], {"x": (1, 4)}, ["y"], {}), machine)
    is_more = relation == "at_least" and alpha == float("inf")
    assert ("attribute.alpha is" in refused) != is_more


def test_an_old_limit_names_its_place_too() -> None:
    machine = chip(limits={"kernel_h": {"min": 1, "max": 2}})
    assert reason(conv_model(), machine).endswith("/limits/kernel_h]")


def test_a_pointer_is_into_the_users_own_document() -> None:
    own = {"op_type": "Conv", "conditions": [{"compare": "kernel_h", "at_most": 1}]}
    machine = load_machine({"name": "mine", "inherits": "a100", "capabilities": {"ops": [own]}})
    assert reason(conv_model(), machine).endswith("[rule /capabilities/ops/0/conditions/0]")


def test_the_manual_says_them_and_a_lift_takes_them_away() -> None:
    machine = chip(EITHER)
    text = json.dumps(manual_document(machine))
    assert "(group only 1) or (kernel_shape 3, group only in_channels)" in text
    lifted = allowing(machine, frozenset({Lift("Conv", ReasonCode.CAPABILITY_ATTRIBUTE)}))
    assert reason(conv_model(group=4, kernel=5), lifted) == ""


@given(
    channels=st.sampled_from([2, 4, 6]), out=st.sampled_from([2, 4, 6, 12]),
    kernel=st.sampled_from([1, 3, 5]), most=st.integers(1, 8), step=st.integers(1, 8),
)  # fmt: skip
def test_demands_are_what_arithmetic_says(
    channels: int, out: int, kernel: int, most: int, step: int
) -> None:
    machine = chip(
        {"compare": "kernel_h", "at_most": most},
        {"any_of": [{"conditions": [{"compare": "out_channels", "multiple_of": step}]},
                    {"conditions": [{"compare": "in_channels", "at_least": ["kernel_w", 2]}]}]},
    )  # fmt: skip
    allowed = kernel <= most and (out % step == 0 or channels >= 2 * kernel)
    assert (reason(conv_model(channels, out, 1, 6, kernel), machine) == "") is allowed
