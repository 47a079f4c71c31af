"""A verdict as JUnit's XML: a suite for every pair, a case for every check."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from service.gate.verdict import Finding, Result, Verdict

_SKIPPED = (Result.WAIVED, Result.NEUTRAL)
WHOLE = "the gate"
"""Suite of what is about no pair."""


def junit(verdict: Verdict) -> bytes:
    """Give the file.  Waived and neutral checks are skipped, with the reason; notes are output."""
    suites: dict[str, list[Finding]] = {}
    for finding in verdict.findings:
        suites.setdefault(finding.pair or WHOLE, []).append(finding)
    root = Element("testsuites", {"name": "tilewright gate", **_counts(verdict.findings)})
    for name, findings in suites.items():
        suite = SubElement(root, "testsuite", {"name": _valid(name), **_counts(findings)})
        for finding in findings:
            _case(suite, verdict, finding)
    indent(root)
    text: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _counts(findings: Iterable[Finding]) -> dict[str, str]:
    results = [finding.result for finding in findings]
    return {
        "tests": str(len(results)),
        "failures": str(results.count(Result.FAILED)),
        "errors": "0",
        "skipped": str(sum(result in _SKIPPED for result in results)),
    }


def _case(suite: Element, verdict: Verdict, finding: Finding) -> None:
    place = verdict.place_of(finding)
    words = [str(finding.check), finding.figure or "", finding.cause or "", *finding.nodes[:1]]
    name = " ".join([*(word for word in words if word), f"[{finding.pointer}]"])
    case = SubElement(
        suite, "testcase", name=_valid(name), classname=_valid(finding.pair or WHOLE),
        file=place.path, line=str(place.line),
    )  # fmt: skip
    message = _valid(finding.message)
    if finding.result is Result.FAILED:
        SubElement(case, "failure", message=message, type=str(finding.check)).text = message
    elif finding.result in _SKIPPED:
        SubElement(case, "skipped", message=message)
    elif finding.result is not Result.PASSED:
        SubElement(case, "system-out").text = message


def _valid(text: str) -> str:
    """What XML 1.0 can hold: other characters become U+FFFD."""
    return "".join(c if _is_xml(ord(c)) else "�" for c in text)


def _is_xml(code: int) -> bool:
    return (
        code in (0x9, 0xA, 0xD) or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD
        or code >= 0x10000
    )  # fmt: skip
