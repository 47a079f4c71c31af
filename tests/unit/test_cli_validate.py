"""The verb `validate`: names, files of one's own, networks without a model, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from test_cli import EXAMPLE, tilewright
from test_validation_figures import GOOD, edited

from worker.validation.published import shipped


def figures(tmp_path: Path, text: str | None = None) -> Path:
    path = tmp_path / "figures.yaml"
    path.write_text(yaml.safe_dump(GOOD) if text is None else text)
    return path


def test_rows_are_listed() -> None:
    done = tilewright("validate", "--list", "--json")
    assert done.exit_code == 0
    assert [item["name"] for item in json.loads(done.stdout)["items"]] == [
        row.id for row in shipped().rows
    ]


def test_a_row_outside_ends_with_1_and_its_sentence(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    done = tilewright("validate", "one", "--figures", figures(tmp_path), "-o", page, "--json")
    assert done.exit_code == 1
    (row,) = json.loads(done.stdout)["rows"]
    assert row["verdict"] == "OUTSIDE"
    assert "one: OUTSIDE: ratio" in done.stderr
    assert "| one | eyeriss | 2 ms |" in page.read_text()


def test_a_row_within_ends_with_0(tmp_path: Path) -> None:
    whole = json.loads(
        tilewright("validate", "one", "--figures", figures(tmp_path), "--json").stdout
    )
    text = edited("/rows/0/figure", whole["rows"][0]["ours"])
    done = tilewright("validate", "one", "--figures", figures(tmp_path, text))
    assert (done.exit_code, done.stderr) == (0, "")
    assert "1 rows: 1 within." in done.stdout


@pytest.mark.parametrize("folder", [False, True])
def test_a_network_without_its_model_is_not_run(tmp_path: Path, folder: bool) -> None:
    words = ("--models", tmp_path) if folder else ()
    done = tilewright("validate", "two", "--figures", figures(tmp_path), "--json", *words)
    assert done.exit_code == 0
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["verdict"], row["ours"]) == ("not run", None)
    assert ("no resnet50.onnx" if folder else "--models DIR") in row["how"]


def test_a_network_is_compiled_as_users_compile_it(tmp_path: Path) -> None:
    (tmp_path / "resnet50.onnx").write_bytes(EXAMPLE.read_bytes())
    words = ("--figures", figures(tmp_path), "--models", tmp_path, "--data-dir", tmp_path / "data")
    done = tilewright("validate", "two", "--json", *words)
    assert done.exit_code in (0, 1), done.output
    (row,) = json.loads(done.stdout)["rows"]
    output = tmp_path / "out"
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump(GOOD["rows"][1]["machine"]))
    compiled = tilewright(
        "compile", EXAMPLE, "--hardware", spec, "--verify", "none", "-o", output,
        "--data-dir", tmp_path / "data",
    )  # fmt: skip
    assert compiled.exit_code == 0, compiled.output
    summary = json.loads((output / "report.json").read_bytes())["summary"]
    assert row["ours"] == pytest.approx(2 / summary["latency_s"], rel=1e-5)
    least = summary["lower_bound_cycles"] / summary["latency_cycles"]
    assert row["floor_ratio"] == pytest.approx(row["ratio"] * least, rel=1e-4)


def test_refusals(tmp_path: Path) -> None:
    damaged = figures(tmp_path, edited("/rows/0/figure", -1))
    done = tilewright("validate", "--figures", damaged, "--json")
    assert (done.exit_code, json.loads(done.stdout)["code"]) == (3, "TW-VALID-001")
    assert "/rows/0/figure" in done.stdout
    done = tilewright("validate", "three", "--json")
    assert (done.exit_code, json.loads(done.stdout)["code"]) == (2, "TW-VALID-002")
    done = tilewright("validate", "--figures", tmp_path / "none.yaml", "--json")
    assert json.loads(done.stdout)["code"] == "TW-CLI-001"
