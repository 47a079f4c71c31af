"""Whose tokens are taken: rules, and settings that are refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from service.client.settings import KEY_VARIABLE
from service.keys import Scope
from service.settings import Settings
from service.trust import Issuer, Rule

GOOD: dict[str, Any] = {
    "issuer": "https://gitlab.com", "audience": "https://t.example",
    "rules": [{"claims": {"project_path": "acme/npu"}, "project": "npu"}],
}  # fmt: skip


@given(st.text("ab/*", min_size=1, max_size=8), st.text("ab/", max_size=10))
def test_patterns_are_those_of_a_regular_expression(pattern: str, value: str) -> None:
    if not pattern.strip("*"):
        pattern += "a"
    form = ".*".join(re.escape(part) for part in pattern.split("*"))
    rule = Rule(claims={"ref": pattern}, project="p")
    assert rule.holds({"ref": value}) == (re.fullmatch(form, value) is not None)


def test_all_claims_of_a_rule_have_to_hold() -> None:
    rule = Rule(claims={"a": "1", "b": "true", "c": "x*"}, project="p")
    assert rule.scopes == (Scope.READ, Scope.WRITE)
    good = {"a": 1, "b": True, "c": "xy", "d": "more"}
    assert rule.holds(good)
    for name, value in (("a", 2), ("a", 1.0), ("b", False), ("c", "y"), ("c", ["xy"]), ("c", None)):
        assert not rule.holds({**good, name: value}), (name, value)
    assert not rule.holds({"a": 1, "b": True})


def test_the_first_rule_that_holds_counts() -> None:
    issuer = Issuer.model_validate(
        {**GOOD, "rules": [
            {"claims": {"ref": "main"}, "project": "a"},
            {"claims": {"ref": "ma*"}, "project": "b", "scopes": ["read"]},
        ]}
    )  # fmt: skip
    projects = [issuer.rule_for({"ref": ref}) for ref in ("main", "match", "other")]
    assert [rule and rule.project for rule in projects] == ["a", "b", None]


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithms": ["none"]}, {"algorithms": ["HS256"]}, {"algorithms": []}, {"audience": ""},
        {"issuer": "http://ci.example"}, {"issuer": "ftp://127.0.0.1"}, {"issuer": "gitlab.com"},
        {"issuer": "https://user@gitlab.com"}, {"issuer": "https://gitlab.com?x=1"},
        {"jwks_uri": "http://gitlab.com/keys"}, {"jwks_uri": "file:///etc/passwd"},
        {"rules": []}, {"rules": [{"claims": {}, "project": "p"}]},
        {"rules": [{"claims": {"ref": "*"}, "project": "p"}]},
        {"rules": [{"claims": {"ref": "x"}, "project": "../p"}]},
        {"rules": [{"claims": {"ref": "x"}, "project": "p", "scopes": ["read", "admin"]}]},
        {"rules": [{"claims": {"ref": "x"}, "project": "p", "scopes": ["read", "keys"]}]},
        {"rules": [{"claims": {"ref": "x"}, "project": "p", "scopes": []}]},
        {"rules": [{"claims": {"ref": "x"}, "project": "p", "scope": ["read"]}]},
        {"verify": False},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_trust_that_would_be_none_is_refused(changes: dict[str, Any]) -> None:
    assert Settings(trusted_issuers=[GOOD]).trusted_issuers[0].algorithms == ("RS256", "ES256")
    with pytest.raises(ValueError, match="trusted_issuers"):
        Settings(trusted_issuers=[{**GOOD, **changes}])


def test_an_issuer_is_named_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        Settings(trusted_issuers=[GOOD, GOOD])


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_TRUSTED_ISSUERS", json.dumps([GOOD]))
    assert Settings().trusted_issuers[0].rules[0].claims == {"project_path": "acme/npu"}


PAGE = Path(__file__, "../../../docs/ci-tokens.md").resolve().read_text(encoding="utf-8")
GITHUB = {
    "iss": "https://token.actions.githubusercontent.com", "repository": "acme/npu",
    "repository_id": "74", "ref": "refs/heads/main", "event_name": "push",
    "sub": "repo:acme/npu:ref:refs/heads/main",
}  # fmt: skip
GITLAB = {"iss": "https://gitlab.com", "project_path": "acme/npu", "ref_protected": "true"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("claims", "project"),
    [
        (GITHUB, "npu"), ({**GITHUB, "repository": "acme/npu2"}, None),
        ({**GITHUB, "ref": "refs/pull/1/merge", "event_name": "pull_request"}, "npu-pulls"),
        (GITLAB, "npu"), ({**GITLAB, "ref_protected": "false"}, None),
        ({**GITLAB, "project_path": "evil/acme/npu"}, None),
    ],
    ids=["main", "repository", "pull", "gitlab", "unprotected", "path"],
)  # fmt: skip
def test_the_page_trusts_whom_it_says(claims: dict[str, str], project: str | None) -> None:
    [text] = blocks("json")
    trusted = Settings(trusted_issuers=json.loads(text)).trusted_issuers
    [issuer] = [issuer for issuer in trusted if issuer.issuer == claims["iss"]]
    rule = issuer.rule_for(claims)
    assert (rule and rule.project) == project


def test_the_page_names_every_field_and_its_audience() -> None:
    [text] = blocks("json")
    audiences = {issuer["audience"] for issuer in json.loads(text)}
    github, gitlab = (yaml.safe_load(block) for block in blocks("yaml"))
    steps = github["jobs"]["compile"]["steps"]
    assert all(f'audience={audience}"' in steps[-1]["run"] for audience in audiences)
    assert {gitlab["compile"]["id_tokens"][KEY_VARIABLE]["aud"]} == audiences
    assert f"{KEY_VARIABLE}=" in steps[-1]["run"]
    fields = {
        name for row in re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }  # fmt: skip
    assert fields == {*Issuer.model_fields, *Rule.model_fields} - {"claims"}
