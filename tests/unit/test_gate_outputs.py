"""What a verdict is written as: each form read back by something that did not write it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import jsonschema_rs
import pytest

from service.gate.annotations import github_annotations
from service.gate.junit import junit
from service.gate.markdown import markdown
from service.gate.sarif import sarif
from service.gate.shown import rows
from service.gate.verdict import Check, Compared, Finding, Place, Result, State, Verdict

NASTY = 'a|b <img src=x> @team #1 `c` [x](http://e) \x00\x1b[31m "q" & %0A'


def finding(check: Check, result: Result, message: str, **fields: Any) -> Finding:
    return Finding(check, result, message, f"/{check}/0", "net", "chip", **fields)


SLOW = finding(
    Check.REGRESSION, Result.FAILED, "net on chip slower by 12 %", figure="latency_ms", base=1.0,
    head=1.12, limit=1.01, place=Place("hw/chip.yaml", 7),
)  # fmt: skip
FINDINGS = (
    SLOW,
    finding(Check.BUDGET, Result.PASSED, "fine", figure="kernels", head=2.0, limit=3.0),
    finding(Check.NEW, Result.WARNED, "net is new"),
    finding(Check.HOST, Result.WAIVED, "on host; waived by Ada", nodes=("n1", "n2")),
    Finding(Check.BASELINE, Result.NEUTRAL, "no baseline: shallow", "/baseline"),
    Finding(Check.WAIVER, Result.NOTED, "covers no failure", "/waivers/1"),
)
PAIRS = (
    Compared("net", "chip", "slower by 12 %", False, 1.0, 1.12, 2.0, 2.0, "port:X +9 cycles",
             ("the spec's /a: 1 -> 2",)),
    Compared("net2", "chip", "no difference", True, 1.0, 1.0, 2.0, 2.0),
    Compared("net3", "chip", "new", False, None, 3.0, None, None),
)  # fmt: skip
PLACES = {"/budget/0": Place("ci/gate.yaml", 9), "/waivers/1": Place("ci/gate.yaml", 30)}
VERDICT = Verdict("ci/gate.yaml", "merge base with main", "2026-06-01", FINDINGS, PAIRS, PLACES)


def nasty() -> Verdict:
    """Names of a hostile model."""
    bad = finding(Check.BUDGET, Result.FAILED, NASTY, nodes=(NASTY,))
    return replace(VERDICT, findings=(replace(bad, model=NASTY),))


def test_the_verdict_is_the_worst_result() -> None:
    def state(*results: Result) -> State:
        kept = tuple(f for f in FINDINGS if f.result in results)
        return replace(VERDICT, findings=kept).state

    assert state(*Result) is State.FAIL
    assert state(*(set(Result) - {Result.FAILED})) is State.NEUTRAL
    assert state(Result.PASSED, Result.WARNED, Result.WAIVED, Result.NOTED) is State.PASS
    assert state() is State.PASS


def test_junit_counts_what_it_holds() -> None:
    root = ElementTree.fromstring(junit(VERDICT))
    assert root.tag == "testsuites"
    assert dict(root.attrib) == {
        "name": "tilewright gate", "tests": "6", "failures": "1", "errors": "0", "skipped": "2",
    }  # fmt: skip
    suites = {suite.get("name"): suite for suite in root}
    assert list(suites) == ["net on chip", "the gate"]
    for suite in root:
        cases = suite.findall("testcase")
        assert suite.get("tests") == str(len(cases))
        for kind, tag in (("failures", "failure"), ("skipped", "skipped")):
            assert suite.get(kind) == str(len(suite.findall(f"testcase/{tag}")))
        assert all(case.get("name") and case.get("classname") for case in cases)
    failure = suites["net on chip"].find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == failure.text == "net on chip slower by 12 %"
    case = suites["net on chip"].find("testcase")
    assert case is not None
    assert (case.get("file"), case.get("line")) == ("hw/chip.yaml", "7")


def test_junit_of_hostile_names_can_be_read() -> None:
    root = ElementTree.fromstring(junit(nasty()))
    failure = root.find("testsuite/testcase/failure")
    assert failure is not None
    assert failure.get("message") == NASTY.replace("\x00", "�").replace("\x1b", "�")


SARIF = {
    "type": "object",
    "required": ["version", "runs", "$schema"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": {"type": "array", "minItems": 1, "items": {
            "type": "object",
            "required": ["tool", "results"],
            "properties": {
                "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                "tool": {"type": "object", "required": ["driver"], "properties": {"driver": {
                    "type": "object", "required": ["name"],
                    "properties": {"name": {"type": "string", "minLength": 1}, "rules": {
                        "type": "array", "uniqueItems": True, "items": {
                            "type": "object", "required": ["id"],
                            "properties": {"shortDescription": {
                                "type": "object", "required": ["text"]}}}}}}}},
                "results": {"type": "array", "items": {
                    "type": "object", "required": ["message", "ruleId"],
                    "properties": {
                        "level": {"enum": ["none", "note", "warning", "error"]},
                        "ruleIndex": {"type": "integer", "minimum": -1},
                        "message": {"type": "object", "required": ["text"], "properties": {
                            "text": {"type": "string"}}},
                        "locations": {"type": "array", "uniqueItems": True, "items": {
                            "type": "object", "properties": {
                                "physicalLocation": {
                                    "type": "object", "required": ["artifactLocation"],
                                    "properties": {
                                        "artifactLocation": {"type": "object", "properties": {
                                            "uri": {"type": "string", "format": "uri-reference"}}},
                                        "region": {"type": "object", "properties": {
                                            "startLine": {"type": "integer", "minimum": 1}}}}},
                                "logicalLocations": {"type": "array", "items": {
                                    "type": "object"}}}}},
                        "partialFingerprints": {"type": "object", "additionalProperties": {
                            "type": "string"}},
                        "suppressions": {"type": "array", "items": {
                            "type": "object", "required": ["kind"], "properties": {
                                "kind": {"enum": ["inSource", "external"]},
                                "status": {"enum": ["accepted", "underReview", "rejected"]}}}},
                    }}},
            }}},
    },
}  # fmt: skip
"""What SARIF 2.1.0 (OASIS) requires of the objects that are used, written down from its text."""


@pytest.mark.parametrize("verdict", [VERDICT, nasty()])
def test_sarif_is_what_the_standard_asks_for(verdict: Verdict) -> None:
    document = json.loads(sarif(verdict, "1.2"))
    validator = jsonschema_rs.Draft7Validator(SARIF, validate_formats=True)
    assert not list(validator.iter_errors(document))
    (run,) = document["runs"]
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]


def test_sarif_has_levels_places_and_suppressions() -> None:
    results = json.loads(sarif(VERDICT, "1.2"))["runs"][0]["results"]
    assert [(r["ruleId"], r["level"], "suppressions" in r) for r in results] == [
        ("gate/regression", "error", False), ("gate/new", "warning", False),
        ("gate/host", "error", True), ("gate/baseline", "note", False),
        ("gate/waiver", "note", False),
    ]  # fmt: skip
    place = results[0]["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "hw/chip.yaml"}, "region": {"startLine": 7}}
    worse = replace(VERDICT, findings=(replace(SLOW, head=1.5, message="other words"),))
    again = json.loads(sarif(worse, "1.2"))["runs"][0]["results"]
    assert again[0]["partialFingerprints"] == results[0]["partialFingerprints"]


def test_annotations_are_single_lines_at_their_places() -> None:
    lines = list(github_annotations(VERDICT))
    assert lines[0] == (
        "::error file=hw/chip.yaml,line=7,title=tilewright gate%3A regression"
        "::net on chip slower by 12 %25"
    )
    assert [line.split(" ")[0] for line in lines] == [
        "::error",
        "::warning",
        "::notice",
        "::notice",
    ]
    told = replace(SLOW, message="a\n::set-output name=x::y", place=Place("a,b:c.yaml", 1))
    (line,) = github_annotations(replace(VERDICT, findings=(told,)))
    assert "\n" not in line
    assert line.startswith("::error file=a%2Cb%3Ac.yaml,line=1,")


def test_a_comment_depends_on_the_verdict_alone() -> None:
    text = markdown(VERDICT)
    first, _, body = text.partition("\n")
    mark = re.fullmatch(r"<!-- tilewright-gate ci/gate\.yaml changed ([0-9a-f]{64}) -->", first)
    assert mark is not None
    assert markdown(replace(VERDICT, today="2027-01-01")) == text
    other = markdown(replace(VERDICT, findings=FINDINGS[1:]))
    assert mark.group(1) not in other
    quiet = replace(VERDICT, findings=FINDINGS[1:2], pairs=PAIRS[1:2])
    assert " unchanged " in markdown(quiet).partition("\n")[0]
    assert "### ❌ FAIL" in body
    assert "| net | chip | 1 -> 1.12 ms (12 % more) | = | port:X +9 cycles |" in body
    assert "1 of 3 pairs have the figures they had." in body
    assert "| net3 | chip | 3 ms | – | new |" in body


def test_a_comment_of_hostile_names_is_text() -> None:
    text = markdown(nasty())
    body = text.partition("\n")[2]
    assert "<img" not in body
    assert "@team" not in body
    assert not re.search(r"(?<!\\)\]\(", body)
    assert "http://" not in body
    assert body.isprintable() or set(body) - set(filter(str.isprintable, body)) == {"\n"}
    assert not re.search(r"(?<!\\)[`|]", body.split("**Failed**")[1])


def test_long_lists_are_cut() -> None:
    many = tuple(replace(SLOW, message=f"m{k}") for k in range(30))
    text = markdown(replace(VERDICT, findings=many))
    assert "m19" in text
    assert "- m20" not in text
    assert "… and 10 more." in text


def test_the_table_has_what_is_not_as_it_should_be() -> None:
    assert [row["result"] for row in rows(VERDICT)] == [
        "failed", "warned", "waived", "neutral", "noted",
    ]  # fmt: skip
    assert rows(VERDICT)[0]["what"] == "net on chip slower by 12 % (hw/chip.yaml:7)"


def test_json_has_the_place_of_every_finding() -> None:
    document = VERDICT.as_json()
    assert json.loads(json.dumps(document)) == document
    assert document["verdict"] == "fail"
    assert document["counts"] == {
        "passed": 1, "failed": 1, "warned": 1, "waived": 1, "neutral": 1, "noted": 1,
    }  # fmt: skip
    places = [(f["path"], f["line"]) for f in document["findings"]]
    assert places[:2] == [("hw/chip.yaml", 7), ("ci/gate.yaml", 9)]
    assert places[2] == ("ci/gate.yaml", 1)
