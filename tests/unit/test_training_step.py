"""A training step: its losses, updates, statistics, masks, what it costs, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from gradient_cases import Array, ints, node, positive, real
from onnx import helper
from training_steps import model_of, run, step_of

from worker.compiler.errors import CompilerError, ModelError, OptionError
from worker.compiler.frontend.limits import Limits
from worker.compiler.train import write_out
from worker.compiler.train.options import TrainOptions
from worker.compiler.train.rules.registry import REWRITTEN, RULES
from worker.compiler.train.write_out import WRITTEN_OUT

X = real(1, 4, 6)
LABELS = np.array([2, 0, 1, 2])
PARAMETERS = {"w": real(2, 6, 3), "b": real(3, 3)}
DENSE = (node("Gemm", "x w b"),)


def dense() -> onnx.ModelProto:
    return model_of(DENSE, {"x": X}, PARAMETERS, "y")


def by_hand() -> tuple[float, dict[str, Array]]:
    """Loss and gradients of softmax cross entropy over one dense layer."""
    logits = X @ PARAMETERS["w"] + PARAMETERS["b"]
    odds = np.exp(logits)
    share = odds / odds.sum(1, keepdims=True)
    loss = -np.log(share[np.arange(4), LABELS]).mean()
    wrong = (share - np.eye(3)[LABELS]) / 4
    return loss, {"w": X.T @ wrong, "b": wrong.sum(0)}


def test_one_step_of_sgd(tmp_path: Path) -> None:
    step, proto = step_of(dense(), tmp_path, loss="cross-entropy", learning_rate=0.1)
    made = run(proto, {"x": X, "labels": LABELS, **PARAMETERS})
    loss, gradients = by_hand()
    assert made[step.loss] == pytest.approx(loss, rel=1e-14)
    assert {c.input: c.output for c in step.carried} == {"w": "w/next", "b": "b/next"}
    for name, value in PARAMETERS.items():
        np.testing.assert_allclose(made[f"{name}/next"], value - 0.1 * gradients[name], rtol=1e-13)


def test_momentum_remembers(tmp_path: Path) -> None:
    step, proto = step_of(dense(), tmp_path, loss="cross-entropy", learning_rate=0.1, momentum=0.5)
    state = {c.input: c.initial for c in step.carried}
    assert sorted(state) == ["b", "b/momentum", "w", "w/momentum"]
    once = run(proto, {"x": X, "labels": LABELS, **state})
    moved = {**state, "w/momentum": once["w/momentum/next"], "b/momentum": once["b/momentum/next"]}
    twice = run(proto, {"x": X, "labels": LABELS, **moved})
    _, gradients = by_hand()
    for name, value in PARAMETERS.items():
        np.testing.assert_allclose(
            twice[f"{name}/next"], value - 0.1 * 1.5 * gradients[name], rtol=1e-13
        )


def test_adam_is_its_paper(tmp_path: Path) -> None:
    """Three steps of algorithm 1, with the numbers that are not the defaults."""
    rates = {"learning_rate": 0.05, "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3}
    step, proto = step_of(dense(), tmp_path, loss="mse", optimizer="adam", **rates)
    target = real(5, 4, 3)
    state = {c.input: np.asarray(c.initial) for c in step.carried}
    w, m, v = PARAMETERS["w"].copy(), np.zeros((6, 3)), np.zeros((6, 3))
    b, bm, bv = PARAMETERS["b"].copy(), np.zeros(3), np.zeros(3)
    for t in range(1, 4):
        wrong = 2 * (X @ w + b - target) / 12
        made = run(proto, {"x": X, "target": target, **state})
        assert made[step.loss] == pytest.approx(((X @ w + b - target) ** 2).mean(), rel=1e-12)
        state = {c.input: made[c.output] for c in step.carried}
        m, v = 0.8 * m + 0.2 * (X.T @ wrong), 0.9 * v + 0.1 * (X.T @ wrong) ** 2
        bm, bv = 0.8 * bm + 0.2 * wrong.sum(0), 0.9 * bv + 0.1 * wrong.sum(0) ** 2
        w -= 0.05 * (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.9**t)) + 1e-3)
        b -= 0.05 * (bm / (1 - 0.8**t)) / (np.sqrt(bv / (1 - 0.9**t)) + 1e-3)
        np.testing.assert_allclose(state["w"], w, rtol=1e-11)
        np.testing.assert_allclose(state["b"], b, rtol=1e-11)


def test_classes_may_be_the_last_axis(tmp_path: Path) -> None:
    """Tokens by classes, as language models give them, and classes by places are the same loss."""
    w, x = real(2, 6, 3), real(1, 2, 4, 6)
    labels = np.array([[0, 1, 2, 2], [1, 1, 0, 2]])
    last = model_of((node("MatMul", "x w"),), {"x": x}, {"w": w}, "y")
    turned = (node("MatMul", "x w", "h"), node("Transpose", "h", perm=[0, 2, 1]))
    options = {"loss": "cross-entropy", "optimizer": "none"}
    _, one = step_of(last, tmp_path, class_axis=-1, **options)
    _, two = step_of(model_of(turned, {"x": x}, {"w": w}, "y"), tmp_path, **options)
    found = [run(proto, {"x": x, "labels": labels, "w": w}) for proto in (one, two)]
    np.testing.assert_allclose(found[0]["loss"], found[1]["loss"], rtol=1e-14)
    np.testing.assert_allclose(found[0]["w/gradient"], found[1]["w/gradient"], rtol=1e-12)


def test_a_parameter_that_is_read_twice_gets_both_gradients(tmp_path: Path) -> None:
    w = real(2, 6, 6)
    nodes = (node("MatMul", "x w", "h"), node("MatMul", "h w"))
    _, proto = step_of(
        model_of(nodes, {"x": X}, {"w": w}, "y"), tmp_path, loss="mse", optimizer="none"
    )
    target = np.zeros((4, 6))
    made = run(proto, {"x": X, "w": w, "target": target})
    wrong = 2 * (X @ w @ w) / 24
    np.testing.assert_allclose(
        made["w/gradient"], (X @ w).T @ wrong + X.T @ (wrong @ w.T), rtol=1e-12
    )


def test_batchnorm_of_an_inference_model_trains(tmp_path: Path) -> None:
    """Statistics are the batch's, the running ones follow; nothing is folded into the Conv."""
    x, w = real(1, 2, 2, 5, 5), real(2, 3, 2, 1, 1)
    parameters = {
        "w": w, "g": positive(3, 3), "b": real(4, 3), "m": real(5, 3), "v": positive(6, 3)
    }  # fmt: skip
    nodes = (node("Conv", "x w", "c"), node("BatchNormalization", "c g b m v", momentum=0.75))
    model = model_of(nodes, {"x": x}, parameters, "y")
    step, proto = step_of(model, tmp_path, loss="mse")
    made = run(proto, {"x": x, "target": np.zeros((2, 3, 5, 5)), **parameters})
    c = np.einsum("nchw,mc->nmhw", x, w[:, :, 0, 0])
    mean, variance = c.mean((0, 2, 3)), c.var((0, 2, 3))
    np.testing.assert_allclose(made["m/next"], 0.75 * parameters["m"] + 0.25 * mean, rtol=1e-12)
    np.testing.assert_allclose(made["v/next"], 0.75 * parameters["v"] + 0.25 * variance, rtol=1e-12)
    line = (1, 3, 1, 1)
    normal = (c - mean.reshape(line)) / np.sqrt(variance.reshape(line) + 1e-5)
    y = normal * parameters["g"].reshape(line) + parameters["b"].reshape(line)
    np.testing.assert_allclose(made["loss"], (y**2).mean(), rtol=1e-12)
    kinds = {c.input: c.kind for c in step.carried}
    assert kinds == {
        "w": "parameter", "g": "parameter", "b": "parameter", "m": "statistic", "v": "statistic"
    }  # fmt: skip


@pytest.mark.parametrize("opset", [11, 21])
def test_a_dropout_is_a_product_with_a_mask_of_the_users(tmp_path: Path, opset: int) -> None:
    drop = node("Dropout", "h", ratio=0.25) if opset < 12 else node("Dropout", "h ratio")
    constants = {} if opset < 12 else {"ratio": np.array(0.25, np.float32)}
    nodes = (node("MatMul", "x w", "h"), drop)
    model = model_of(nodes, {"x": X}, {"w": PARAMETERS["w"], **constants}, "y", opset)
    step, proto = step_of(model, tmp_path, loss="mse", optimizer="none")
    (mask,) = step.masks
    assert (mask.input, mask.ratio) == ("the_Dropout/mask", 0.25)
    keeps = (np.arange(12).reshape(4, 3) % 4 > 0) / 0.75
    feeds = {"x": X, "w": PARAMETERS["w"], "target": np.zeros((4, 3)), mask.input: keeps}
    made = run(proto, feeds)
    y = X @ PARAMETERS["w"] * keeps
    np.testing.assert_allclose(made["loss"], (y**2).mean(), rtol=1e-12)
    np.testing.assert_allclose(made["w/gradient"], X.T @ (2 * y / 12 * keeps), rtol=1e-12)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_step_has_three_times_the_products(tmp_path: Path, stride: int, groups: int) -> None:
    """Twice for the first layer, whose input nobody needs a gradient of; strides walk no zeros."""
    size = 12
    nodes = (
        node("Conv", "x u", "h", pads=[1, 1, 1, 1]),
        node("Conv", "h w", pads=[1, 1, 1, 1], strides=[stride, stride], group=groups),
    )
    x, u = real(1, 2, 3, size, size), real(2, 4, 3, 3, 3)
    model = model_of(nodes, {"x": x}, {"u": u, "w": real(3, 4, 4 // groups, 3, 3)}, "y")
    step, _ = step_of(model, tmp_path, loss="mse")
    first = 2 * 4 * size**2 * 27
    second = 2 * 4 * (size // stride) ** 2 * (4 // groups) * 9
    assert step.forward_macs == first + second
    assert step.step_macs == 2 * first + 3 * second


def test_the_same_bytes_again(tmp_path: Path) -> None:
    files = [
        step_of(dense(), tmp_path, loss="mse", optimizer="adam")[1].SerializeToString()
        for _ in range(2)
    ]
    assert files[0] == files[1]


def test_nodes_are_called_after_the_users(tmp_path: Path) -> None:
    _, proto = step_of(dense(), tmp_path, loss="mse")
    beginnings = {n.name.split("/")[0] for n in proto.graph.node}
    assert beginnings == {"the_Gemm", "loss", "w", "b"}


def test_what_is_frozen_is_a_constant(tmp_path: Path) -> None:
    step, proto = step_of(dense(), tmp_path, loss="mse", freeze=["w"])
    assert [c.input for c in step.carried] == ["b"]
    assert "w" in {t.name for t in proto.graph.initializer}


def refused(
    folder: Path, nodes: tuple[onnx.NodeProto, ...], parameters: Mapping[str, Array], **options: Any
) -> CompilerError:
    model = model_of(nodes, {"x": X}, parameters, nodes[-1].output[0])
    with pytest.raises(ModelError) as caught:
        step_of(model, folder, **{"loss": "mse", **options})
    return caught.value


def test_operators_without_a_rule_are_all_named(tmp_path: Path) -> None:
    nodes = (
        node("MatMul", "x w", "h"), node("ReverseSequence", "h counts", "k"),
        node("Relu", "k", "r"), node("Hardmax", "r"),
    )  # fmt: skip
    error = refused(tmp_path, nodes, {"w": PARAMETERS["w"], "counts": ints(1, 2, 3)})
    assert error.code == "TW-TRAIN-003"
    assert [(f.node, f.actual) for f in error.findings] == [
        ("the_ReverseSequence", "ReverseSequence"), ("the_Hardmax", "Hardmax")
    ]  # fmt: skip
    assert "'the_ReverseSequence'" in error.message
    assert "'the_Hardmax'" in error.message


_CROPPED = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
_CORNERS = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}


@pytest.mark.parametrize(
    ("last", "constants", "said"),
    [
        (node("Resize", "h roi scales", **_CROPPED),
         {"roi": np.array([0, 0, 1, 1], np.float32), "scales": np.array([1, 2], np.float32)},
         "tf_crop_and_resize"),
        (node("Resize", "h __ scales", **_CORNERS),
         {"scales": np.array([1, 1.6], np.float32)}, "whole number"),
        (node("ScatterElements", "h i h", reduction="max"), {"i": np.zeros((4, 4), np.int64)},
         "'max'"),
        (node("Einsum", "h", equation="ii->i"), {}, "diagonal"),
        (node("Pad", "h p", mode="edge"), {"p": ints(0, 0, 0, 256)}, "257 times along axis 1"),
    ],
    ids=lambda value: value.op_type if isinstance(value, onnx.NodeProto) else None,
)  # fmt: skip
def test_what_a_rule_does_not_cover_is_named(
    tmp_path: Path, last: onnx.NodeProto, constants: dict[str, Array], said: str
) -> None:
    nodes = (node("MatMul", "x w", "h"), last)
    error = refused(tmp_path, nodes, {"w": real(2, 6, 4), **constants})
    assert (error.code, error.place.node) == ("TW-TRAIN-003", last.name)
    assert said in error.findings[0].message


@pytest.mark.parametrize(
    ("attributes", "steps", "said"),
    [
        ({"clip": 1.0}, 2, "clipped"),
        ({"input_forget": 1}, 2, "coupled"),
        ({"activations": ["HardSigmoid", "Tanh", "Tanh"]}, 2, "'HardSigmoid'"),
        ({}, 257, "the limit is 256"),
    ],
)
def test_a_recurrence_that_cannot_be_written_out_says_why(
    tmp_path: Path, attributes: dict[str, Any], steps: int, said: str
) -> None:
    nodes = (
        node("MatMul", "x w", "h"), node("Expand", "h much", "wide"),
        node("LSTM", "wide lw lr", hidden_size=3, **attributes),
    )  # fmt: skip
    weights = {"lw": np.ones((1, 12, 4)), "lr": np.ones((1, 12, 3)), "much": ints(steps, 4, 4)}
    error = refused(tmp_path, nodes, {"w": real(2, 6, 4), **weights})
    assert (error.code, error.place.node) == ("TW-TRAIN-003", "the_LSTM")
    assert said in error.findings[0].message


def test_a_model_that_grows_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_out, "Limits", lambda: Limits(max_nodes=20))
    weights = {"lw": np.ones((1, 12, 6)), "lr": np.ones((1, 12, 3)), "much": ints(9, 4, 6)}
    nodes = (node("Expand", "x much", "wide"), node("LSTM", "wide lw lr", hidden_size=3))
    error = refused(tmp_path, nodes, weights)
    assert (error.code, error.place.node, error.limit) == ("TW-MODEL-014", "the_LSTM", 20)


def test_an_lstm_has_three_times_the_products(tmp_path: Path) -> None:
    """Less those of the first state, which is zero, and of a gradient that nobody needs."""
    steps, batch, width, hidden = 5, 2, 4, 3
    weights = {
        "lw": np.ones((1, 4 * hidden, width)), "lr": np.ones((1, 4 * hidden, hidden)),
    }  # fmt: skip
    model = model_of((node("LSTM", "x lw lr", "y", hidden_size=hidden),),
                     {"x": np.ones((steps, batch, width))}, weights, "y")  # fmt: skip
    step, _ = step_of(model, tmp_path, loss="mse")
    of_input = steps * batch * 4 * hidden * width
    of_state = (steps - 1) * batch * 4 * hidden * hidden
    assert step.forward_macs == of_input + of_state
    assert step.step_macs == 2 * of_input + 3 * of_state


@pytest.mark.parametrize(("batch", "products"), [(2, 1), (64, 7)])
def test_steps_share_one_product_where_that_moves_less(
    tmp_path: Path, batch: int, products: int
) -> None:
    """Seven gradients of 32 x 8 are added, or 7 batches of rows of 32 + 8 copied."""
    weights = {"lw": real(1, 1, 32, 4), "lr": real(2, 1, 32, 8)}
    x = real(3, 8, batch, 4)
    model = model_of((node("LSTM", "x lw lr", "y", hidden_size=8),), {"x": x}, weights, "y")
    step, proto = step_of(model, tmp_path, loss="mse", optimizer="none")
    shapes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in onnx.shape_inference.infer_shapes(proto).graph.value_info
    }
    made = [n for n in proto.graph.node if n.op_type == "Gemm" and shapes[n.output[0]] == [32, 8]]
    assert len(made) == products
    assert step.step_macs == 2 * (8 * batch * 32 * 4) + 3 * (7 * batch * 32 * 8)


def test_a_product_that_two_weights_need_is_made_once(tmp_path: Path) -> None:
    """x' dy is the gradient of q, and with u' dy of p: joined for p it would be made again."""
    nodes = (
        node("Add", "p q", "w"), node("MatMul", "x w", "first"), node("MatMul", "u p", "second"),
        helper.make_node("Add", ["first", "second"], ["y"], name="sum"),
    )  # fmt: skip
    inputs = {"x": real(1, 2, 8), "u": real(2, 2, 8)}
    model = model_of(nodes, inputs, {"p": real(3, 8, 8), "q": real(4, 8, 8)}, "y")
    step, _ = step_of(model, tmp_path, loss="mse")
    assert step.step_macs == 2 * step.forward_macs


def test_a_quantised_model_is_refused(tmp_path: Path) -> None:
    nodes = (
        node("Cast", "x", "f", to=1), node("QuantizeLinear", "f s z", "q"),
        node("DequantizeLinear", "q s z", "d"), node("MatMul", "d w"),
    )  # fmt: skip
    scale = {"s": np.array(0.1, np.float32), "z": np.array(0, np.int8)}
    error = refused(tmp_path, nodes, {"w": PARAMETERS["w"].astype(np.float32), **scale})
    assert (error.code, error.place.node) == ("TW-TRAIN-001", "the_QuantizeLinear")
    assert len(error.findings) == 2


def test_sixteen_bits_are_refused(tmp_path: Path) -> None:
    half = PARAMETERS["w"].astype(np.float16)
    nodes = (node("Cast", "x", "h", to=10), node("MatMul", "h w"))
    error = refused(tmp_path, nodes, {"w": half})
    assert (error.code, error.findings[0].actual) == ("TW-TRAIN-001", "w")


def test_a_path_through_integers_is_refused_at_its_node(tmp_path: Path) -> None:
    nodes = (
        node("MatMul", "x w", "h"), node("Cast", "h", "i", to=7), node("Cast", "i", "k", to=11),
        helper.make_node("Mul", ["k", "b"], ["y"], name="scale"),
    )  # fmt: skip
    error = refused(tmp_path, nodes, PARAMETERS)
    assert (error.code, error.place.node) == ("TW-TRAIN-004", "the_Cast")
    assert [f.actual for f in error.findings] == ["w"]
    step, _ = step_of(model_of(nodes, {"x": X}, PARAMETERS, "y"), tmp_path, loss="mse",
                      freeze=["w"])  # fmt: skip
    assert [c.input for c in step.carried] == ["b"]


def test_an_integer_has_no_loss(tmp_path: Path) -> None:
    nodes = (node("MatMul", "x w", "h"), node("ArgMax", "h"))
    error = refused(tmp_path, nodes, {"w": PARAMETERS["w"]})
    assert (error.code, error.place.node) == ("TW-TRAIN-002", "the_ArgMax")


def test_probabilities_are_no_logits(tmp_path: Path) -> None:
    nodes = (node("MatMul", "x w", "h"), node("Softmax", "h"))
    error = refused(tmp_path, nodes, {"w": PARAMETERS["w"]}, loss="cross-entropy")
    assert (error.code, error.place.node) == ("TW-TRAIN-002", "the_Softmax")
    assert "'h'" in error.remedy
    step, _ = step_of(
        model_of(nodes, {"x": X}, {"w": PARAMETERS["w"]}, "y"), tmp_path,
        loss="cross-entropy", output="h",
    )  # fmt: skip
    assert step.classes == 3


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"output": "nothing"}, "TW-TRAIN-002"),
        ({"freeze": ["nothing"]}, "TW-TRAIN-002"),
        ({"target": "x"}, "TW-TRAIN-002"),
        ({"target": "w"}, "TW-TRAIN-002"),
        ({"loss": "cross-entropy", "class_axis": 2}, "TW-TRAIN-002"),
        ({"freeze": ["w", "b"]}, "TW-TRAIN-005"),
    ],
)
def test_what_the_model_does_not_have_is_refused(
    tmp_path: Path, options: dict[str, Any], code: str
) -> None:
    error = refused(tmp_path, DENSE, PARAMETERS, **options)
    assert error.code == code
    assert error.remedy


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        ({}, "/train/loss"),
        ({"loss": "hinge"}, "/train/loss"),
        ({"loss": "mse", "optimizer": "lion"}, "/train/optimizer"),
        ({"loss": "mse", "momentum": 1.0}, "/train/momentum"),
        ({"loss": "mse", "momentum": "much"}, "/train/momentum"),
        ({"loss": "mse", "learning_rate": float("nan")}, "/train/learning_rate"),
        ({"loss": "mse", "optimizer": "adam", "momentum": 0.9}, "/train/momentum"),
        ({"loss": "mse", "beta1": 0.9}, "/train/beta1"),
        ({"loss": "mse", "optimizer": "none", "learning_rate": 1.0}, "/train/learning_rate"),
        ({"loss": "mse", "class_axis": 1}, "/train/class_axis"),
        ({"loss": "cross-entropy", "class_axis": "1"}, "/train/class_axis"),
        ({"loss": "mse", "freeze": "w"}, "/train/freeze"),
        ({"loss": "mse", "output": 3}, "/train/output"),
        ({"loss": "mse", "decay": 1}, "/train/decay"),
    ],
)
def test_wrong_options_are_refused_with_a_pointer(document: dict[str, Any], pointer: str) -> None:
    with pytest.raises(OptionError) as caught:
        TrainOptions.from_json(document)
    assert (caught.value.code, caught.value.place.pointer) == ("TW-OPT-001", pointer)


def test_the_guide_lists_what_has_a_rule() -> None:
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    rows = re.findall(r"^\| ([a-z]+) \| (.+) \|$", page.split("\n## Operators\n")[1], re.MULTILINE)
    listed = [name for row, names in rows if row != "family"
              for name in re.sub(r" \(.*?\)", "", names).split(", ")]  # fmt: skip
    assert sorted(listed) == sorted({*RULES, *REWRITTEN, *WRITTEN_OUT})
    changes = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()
    assert f"gradients of {len(listed)} operators" in changes


def test_a_valid_convolution_walks_its_border(tmp_path: Path) -> None:
    """As the guide says: 12 x 12 outputs' worth of taps for the 10 x 10 that were made."""
    nodes = (node("Conv", "x u", "h", pads=[1, 1, 1, 1]), node("Conv", "h w"))
    x, u = real(1, 1, 2, 12, 12), real(2, 2, 2, 3, 3)
    step, _ = step_of(model_of(nodes, {"x": x}, {"u": u, "w": u}, "y"), tmp_path, loss="mse")
    first, second = 144 * 36, 100 * 36
    assert step.step_macs == 2 * first + 2 * second + 144 * 36


def test_what_has_no_norm_has_no_slope_in_it(tmp_path: Path) -> None:
    """Rows of zeros are divided by 1, and nothing becomes a NaN."""
    model = model_of(
        (node("MatMul", "x w", "h"), node("LpNormalization", "h")), {"x": np.zeros((4, 6))},
        {"w": PARAMETERS["w"]}, "y",
    )  # fmt: skip
    _, proto = step_of(model, tmp_path, loss="mse", optimizer="none")
    rows = X.copy()
    rows[1] = 0
    made = run(proto, {"x": rows, "w": PARAMETERS["w"], "target": np.zeros((4, 3))})
    h = rows @ PARAMETERS["w"]
    norms = np.linalg.norm(h, axis=1, keepdims=True)
    y = h / np.where(norms == 0, 1, norms)
    np.testing.assert_allclose(made["loss"], (y**2).mean(), rtol=1e-12)
    back = 2 * y / 12
    back = (back - y * (back * y).sum(1, keepdims=True)) / np.where(norms == 0, 1, norms)
    np.testing.assert_allclose(made["w/gradient"], rows.T @ back, atol=1e-12)
