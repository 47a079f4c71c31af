"""Every rule about pattern tables refuses what it should, with a pointer into the user's text."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import onnx_ir
import pytest
from test_machine_lint import Document, edit, findings_at, tiny

from worker.compiler.errors import SpecError
from worker.compiler.machine import lint_document, load_machine, parse_document
from worker.compiler.machine.lint.patterns import PATTERN_RULES
from worker.compiler.machine.lint.places import MAX_DEPTH
from worker.compiler.machine.lint.view import SpecReader
from worker.compiler.machine.pattern import OpMatch
from worker.compiler.machine.spec import NodeSpec
from worker.compiler.partition.patterns.matching import match_patterns

ANY: Any = "any"
CONV = {"op": "Conv", "inputs": [ANY, "constant"]}
BIAS = {"op": "Add", "optional": True, "commutative": True, "inputs": [CONV, "constant"]}
CONV_RELU = {"name": "conv_relu", "match": {"op": "Relu", "inputs": [BIAS]}}


def with_table(*rows: Document, prefix: str = "/capabilities") -> Document:
    """A document with a pattern table in one of two places."""
    document = tiny()
    if prefix.startswith("/targets"):
        capabilities = document.pop("capabilities")
        document["targets"] = [
            {"name": "first", "capabilities": deepcopy(capabilities)},
            {"name": "second", "capabilities": deepcopy(capabilities)},
        ]
    edit(f"{prefix}/patterns", [deepcopy(row) for row in rows])(document)
    return document


def row(match: Any, name: str = "p", **more: Any) -> Document:
    return {"name": name, "match": match, **more}


def fragment(match: Any, name: str) -> Document:
    return row(match, name, fragment=True)


def relu(*inputs: Any, **more: Any) -> Document:
    return {"op": "Relu", "inputs": list(inputs), **more}


DOUBLING = [fragment({"op": "Conv"}, "f0")] + [
    fragment({"op": "Add", "inputs": [{"use": f"f{k}"}, {"use": f"f{k}"}]}, f"f{k + 1}")
    for k in range(60)
]
"""Written out it would have 2^60 places."""

REFUSALS: list[tuple[str, list[Document], str, str]] = [
    # name, rows, pointer below the table, part of the message
    ("two forms", [row(relu({"op": "Conv", "any": True}))], "/0/match/inputs/0",
     "op and any at once"),
    ("no form", [row(relu({"bind": "x"}))], "/0/match/inputs/0", "says nothing"),
    ("fields of another form", [row(relu({"any": True, "commutative": True}))],
     "/0/match/inputs/0/commutative", "means nothing beside any"),
    ("constant operator", [row(relu({"op": "Conv", "constant": True}))],
     "/0/match/inputs/0/constant", "never one"),
    ("path without end", [row({"path": ["Relu"]})], "/0/match", "the pattern it leads back to"),
    ("misspelt op", [row({"op": ["Relu", "Cilp"]})], "/0/match/op/1", "did you mean Clip?"),
    ("misspelt op alone", [row({"op": "Rellu"})], "/0/match/op", "did you mean Relu?"),
    ("misspelt op on a path", [row({"path": ["Rellu"], "to": CONV})], "/0/match/path/0",
     "did you mean Relu?"),
    ("unknown attribute", [row({"op": "Conv", "attributes": {"stride": {"allowed": [1]}}})],
     "/0/match/attributes/stride", "did you mean strides?"),
    ("attribute value of another type",
     [row({"op": "Conv", "attributes": {"group": {"allowed": ["one"]}}})],
     "/0/match/attributes/group/allowed/0", "group of Conv is an integer"),
    ("attribute limits reversed",
     [row({"op": "Conv", "attributes": {"group": {"min": 4.0, "max": 2.0}}})],
     "/0/match/attributes/group/max", "below the minimum"),
    ("name used twice", [CONV_RELU, CONV_RELU], "/1/name", "already used"),
    ("unknown fragment", [fragment(CONV, "conv"), row(relu({"use": "covn"}))],
     "/1/match/inputs/0/use", "did you mean conv?"),
    ("pattern that contains itself", [row(relu({"use": "p"}))], "/0/match/inputs/0/use",
     "p -> p"),
    ("cycle of fragments",
     [row(relu({"use": "a"})), fragment(relu({"use": "b"}), "a"),
      fragment({"alternatives": [CONV, {"use": "a"}]}, "b")],
     "/1/match/inputs/0/use", "a -> b -> a"),
    ("too large when written out", [*DOUBLING, row(relu({"use": "f60"}))], "/61/match",
     f"has {2**61} places"),
    ("too deep when written out",
     [fragment(relu(ANY), "f0"),
      *(fragment(relu({"use": f"f{k}"}), f"f{k + 1}") for k in range(MAX_DEPTH - 2)),
      row(relu({"use": f"f{MAX_DEPTH - 2}"}))], f"/{MAX_DEPTH - 1}/match", "is 33 places deep"),
    ("bound twice",
     [row({"op": "Add", "inputs": [{"any": True, "bind": "x"}, {"any": True, "bind": "x"}]})],
     "/0/match/inputs/1/bind", "already bound at"),
    ("bound twice through a fragment",
     [fragment({"op": "Conv", "bind": "c"}, "conv"),
      row({"op": "Add", "inputs": [{"use": "conv"}, {"use": "conv"}]})],
     "/1/match/inputs/1/use", "'c' is already bound at"),
    ("same as nothing", [row({"op": "Mul", "inputs": [{"any": True, "bind": "gate"},
                                                       {"same_as": "gait"}]})],
     "/0/match/inputs/1/same_as", "did you mean gate?"),
    ("same as nothing through a fragment",
     [fragment({"op": "Sigmoid", "inputs": [{"same_as": "x"}]}, "gate"),
      row({"op": "Mul", "inputs": [ANY, {"use": "gate"}]})],
     "/1/match/inputs/1/use", "nothing in the pattern is bound to 'x'"),
    ("commutative with one input", [row(relu(ANY, commutative=True))], "/0/match/commutative",
     "gives 1"),
    ("through out of range", [row(relu({**BIAS, "through": 2}))],
     "/0/match/inputs/0/through", "gives 2 inputs"),
    ("optional without inputs", [row(relu({"op": "Add", "optional": True}))],
     "/0/match/inputs/0/optional", "gives 0 inputs"),
    ("through without optional", [row(relu({**CONV, "through": 1}))],
     "/0/match/inputs/0/through", "not optional"),
    ("optional root", [row(relu(CONV, optional=True))], "/0/match/optional",
     "cannot be optional"),
    ("optional root of a fragment", [fragment(relu(CONV, optional=True), "r"), row({"use": "r"})],
     "/1/match/use", "cannot be optional"),
    ("wildcard as the root", [row({"alternatives": [relu(CONV), ANY]})],
     "/0/match/alternatives/1", "must be an operator"),
    ("rank reversed", [row(relu({"any": True, "rank": {"min": 4, "max": 2}}))],
     "/0/match/inputs/0/rank/max", "below the minimum"),
    ("uses reversed", [row(relu({**CONV, "uses": {"min": 2, "max": 1}}))],
     "/0/match/inputs/0/uses/max", "below the minimum"),
    ("shape reversed", [row(relu({"any": True, "shape": [None, {"min": 8, "max": 1}]}))],
     "/0/match/inputs/0/shape/1/max", "below the minimum"),
    ("unknown intrinsic", [row(relu(CONV), intrinsic="mma")], "/0/intrinsic",
     "has an intrinsic 'mma'"),
]  # fmt: skip


@pytest.mark.parametrize("prefix", ["/capabilities", "/targets/1/capabilities"])
@pytest.mark.parametrize(
    ("rows", "pointer", "part"), [r[1:] for r in REFUSALS], ids=[r[0] for r in REFUSALS]
)
def test_refusal(rows: list[Document], pointer: str, part: str, prefix: str) -> None:
    document = with_table(*rows, prefix=prefix)
    found = findings_at(lint_document(document), f"{prefix}/patterns{pointer}")
    assert found, lint_document(document)
    assert found[0].code == "TW-SPEC-002"
    assert part in found[0].message
    assert found[0].allowed
    with pytest.raises(SpecError) as caught:
        load_machine(document)
    assert found[0] in caught.value.findings


def machine_with_intrinsic() -> Document:
    document = with_table(row(relu(CONV), intrinsic="mm"), prefix="/targets/1/capabilities")
    document["engines"][0]["intrinsics"] = [
        {"name": "mm", "op": "matmul", "extents": [4, 4, 4], "cycles": 4}
    ]
    return document


def test_two_targets_cannot_claim_the_same_intrinsic() -> None:
    document = machine_with_intrinsic()
    assert lint_document(document) == ()
    table = document["targets"][1]["capabilities"]["patterns"]
    table.append(row({"op": "MatMul"}, "again", intrinsic="mm"))
    assert lint_document(document) == ()  # two patterns of one target may share it
    document["targets"][0]["capabilities"]["patterns"] = deepcopy(table[:1])
    found = findings_at(lint_document(document), "/targets/1/capabilities/patterns/0/intrinsic")
    assert "'mm' is already claimed by target first" in found[0].message


def test_an_intrinsic_must_be_of_the_targets_own_engines() -> None:
    document = machine_with_intrinsic()
    document["targets"][1]["engines"] = ["VEC"]
    found = findings_at(lint_document(document), "/targets/1/capabilities/patterns/0/intrinsic")
    assert "no engine of target second has" in found[0].message


def test_every_rule_has_a_refusal() -> None:
    shared = machine_with_intrinsic()
    shared["targets"][0]["capabilities"]["patterns"] = deepcopy(
        shared["targets"][1]["capabilities"]["patterns"]
    )
    documents = [with_table(*rows) for _, rows, *_ in REFUSALS] + [shared]
    fired = {
        rule.__name__ for doc in documents for rule in PATTERN_RULES if list(rule(SpecReader(doc)))
    }
    assert fired == {rule.__name__ for rule in PATTERN_RULES}


def test_a_table_that_uses_everything_is_accepted() -> None:
    document = with_table(
        fragment(CONV, "unused"),
        fragment({"op": "Conv", "inputs": [ANY, "constant"], "bind": "c"}, "conv"),
        CONV_RELU,
        row({"op": "Mul", "commutative": True, "inputs": [
            {"use": "conv"}, {"op": "Sigmoid", "inputs": [{"same_as": "c"}]}]}, "swish"),
        row({"path": ["Relu", "Clip"], "to": CONV, "max_nodes": 3}, "chain"),
        row({"alternatives": [relu({"op": "Conv", "bind": "x"}), relu(
            {"op": "Gemm", "bind": "x", "rank": {"min": 2, "max": 2}, "dtypes": ["f32"],
             "shape": [1, None], "uses": {"min": 1, "max": 1}})]}, "either"),
    )  # fmt: skip
    assert lint_document(document) == ()
    rules = load_machine(document).targets[0].capabilities.patterns
    assert [rule.name for rule in rules] == ["conv_relu", "swish", "chain", "either"]


def test_a_pattern_overridden_by_name_replaces_its_match_whole() -> None:
    document = {
        "name": "mine", "inherits": "xavier",
        "capabilities": {"patterns": [
            {"name": "conv_relu", "match": {"op": "Relu", "attributes": {}}},
        ]},
    }  # fmt: skip
    base = load_machine({"name": "base", "inherits": "xavier"}).targets[0].capabilities.patterns
    rules = load_machine(document).targets[0].capabilities.patterns
    assert [rule.name for rule in rules] == [rule.name for rule in base]
    (old,) = (rule for rule in base if rule.name == "conv_relu")
    (new,) = (rule for rule in rules if rule.name == "conv_relu")
    assert new.root == OpMatch(("Relu",))
    assert new.root != old.root
    assert new.description == old.description  # fields beside `match` still merge


def test_a_defect_in_an_overridden_pattern_points_into_the_users_text() -> None:
    document = {
        "name": "mine", "inherits": "xavier",
        "capabilities": {"patterns": [
            {"name": "conv_relu", "match": {"op": "Relu", "inputs": [{"op": "Covn"}]}},
        ]},
    }  # fmt: skip
    found = lint_document(document)
    assert [f.pointer for f in found] == ["/capabilities/patterns/0/match/inputs/0/op"]


def test_the_deepest_pattern_that_is_accepted_builds_and_matches() -> None:
    rows = [fragment(relu(ANY), "f0")]
    rows += [fragment(relu({"use": f"f{k}"}), f"f{k + 1}") for k in range(MAX_DEPTH - 3)]
    document = with_table(*rows, row(relu({"use": rows[-1]["name"]})))
    assert lint_document(document) == ()
    rules = load_machine(document).targets[0].capabilities.patterns
    value = onnx_ir.val("x")
    nodes = []
    for _ in range(200):
        nodes.append(onnx_ir.Node("", "Relu", [value]))
        value = nodes[-1].outputs[0]
    matches = match_patterns(nodes, rules, [])
    assert [len(m.nodes) for m in matches] == [MAX_DEPTH - 1] * (200 // (MAX_DEPTH - 1))


def test_a_long_chain_of_fragments_is_judged_quickly() -> None:
    rows = [fragment(relu({"use": f"f{k + 1}"}), f"f{k}") for k in range(400)]
    rows.append(fragment(relu({"use": "f0"}), "f400"))
    found = lint_document(with_table(*rows))
    assert len(found) == 401
    assert all("contains itself" in f.message for f in found)


def page_example() -> Document:
    page = Path(__file__).resolve().parents[2] / "docs" / "machine.md"
    section = page.read_text(encoding="utf-8").split("\n## Patterns\n", 1)[1]
    return parse_document(section.split("```yaml\n", 1)[1].split("```", 1)[0])


def test_the_example_of_the_page_is_accepted_and_builds() -> None:
    document = page_example()
    assert lint_document(document) == ()
    (target,) = load_machine(document).targets
    names = [rule.name for rule in target.capabilities.patterns]
    assert names[0] == "conv_act"
    assert {"swish", "scaled_product", "pooled"} <= set(names)
    assert "conv" not in names  # a fragment


def test_the_page_shows_every_form_and_field() -> None:
    written = str(page_example()["capabilities"]["patterns"])
    fields = [*NodeSpec.model_fields, "fragment", "intrinsic", "priority", "description"]
    missing = {name for name in fields if f"'{name}'" not in written}
    assert missing <= {"through", "constant"}  # shown as a default and as a word
