"""A copy without weights and names compiles to the same, and is gated like the model itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from gate_example import Team, table
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import tilewright as tw
from service.cli.demo import EXAMPLE
from service.cli.main import app
from service.cli.stripping import strip_weights


def strip(source: Path, target: Path, *words: str) -> None:
    ran = CliRunner().invoke(app, ["model", "strip", str(source), "-o", str(target), *words])
    assert ran.exit_code == 0, ran.output


def texts(model: onnx.ModelProto) -> set[str]:
    """Names of values and nodes of the outermost graph."""
    graph = model.graph
    values = (*graph.input, *graph.output, *graph.initializer, *graph.value_info)
    tensors = {name for node in graph.node for name in (*node.input, *node.output)}
    return {graph.name, *tensors, *(v.name for v in values), *(n.name for n in graph.node)} - {""}


def test_the_copy_compiles_to_the_same(tmp_path: Path) -> None:
    strip(EXAMPLE, tmp_path / "copy.onnx", "--names")
    own, copy = (onnx.load(path) for path in (EXAMPLE, tmp_path / "copy.onnx"))
    assert not texts(own) & texts(copy)
    data = (tmp_path / "copy.onnx").read_bytes()
    assert not any(name.encode() in data for name in texts(own) if len(name) > 3)
    found = [
        tw.compile(path, "kapla-16x16", verify="none", data_dir=tmp_path / "data")
        for path in (EXAMPLE, tmp_path / "copy.onnx")
    ]
    assert found[0].summary == found[1].summary
    assert found[1].cache["misses"] == 0, "each unit of the copy is one of the model"


def with_everything() -> onnx.ModelProto:
    """Weights in a Constant, in a sub-graph and in a function; all of them named."""
    weight = np.arange(128, dtype=np.float32).reshape(8, 16)
    inner = helper.make_graph(
        [
            helper.make_node("Add", ["secret_x", "secret_inner"], ["secret_sum"], "secret_add"),
        ],
        "secret_then",
        [],
        [helper.make_tensor_value_info("secret_sum", TensorProto.FLOAT, [8, 16])],
        [numpy_helper.from_array(weight + 7, "secret_inner")],
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["secret_x"], ["secret_neg"], "secret_node")],
        "secret_else",
        [],
        [helper.make_tensor_value_info("secret_neg", TensorProto.FLOAT, [8, 16])],
    )
    function = helper.make_function(
        "secret_domain", "secret_function", ["secret_in"], ["secret_out"],
        [
            helper.make_node(
                "Constant", [], ["secret_f"], value=numpy_helper.from_array(weight + 5, "secret_t")
            ),
            helper.make_node("Mul", ["secret_in", "secret_f"], ["secret_out"]),
        ],
        [helper.make_opsetid("", 18)],
    )  # fmt: skip
    graph = helper.make_graph(
        [
            helper.make_node(
                "Constant", [], ["secret_c"], value=numpy_helper.from_array(weight + 3, "secret_v")
            ),
            helper.make_node("Add", ["secret_x", "secret_c"], ["secret_y"], doc_string="secret"),
            helper.make_node("If", ["secret_if"], ["secret_z"], then_branch=inner,
                             else_branch=other),
            helper.make_node("secret_function", ["secret_y"], ["secret_w"],
                             domain="secret_domain"),
            helper.make_node("Add", ["secret_w", "secret_z"], ["secret_end"]),
        ],
        "secret_graph",
        [
            helper.make_tensor_value_info("secret_x", TensorProto.FLOAT, [8, 16]),
            helper.make_tensor_value_info("secret_if", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("secret_end", TensorProto.FLOAT, [8, 16])],
    )  # fmt: skip
    return helper.make_model(
        graph, functions=[function], ir_version=9,
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("secret_domain", 1)],
    )  # fmt: skip


@pytest.mark.parametrize("names", [False, True], ids=["named", "nameless"])
def test_what_it_has_learnt_is_nowhere(tmp_path: Path, names: bool) -> None:
    """Also in constants, sub-graphs and functions; and the copy runs."""
    model = with_everything()
    source, target = tmp_path / "m.onnx", tmp_path / "copy.onnx"
    source.write_bytes(model.SerializeToString())
    assert strip_weights(source, target, seed=0, keep_elems=64, names=names) == (3, 0)
    data = target.read_bytes()
    weight = np.arange(128, dtype=np.float32)
    for shift in (3, 5, 7):
        assert (weight + shift).tobytes()[:64] not in data
    copy = onnx.load(target)
    onnx.checker.check_model(copy, full_check=True)
    if names:
        # A function's domain is named in the opset imports, like an operator's.
        assert b"secret" not in data.replace(b"secret_domain", b"")
    session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    x, flag = (value.name for value in session.get_inputs())
    for value in (True, False):
        [out] = session.run(None, {x: np.ones((8, 16), np.float32), flag: np.array(value)})
        assert out.shape == (8, 16)
        assert np.isfinite(out).all()


def test_a_gate_says_of_copies_what_it_says_of_models(tmp_path: Path) -> None:
    """A team that gates copies: nothing changed, another seed, and a slower machine."""
    team = Team(tmp_path / "team", tmp_path / "data")
    slower = ("read_bytes_per_cycle: 25.6", "read_bytes_per_cycle: 12.8")
    team.edit("hardware/edge.yaml", *slower)
    of_models = team.gate()
    team.git("checkout", "-q", "hardware/edge.yaml")

    def redact(seed: int) -> None:
        for path in sorted((team.root / "models").glob("*.onnx")):
            strip(path, path.with_suffix(".copy"), "--names", "--seed", str(seed))
            path.with_suffix(".copy").replace(path)

    redact(0)
    team.commit(message="copies")
    team.git("checkout", "-q", "main")
    team.git("merge", "-q", "work")
    team.git("checkout", "-q", "work")
    ran = team.gate()
    assert (ran.code, table(ran)) == (0, []), ran.stdout + ran.stderr
    redact(1)
    ran = team.gate()
    assert (ran.code, table(ran)) == (0, []), ran.stdout + ran.stderr
    team.git("checkout", "-q", "models")
    team.edit("hardware/edge.yaml", *slower)
    ran = team.gate()
    assert (ran.code, of_models.code) == (1, 1)
    said = of_models.first_line
    assert "expand/gemm" in said
    assert ran.first_line == said.replace("expand/gemm", "n0")
