"""Every command of docs/ runs as printed, in the order of its page, and prints what is shown."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml
from document_commands import (
    REPO,
    Checkout,
    Command,
    commands,
    commands_of,
    fences,
    missing_line,
)

PAGES = {page.name: page.read_text(encoding="utf-8") for page in (REPO / "docs").glob("*.md")}
ELSEWHERE = {
    "gate.md": "tests/e2e/test_gate_page.py",  # in a team's repository
    "backup.md": "tests/integration/test_backup.py",  # on a service with a job
    "push.md": "tests/integration/test_webhooks_cli.py",  # with a receiver
    "sweeps.md": "tests/e2e/test_sweep_page.py",  # with its routes and settings
    "keys.md": "tests/integration/test_api_keys.py",  # on a database with a first key
    "vendor.md": "tests/integration/test_vendor_npu.py",  # in an environment of its own
    "strategies.md": "tests/integration/test_strategies_page.py",  # in an environment of its own
}
RUN_HERE = sorted(name for name, text in PAGES.items() if commands(text) and name not in ELSEWHERE)
PROGRAMS = ("tilewright", "pip", "python", "docker", "kubectl", "curl", "sphinx-build", "helm")
COMPOSE = yaml.safe_load((REPO / "docker-compose.yml").read_text())
MANIFESTS = list(yaml.safe_load_all((REPO / "examples/kubernetes/tilewright.yaml").read_text()))


def is_looked_at(line: str) -> bool:
    """Check a line that needs the network, containers or a cluster; false where it is to be run."""
    program, *words = shlex.split(line)
    if program == "pip":
        extras = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
        extras = {*extras["optional-dependencies"]}
        assert words[0] == "install"
        assert set(re.findall(r"[\w-]+", "".join(re.findall(r"\[(.*?)\]", line)))) <= extras
        return True
    if program == "docker" and words[0] == "compose":
        verb, *rest = words[1:]
        named = {
            word.partition("=")[0] for word in rest if word.partition("=")[0] in COMPOSE["services"]
        }
        assert verb in {"up", "exec", "logs", "down"}
        assert verb in {"up", "down"} or named, line
        return True
    if program == "docker":
        assert words[0] in {"build", "run", "exec"}
        return True
    if program == "kubectl":
        for word in words:
            kind, _, name = word.partition("/")
            if kind == "deploy":
                assert ("Deployment", name) in {
                    (m["kind"], m["metadata"]["name"]) for m in MANIFESTS
                }
            elif word.endswith(".yaml"):
                assert (REPO / word).is_file()
        return True
    return False


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_line_that_is_a_command_is_in_a_block_of_commands(page: str) -> None:
    for fence in fences(PAGES[page]):
        if fence.info != ("sh",):
            begins = [line.split()[0] for line in fence.text.splitlines() if line.split()]
            assert not set(begins) & {*PROGRAMS, "$"}, (page, fence)
        assert fence.info, f"{page}: a block says what it is: {fence.text[:60]}"


@pytest.mark.parametrize("page", sorted(ELSEWHERE))
def test_pages_with_places_of_their_own_are_run_there(page: str) -> None:
    text = (REPO / ELSEWHERE[page]).read_text(encoding="utf-8")
    assert page in text
    assert "document_commands import" in text


def test_causes_to_help_against_are_those_that_reports_have() -> None:
    def named(text: str) -> set[str]:
        rows = re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)
        return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}

    causes = named(PAGES["figures.md"].split("\n## Causes\n")[1].split("\n## ")[0])
    assert named(PAGES["report.md"].split("\n## The headline\n")[1].split("\n## ")[0]) == causes


@pytest.mark.document
@pytest.mark.parametrize("page", RUN_HERE)
def test_a_page_works_as_printed(page: str, tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    printed = ""
    try:
        for fence in fences(PAGES[page]):
            if fence.info == ("text",):
                assert (line := missing_line(fence.text, printed)) is None, f"{line}\n\n{printed}"
            elif fence.info == ("python",):
                printed = checkout.run_python(fence.text)
            elif len(fence.info) == 2:
                (checkout.folder / fence.info[1]).write_text(fence.text, encoding="utf-8")
            elif found := commands_of(fence):
                printed = "\n".join(run(checkout, command) for command in found)
    finally:
        checkout.close()


def run(checkout: Checkout, command: Command) -> str:
    return "" if is_looked_at(command.line) else checkout.run(command)


@pytest.mark.parametrize(
    ("shown", "missing"),
    [
        ("a b\n...\nd", None),
        ("a  b\nc", None),
        ("d\na b", "a b"),
        ("a", "a"),
        ("c\nc", "c"),
    ],
    ids=["left out", "blanks", "order", "part of a line", "twice"],
)
def test_what_is_shown_has_to_be_printed(shown: str, missing: str | None) -> None:
    assert missing_line(shown, "a b\nc\nd\n") == missing


def test_a_command_may_end_with_another_status() -> None:
    text = "```sh\ntilewright version  # a comment\n\ntilewright no   # exit 2: no such verb\n```\n"
    found = commands(text)
    assert found == [Command("tilewright version"), Command("tilewright no", 2)]
