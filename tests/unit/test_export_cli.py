"""`tilewright export` on real bundles, and its page against the code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import Result
from onnx import TensorProto, helper, numpy_helper
from region_bundles import bundled, compiled_from
from typer.testing import CliRunner

from service.cli.main import app
from worker.compiler.assembly.packing import bundle_contents
from worker.compiler.export.nest import Reason
from worker.compiler.export.peer import Peer
from worker.compiler.package.bundle import write_bundle

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "exports.md").read_text()


def two_products() -> onnx.ModelProto:
    """x @ a, then a softmax, then @ b: kernels that have a form, and some that have none."""
    weights = [
        numpy_helper.from_array(np.full(shape, 0.5, np.float16), name)
        for name, shape in (("a", (32, 64)), ("b", (64, 32)))
    ]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "a"], ["p"], name="first"),
            helper.make_node("Softmax", ["p"], ["s"], name="soft"),
            helper.make_node("MatMul", ["s", "b"], ["y"], name="second"),
        ],
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [32, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [32, 32])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one bundle, for kapla-edge."""
    made = tmp_path_factory.mktemp("products")
    compiled = compiled_from(two_products(), "kapla-edge", made)
    write_bundle(made / "p.twb", bundle_contents(compiled, {}, b"{}", b"{}", b"\x1f\x8b"))
    return made


def export(*words: object) -> Result:
    return CliRunner().invoke(app, ["export", *map(str, words)])


def test_kernels_are_written_and_the_others_named(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    done = export(folder, "--to", "zigzag", "-o", output, "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    written = {str(p.relative_to(output)) for p in output.rglob("*") if p.is_file()}
    assert written == set(document["files"])
    by_node: dict[str, list[str]] = {}
    for row in document["items"]:
        by_node.setdefault(row["onnx_nodes"][0], []).append(row["state"])
    assert by_node["first"] == by_node["second"] == ["exported"]
    assert set(by_node["soft"]) == {"refused"}
    assert len(written) == 6


def test_a_bundle_gives_the_same_files_every_time(folder: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert export(folder / "p.twb", "--to", "scalesim", "-o", tmp_path / name).exit_code == 0
    one, two = (
        {p.name: p.read_bytes() for p in (tmp_path / name).rglob("*.c*")} for name in ("one", "two")
    )
    assert one == two
    assert one


def test_a_bundle_without_a_form_is_refused_with_every_reason(tmp_path: Path) -> None:
    done = export(bundled("view", tmp_path), "--to", "zigzag", "-o", tmp_path / "out", "--json")
    problem = json.loads(done.stdout)
    assert (done.exit_code, problem["code"]) == (4, "TW-EXPORT-001")
    assert {row["node"] for row in problem["errors"]} == {"relu", "exp"}
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("make", "code", "said"),
    [
        (lambda p: p / "nothing", "TW-CLI-001", "is no bundle"),
        (lambda p: p, "TW-CLI-001", "no folder with exactly one"),
        (lambda p: _written(p / "x.twb", b"nonsense"), "TW-RUN-001", "cannot be read"),
    ],
)
def test_what_is_no_bundle_is_refused(make: object, code: str, said: str, tmp_path: Path) -> None:
    done = export(make(tmp_path), "--to", "zigzag", "-o", tmp_path / "out")  # type: ignore[operator]
    assert done.exit_code == 3
    assert code in done.stderr
    assert said in done.stderr


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_a_folder_with_files_is_left_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    done = export(folder, "--to", "zigzag", "-o", tmp_path)
    assert done.exit_code == 3
    assert "already and not empty" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_the_page_names_every_reason_and_every_peer() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted([*map(str, Reason), *map(str, Peer)])


def test_help_needs_no_compiler() -> None:
    code = (
        "import sys; from service.cli.main import app;"
        "print([m for m in sys.modules if m.startswith('worker.compiler.')"
        " and ('schedule' in m or 'export.d' in m or 'machine' in m)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
