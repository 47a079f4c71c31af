"""Conditions that say nothing, or that no node could satisfy, are findings with their place."""

from __future__ import annotations

from typing import Any

import pytest

from worker.compiler.errors import Finding
from worker.compiler.machine.lint.document import lint_document

AT = "/capabilities/ops/0"
FIRST = f"{AT}/conditions/0"


def findings(row: dict[str, Any]) -> tuple[Finding, ...]:
    capabilities = {"ops": [{"op_type": "Conv", **row}]}
    return lint_document({"name": "mine", "inherits": "a100", "capabilities": capabilities})


def compare(left: object, relation: str, right: object) -> dict[str, Any]:
    return {"conditions": [{"compare": left, relation: right}]}


MALFORMED: list[tuple[str, dict[str, Any], str, str]] = [
    ("neither form", {"conditions": [{}]}, FIRST, "either any_of or compare"),
    ("both forms", {"conditions": [{"any_of": [{}, {}], "compare": "group"}]}, FIRST, "either"),
    ("no relation", {"conditions": [{"compare": "group"}]}, FIRST, "one relation, this one 0"),
    ("two relations", {"conditions": [{"compare": "group", "equals": 1, "at_most": 2}]}, FIRST,
     "one relation, this one 2"),
    ("a wrong name", compare("in_chanels", "at_most", 4), f"{FIRST}/compare", "in_channels"),
    ("a wrong level", compare("macs", "at_most", ["SMEN.bytes", 2]), f"{FIRST}/at_most/0",
     "SMEM.bytes"),
    ("a number below zero", compare("macs", "at_most", -1), f"{FIRST}/at_most", "positive"),
    ("a vast number", compare("macs", "at_most", 10**400), f"{FIRST}/at_most", "no vast one"),
    ("no number", compare("macs", "at_most", float("inf")), f"{FIRST}/at_most", "no vast one"),
    ("a vast product", compare("macs", "equals", [1e308, 1.0]), f"{FIRST}/equals/0", "no vast one"),
    ("nearly zero", compare(["macs", 1e-308], "at_least", "height"), f"{FIRST}/compare/1",
     "positive"),
    ("no attribute", compare("attribute.axis", "equals", 1), f"{FIRST}/compare", "no attribute"),
    ("a list", compare("attribute.pads", "equals", 1), f"{FIRST}/compare", "is a list"),
    ("no list", compare("attribute.group.0", "equals", 1), f"{FIRST}/compare", "is one number"),
    ("text", compare("attribute.auto_pad", "equals", 1), f"{FIRST}/compare", "is no number"),
    ("two numbers", compare("SMEM.bytes", "at_least", 4), FIRST, "neither side depends"),
    ("one clause", {"conditions": [{"any_of": [{"constant_inputs": [1]}]}]}, f"{FIRST}/any_of",
     "a choice between clauses"),
    ("an empty clause", {"conditions": [{"any_of": [{"constant_inputs": [1]}, {}]}]},
     f"{FIRST}/any_of/1", "demands nothing"),
    ("a wrong clause", {"conditions": [{"any_of": [
        {"constant_inputs": [1]}, {"limits": {"size": {"min": 1, "max": 2}}}]}]},
     f"{FIRST}/any_of/1/limits/size", "not a quantity"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "pointer", "text"), [r[1:] for r in MALFORMED], ids=[r[0] for r in MALFORMED]
)
def test_a_malformed_condition_is_found(row: dict[str, Any], pointer: str, text: str) -> None:
    found = findings(row)
    assert [(f.code, f.pointer) for f in found] == [("TW-SPEC-002", pointer)]
    assert text in found[0].message
    assert found[0].allowed


VAST = (10**400, 10**5000, 1e308, float("inf"), float("nan"), -(10**400))


@pytest.mark.parametrize("number", VAST, ids=lambda number: f"{type(number).__name__}")
def test_no_number_breaks_the_lint(number: float) -> None:
    """Whatever stands where a number may: it is a finding, or narrows nothing."""
    for row in (
        {"limits": {"group": {"min": number, "max": number}}},
        {"attributes": {"group": {"allowed": [number]}}},
        {"attributes": {"group": {"min": number, "max": number}}},
        {"attributes": {"kernel_shape": {"allowed": [[number, number]]}}},
        compare(["macs"] + [number] * 7, "equals", [number, "height"]),
        compare("attribute.group", "multiple_of", number),
    ):
        assert all(found.code.startswith("TW-SPEC-") for found in findings(row))


@pytest.mark.parametrize("relation", ["at_most", "at_least", "equals", "multiple_of"])
@pytest.mark.parametrize("number", [1e-15, 1e15])
def test_products_of_the_least_and_the_largest_numbers(relation: str, number: float) -> None:
    found = findings(compare(["macs"] + [number] * 7, relation, [number] * 7 + ["height"]))
    assert all(one.code == "TW-SPEC-002" for one in found)


def limits(**bounds: tuple[int, int]) -> dict[str, Any]:
    return {"limits": {name: {"min": low, "max": high} for name, (low, high) in bounds.items()}}


IMPOSSIBLE: list[tuple[str, dict[str, Any], str]] = [
    ("limit against attribute",
     {**limits(group=(2, 64)), "attributes": {"group": {"allowed": [1]}}},
     f"{AT}/attributes/group"),
    ("window against attribute",
     {**limits(kernel_w=(4, 9)), "attributes": {"kernel_shape": {"allowed": [[1, 3], [5, 3]]}}},
     f"{AT}/attributes/kernel_shape"),
    ("no multiple in the limits",
     {**limits(in_channels=(17, 31)), **compare("in_channels", "multiple_of", 16)}, FIRST),
    ("no multiple of both", {"conditions": [
        {"compare": "in_channels", "multiple_of": 16},
        {"compare": "in_channels", "multiple_of": 24},
        {"compare": "in_channels", "at_most": 40}]}, f"{AT}/conditions/2"),
    ("two quantities", {**limits(kernel_h=(5, 9), height=(1, 4)),
                        **compare("kernel_h", "at_most", "height")}, FIRST),
    ("a chain that bites itself", {**limits(height=(1, 64)), "conditions": [
        {"compare": ["kernel_h", 2], "at_most": "height"},
        {"compare": "height", "at_most": "width"},
        {"compare": "width", "at_most": "kernel_h"}]}, ""),
    ("a product against a memory", {**limits(in_channels=(4096, 8192), kernel_size=(9, 9)),
                                    **compare(["in_channels", "kernel_size"], "at_most",
                                              [0.0001, "SMEM.bytes"])}, FIRST),
    ("an alternative", {**limits(group=(1, 1)), "conditions": [{"any_of": [
        {"constant_inputs": [1]}, limits(group=(2, 9))]}]}, f"{FIRST}/any_of/1/limits/group"),
    ("depthwise is 0 or 1", compare("depthwise", "at_least", 2), FIRST),
]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "pointer"), [r[1:] for r in IMPOSSIBLE], ids=[r[0] for r in IMPOSSIBLE]
)
def test_demands_that_exclude_each_other_are_found(row: dict[str, Any], pointer: str) -> None:
    found = findings(row)
    assert len(found) == 1
    assert found[0].code == "TW-SPEC-002"
    assert (found[0].pointer or "").startswith(pointer or f"{AT}/conditions/")
    assert "no Conv can" in found[0].message
    assert found[0].allowed


POSSIBLE: list[dict[str, Any]] = [
    {**limits(group=(1, 64)), "attributes": {"group": {"allowed": [1, 4]}}},
    {**limits(in_channels=(1, 31)), **compare("in_channels", "multiple_of", 16)},
    {**limits(kernel_h=(1, 9), height=(1, 4)), **compare("kernel_h", "at_most", "height")},
    {"conditions": [{"compare": "group", "equals": "in_channels"},
                    {"compare": "in_channels", "equals": "group"}]},
    compare(["in_channels", "kernel_size"], "at_most", [0.5, "SMEM.bytes"]),
    compare("attribute.pads.0", "at_most", "attribute.pads.1"),
    compare("input1.dim0", "multiple_of", "group"),
    {**limits(group=(1, 4)), "conditions": [{"any_of": [
        limits(group=(1, 1)), limits(group=(2, 2))]}]},
]  # fmt: skip


@pytest.mark.parametrize("row", POSSIBLE)
def test_demands_that_a_node_can_satisfy_are_accepted(row: dict[str, Any]) -> None:
    assert findings(row) == ()
