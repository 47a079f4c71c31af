"""External data beside a bare .onnx file: compiled with it, refused when it leads elsewhere."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import Result
from onnx import helper, numpy_helper
from typer.testing import CliRunner

from service.cli.main import app
from service.orders.beside import with_external_data

WEIGHTS = np.random.default_rng(3).standard_normal((8, 4)).astype(np.float32)


def model_with(location: str, folder: Path, size: int = WEIGHTS.nbytes) -> Path:
    """x @ w + b, where w lies in the file `location`."""
    tensor = numpy_helper.from_array(WEIGHTS, "w")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", str(size))):
        tensor.external_data.add(key=key, value=value)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 8])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 4])], [tensor],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    folder.mkdir(exist_ok=True)
    path = folder / "net.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def tilewright(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def compiled(model: Path, tmp_path: Path) -> tuple[int, dict[str, Any]]:
    done = tilewright(
        "compile", model, "--hardware", "kapla-16x16", "--local", "--json", "--verify", "full",
        "--data-dir", tmp_path / "data", "-o", tmp_path / "out",
    )  # fmt: skip
    return done.exit_code, json.loads(done.stdout)


def test_weights_in_a_folder_beside_the_model_are_found(tmp_path: Path) -> None:
    model = model_with("parts/w.bin", tmp_path / "m")
    (model.parent / "parts").mkdir()
    (model.parent / "parts/w.bin").write_bytes(WEIGHTS.tobytes())
    code, document = compiled(model, tmp_path)
    assert (code, document["state"]) == (0, "succeeded"), document
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["verification"]["passed"] is True
    assert sorted(p.name for p in tmp_path.glob("out/*.twb")) == ["net.twb"]
    found = tilewright("preflight", model, "--hardware", "kapla-16x16", "--json")
    assert (found.exit_code, json.loads(found.stdout)["fallbacks"]) == (0, [])


@pytest.mark.parametrize("kind", ["above", "absolute", "link", "folder link", "missing", "folder"])
def test_what_is_not_inside_the_models_folder_is_refused(kind: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(WEIGHTS.tobytes())
    location = {
        "above": "../secret.bin", "absolute": str(secret), "link": "w.bin",
        "folder link": "up/secret.bin", "missing": "w.bin", "folder": "up",
    }[kind]  # fmt: skip
    model = model_with(location, tmp_path / "m")
    if kind == "link":
        (model.parent / "w.bin").symlink_to(secret)
    elif kind == "folder link":
        (model.parent / "up").symlink_to(tmp_path)
    elif kind == "folder":
        (model.parent / "up").mkdir()
    code, document = compiled(model, tmp_path)
    assert (code, document["error"]["code"]) == (3, "TW-MODEL-010")
    assert location in document["error"]["detail"]


def test_a_file_too_short_is_refused_by_the_loader(tmp_path: Path) -> None:
    model = model_with("w.bin", tmp_path / "m")
    (model.parent / "w.bin").write_bytes(WEIGHTS.tobytes()[:-4])
    assert compiled(model, tmp_path)[1]["error"]["code"] == "TW-MODEL-010"


def test_the_bundle_is_the_same_every_time_and_gone_afterwards(tmp_path: Path) -> None:
    model = model_with("w.bin", tmp_path / "m")
    (model.parent / "w.bin").write_bytes(WEIGHTS.tobytes())
    found = []
    for _ in range(2):
        with with_external_data(model) as bundle:
            found.append(bundle.read_bytes())
            with zipfile.ZipFile(bundle) as archive:
                assert archive.namelist() == ["net.onnx", "w.bin"]
        assert not bundle.exists()
    assert found[0] == found[1]


def test_a_model_without_external_data_is_given_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "plain.onnx"
    path.write_bytes(b"not a model, with a location")
    with with_external_data(path) as given:
        assert given == path
