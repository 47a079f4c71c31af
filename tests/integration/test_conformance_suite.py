"""The conformance suite: honest specs pass, and every kind of lie is caught."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from worker.backend_kit.kit import kit_files
from worker.compiler.frontend.convert_opset import TARGET_OPSET
from worker.compiler.machine import load_machine, parse_document
from worker.compiler.partition import conditions
from worker.conformance.case import Expectation, Form
from worker.conformance.cases import Selection, conformance_suite
from worker.conformance.conform import check_machine
from worker.conformance.report import Conformance, conformance_document, conformance_table
from worker.conformance.run import Row
from worker.conformance.sample import OPSET

ALL = ["f32", "i8", "i16", "i32", "i64", "bool"]


def document(ops: list[dict[str, Any]], dtypes: list[str], **more: Any) -> dict[str, Any]:
    """The kit's chip with other claims."""
    found: dict[str, Any] = deepcopy(dict(parse_document(kit_files("liar")["liar.yaml"])))
    for engine in found["engines"]:
        if "macs_per_cycle" in engine:
            engine["macs_per_cycle"] = dict.fromkeys(dtypes, 512)
        engine.pop("intrinsics", None)  # of int8: in wider formats its operands fit no memory
    found["capabilities"] = {"dtypes": dtypes, "max_rank": 4, "ops": ops, **more}
    return found


def conformance(spec: dict[str, Any], folder: Path, **options: Any) -> Conformance:
    return check_machine(load_machine(spec), folder, **options)


def failed(found: Conformance, label: str) -> Row:
    rows = [r for r in found.failures if r.case == label]
    assert rows, [f"{r.op_type} {r.case}: {r.reason}" for r in found.failures]
    return rows[0]


HONEST = [
    {
        "op_type": "Conv",
        "dtypes": ["f32", "i8"],
        "limits": {"kernel_h": {"min": 1, "max": 3}, "stride_w": {"min": 1, "max": 2}},
        "constant_inputs": [1],
    },
    {"op_type": "MaxPool", "dtypes": ["f32"], "attributes": {"ceil_mode": {"allowed": [0]}}},
    {"op_type": "Relu"},
]


def test_an_honest_spec_passes_with_cases_on_both_sides_of_every_rule(tmp_path: Path) -> None:
    machine = load_machine(document(HONEST, ALL))
    suite = conformance_suite(machine)
    labels = {(c.op_type, c.form, c.label) for c in suite.cases}
    for label in ("kernel_h=1", "kernel_h=2", "kernel_h=3", "stride_w=2", "all limits"):
        assert ("Conv", Form.NATIVE, label) in labels and ("Conv", Form.QDQ, label) in labels
    refused = {c.label: c for c in suite.cases if c.expectation is Expectation.REFUSED}
    assert {
        "outside: kernel_h=4", "outside: stride_w=3", "outside: input 1 computed",
        "outside: ceil_mode=1", "outside: rank=5", "outside: f16",
    } <= refused.keys()  # fmt: skip
    assert {c.label for c in suite.cases if c.op_type == "Relu" and c.dtype == "f32"} >= {
        "rank=1", "rank=2", "rank=3", "rank=4",
    }  # fmt: skip
    found = check_machine(machine, tmp_path)
    assert found.passed, conformance_table(found)
    ran = [row for row in found.rows if row.max_error is not None]
    assert len(ran) > 20 and all(row.tolerance is not None for row in ran)
    assert {row.placed for row in found.rows if row.case.startswith("outside")} == {"host"}


def test_conditions_are_kept_and_what_breaks_them_must_be_refused(tmp_path: Path) -> None:
    conv = {
        "op_type": "Conv", "dtypes": ["f32", "i8"],
        "limits": {"kernel_h": {"min": 1, "max": 3}},
        "conditions": [{"any_of": [
            {"limits": {"kernel_h": {"min": 1, "max": 2}}},
            {"conditions": [{"compare": "kernel_h", "at_most": ["kernel_w", 0.5]}]},
        ]}],
    }  # fmt: skip
    found = check_machine(load_machine(document([conv], ALL)), tmp_path)
    assert found.passed, conformance_table(found)
    of_case = {(row.form, row.case): row for row in found.rows if row.op_type == "Conv"}
    for form in ("native", "qdq"):
        assert of_case[form, "kernel_h=2"].max_error is not None
        assert of_case[form, "outside: kernel_h=3"].placed == "host"
        assert (form, "kernel_h=3") not in of_case


def test_the_same_machine_gives_the_same_suite() -> None:
    machine = load_machine(document(HONEST, ALL))
    first, second = (conformance_suite(machine).cases for _ in range(2))
    assert [c.model for c in first] == [c.model for c in second]
    assert len({(c.op_type, c.dtype, c.form, c.label) for c in first}) == len(first)


def test_quick_is_a_part_that_still_has_every_operator() -> None:
    machine = load_machine(document(HONEST, ALL))
    every = {(c.op_type, c.dtype, c.form, c.label) for c in conformance_suite(machine).cases}
    quick = conformance_suite(machine, Selection(is_quick=True)).cases
    found = {(c.op_type, c.dtype, c.form, c.label) for c in quick}
    assert found < every and {"Conv", "MaxPool", "Relu"} == {op for op, *_ in found}


def test_only_the_named_operators_are_tested() -> None:
    machine = load_machine(document(HONEST, ALL))
    cases = conformance_suite(machine, Selection(("MaxPool",))).cases
    assert {c.op_type for c in cases} == {"MaxPool"}


@pytest.mark.parametrize(
    ("op_type", "words"),
    [
        ("Det", "Det has no expression in the operator algebra"),
        ("NonZero", "the number of results depends on the data"),
        ("Loop", "Loop is control flow"),
    ],
)
def test_an_operator_without_an_expression_is_a_false_claim(
    tmp_path: Path, op_type: str, words: str
) -> None:
    found = conformance(document([{"op_type": op_type}, {"op_type": "Abs"}], ["f32"]), tmp_path)
    assert not found.passed
    row = failed(found, "claim")
    assert row.op_type == op_type and words in row.reason and "not expressible" in row.reason
    assert all(r.passed for r in found.rows if r.op_type == "Abs")


def test_a_float_operator_on_an_integer_chip_is_a_false_claim(tmp_path: Path) -> None:
    found = conformance(document([{"op_type": "Softmax"}], ["i8", "i32"]), tmp_path)
    assert "CAPABILITY_DTYPE" in failed(found, "plain").reason


def test_an_operator_that_onnx_lacks_in_the_types_is_a_false_claim(tmp_path: Path) -> None:
    found = conformance(document([{"op_type": "Not"}], ["f32"]), tmp_path)
    assert "ONNX has no Not of f32" in failed(found, "claim").reason


def test_a_limit_beyond_what_accumulators_hold_is_caught(tmp_path: Path) -> None:
    claim = {
        "op_type": "Conv", "dtypes": ["i16", "i8"],
        "limits": {"in_channels": {"min": 1, "max": 2048}},
    }  # fmt: skip
    found = conformance(document([claim], ["i8", "i16", "i32"]), tmp_path)
    row = failed(found, "in_channels=2048")
    assert "SIZE_LIMIT" in row.reason and row.dtype == "i16" and row.placed == "host"
    assert all(r.passed for r in found.rows if r.case in ("plain", "in_channels=1"))


def test_a_limit_beyond_what_the_memory_holds_is_caught(tmp_path: Path) -> None:
    spec = document([{"op_type": "Softmax", "dtypes": ["f32"]}], ["f32"])
    spec["levels"][1] |= {"capacity_bytes": 64, "align_bytes": 64, "reserve_fraction": 0.0}
    row = failed(conformance(spec, tmp_path), "plain")
    assert "it does not fit" in row.reason and "DOES_NOT_FIT" in row.reason


def test_a_rule_that_is_not_applied_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "limit_miss", lambda *_: None)
    claim = {"op_type": "MaxPool", "limits": {"kernel_h": {"min": 1, "max": 3}}}
    row = failed(conformance(document([claim], ["f32"]), tmp_path), "outside: kernel_h=4")
    assert row.placed == "target" and "outside the rule" in row.reason


def test_a_refusal_for_another_reason_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = conditions.limit_miss

    def vague(*arguments: Any) -> Any:
        miss = kept(*arguments)
        return None if miss is None else conditions.Miss(miss.code, "it is not allowed", "ask")

    monkeypatch.setattr(conditions, "limit_miss", vague)
    claim = {"op_type": "MaxPool", "limits": {"kernel_h": {"min": 1, "max": 3}}}
    row = failed(conformance(document([claim], ["f32"]), tmp_path), "outside: kernel_h=4")
    assert "not because of kernel_h" in row.reason


def test_instructions_that_compute_wrongly_are_caught(tmp_path: Path) -> None:
    header = kit_files("liar")["tilewright_rt.h"]
    broken = (
        "#define TW_VENDOR_DMA_3D(dst, src, n0, n1, n2, bytes, d0, d1, d2, s0, s1, s2) \\\n"
        "    do { if ((n0) * (n1) * (n2) * (bytes) > 8) memmove((dst), (src), 8); } while (0)\n"
    )
    at = header.index("/* ---- the machine ---")
    spec = document([{"op_type": "Relu"}], ["f32"])
    good = conformance(spec, tmp_path, header=header)
    bad = conformance(spec, tmp_path, header=header[:at] + broken + header[at:])
    assert good.passed and not bad.passed
    assert "NaN" in failed(bad, "plain").reason or failed(bad, "plain").max_error


def test_a_header_that_does_not_compile_fails_every_row(tmp_path: Path) -> None:
    spec = document([{"op_type": "Relu"}], ["f32"])
    found = conformance(spec, tmp_path, header="#error no such chip\n")
    ran = [row for row in found.rows if not row.case.startswith("outside")]
    assert ran and all("no such chip" in row.reason for row in ran)


def test_a_claim_with_a_wrong_attribute_value_is_caught(tmp_path: Path) -> None:
    claim = {"op_type": "Resize", "attributes": {"mode": {"allowed": ["nearest", "cubic"]}}}
    found = conformance(document([claim], ["i8", "i32"]), tmp_path)
    assert not found.passed and any(r.case == "mode=cubic" for r in found.failures)


def test_the_document_and_the_table_say_the_same(tmp_path: Path) -> None:
    spec = document([{"op_type": "Relu"}, {"op_type": "Det"}], ["f32"])
    found = conformance(spec, tmp_path)
    page, data = conformance_table(found), conformance_document(found)
    assert data["passed"] is False and "does not conform" in page
    assert {s["op_type"]: s["ok"] for s in data["summary"]} == {"Relu": True, "Det": False}
    assert len(data["cases"]) == len(found.rows)
    lines = {line.split()[1]: line for line in page.splitlines() if line.startswith("accel")}
    assert lines["Relu"].endswith("ok") and lines["Det"].endswith("FAIL")


def test_a_run_without_cases_has_shown_nothing() -> None:
    assert not Conformance("none", (), ()).passed


def test_models_are_of_the_opset_that_the_front_end_works_in() -> None:
    assert OPSET == TARGET_OPSET
