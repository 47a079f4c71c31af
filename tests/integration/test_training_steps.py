"""Training steps as a user has them: written by the command, learning, compiled, verified."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from gradient_cases import Array, node
from onnx import helper
from onnx_models import saved
from training_steps import model_of
from typer.testing import CliRunner

from service.cli.main import app

F32 = np.float32


def weights(seed: int, *shape: int) -> Array:
    scale = np.sqrt(max(1, int(np.prod(shape[1:]))))
    return (np.random.default_rng(seed).standard_normal(shape) / scale).astype(F32)


def mlp() -> onnx.ModelProto:
    nodes = (
        node("Gemm", "x w1 b1", "h", transB=1), node("Relu", "h", "r"), node("MatMul", "r w2"),
    )  # fmt: skip
    parameters = {"w1": weights(1, 16, 12), "b1": np.zeros(16, F32), "w2": weights(2, 16, 5)}
    return model_of(nodes, {"x": weights(3, 8, 12)}, parameters, "y")


def cnn() -> onnx.ModelProto:
    """conv, batch normalization, relu, strided conv, overlapping max-pool, gemm."""
    nodes = (
        helper.make_node("Conv", ["x", "w1"], ["c1"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c1", "g", "b", "m", "v"], ["n1"], name="bn"),
        helper.make_node("Relu", ["n1"], ["r1"], name="relu1"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], name="conv2", pads=[1, 1, 1, 1],
                         strides=[2, 2]),
        helper.make_node("Relu", ["c2"], ["r2"], name="relu2"),
        helper.make_node("MaxPool", ["r2"], ["p"], name="pool", kernel_shape=[3, 3],
                         strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], name="head", transB=1),
    )  # fmt: skip
    parameters = {
        "w1": weights(1, 8, 3, 3, 3), "g": np.ones(8, F32), "b": np.zeros(8, F32),
        "m": np.zeros(8, F32), "v": np.ones(8, F32), "w2": weights(2, 8, 8, 3, 3),
        "b2": np.zeros(8, F32), "w3": weights(3, 10, 32), "b3": np.zeros(10, F32),
    }  # fmt: skip
    return model_of(nodes, {"x": weights(4, 4, 3, 8, 8)}, parameters, "y")


def lstm() -> onnx.ModelProto:
    """Forwards and backwards over three steps, and the last states through a dense layer."""
    nodes = (
        node("LSTM", "x w r b", "all last", hidden_size=4, direction="bidirectional"),
        node("Transpose", "last", "turned", perm=[1, 0, 2]), node("Flatten", "turned", "flat"),
        node("Gemm", "flat o"),
    )  # fmt: skip
    parameters = {
        "w": weights(1, 2, 16, 5), "r": weights(2, 2, 16, 4), "b": weights(3, 2, 32),
        "o": weights(4, 8, 3),
    }  # fmt: skip
    return model_of(nodes, {"x": weights(5, 3, 6, 5)}, parameters, "y")


def ran(*words: object) -> dict[str, object]:
    made = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert made.exit_code == 0, made.output
    found: dict[str, object] = json.loads(made.stdout)
    return found


@pytest.mark.parametrize("model", [mlp, cnn, lstm])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_loss_falls(tmp_path: Path, model: object, optimizer: str) -> None:
    """Twenty steps in ONNX Runtime, every output put back as the input that it is the next of."""
    source = saved(model(), tmp_path)  # type: ignore[operator]
    step, inputs = tmp_path / "step.onnx", tmp_path / "in.npz"
    said = ran("model", "train", source, "--loss", "cross-entropy", "--optimizer", optimizer,
               "-o", step, "--input", inputs, "--seed", 7)  # fmt: skip
    with np.load(inputs) as arrays:
        feeds = dict(arrays)
    session = onnxruntime.InferenceSession(step)
    assert sorted(feeds) == sorted(v.name for v in session.get_inputs())
    names = [v.name for v in session.get_outputs()]
    losses = []
    for _ in range(20):
        made = dict(zip(names, session.run(None, feeds), strict=True))
        losses.append(float(made[str(said["loss"])]))
        feeds.update((row["input"], made[row["output"]]) for row in said["carried"])  # type: ignore[attr-defined]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.97 * losses[0]


@pytest.mark.parametrize(("model", "loss"), [(mlp, "mse"), (cnn, "cross-entropy"), (lstm, "mse")])
def test_a_step_compiles_and_is_verified_tensor_by_tensor(
    tmp_path: Path, model: object, loss: str
) -> None:
    source = saved(model(), tmp_path)  # type: ignore[operator]
    out = tmp_path / "out"
    ran("compile", source, "--hardware", "simba", "--train", loss, "--strategy", "naive",
        "--verify", "full", "--local", "--data-dir", tmp_path / "data", "-o", out)  # fmt: skip
    report = json.loads((out / "report.json").read_text())
    assert report["verification"]["passed"]
    assert report["verification"]["mode"] == "full"
    assert report["summary"]["host_ops"] == 0
    named = {name for row in report["layers"] for name in row["onnx_nodes"]}
    gradients = ("the_MatMul/gradient/", "conv2/gradient/", "the_LSTM/Gemm/gradient/")
    assert any(name.startswith(gradients) for name in named)
