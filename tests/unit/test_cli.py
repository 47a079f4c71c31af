"""The command line without a server: start-up time, usage errors, local verbs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import yaml
from onnx import numpy_helper
from typer.testing import CliRunner, Result

from service.cli.exits import exit_of_job
from service.cli.main import app
from service.cli.output import cell, print_problem

REPO = Path(__file__).resolve().parent.parent.parent
EXAMPLE = REPO / "service" / "cli" / "example" / "tiny_cnn.onnx"
HEAVY = ("pydantic", "fastapi", "httpx", "rich", "numpy", "onnx", "sqlalchemy", "celery", "yaml")


def tilewright(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from service.cli.main import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines()[-1] == "[]"


GROUPS = {
    "": "demo serve worker compile sweep preflight report layers placement schedule trace run "
    "explain certify doctor version",
    "jobs": "ls show watch logs cancel clone wait rm",
    "hardware": "ls show lint match manual schema push",
    "model": "push ls show example strip",
    "sweeps": "ls show results watch resume cancel rm",
    "cache": "stats ls explain prune",
}
VERBS = [f"{group} {verb}".strip() for group, verbs in GROUPS.items() for verb in verbs.split()]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_json(verb: str) -> None:
    result = tilewright(*verb.split(), "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["compile"], 2),
        (["compile", EXAMPLE], 2),
        (["nonsense"], 2),
        (["compile", EXAMPLE, "--hardware", "a100", "--detach"], 2),
        (["compile", EXAMPLE, "--hardware", "a100", "--require-cache", "--no-cache"], 2),
        (["compile", EXAMPLE, "--hardware", "a100", "--set", "batch"], 2),
        (["compile", EXAMPLE, "--hardware", "a100", "--strategy", "magic"], 2),
        (
            [
                "compile",
                EXAMPLE,
                "--hardware",
                "a100",
                "--strategy",
                "graphturbo",
                "--variant",
                "v4",
            ],
            2,
        ),
        (["compile", EXAMPLE, "--hardware", "a100", "--variant", "v1"], 2),
        (["compile", EXAMPLE, "--hardware", "a100", "--print-after", "codgen"], 2),
        (["compile", EXAMPLE, "--hardware", "a100", "--stop-after", "linking"], 2),
        (
            [
                *("compile", EXAMPLE, "--hardware", "a100", "--verify-each"),
                *("--server", "http://127.0.0.1:9"),
            ],
            2,
        ),
        (["compile", "missing.onnx", "--hardware", "a100"], 3),
        (["compile", EXAMPLE, "--hardware", "missing.yaml"], 3),
        (["explain", "TW-NOPE-999"], 3),
        (["report", "missing.twb"], 3),
        (["report", EXAMPLE], 3),
        (["run", "missing.twb", "--input", "x.npz", "-o", "y.npz"], 3),
        (["serve", "--api-only"], 2),
    ],
)
def test_exit_codes_of_wrong_use(words: list[object], code: int) -> None:
    result = tilewright(*words)
    assert result.exit_code == code, result.output
    assert result.stderr


def test_json_failure_is_a_problem_on_stdout() -> None:
    result = tilewright("explain", "TW-NOPE-999", "--json")
    assert json.loads(result.stdout)["code"] == "TW-SVC-001"


def test_explain_and_version() -> None:
    entry = json.loads(tilewright("explain", "tw-spec-001", "--json").stdout)
    assert (entry["code"], entry["exit_code"]) == ("TW-SPEC-001", 3)
    assert "TW-MODEL-001" in tilewright("explain").stdout
    assert "onnx" in json.loads(tilewright("version", "--json").stdout)


def test_lint_gives_every_finding(tmp_path: Path) -> None:
    spec = tmp_path / "chip.yaml"
    spec.write_text("schema_version: 1\nname: x\ninherits: a100\nclock_hz: -1\nsurprise: 1\n")
    result = tilewright("hardware", "lint", spec, "--json")
    assert result.exit_code == 3
    found = json.loads(result.stdout)
    assert {"/clock_hz", "/surprise"} <= {row["pointer"] for row in found["errors"]}
    assert tilewright("hardware", "lint", spec).exit_code == 3


def test_shipped_example_spec_is_valid() -> None:
    result = tilewright("hardware", "lint", REPO / "examples" / "my_chip.yaml", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["valid"], found["errors"]) == (True, [])
    shown = tilewright("hardware", "show", REPO / "examples" / "my_chip.yaml")
    document = yaml.safe_load(shown.stdout)
    assert {row["name"] for row in document["levels"]} >= {"DRAM", "GBUF"}


def test_generator_writes_the_shipped_bytes(tmp_path: Path) -> None:
    target = tmp_path / "again.onnx"
    script = REPO / "examples" / "make_tiny_cnn.py"
    subprocess.run([sys.executable, str(script), str(target)], check=True)
    assert target.read_bytes() == EXAMPLE.read_bytes()


def test_strip_keeps_the_graph_and_drops_the_weights(tmp_path: Path) -> None:
    target = tmp_path / "stripped.onnx"
    result = tilewright("model", "strip", EXAMPLE, "-o", target, "--json")
    assert result.exit_code == 0, result.output
    before, after = onnx.load(EXAMPLE), onnx.load(target)
    assert [n.name for n in before.graph.node] == [n.name for n in after.graph.node]
    changed = 0
    for old, new in zip(before.graph.initializer, after.graph.initializer, strict=True):
        assert (old.name, old.dims, old.data_type) == (new.name, new.dims, new.data_type)
        same = (numpy_helper.to_array(old) == numpy_helper.to_array(new)).all()
        assert same == (numpy_helper.to_array(old).size <= 64)
        changed += not same
    assert json.loads(result.stdout)["replaced"] == changed == 6
    assert tilewright("model", "strip", EXAMPLE, "-o", EXAMPLE).exit_code == 3
    assert tilewright("model", "strip", REPO / "README.md", "-o", target).exit_code == 3


def test_doctor_reports_each_check(tmp_path: Path) -> None:
    result = tilewright("doctor", "--data-dir", tmp_path, "--json")
    found = json.loads(result.stdout)
    assert found["healthy"] is (result.exit_code == 0)
    assert {"python", "c compiler", "data directory"} <= {c["name"] for c in found["checks"]}
    blocked = tmp_path / "file"
    blocked.write_text("")
    unreachable = tilewright("doctor", "--server", "http://127.0.0.1:9", "--data-dir", tmp_path)
    assert unreachable.exit_code == 5


@pytest.mark.parametrize(
    ("job", "code"),
    [
        ({"state": "succeeded"}, 0),
        ({"state": "canceled"}, 7),
        ({"state": "timed_out", "error": {"exit_code": 6}}, 6),
        ({"state": "failed", "error": {"exit_code": 4}}, 4),
        ({"state": "failed", "error": None}, 5),
        ({"state": "expired"}, 5),
    ],
)
def test_exit_code_of_a_job(job: dict[str, object], code: int) -> None:
    assert exit_of_job(job) == code


def test_hostile_names_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    print_problem({"code": "X", "title": "t", "node": "a\x1b[2J\nb", "errors": [], "hints": []})
    shown = capsys.readouterr().err
    assert "\x1b" not in shown
    assert shown.count("\n") == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (True, "yes"), (1234567, "1,234,567"), (0.123456, "0.1235"), ([1], "[1]")],
)
def test_cells(value: object, text: str) -> None:
    assert cell(value) == text
