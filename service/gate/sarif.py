"""A verdict as SARIF 2.1.0, for code scanning: a result for everything but what passed."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any
from urllib.parse import quote

from service.gate.verdict import Check, Finding, Result, Verdict

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_RULES = {
    Check.BUDGET: "A figure is beyond its budget",
    Check.REGRESSION: "A figure is worse than the base, by more than is allowed",
    Check.FAILING: "A model cannot be compiled",
    Check.HOST: "A node runs on the host and did not before",
    Check.MISSING: "The base has a model or chip that this tree has not",
    Check.NEW: "The base has not got a model or chip",
    Check.UNMATCHED: "A rule looked at nothing",
    Check.BASELINE: "There is nothing to compare with",
    Check.RULES: "The gate file's own rules are others than the base's",
    Check.WAIVER: "A waiver covers no failure",
}
_LEVELS = {
    Result.FAILED: "error",
    Result.WAIVED: "error",
    Result.WARNED: "warning",
    Result.NEUTRAL: "note",
    Result.NOTED: "note",
}


def sarif(verdict: Verdict, version: str) -> bytes:
    """Give the file; `version` is Tilewright's.  Waived failures are suppressed results."""
    order = list(_RULES)
    document = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "tilewright gate",
                        "version": version,
                        "rules": [
                            {"id": f"gate/{check}", "shortDescription": {"text": text}}
                            for check, text in _RULES.items()
                        ],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [
                    _result(verdict, finding, order.index(finding.check))
                    for finding in verdict.findings
                    if finding.result is not Result.PASSED
                ],
            }
        ],
    }
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def _result(verdict: Verdict, finding: Finding, rule: int) -> dict[str, Any]:
    place = verdict.place_of(finding)
    found: dict[str, Any] = {
        "ruleId": f"gate/{finding.check}",
        "ruleIndex": rule,
        "level": _LEVELS[finding.result],
        "message": {"text": finding.message},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(place.path)},
                    "region": {"startLine": place.line},
                },
                "logicalLocations": [
                    {"name": node, "kind": "member"} for node in finding.nodes[:1]
                ],
            }
        ],
        "partialFingerprints": {"tilewrightGate/v1": _identity(finding)},
    }
    if finding.result is Result.WAIVED:
        found["suppressions"] = [{"kind": "external", "status": "accepted"}]
    return found


def _identity(finding: Finding) -> str:
    """Equal for the same failure of two runs, whatever its figures are."""
    told = [finding.check, finding.model, finding.hardware, finding.figure, finding.nodes,
            finding.cause]  # fmt: skip
    return sha256(json.dumps(told).encode()).hexdigest()
