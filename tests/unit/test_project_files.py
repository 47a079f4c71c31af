"""CHANGELOG, CONTRIBUTING, SECURITY, constraints, hooks and CI agree with the product."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from service.cli.main import app
from service.client.settings import KEY_VARIABLE
from service.settings import Settings
from worker.compiler.error_catalog import ERROR_CATALOG
from worker.sandbox.isolation import Tier

REPO = Path(__file__).parents[2]
PAGES = (
    "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "README.md",
    *sorted(f"docs/{page.name}" for page in (REPO / "docs").glob("*.md")),
)  # fmt: skip
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
CI = (REPO / ".ci" / "run").read_text()
PINS = dict(
    line.split("==")
    for line in (REPO / "constraints.txt").read_text().splitlines()
    if not line.startswith("#")
)


@pytest.mark.parametrize("page", PAGES)
def test_codes_settings_files_and_verbs_of_a_page_exist(page: str) -> None:
    text = (REPO / page).read_text()
    assert {c for c in re.findall(r"TW-[A-Z]+-\d{3}", text) if c not in ERROR_CATALOG} == set()
    names = re.findall(r"TILEWRIGHT_([A-Z0-9_]+)", text)
    settings = set(names) - {"TEST_MODELS", "TEST_DOCUMENTS", "SERVER", "COMMENT_TOKEN"}
    settings -= {KEY_VARIABLE.removeprefix("TILEWRIGHT_")}  # a client's
    assert {name.lower() for name in settings} <= set(Settings.model_fields)
    tops = "worker|service|benchmarks|tests|examples|migrations|tilewright"
    paths = re.findall(rf"(?<![\w/.])((?:{tops})/[\w./-]*\w)", text)
    assert not [path for path in paths if not (REPO / path).exists()]
    group: Any = typer.main.get_command(app)
    verbs = re.findall(r"(?:^|`)tilewright ([a-z]+)", text, re.MULTILINE)
    assert not [verb for verb in verbs if verb not in group.commands]


def test_the_changelog_knows_the_version_and_what_is_new() -> None:
    text = (REPO / "CHANGELOG.md").read_text()
    titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert titles == ["Unreleased", PROJECT["version"]]


def test_every_tier_is_described() -> None:
    text = (REPO / "SECURITY.md").read_text()
    assert [tier for tier in Tier if f"| {tier} |" not in text] == []


def test_every_dependency_has_a_version_to_install() -> None:
    extras = [text for texts in PROJECT["optional-dependencies"].values() for text in texts]
    wanted = [Requirement(text) for text in [*PROJECT["dependencies"], *extras]]
    pins = {canonicalize_name(name): pin for name, pin in PINS.items()}
    missing = [r.name for r in wanted if canonicalize_name(r.name) not in pins]
    assert missing == []
    assert [str(r) for r in wanted if pins[canonicalize_name(r.name)] not in r.specifier] == []


def test_constraints_are_made_by_a_command() -> None:
    made = subprocess.run(
        [REPO / ".ci" / "constraints"], capture_output=True, text=True, check=True
    )
    head, *lines = made.stdout.splitlines()
    assert head.startswith("# Made by .ci/constraints with Python 3.")
    assert f"numpy=={version('numpy')}" in lines
    assert not [line for line in lines if line.startswith(("tilewright", "pip=="))]
    assert not [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.+!]+", line)]


def test_ci_installs_from_the_constraints_unless_asked_for_the_latest() -> None:
    refused = subprocess.run(
        ["bash", REPO / ".ci" / "run", "--newest"], capture_output=True, text=True, check=False
    )
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "usage: .ci/run [--latest]" in refused.stderr
    choice = CI[CI.index("case") : CI.index("esac") + 4]
    for words, expected in (((), f"{REPO}/constraints.txt"), (("--latest",), "none")):
        told = subprocess.run(
            ["bash", "-euc", f"{choice}\necho ${{PIP_CONSTRAINT-none}}", "run", *words],
            cwd=REPO, capture_output=True, text=True, check=True, env={"PIP_CONSTRAINT": "other"},
        )  # fmt: skip
        assert told.stdout.strip() == expected


def test_hooks_are_local_and_what_ci_runs() -> None:
    config = yaml.safe_load((REPO / ".pre-commit-config.yaml").read_text())
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    hooks = {hook["id"]: hook for hook in config["repos"][0]["hooks"]}
    assert {hook["language"] for hook in hooks.values()} == {"system"}
    for name in ("mypy", "import-contracts"):
        assert f"\n{hooks[name]['entry']}\n" in CI
    for name in ("ruff-check", "ruff-format"):
        entry = hooks[name]["entry"].removesuffix(" --force-exclude")
        assert re.search(rf"^{entry.split(' --')[0]} .*\.$", CI, re.MULTILINE)
    folder = hooks["architecture"]["entry"].split()[-1]
    assert list((REPO / folder).glob("test_*.py"))


def test_what_runs_without_coverage_is_there() -> None:
    """And in order, so that a change of the list is read."""
    names = (REPO / ".ci" / "uncounted").read_text().split()
    assert names == sorted(set(names))
    for name in names:
        file, *inside = name.split("::")
        text = (REPO / file).read_text()
        assert not inside or f"def {inside[-1]}(" in text, name
        assert not inside or file not in names, name
