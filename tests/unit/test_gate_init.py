"""`tilewright gate init`: files that work as they are, and nothing that was there is touched."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from gate_repository import TeamRepository
from typer.testing import CliRunner

from service.cli.main import app
from service.gate.reading import read_gate
from service.gate.schema import gate_json_schema
from service.gate.selection import select
from service.gate.setting_up import PARTS
from service.gate.tree import Folder

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ci"


def init(folder: Path, *words: str) -> Any:
    return CliRunner().invoke(app, ["gate", "init", str(folder), *words])


@pytest.fixture
def team(tmp_path: Path) -> TeamRepository:
    made = TeamRepository(tmp_path / "team")
    made.write(
        {
            "nets/a.onnx": "x", "nets/b.onnx": "x", "top.onnx": "x",
            "hw/chip.yaml": "name: chip\ninherits: kapla-edge", "hw/notes.yaml": "text: 1",
            "broken.yaml": "a: [",
        }
    )  # fmt: skip
    return made


def test_what_is_written_is_accepted_and_finds_the_files(team: TeamRepository) -> None:
    result = init(team.root, "--branch", "trunk")
    assert result.exit_code == 0, result.output
    text = (team.root / "tilewright.yaml").read_text()
    gate = read_gate(text, "tilewright.yaml")
    pairs, findings = select(gate, Folder(team.root))
    assert not findings
    assert [pair.label for pair in pairs] == ["a on chip", "b on chip", "top on chip"]
    assert gate.baseline is not None
    assert gate.baseline.branch == "trunk"
    first = re.match(r"# yaml-language-server: \$schema=(\S+)\n", text)
    assert first is not None
    assert json.loads((team.root / first.group(1)).read_text()) == gate_json_schema()
    for path in result.stdout.splitlines():
        kept = Path(path).read_text()
        assert not re.search(r"@[A-Z]+@", kept), path
        yaml.safe_load(kept)


def test_nothing_is_overwritten_and_nothing_is_half_written(team: TeamRepository) -> None:
    team.write({".pre-commit-config.yaml": "repos: []"})
    result = init(team.root)
    assert result.exit_code == 3
    assert ".pre-commit-config.yaml" in result.stderr
    assert not (team.root / "tilewright.yaml").exists()
    assert init(team.root, "--for", "github", "--for", "gitlab").exit_code == 0
    assert (team.root / ".pre-commit-config.yaml").read_text() == "repos: []"
    assert init(team.root, "--for", "github").exit_code == 3


@pytest.mark.parametrize("part", PARTS)
def test_parts_can_be_chosen(team: TeamRepository, part: str) -> None:
    result = init(team.root, "--for", part, "--json")
    found = set(json.loads(result.stdout)["files"])
    assert {"tilewright.yaml", ".tilewright/gate.schema.json"} < found
    assert any(part in path for path in found)
    assert not any(other in path for path in found for other in set(PARTS) - {part})


def test_unknown_parts_and_empty_repositories(tmp_path: Path) -> None:
    assert init(tmp_path, "--for", "jenkins").exit_code == 2
    assert init(tmp_path, "--preset", "simba").exit_code == 0
    text = (tmp_path / "tilewright.yaml").read_text()
    assert "- path: models/*.onnx" in text
    assert "- preset: simba" in text


def test_the_branch_is_origins(team: TeamRepository, tmp_path: Path) -> None:
    team.commit()
    team.git("branch", "-q", "-m", "develop")
    subprocess.run(
        ["git", "clone", "-q", str(team.root), str(tmp_path / "clone")], check=True,
        capture_output=True,
    )  # fmt: skip
    assert init(tmp_path / "clone").exit_code == 0
    assert "branch: develop" in (tmp_path / "clone" / "tilewright.yaml").read_text()


def test_the_examples_workflow_is_what_init_writes(tmp_path: Path) -> None:
    assert init(tmp_path, "--for", "github").exit_code == 0
    for path in (
        ".github/actions/tilewright-gate/action.yml", ".github/workflows/tilewright.yml",
        ".tilewright/gate.schema.json",
    ):  # fmt: skip
        assert (EXAMPLE / path).read_text() == (tmp_path / path).read_text(), path


def test_the_pre_commit_hook_runs_the_gate_before_a_push(tmp_path: Path) -> None:
    assert init(tmp_path, "--for", "pre-commit").exit_code == 0
    (repo,) = yaml.safe_load((tmp_path / ".pre-commit-config.yaml").read_text())["repos"]
    (hook,) = repo["hooks"]
    assert (repo["repo"], hook["language"], hook["stages"]) == ("local", "system", ["pre-push"])
    assert hook["entry"] == "tilewright gate -f tilewright.yaml"
    assert hook["pass_filenames"] is False
    for name, is_looked_at in (("a/b.onnx", True), ("x.yml", True), ("read.md", False)):
        assert bool(re.search(hook["files"], name)) is is_looked_at


STUB = """#!/bin/bash
echo "$@" >> "$RUNNER_TEMP/calls"
if [ "$2" = comment ]; then
  echo "token $TILEWRIGHT_COMMENT_TOKEN" >> "$RUNNER_TEMP/calls"; exit ${COMMENT_CODE:-0}
fi
echo "FAIL: slower"
echo "the text" > "$RUNNER_TEMP/gate.md"
exit ${GATE_CODE:-0}
"""


@pytest.mark.parametrize("code", [0, 1, 3])
@pytest.mark.parametrize("comment_code", [0, 5])
def test_the_actions_steps_run_and_end_as_the_gate_does(
    tmp_path: Path, code: int, comment_code: int
) -> None:
    """Its scripts, run as a runner runs them, with a command that notes what it is asked."""
    action = yaml.safe_load(
        (EXAMPLE / ".github/actions/tilewright-gate/action.yml").read_text(encoding="utf-8")
    )
    steps = {step.get("name"): step for step in action["runs"]["steps"]}
    assert [s["uses"] for s in action["runs"]["steps"] if "uses" in s] == [
        "actions/setup-python@v5"
    ]
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin" / "tilewright"
    stub.write_text(STUB)
    stub.chmod(0o755)
    output = tmp_path / "output"
    env = {
        "PATH": f"{stub.parent}:{os.environ['PATH']}", "RUNNER_TEMP": str(tmp_path),
        "GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "GITHUB_REPOSITORY": "team/npu", "GITHUB_API_URL": "http://api", "FILE": "gate.yaml",
        "TOKEN": "t", "NUMBER": "5", "GATE_CODE": str(code), "COMMENT_CODE": str(comment_code),
    }  # fmt: skip

    def run(name: str, **more: str) -> int:
        words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", steps[name]["run"]]
        return subprocess.run(words, env={**env, **more}, check=False).returncode

    assert run("Gate") == 0  # so that the comment is written, too
    told = dict(line.split("=") for line in output.read_text().splitlines())
    assert (tmp_path / "summary").read_text() == "the text\n"
    assert run("Comment") == 0
    assert run("Verdict", CODE=told["code"]) == code
    calls = (tmp_path / "calls").read_text()
    assert calls.startswith("gate -f gate.yaml --annotations github --markdown")
    assert "--github team/npu --number 5 --api http://api\ntoken t" in calls


@pytest.mark.parametrize("token", ["", "t"])
def test_gitlabs_job_runs_and_keeps_a_note(tmp_path: Path, token: str) -> None:
    """Its lines, run as a runner runs them: one shell for the script, one for what comes after."""
    assert init(tmp_path, "--for", "gitlab", "--branch", "trunk").exit_code == 0
    included = yaml.safe_load((tmp_path / ".gitlab-ci.yml").read_text())["include"]
    job = yaml.safe_load((tmp_path / included[0]["local"]).read_text())["tilewright-gate"]
    assert job["artifacts"]["reports"]["junit"] == "gate.xml"
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name in ("tilewright", "git", "python"):
        stub = bin_folder / name
        stub.write_text(STUB if name == "tilewright" else f'#!/bin/bash\necho {name} "$@" >&2\n')
        stub.chmod(0o755)
    env = {
        "PATH": f"{bin_folder}:{os.environ['PATH']}", "RUNNER_TEMP": str(tmp_path),
        "GATE_CODE": "1", "TILEWRIGHT_COMMENT_TOKEN": token, "CI_PROJECT_PATH": "team/npu",
        "CI_MERGE_REQUEST_IID": "5", "CI_API_V4_URL": "http://api",
    }  # fmt: skip

    def run(part: str) -> subprocess.CompletedProcess[str]:
        words = ["bash", "-eo", "pipefail", "-c", "\n".join(job[part])]
        return subprocess.run(
            words, env=env, cwd=tmp_path, check=False, capture_output=True, text=True
        )

    done = run("script")
    assert done.returncode == 1
    assert "git fetch origin trunk" in done.stderr
    assert "python -m pip install tilewright==" in done.stderr
    assert run("after_script").returncode == 0
    calls = (tmp_path / "calls").read_text()
    note = "gate comment gate.md --gitlab team/npu --number 5 --api http://api\ntoken t"
    assert (note in calls) is bool(token)
