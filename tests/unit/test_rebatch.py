"""benchmarks.papers.rebatch: the same model for another batch, checked sample by sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from onnx import TensorProto, helper, numpy_helper
from onnx_models import conv_net

from benchmarks.papers.graphturbo_half import half
from benchmarks.papers.rebatch import RebatchError, largest_error, rebatch

Array = npt.NDArray[Any]
F, I = TensorProto.FLOAT, TensorProto.INT64  # noqa: E741


def _model(nodes: list[Any], inputs: dict[str, tuple[int, list[int | str]]],
           outputs: dict[str, list[int | str]], weights: dict[str, Array],
           path: Path) -> Path:  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node(op, i, o, **a) for op, i, o, a in nodes], "g",
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, F, s) for n, s in outputs.items()],
        [numpy_helper.from_array(v, n) for n, v in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    return path


def _run(path: Path, inputs: dict[str, Array]) -> list[Array]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found: list[Array] = session.run(None, inputs)
    return found


def _agree(source: Path, made: Path, batch: int, inputs: dict[str, Array], step: int = 1) -> None:
    """The oracle: the source runs every piece alone; samples must differ from each other."""
    [got] = _run(made, inputs)
    pieces = [
        _run(source, {k: v[s : s + step] for k, v in inputs.items()})[0]
        for s in range(0, batch, step)
    ]
    np.testing.assert_allclose(got, np.concatenate(pieces), rtol=2e-5, atol=2e-6)
    if batch > 1:
        assert np.abs(got[0] - got[-1]).max() > 1e-3


def _attention(path: Path, batch: int = 1) -> Path:
    """Two heads of 4 over 6 tokens: the heads folded into the batch, a mask, a class token."""
    rng = np.random.default_rng(1)
    b = batch
    nodes: list[Any] = [
        ("Concat", ["token", "x"], ["t"], {"axis": 1}),
        ("MatMul", ["t", "w"], ["p"], {}),
        ("Reshape", ["p", "split"], ["s"], {}),
        ("Transpose", ["s"], ["h"], {"perm": [0, 2, 1, 3]}),
        ("Reshape", ["h", "fold"], ["k"], {}),
        ("Transpose", ["k"], ["kt"], {"perm": [0, 2, 1]}),
        ("Reshape", ["kt", "unfold"], ["ku"], {}),
        ("MatMul", ["h", "ku"], ["a"], {}),
        ("Softmax", ["a"], ["m"], {}),
        ("MatMul", ["m", "h"], ["c"], {}),
        ("Transpose", ["c"], ["ct"], {"perm": [0, 2, 1, 3]}),
        ("Reshape", ["ct", "merge"], ["y"], {}),
    ]
    weights: dict[str, Array] = {
        "token": np.tile(rng.standard_normal((1, 1, 8)).astype(np.float32), (b, 1, 1)),
        "w": rng.standard_normal((8, 8)).astype(np.float32),
        "split": np.array([b, 6, -1, 4]),
        "fold": np.array([-1, 6, 4]),
        "unfold": np.array([b, 2, 4, 6]),
        "merge": np.array([b, 6, -1]),
    }
    return _model(nodes, {"x": (F, [b, 5, 8])}, {"y": [b, 6, 8]}, weights, path)


@given(old=st.sampled_from([1, 2, 4]), new=st.integers(1, 6))
@COSTLY
def test_attention_from_any_batch_to_any_other(
    tmp_path_factory: pytest.TempPathFactory, old: int, new: int
) -> None:
    folder = tmp_path_factory.mktemp("models")
    source, single = _attention(folder / "a.onnx", old), _attention(folder / "b.onnx", 1)
    made = rebatch(source, new, folder / "c.onnx")
    x = np.random.default_rng(new).standard_normal((new, 5, 8)).astype(np.float32)
    _agree(single, made, new, {"x": x})


def _masked(path: Path, old: int, kind: str) -> Path:
    """Token vectors times a mask that constant indices pick, as BERT exporters write it."""
    rng = np.random.default_rng(2)
    rows, columns = np.arange(old), np.arange(3)
    nodes: list[Any] = [("Gather", ["table", "ids"], ["e"], {})]
    if kind == "flat":
        nodes += [
            ("Shape", ["mask"], ["shape"], {}),
            ("Gather", ["shape", "one"], ["length"], {}),
            ("Mul", ["rows", "length"], ["starts"], {}),
            ("Add", ["starts", "columns"], ["where"], {}),
            ("Flatten", ["mask"], ["flat"], {"axis": 2}),
            ("Gather", ["flat", "where"], ["picked"], {}),
            ("Reshape", ["picked", "column"], ["gate"], {}),
        ]
    else:
        nodes += [
            ("GatherND", ["mask", "pairs"], ["picked"], {}),
            ("Unsqueeze", ["picked", "last"], ["gate"], {}),
        ]
    nodes += [("Cast", ["gate"], ["f"], {"to": F}), ("Mul", ["e", "f"], ["y"], {})]
    pairs = np.stack(np.broadcast_arrays(rows[:, None], columns[None]), -1)
    weights = {
        "table": rng.standard_normal((11, 4)).astype(np.float32), "one": np.array([1]),
        "rows": rows[:, None], "columns": columns[None], "column": np.array([old, 3, 1]),
        "pairs": pairs, "last": np.array([2]),
    }  # fmt: skip
    used = {name for _, inputs, _, _ in nodes for name in inputs}
    return _model(
        nodes, {"ids": (I, [old, 3]), "mask": (I, [old, 3])}, {"y": [old, 3, 4]},
        {k: v for k, v in weights.items() if k in used}, path,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["flat", "pairs"])
@pytest.mark.parametrize(("old", "new"), [(1, 4), (4, 8), (4, 2), (2, 3)])
def test_constant_indices_walk_all_samples(tmp_path: Path, kind: str, old: int, new: int) -> None:
    source = _masked(tmp_path / "a.onnx", old, kind)
    single = _masked(tmp_path / "b.onnx", 1, kind)
    made = rebatch(source, new, tmp_path / "c.onnx")
    rng = np.random.default_rng(3)
    ids, mask = rng.integers(0, 11, (new, 3)), rng.integers(0, 2, (new, 3))
    mask[:, 0] = 1
    _agree(single, made, new, {"ids": ids, "mask": mask})
    assert largest_error(source, made) < 1e-6


def test_symbolic_batch_and_expand(tmp_path: Path) -> None:
    nodes: list[Any] = [("Expand", ["x", "to"], ["e"], {}), ("Mul", ["e", "w"], ["y"], {})]
    weights = {"to": np.array([1, 4, 3]), "w": np.arange(12, dtype=np.float32).reshape(4, 3)}
    source = _model(nodes, {"x": (F, ["N", 1, 3])}, {"y": ["N", 4, 3]}, weights, tmp_path / "a")
    made = rebatch(source, 5, tmp_path / "b")
    x = np.random.default_rng(0).standard_normal((5, 1, 3)).astype(np.float32)
    _agree(source, made, 5, {"x": x})
    shape = onnx.load(str(made)).graph.output[0].type.tensor_type.shape
    assert [d.dim_value for d in shape.dim] == [5, 4, 3]


def test_convolutions(tmp_path: Path) -> None:
    source = tmp_path / "net.onnx"
    source.write_bytes(conv_net().SerializeToString())
    made = rebatch(source, 3, tmp_path / "net3.onnx")
    onnx.checker.check_model(onnx.load(str(made)), full_check=True)
    x = np.random.default_rng(0).standard_normal((3, 3, 12, 12)).astype(np.float32)
    _agree(source, made, 3, {"x": x})


def test_largest_error_finds_mixed_samples(tmp_path: Path) -> None:
    """A softmax over the batch keeps its shape; only running both models shows the mixing."""
    nodes: list[Any] = [("Softmax", ["x"], ["s"], {"axis": 0}), ("Add", ["x", "s"], ["y"], {})]
    source = _model(nodes, {"x": (F, [1, 4])}, {"y": [1, 4]}, {}, tmp_path / "a.onnx")
    made = rebatch(source, 4, tmp_path / "b.onnx")
    assert largest_error(source, made) > 0.1


REFUSALS: dict[str, tuple[list[Any], dict[str, Array], list[int | str]]] = {
    "mixed": ([("Transpose", ["x"], ["t"], {"perm": [1, 0]}),
               ("MatMul", ["x", "t"], ["y"], {})], {}, [1, 1]),
    "pick samples": ([("Gather", ["x", "k"], ["y"], {})], {"k": np.array(0)}, [4]),
    "can carry": ([("Transpose", ["x"], ["t"], {"perm": [1, 0]}),
                   ("Reshape", ["t", "to"], ["y"], {})], {"to": np.array([2, 2])}, [2, 2]),
    "depends on data": ([("NonZero", ["x"], ["n"], {}), ("Cast", ["n"], ["y"], {"to": F})],
                        {}, [2, "K"]),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals_name_the_node(tmp_path: Path, reason: str) -> None:
    nodes, weights, shape = REFUSALS[reason]
    source = _model(nodes, {"x": (F, [1, 4])}, {"y": shape}, weights, tmp_path / "a.onnx")
    with pytest.raises(RebatchError, match=reason):
        rebatch(source, 2, tmp_path / "b.onnx")
    assert not (tmp_path / "b.onnx").exists()


def test_refuses_unbound_symbols_and_bad_batches(tmp_path: Path) -> None:
    source = _model([("Relu", ["x"], ["y"], {})], {"x": (F, ["N", "S"])}, {"y": ["N", "S"]}, {},
                    tmp_path / "a.onnx")  # fmt: skip
    with pytest.raises(RebatchError, match="'S' has no value"):
        rebatch(source, 2, tmp_path / "b.onnx")
    with pytest.raises(RebatchError, match="not positive"):
        rebatch(source, 0, tmp_path / "b.onnx", {"S": 3})
    made = rebatch(source, 2, tmp_path / "b.onnx", {"S": 3})
    shape = onnx.load(str(made)).graph.input[0].type.tensor_type.shape
    assert [d.dim_value for d in shape.dim] == [2, 3]


def test_half_keeps_the_function_and_bounds_its_constants(tmp_path: Path) -> None:
    """A mask of -3.4e38 becomes the largest finite number; casts and made constants follow."""
    lowest = np.array(np.finfo(np.float32).min)
    tie = helper.make_tensor("v", F, [1], [0.5])
    nodes: list[Any] = [
        ("Constant", [], ["scale"], {"value_float": 0.25}),
        ("ConstantOfShape", ["four"], ["halves"], {"value": tie}),
        ("ConstantOfShape", ["four"], ["zeros"], {}),
        ("Cast", ["mask"], ["m"], {"to": TensorProto.BOOL}),
        ("Where", ["m", "zeros", "lowest"], ["gate"], {}),
        ("Mul", ["x", "scale"], ["s"], {}),
        ("Add", ["s", "gate"], ["g"], {}),
        ("Softmax", ["g"], ["p"], {}),
        ("Cast", ["mask"], ["f"], {"to": F}),
        ("Mul", ["f", "halves"], ["h"], {}),
        ("Add", ["p", "h"], ["y"], {}),
    ]
    inputs: dict[str, tuple[int, list[int | str]]] = {"x": (F, [2, 4]), "mask": (I, [2, 4])}
    weights = {"lowest": lowest, "four": np.array([4])}
    source = _model(nodes, inputs, {"y": [2, 4]}, weights, tmp_path / "a.onnx")
    made = half(source, tmp_path / "b.onnx")
    onnx.checker.check_model(onnx.load(str(made)), full_check=True)
    kinds = {t.data_type for t in onnx.load(str(made)).graph.initializer}
    assert kinds == {TensorProto.FLOAT16, I}
    x = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    mask = np.array([[1, 0, 1, 1], [0, 1, 1, 0]])
    [want] = _run(source, {"x": x, "mask": mask})
    [got] = _run(made, {"x": x.astype(np.float16), "mask": mask})
    assert got.dtype == np.float16
    np.testing.assert_allclose(got.astype(np.float32), want, atol=2e-3)


def test_half_refuses_what_must_stay_fp32(tmp_path: Path) -> None:
    nodes: list[Any] = [("Resize", ["x", "", "scales"], ["y"], {})]
    scales = {"scales": np.array([1, 1, 2, 2], np.float32)}
    shapes: dict[str, list[int | str]] = {"y": [1, 1, 4, 4]}
    source = _model(nodes, {"x": (F, [1, 1, 2, 2])}, shapes, scales, tmp_path / "a.onnx")
    with pytest.raises(ValueError, match="Resize"):
        half(source, tmp_path / "b.onnx")
