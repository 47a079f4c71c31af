"""A whole step's gradients against another tool's automatic differentiation, where it is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from gradient_cases import Array, node
from onnx import helper
from training_steps import model_of, run, step_of

LABELS = np.array([2, 0, 9, 4])


def drawn(seed: int, *shape: int) -> Array:
    scale = np.sqrt(max(1, int(np.prod(shape[1:]))))
    return np.random.default_rng(seed).standard_normal(shape) / scale


PARAMETERS = {
    "w1": drawn(1, 8, 3, 3, 3), "g": 1 + drawn(7, 8) / 9, "b": drawn(8, 8),
    "w2": drawn(2, 8, 4, 3, 3), "b2": drawn(5, 8), "w3": drawn(3, 10, 72), "b3": drawn(6, 10),
}  # fmt: skip
RUNNING = {"m": np.zeros(8), "v": np.ones(8)}
X = drawn(4, 4, 3, 12, 12)
NODES = (
    helper.make_node("Conv", ["x", "w1"], ["c1"], name="conv1", pads=[1, 1, 1, 1]),
    helper.make_node("BatchNormalization", ["c1", "g", "b", "m", "v"], ["n1"], name="bn"),
    node("Gelu", "n1", "r1"),
    helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], name="conv2", pads=[1, 1, 1, 1],
                     strides=[2, 2], group=2),
    node("Relu", "c2", "r2"),
    node("MaxPool", "r2", "p", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    node("Flatten", "p", "f"),
    helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], name="head", transB=1),
)  # fmt: skip


def theirs(jax: Any, dtype: Any) -> dict[str, Array]:
    """The same net written in jax."""
    jnp, lax = jax.numpy, jax.lax

    def loss(p: dict[str, Any]) -> Any:
        def conv(x: Any, w: Any, stride: int, groups: int) -> Any:
            return lax.conv_general_dilated(
                x, w, (stride, stride), ((1, 1), (1, 1)), feature_group_count=groups,
                dimension_numbers=("NCHW", "OIHW", "NCHW"),
                precision=lax.Precision.HIGHEST,
            )  # fmt: skip

        c = conv(jnp.asarray(X, dtype), p["w1"], 1, 1)
        mean = c.mean((0, 2, 3), keepdims=True)
        deviation = jnp.sqrt(c.var((0, 2, 3), keepdims=True) + 1e-5)
        line = (1, 8, 1, 1)
        c = (c - mean) / deviation * p["g"].reshape(line) + p["b"].reshape(line)
        c = conv(jax.nn.gelu(c, approximate=False), p["w2"], 2, 2) + p["b2"].reshape(line)
        pooled = lax.reduce_window(
            jax.nn.relu(c), -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2),
            ((0, 0), (0, 0), (1, 1), (1, 1)),
        )  # fmt: skip
        y = pooled.reshape(4, -1) @ p["w3"].T + p["b3"]
        return -jax.nn.log_softmax(y)[np.arange(4), LABELS].mean()

    given = {name: jnp.asarray(value, dtype) for name, value in PARAMETERS.items()}
    return {name: np.asarray(value) for name, value in jax.grad(loss)(given).items()}


@pytest.mark.campaign(smoke=False)
def test_gradients_are_those_of_jax(tmp_path: Path) -> None:
    """In float64 to 1e-9 of scale; in float32 at most three times as far off as jax's own."""
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    exact = theirs(jax, np.float64)
    options = {"loss": "cross-entropy", "optimizer": "none"}
    step, proto = step_of(
        model_of(NODES, {"x": X}, {**PARAMETERS, **RUNNING}, "y"), tmp_path, **options
    )
    made = run(proto, {"x": X, "labels": LABELS, **PARAMETERS, **RUNNING})
    for name, output in step.gradients:
        scale = np.abs(exact[name]).max()
        assert np.abs(made[output] - exact[name]).max() <= 1e-9 * scale, name
    single = {k: v.astype(np.float32) for k, v in {**PARAMETERS, **RUNNING, "x": X}.items()}
    near = {name: value for name, value in single.items() if name != "x"}
    _, proto = step_of(model_of(NODES, {"x": single["x"]}, near, "y"), tmp_path, **options)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    names = [v.name for v in session.get_outputs()]
    ours = dict(zip(names, session.run(None, {**single, "labels": LABELS}), strict=True))
    other = theirs(jax, np.float32)
    for name, output in step.gradients:
        off, its = (np.linalg.norm(g - exact[name]) for g in (ours[output], other[name]))
        assert off <= 3 * its, (name, off, its)
