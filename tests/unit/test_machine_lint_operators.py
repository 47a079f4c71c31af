"""Definitions of operators of foreign domains in a hardware document: what is refused, where."""

from __future__ import annotations

from typing import Any

import pytest
from vendor_operators import CONV_RELU6, NAMES, SQUARE, operators, spec

from worker.compiler.machine.build import load_machine
from worker.compiler.machine.lint.document import lint_document

HEAD = '<domain: "com.acme", opset_import: ["" : 13, "com.acme" : 1]>'


def findings(*rows: dict[str, Any], **changes: Any) -> list[tuple[str, str]]:
    document = {"inherits": "a100", "name": "t", "operators": list(rows), **changes}
    return [(f.pointer or "", f.message) for f in lint_document(document)]


def defined(body: str, name: str = "com.acme::X") -> dict[str, Any]:
    return {"name": name, "definition": f"{HEAD} {body}"}


def test_sound_definitions_are_kept_in_order() -> None:
    machine = load_machine(spec())
    assert [o.name for o in machine.operators] == NAMES
    assert [o.pointer for o in machine.operators] == [
        f"/operators/{k}/definition" for k in range(3)
    ]
    assert machine.foreign_names == frozenset(NAMES)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("X (x) => (y) { y = Frob (x) }", "does not exist in opset 13"),
        ("X (x) => (y) { y = com.acme.Missing (x) }", "no definition of com.acme::Missing"),
        ("X (x) => (y) { y = com.acme.X (x) }", "leads back to com.acme::X"),
        ("X (x) => (y, z) { y = Relu (x) }", "nothing defines its output 'z'"),
        ("X (x) => (y) { y, z = Relu (x) }", "node 0 (Relu) has 2 outputs"),
        ("X (x) => (y) { y = Add (x) }", "node 0 (Add) has 1 inputs"),
        ("X (x) => (y) { y = Relu (u) }", "reads 'u', which nothing before it defines"),
        ("X (x) => (y) { y = Relu (x) y = Abs (x) }", "defines 'y' again"),
        ("X (x) => (y) { y = Relu <alpha = 1.0> (x) }", "has no attribute 'alpha'"),
        ("X (x) => (y) { y = LeakyRelu <alpha: float = @slope> (x) }", "takes attribute 'slope'"),
        ("X (x) => (y) { y = Cast (x) }", "lacks attribute 'to'"),
        ("X (x, x) => (y) { y = Relu (x) }", "input 'x' is there twice"),
        ("X (x) => (x) { }", "its body computes nothing"),
        ("X (x) => { y = Relu", "cannot be read"),
        ("Y (x) => (y) { y = Relu (x) }", "is that of com.acme::Y"),
        ("X (x) => (y) { y = " + "(" * 2000 + " }", "nested 2000 deep"),
    ],
)  # fmt: skip
def test_a_wrong_body_is_refused_at_its_place(body: str, words: str) -> None:
    found = findings(*operators("Square"), defined(body))
    assert found, words
    assert found[0][0] == "/operators/1/definition"
    assert words in found[0][1]


def test_two_that_lead_to_each_other() -> None:
    found = findings(
        defined("A (x) => (y) { y = com.acme.B (x) }", "com.acme::A"),
        defined("B (x) => (y) { y = com.acme.A (x) }", "com.acme::B"),
    )
    assert [pointer for pointer, _ in found] == [f"/operators/{k}/definition" for k in range(2)]


@pytest.mark.parametrize("opset", [3, 99])
def test_an_opset_that_nobody_has(opset: int) -> None:
    text = SQUARE.replace("13]", f"{opset}]")
    ((pointer, message),) = findings({"name": NAMES[2], "definition": text})
    assert pointer == "/operators/0/definition"
    assert f"imports opset {opset}" in message


@pytest.mark.parametrize("name", ["Relu", "ai.onnx::Relu", "com.acme:X", "a b::X", "::X"])
def test_names_that_are_none(name: str) -> None:
    found = findings({"name": name, "definition": CONV_RELU6})
    assert found[0][0] == "/operators/0/name"


def test_twice_the_same() -> None:
    assert findings(*operators("Square", "Square"))[0][0] == "/operators/1/name"


def test_rows_name_attributes_that_the_operator_has() -> None:
    own = {
        "ops": [{"op_type": NAMES[2], "attributes": {"slope": {"min": 1}},
                 "conditions": [{"compare": "attribute.gain", "at_most": 4}]}],
        "patterns": [{"name": "p", "match": {"op": NAMES[0],
                                             "attributes": {"caps": {"max": 1}}}}],
    }  # fmt: skip
    found = findings(*operators(), capabilities=own)
    pointers = [pointer for pointer, _ in found]
    assert pointers == [
        "/capabilities/ops/0/attributes/slope", "/capabilities/ops/0/conditions/0/compare",
        "/capabilities/patterns/0/match/attributes/caps",
    ]  # fmt: skip
    assert "did you mean cap?" in found[2][1]


def test_rows_may_name_what_models_define() -> None:
    own = {"ops": [{"op_type": "com.other::Thing"}],
           "patterns": [{"name": "p", "match": {"op": "com.other::More"}}]}  # fmt: skip
    assert findings(capabilities=own) == []
    wrong = {"patterns": [{"name": "p", "match": {"op": "com.other:More"}}]}
    assert "/capabilities/patterns/0/match/op" in [p for p, _ in findings(capabilities=wrong)]
