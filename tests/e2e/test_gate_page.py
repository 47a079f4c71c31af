"""docs/gate.md: its commands run, its file is accepted, its tables have what there is."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from document_commands import commands, fences
from gate_example import REPO, Team
from typer.testing import CliRunner

from service.cli.demo import EXAMPLE
from service.cli.exits import Exit
from service.cli.main import app
from service.gate.figures import FIGURES, OF_A_LEVEL, Figure
from service.gate.file import Changes, Waiver
from service.gate.reading import read_gate
from service.gate.setting_up import PARTS, set_up

PAGE = (REPO / "docs" / "gate.md").read_text(encoding="utf-8")


def rows_after(title: str) -> list[list[str]]:
    """Cells of the first table behind a heading."""
    section = PAGE.split(f"\n{title}\n", 1)[1]
    lines = [line for line in section.split("\n#")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Team:
    folder = tmp_path_factory.mktemp("page")
    made = Team(folder / "team", folder / "data")
    made.commit({"notes.md": "a commit, so that there is one before it"})
    return made


COMMANDS = [command.line for command in commands(PAGE)]


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 7


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_works_as_printed(
    line: str, team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, verb, *words = shlex.split(line)
    assert program == "tilewright"
    if verb == "model":
        strip(words, tmp_path, monkeypatch)
        return
    assert verb == "gate"
    if words[:1] == ["init"]:
        words.insert(1, str(tmp_path))
    days = words[:1] not in (["init"], ["schema"])
    ran = team.gate(*words) if days else team.gate(*words, day=None)
    assert ran.code == Exit.OK, ran.stderr
    for name in re.findall(r"gate\.(?:md|xml|sarif)", line):
        assert (team.root / name).stat().st_size > 0


def strip(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strip a model of the name that is printed, where there is one."""
    (folder / "models").mkdir()
    shutil.copy(EXAMPLE, folder / "detector.onnx")
    monkeypatch.chdir(folder)
    ran = CliRunner().invoke(app, ["model", *words])
    assert ran.exit_code == Exit.OK, ran.output
    assert set(map(str, folder.rglob("*.onnx"))) > {str(folder / "detector.onnx")}


def test_the_file_that_is_shown_is_accepted() -> None:
    (text,) = [fence.text for fence in fences(PAGE) if fence.info[:1] == ("yaml",)]
    gate = read_gate(text, "gate.md")
    assert gate.budgets
    assert gate.regressions
    assert gate.waivers
    assert set(yaml.safe_load(text)["changes"]) == set(Changes.model_fields)


def test_the_first_line_that_is_shown_is_the_golden_ones() -> None:
    golden = (REPO / "tests/golden/gate/slower_dram.md").read_text(encoding="utf-8")
    assert golden.partition("\n")[0] in PAGE


def test_every_figure_is_in_the_table() -> None:
    found = {row[0].strip("`"): row for row in rows_after("### Figures")}
    known = {**FIGURES, **{f"{stem}:MEMORY": figure for stem, figure in OF_A_LEVEL.items()}}
    assert set(found) == set(known)

    def scopes(figure: Figure) -> str:
        return ", ".join(
            word
            for word, has in (("layers", figure.of_layers), ("causes", figure.of_causes))
            if has
        )

    for name, figure in known.items():
        assert found[name][1] == scopes(figure), name
        assert ("more is better" in found[name][2]) is figure.is_more_better, name


def test_every_change_check_and_file_is_there(tmp_path: Path) -> None:
    assert {row[0].strip("`") for row in rows_after("### Changes")} == set(Changes.model_fields)
    checks = Waiver.model_json_schema()["properties"]["check"]["anyOf"][0]["enum"]
    assert all(f"`{check}`" in PAGE.split("### Waivers")[1] for check in checks)
    written = set_up(tmp_path, PARTS, "tilewright", None, "kapla-edge")
    assert {row[0].strip("`") for row in rows_after("## Set up")} == set(written)
