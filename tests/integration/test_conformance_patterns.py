"""Instances of patterns: every way through a pattern becomes a model that it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from worker.compiler.codegen.runtime_header import runtime_header
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


def integer_machine(*patterns: dict[str, Any], dtypes: tuple[str, ...] = ("i8", "u8")) -> Machine:
    """A machine whose convolutions are of 8-bit integers, with other types beside."""
    spec = preset_document("a100")
    spec["name"] = "integers"
    conv = {"op_type": "Conv", "dtypes": ["i8"], "constant_inputs": [1]}
    spec["capabilities"] = {
        "dtypes": [*dtypes, "i32", "i64", "bool"], "max_rank": 6,
        "ops": [conv, {"op_type": "Relu"}, {"op_type": "Clip"}, {"op_type": "MaxPool"}],
        "patterns": list(patterns),
    }  # fmt: skip
    return load_machine(spec)


CONV_ACT = {
    "name": "conv_act",
    "match": {"op": ["Relu", "Clip"], "inputs": [{"op": "Conv", "inputs": ["any", "constant"]}]},
}  # fmt: skip


def test_patterns_have_quantised_instances_in_every_integer_and_bits_are_compared(
    tmp_path: Path,
) -> None:
    target = integer_machine(CONV_ACT)
    selection = Selection(("conv_act",))
    cases = conformance_suite(target, selection).cases
    assert {(c.dtype, str(c.form), c.label) for c in cases} == {
        ("i8", "pattern qdq", "as written"), ("i8", "pattern qdq", "Clip"),
        ("u8", "pattern qdq", "as written"),
    }  # fmt: skip
    assert op_types(cases[0].model).count("QuantizeLinear") == 1
    found = check_machine(target, tmp_path, selection)
    assert found.passed, conformance_table(found)
    # convolutions of u8 are not offered: no claim about them
    assert {(r.dtype, r.bits) for r in found.rows} == {("i8", "equal")}


def test_a_row_that_misses_its_own_quantised_form_is_caught(tmp_path: Path) -> None:
    """Fewer readers than a pattern asks for: the integer operator is there, the row is not."""
    never = {
        "name": "never",
        "match": {"op": "Relu", "inputs": [{"op": "Conv", "uses": {"min": 2, "max": 9}}]},
    }
    found = check_machine(integer_machine(never), tmp_path, Selection(("never",)))
    assert [r.reason for r in found.failures if r.dtype == "i8"] == [
        "claimed but its own instance is not taken as one composite"
    ]


def test_patterns_of_several_integer_operators_are_listed_as_untested() -> None:
    suite = conformance_suite(integer_machine(SWISH), Selection(("swish",)))
    assert suite.cases == ()
    assert {u.claim for u in suite.untested} == {
        "i8 pattern qdq as written", "u8 pattern qdq as written"
    }  # fmt: skip
    assert "Conv, Sigmoid, Mul between integers" in suite.untested[0].reason


def test_several_float_formats_have_instances(tmp_path: Path) -> None:
    spec = preset_document("a100")
    spec["name"] = "floats"
    spec["capabilities"] = {
        "dtypes": ["f32", "f16", "i64"], "max_rank": 4, "ops": OPS, "patterns": [CONV_BIAS_ACT],
    }  # fmt: skip
    selection = Selection(("conv_bias_act",))
    found = check_machine(load_machine(spec), tmp_path, selection)
    assert found.passed, conformance_table(found)
    labels = {d: [r.case for r in found.rows if r.dtype == d] for d in ("f32", "f16")}
    assert len(labels["f32"]) == 3 and labels["f16"] == ["as written"]


def test_a_vendors_step_off_hides_in_no_tolerance(tmp_path: Path) -> None:
    """A conversion that is one step off is within the reference's tolerance; its bits are not."""
    header, casts = runtime_header(), "TW_CASTS(i8, int8_t, INT8_MIN, INT8_MAX)"
    assert header.count(casts) == 1
    off = header.replace(
        casts,
        "TW_CASTS(exact_i8, int8_t, INT8_MIN, INT8_MAX)\n"
        "TW_FN int8_t tw_i8_of_f64(double a)\n"
        "{ return tw_exact_i8_of_f64(a > 10 && a < 100 ? a + 1 : a); }\n"
        "TW_FN int8_t tw_i8_of_f32(float a) { return tw_i8_of_f64((double)a); }",
    )
    spec, selection = integer_machine(CONV_ACT), Selection(("conv_act",))
    assert check_machine(spec, tmp_path, selection, header=header).passed
    found = check_machine(spec, tmp_path, selection, header=off)
    assert {(row.bits, row.max_error, row.passed) for row in found.rows} == {("differ", 1.0, False)}
    assert "not those that the instruction stream gives, bit for bit" in found.failures[0].reason
