"""Where ONNX has no right answer a difference proves nothing; everywhere else it does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import saved

from worker.compiler.cache import MemoryCache
from worker.compiler.options import CompileOptions, VerifyMode
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress
from worker.verification.left_open import CONVERSIONS, MAXIMA, LeftOpen

Array = npt.NDArray[Any]
value, node = helper.make_tensor_value_info, helper.make_node
LOW, HIGH = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def _model(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto],
           outputs: list[onnx.ValueInfoProto], **constants: Array) -> onnx.ModelProto:  # fmt: skip
    held = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _powers() -> onnx.ModelProto:
    """Zero to a negative power: infinite, as an integer."""
    return _model(
        [node("Mul", ["x", "none"], ["zero"], name="zero"),
         node("Pow", ["zero", "exponent"], ["y"], name="pow")],
        [value("x", TensorProto.INT64, [4])], [value("y", TensorProto.INT64, [4])],
        none=np.array([0], np.int64), exponent=np.array([-1.5], np.float32),
    )  # fmt: skip


def _maxima(weight: float = np.inf) -> onnx.ModelProto:
    """An infinite weight: infinite times zero is NaN, in windows with numbers."""
    weights = np.ones((2, 2, 3, 3), np.float32)
    weights[0, 0, 1, 1] = weight
    return _model(
        [node("Relu", ["x"], ["r"], name="first"),
         node("Conv", ["r", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
         node("MaxPool", ["c"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
         node("Neg", ["p"], ["y"], name="last")],
        [value("x", TensorProto.FLOAT, [1, 2, 8, 8])],
        [value("y", TensorProto.FLOAT, [1, 2, 4, 4])], w=weights,
    )  # fmt: skip


def _verified(model: onnx.ModelProto, folder: Path, mode: VerifyMode) -> dict[str, Any]:
    request = JobRequest(
        saved(model, folder), "m", {"preset": "kapla-edge"}, CompileOptions(verify=mode),
        folder / "b",
    )  # fmt: skip
    run_job(request, folder / "out", MemoryCache(), NoProgress())
    found: dict[str, Any] = json.loads((folder / "out" / "report.json").read_bytes())
    return found["verification"]


@pytest.mark.parametrize("mode", [VerifyMode.SAMPLE, VerifyMode.FULL])
def test_no_verdict_on_what_no_integer_holds(mode: VerifyMode, tmp_path: Path) -> None:
    found = _verified(_powers(), tmp_path, mode)
    assert found["passed"] is None
    assert CONVERSIONS in found["detail"]


@pytest.mark.parametrize("mode", [VerifyMode.SAMPLE, VerifyMode.FULL])
def test_no_verdict_on_maxima_of_nan(mode: VerifyMode, tmp_path: Path) -> None:
    found = _verified(_maxima(), tmp_path, mode)
    assert found["passed"] is None
    assert MAXIMA in found["detail"]


def test_a_finite_model_is_judged(tmp_path: Path) -> None:
    assert _verified(_maxima(2.0), tmp_path, VerifyMode.FULL)["passed"] is True


def _left_open(model: onnx.ModelProto) -> LeftOpen:
    inferred = onnx.shape_inference.infer_shapes(model)
    return LeftOpen([onnx_ir.serde.deserialize_model(inferred).graph])


@pytest.mark.parametrize(
    ("name", "have", "want", "is_open"),
    [
        ("y", [1, HIGH], [1, LOW], True),
        ("y", [1, 0], [1, LOW], True),
        ("y", [2, HIGH], [1, LOW], False),
        ("y", [1, 0], [1, 5], False),
        ("y", [1, HIGH - 1], [1, LOW], False),
        ("zero", [1, HIGH], [1, LOW], False),
    ],
)
def test_only_the_nearest_integers_of_conversions(
    name: str, have: list[int], want: list[int], *, is_open: bool
) -> None:
    reason = _left_open(_powers()).reason(name, np.array(have), np.array(want))
    assert (reason == CONVERSIONS) == is_open


@pytest.mark.parametrize(
    ("weight", "name", "have", "want", "rest"),
    [
        (np.inf, "y", [np.nan, 2.0], [np.inf, 2.0], [0.0, 2.0]),
        (np.inf, "p", [np.nan, 2.0], [1.0, 2.0], [0.0, 2.0]),
        (np.inf, "c", [np.nan, 2.0], [1.0, 2.0], [0.0, 2.0]),  # the first Relu may be at fault
        (-np.inf, "y", [np.nan, 2.0], [1.0, 2.0], [0.0, 2.0]),
        (2.0, "y", [np.nan, 2.0], [np.inf, 2.0], [0.0, 2.0]),
        (2.0, "y", [np.nan, 2.0], [1.0, -np.inf], None),  # a mask
        (2.0, "y", [np.nan, 2.0], [1.0, 2.0], None),
        (np.inf, "x", [np.nan, 2.0], [1.0, 2.0], None),
        (np.inf, "y", [np.inf, 2.0], [1.0, 2.0], None),
    ],
)
def test_only_nan_behind_a_maximum_of_a_model_that_is_not_finite(
    weight: float, name: str, have: list[float], want: list[float], rest: list[float] | None
) -> None:
    found = _left_open(_maxima(weight)).without_maxima(name, np.array(have), np.array(want))
    assert (found is None) == (rest is None)
    if found is not None:
        assert found[0].tolist() == rest


def test_a_mask_does_not_excuse_nan() -> None:
    """Minus infinity is added to scores behind a Relu: a NaN there is the kernels' own."""
    model = _model(
        [node("Relu", ["x"], ["r"]), node("Add", ["r", "mask"], ["m"]),
         node("Softmax", ["m"], ["y"])],
        [value("x", TensorProto.FLOAT, [2, 2])], [value("y", TensorProto.FLOAT, [2, 2])],
        mask=np.array([0.0, -np.inf], np.float32),
    )  # fmt: skip
    have, want = np.array([np.nan, 0.0]), np.array([1.0, 0.0])
    assert _left_open(model).without_maxima("y", have, want) is None
