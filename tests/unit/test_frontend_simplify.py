"""Binding and simplifying keep what a model computes (oracle: ONNX Runtime)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from worker.compiler.errors import ModelError
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.convert_opset import TARGET_OPSET
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.model_summary import model_summary
from worker.compiler.frontend.simplify import simplify
from worker.compiler.frontend.slice import host_submodel

RNG = np.random.default_rng(7)


def _save(
    path: Path,
    nodes: list[Any],
    x: list[int | str],
    weights: dict[str, Any],
    opset: int = 13,
    outputs: tuple[str, ...] = ("y",),
) -> Path:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    file = path / "m.onnx"
    file.write_bytes(model.SerializeToString())
    return file


def _run(model: bytes, x: Any) -> list[Any]:
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    return list(session.run(None, {"x": x}))


def _whole(model: OnnxModel) -> bytes:
    graph = model.ir.graph
    return host_submodel(
        model,
        list(graph),
        [v.name or "" for v in graph.inputs],
        [v.name or "" for v in graph.outputs],
    )


def _checked(file: Path, symbols: dict[str, int], shape: tuple[int, ...]) -> OnnxModel:
    found = simplify(bind(load_model(file, Limits()), symbols))
    x = RNG.standard_normal(shape, dtype=np.float32)
    for got, want in zip(_run(_whole(found), x), _run(file.read_bytes(), x), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
    return found


def _norm(channels: int) -> dict[str, Any]:
    return {
        "gain": RNG.uniform(0.8, 1.2, channels).astype(np.float32),
        "beta": RNG.standard_normal(channels).astype(np.float32),
        "mean": RNG.standard_normal(channels).astype(np.float32),
        "var": RNG.uniform(0.5, 2, channels).astype(np.float32),
    }


_BN = helper.make_node("BatchNormalization", ["c", "gain", "beta", "mean", "var"], ["y"], name="bn")


@pytest.mark.parametrize("case", ["Conv", "grouped", "ConvTranspose", "Gemm", "GemmT"])
def test_batchnorm_is_folded(tmp_path: Path, case: str) -> None:
    def normal(*shape: int) -> Any:
        return RNG.standard_normal(shape).astype(np.float32)

    x: list[int | str] = [2, 4, 5, 5]
    if case == "ConvTranspose":
        node = helper.make_node("ConvTranspose", ["x", "w"], ["c"], name="c", group=2)
        weights = {"w": normal(4, 3, 2, 2), **_norm(6)}
    elif case.startswith("Gemm"):
        x = [3, 4]
        turned = case == "GemmT"
        node = helper.make_node(
            "Gemm", ["x", "w", "b"], ["c"], name="c", alpha=0.5, beta=2.0, transB=int(turned)
        )
        weights = {"w": normal(*((6, 4) if turned else (4, 6))), "b": normal(6), **_norm(6)}
    else:
        groups = 2 if case == "grouped" else 1
        node = helper.make_node("Conv", ["x", "w", "b"], ["c"], name="c", group=groups)
        weights = {"w": normal(6, 4 // groups, 3, 3), "b": normal(6), **_norm(6)}
    file = _save(tmp_path, [node, _BN], x, weights)
    found = _checked(file, {}, tuple(int(d) for d in x))
    assert [n.name for n in found.ir.graph] == ["c"]


def test_batchnorm_with_another_reader_stays(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        _BN,
        helper.make_node("Relu", ["c"], ["z"]),
    ]
    weights = {"w": np.ones((6, 4, 1, 1), np.float32), **_norm(6)}
    file = _save(tmp_path, nodes, [1, 4, 3, 3], weights, outputs=("y", "z"))
    assert "BatchNormalization" in [n.op_type for n in _checked(file, {}, (1, 4, 3, 3)).ir.graph]


def _chain(tmp_path: Path) -> Path:
    zero, minus = np.array(0, np.int64), np.array([-1], np.int64)
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Constant", [], ["axes"], value_ints=[0]),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Concat", ["n1", "minus"], ["to"], axis=0),
        helper.make_node("Reshape", ["x", "to"], ["r"]),
        helper.make_node("Dropout", ["r"], ["d"]),
        helper.make_node("Identity", ["d"], ["i"]),
        helper.make_node("Relu", ["i"], ["y"]),
    ]
    return _save(tmp_path, nodes, ["N", 3, "S"], {"zero": zero, "minus": minus})


def test_shape_arithmetic_folds_after_binding(tmp_path: Path) -> None:
    found = _checked(_chain(tmp_path), {"N": 2, "S": 5}, (2, 3, 5))
    assert [n.op_type for n in found.ir.graph] == ["Reshape", "Relu"]
    assert all(found.is_static(v) for n in found.ir.graph for v in n.outputs)
    assert (found.opset, model_summary(found)["nodes"]) == (TARGET_OPSET, 2)


@pytest.mark.parametrize(
    ("symbols", "message", "code"),
    [
        ({}, "'N'", "TW-MODEL-012"),
        ({"N": 1}, "'S'", "TW-MODEL-012"),
        ({"N": 1, "S": 2, "Z": 3}, "'Z'", "TW-MODEL-020"),
        ({"N": 0, "S": 1}, "'N'", "TW-MODEL-007"),
    ],
)
def test_symbols_are_all_bound_or_named(
    tmp_path: Path, symbols: dict[str, int], message: str, code: str
) -> None:
    with pytest.raises(ModelError) as caught:
        bind(load_model(_chain(tmp_path), Limits()), symbols)
    assert caught.value.code == code
    assert any(message in f.message for f in caught.value.findings)


def test_folding_bomb_is_not_folded(tmp_path: Path) -> None:
    huge = np.array([1 << 20, 1 << 20], np.int64)
    nodes = [
        helper.make_node("ConstantOfShape", ["huge"], ["z"]),
        helper.make_node("ReduceSum", ["z"], ["t"], keepdims=0),
        helper.make_node("Add", ["x", "t"], ["y"]),
    ]
    file = _save(tmp_path, nodes, [2], {"huge": huge})
    found = simplify(bind(load_model(file, Limits()), {}))
    assert "ConstantOfShape" in [n.op_type for n in found.ir.graph]


def test_data_dependent_shapes_stay_dynamic(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["k"]),
        helper.make_node("Cast", ["k"], ["y"], to=TensorProto.FLOAT),
    ]
    found = _checked(_save(tmp_path, nodes, [3, 4], {}), {}, (3, 4))
    assert not any(found.is_static(v) for n in found.ir.graph for v in n.outputs)


OLD = [
    (7, [helper.make_node("Upsample", ["x"], ["y"], mode="nearest", scales=[1.0, 1.0, 2.0, 2.0])]),
    (9, [helper.make_node("Clip", ["x"], ["y"], min=-0.5, max=0.5)]),
    (9, [helper.make_node("Slice", ["x"], ["y"], starts=[1], ends=[3], axes=[2])]),
    (9, [helper.make_node("Pad", ["x"], ["y"], pads=[0, 0, 1, 1, 0, 0, 2, 2], value=0.5)]),
    (9, [helper.make_node("Softmax", ["x"], ["y"], axis=1)]),
    (11, [helper.make_node("Split", ["x"], ["y", "z"], axis=1, split=[1, 2])]),
    (11, [helper.make_node("Unsqueeze", ["x"], ["u"], axes=[0]),
          helper.make_node("Squeeze", ["u"], ["y"], axes=[0])]),
    (13, [helper.make_node("ReduceMean", ["x"], ["y"], axes=[2, 3], keepdims=0)]),
]  # fmt: skip


@pytest.mark.parametrize(("opset", "nodes"), OLD, ids=[c[1][0].op_type for c in OLD])
def test_old_forms_are_converted(tmp_path: Path, opset: int, nodes: list[Any]) -> None:
    found = _checked(_save(tmp_path, nodes, [1, 3, 4, 4], {}, opset), {}, (1, 3, 4, 4))
    assert found.opset == TARGET_OPSET


def test_names_are_unique_and_the_users_are_kept(tmp_path: Path) -> None:
    hostile = 'a"b\n$(rm)/*é*/'
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name=hostile),
        helper.make_node("Neg", ["a"], ["b"], name=hostile),
        helper.make_node("Abs", ["b"], ["y"]),
    ]
    found = simplify(bind(load_model(_save(tmp_path, nodes, [2], {}), Limits()), {}))
    names = [n.name for n in found.ir.graph]
    assert len(_run(_whole(found), np.ones(2, np.float32))) == 1
    assert names[0] == hostile and len(set(names)) == 3 and all(names)


def test_a_slice_takes_captured_values_as_inputs(tmp_path: Path) -> None:
    def branch(op: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node(op, ["a"], [op])], op, [], [
            helper.make_tensor_value_info(op, TensorProto.FLOAT, [2])])  # fmt: skip

    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["c"], to=TensorProto.BOOL),
        helper.make_node("If", ["c"], ["y"], then_branch=branch("Neg"), else_branch=branch("Exp")),
    ]
    found = _checked(_save(tmp_path, nodes, [2], {}), {}, (2,))
    last = [n for n in found.ir.graph if n.op_type == "If"]
    part = onnx.load_model_from_string(host_submodel(found, last, ["c"], ["y"]))
    assert [v.name for v in part.graph.input] == ["c", "a"]
