"""Instances of patterns: every way through a pattern becomes a model that it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from worker.compiler.machine import load_machine, preset_document
from worker.compiler.machine.machine import Machine
from worker.conformance.cases import Selection, conformance_suite
from worker.conformance.conform import check_machine
from worker.conformance.report import conformance_table

OPS: list[dict[str, Any]] = [{"op_type": "Conv"}]


def machine(*patterns: dict[str, Any]) -> Machine:
    spec = preset_document("a100")
    spec["name"] = "patterned"
    spec["capabilities"] = {
        "dtypes": ["f32", "i32", "i64", "bool"], "max_rank": 6, "ops": OPS,
        "patterns": list(patterns),
    }  # fmt: skip
    return load_machine(spec)


def op_types(model: bytes) -> list[str]:
    return [node.op_type for node in onnx.load_from_string(model).graph.node]


CONV_BIAS_ACT = {
    "name": "conv_bias_act",
    "match": {
        "op": ["Relu", "Sigmoid"],
        "inputs": [
            {
                "op": "Add", "optional": True, "commutative": True,
                "inputs": [{"op": "Conv", "inputs": ["any", "constant"]}, "constant"],
            }
        ],
    },
}  # fmt: skip
SWISH = {
    "name": "swish",
    "match": {
        "op": "Mul", "commutative": True,
        "inputs": [{"op": "Conv", "bind": "x"}, {"op": "Sigmoid", "inputs": [{"same_as": "x"}]}],
    },
}  # fmt: skip
SCALED = {
    "name": "scaled",
    "match": {
        "op": "Softmax",
        "inputs": [{"path": ["Mul", "Add"], "max_nodes": 2, "to": {"op": "MatMul"}}],
    },
}  # fmt: skip
POOLED = {
    "name": "pooled",
    "match": {
        "op": "Flatten",
        "inputs": [
            {
                "alternatives": [
                    {"op": "GlobalAveragePool"},
                    {"op": "AveragePool", "inputs": [{"any": True, "shape": [1, None, 9, 9]}]},
                ]
            }
        ],
    },
}  # fmt: skip
KERNELS = {
    "name": "pointwise_conv",
    "match": {
        "op": "Relu",
        "inputs": [
            {
                "op": "Conv",
                "attributes": {"kernel_shape": {"allowed": [1]}, "group": {"allowed": [1]}},
                "rank": {"min": 4, "max": 4},
            }
        ],
    },
}


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        (CONV_BIAS_ACT, {"Conv Add Relu", "Conv Add Sigmoid", "Conv Relu"}),
        (SWISH, {"Conv Sigmoid Mul"}),
        (SCALED, {"MatMul Softmax", "MatMul Mul Softmax", "MatMul Add Softmax"}),
        (POOLED, {"GlobalAveragePool Flatten", "AveragePool Flatten"}),
        (KERNELS, {"Conv Relu"}),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_every_way_through_a_pattern_is_one_composite(
    pattern: dict[str, Any], wanted: set[str], tmp_path: Path
) -> None:
    target = machine(pattern)
    selection = Selection((pattern["name"],))
    suite = conformance_suite(target, selection)
    assert {" ".join(op_types(case.model)) for case in suite.cases} == wanted
    found = check_machine(target, tmp_path, selection)
    assert found.passed, conformance_table(found)
    assert all(row.max_error is not None for row in found.rows)


def test_the_patterns_of_a_preset_have_instances(tmp_path: Path) -> None:
    target = load_machine(preset_document("xavier"))
    names = tuple(p.name for t in target.targets for p in t.capabilities.patterns)
    assert names
    found = check_machine(target, tmp_path, Selection(names))
    assert found.passed, conformance_table(found)
    assert {row.op_type for row in found.rows} == set(names)


def test_a_pattern_that_nothing_can_meet_is_caught(tmp_path: Path) -> None:
    """A value inside that two nodes must read, in a pattern with one reader."""
    pattern = {
        "name": "never",
        "match": {"op": "Relu", "inputs": [{"op": "Conv", "uses": {"min": 2, "max": 9}}]},
    }
    found = check_machine(machine(pattern), tmp_path, Selection(("never",)))
    assert not found.passed and found.rows[0].case == "as written"


def test_a_pattern_over_an_inexpressible_operator_is_caught(tmp_path: Path) -> None:
    pattern = {"name": "outside", "match": {"op": "Relu", "inputs": [{"op": "Det"}]}}
    found = check_machine(machine(pattern), tmp_path, Selection(("outside",)))
    assert not found.passed and "Det is not expressible" in found.rows[0].reason


def test_a_pattern_that_a_better_one_hides_is_taken_by_that_one(tmp_path: Path) -> None:
    wide = {"name": "wide", "match": {"op": "Relu", "inputs": [{"op": "Conv"}]}}
    narrow = {"name": "narrow", "priority": 5, "match": wide["match"]}
    found = check_machine(machine(wide, narrow), tmp_path, Selection(("wide",)))
    assert found.passed, conformance_table(found)


def test_instances_are_the_same_every_time() -> None:
    first, second = (conformance_suite(machine(CONV_BIAS_ACT)).cases for _ in range(2))
    assert [case.model for case in first] == [case.model for case in second]
