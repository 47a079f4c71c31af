"""`hardware match` prints composites and near misses, without a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from onnx_models import conv_net, saved
from typer.testing import CliRunner, Result

from service.cli.main import app
from worker.compiler.machine.build import canonical_document
from worker.compiler.machine.presets import preset_document

SPEC = {
    "name": "mine",
    "inherits": "a100",
    "capabilities": {
        "patterns": [
            {"name": "conv_relu", "match": {
                "op": "Relu", "inputs": [{"op": "Conv", "inputs": ["any", "constant"],
                                          "bind": "sum"}]}},
            {"name": "residual", "match": {"op": "Add", "commutative": True,
                                           "inputs": [{"op": "Conv"}, "any"]}},
        ]
    },
}  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    spec = tmp_path / "mine.yaml"
    spec.write_text(yaml.safe_dump(SPEC))
    return spec, saved(conv_net(), tmp_path)


def match(*words: object) -> Result:
    return CliRunner().invoke(app, ["hardware", "match", *(str(word) for word in words)])


def test_json_has_matches_and_near_misses(files: tuple[Path, Path]) -> None:
    result = match(*files, "--json")
    assert result.exit_code == 0, result.output
    (target,) = json.loads(result.stdout)["targets"]
    assert [(m["pattern"], m["nodes"]) for m in target["matches"]] == [
        ("conv_relu", ["stem/conv", "relu"]),
        ("residual", ["block/conv", "block/add"]),
    ]
    assert list(target["matches"][0]["bindings"]) == ["sum"]
    assert target["near_misses"] == []


def test_what_no_node_uses_is_listed_and_what_instructions_run_is_counted(
    files: tuple[Path, Path],
) -> None:
    spec, model = files
    calls = [{"name": name, "op": "matmul", "extents": [16, 16, 16], "cycles": 64}
             for name in ("mma", "idle")]  # fmt: skip
    rows = [
        {**SPEC["capabilities"]["patterns"][0], "intrinsic": "mma"},  # type: ignore[index]
        {"name": "never", "match": {"op": "Erf", "inputs": ["any"]}},
    ]
    engines = [{"name": "TC", "intrinsics": calls}]
    spec.write_text(
        yaml.safe_dump({**SPEC, "engines": engines, "capabilities": {"patterns": rows}})
    )
    (target,) = json.loads(match(spec, model, "--json").stdout)["targets"]
    assert target["in_calls"] == {"Conv": [1, 2], "Relu": [1, 1]}
    assert (target["unused_patterns"], target["unused_instructions"]) == (["never"], ["idle"])
    text = match(spec, model).stdout
    assert "run by instructions: Conv 1 of 2, Relu 1 of 1" in text
    assert "instructions that the model does not use: idle" in text


def test_the_converted_model_is_matched_and_what_is_outside_calls_is_explained(
    files: tuple[Path, Path],
) -> None:
    spec, model = files
    document = {**SPEC, "inherits": "dpu-zu"}
    rows = [{**SPEC["capabilities"]["patterns"][0], "intrinsic": "mma"}]  # type: ignore[index]
    calls = [{"name": "mma", "op": "matmul", "extents": [8, 8, 8], "cycles": 64}]
    engine = next(
        e["name"]
        for e in canonical_document(preset_document("dpu-zu"))["engines"]
        if e["kind"] == "matrix"
    )
    document["engines"] = [{"name": engine, "intrinsics": calls}]
    document["capabilities"] = {"patterns": rows, "conversions": [{"dtype": "i8"}]}
    spec.write_text(yaml.safe_dump(document))
    native = json.loads(match(spec, model, "--json").stdout)["targets"][0]
    assert native["in_calls"] == {}
    assert {row["node"] for row in native["outside_calls"]} >= {"stem/conv", "block/conv"}
    assert "[rule /" in native["outside_calls"][0]["reason"]
    converted = json.loads(match(spec, model, "--precision", "i8", "--json").stdout)["targets"][0]
    assert ("conv_relu", ["stem/conv", "relu"]) in [
        (m["pattern"], m["nodes"]) for m in converted["matches"]
    ]
    assert "products that no instruction runs" in match(spec, model).stdout
    misses = converted["near_misses"]
    assert misses and all(row["reason"].endswith("/patterns/0]") for row in misses)


def test_text_shows_both_and_one_pattern_can_be_picked(files: tuple[Path, Path]) -> None:
    spec, model = files
    document = {**SPEC, "capabilities": {"patterns": [
        {"name": "pool_relu", "match": {"op": "Relu", "inputs": [{"op": "MaxPool"}]}},
        *SPEC["capabilities"]["patterns"],  # type: ignore[index]
    ]}}  # fmt: skip
    spec.write_text(yaml.safe_dump(document))
    result = match(spec, model)
    assert result.exit_code == 0, result.output
    assert "patterns: 3, nodes: 8, composites: 2" in result.stdout
    assert "stem/conv, relu" in result.stdout
    assert "input 0 is defined by stem/conv (Conv), the pattern wants MaxPool" in result.stdout
    picked = match(spec, model, "--pattern", "pool_relu")
    assert "composites: 0" in picked.stdout
    assert "near misses: 1" in picked.stdout


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--pattern", "conv_rleu"], 2, "has a pattern 'conv_rleu'"),
        (["--set", "batch"], 2, "expected NAME=INTEGER"),
    ],
)
def test_wrong_use_is_refused(
    files: tuple[Path, Path], words: list[str], code: int, text: str
) -> None:
    result = match(*files, *words)
    assert result.exit_code == code
    assert text in result.stderr


def test_a_wrong_pattern_points_into_the_file(files: tuple[Path, Path]) -> None:
    spec, model = files
    spec.write_text(spec.read_text().replace("op: Conv", "op: Covn"))
    result = match(spec, model, "--json")
    assert result.exit_code == 3
    pointers = [row["pointer"] for row in json.loads(result.stdout)["errors"]]
    assert pointers == [
        "/capabilities/patterns/0/match/inputs/0/op", "/capabilities/patterns/1/match/inputs/0/op",
    ]  # fmt: skip


def test_a_missing_model_is_an_input_error(files: tuple[Path, Path]) -> None:
    assert match(files[0], "missing.onnx").exit_code == 3
