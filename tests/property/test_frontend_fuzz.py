"""Whatever the bytes, the front end answers with a model or a CompilerError."""

from __future__ import annotations

import io
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import onnx
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from worker.compiler.errors import CompilerError
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.simplify import simplify


def _valid() -> bytes:
    weight = numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    branch = helper.make_graph(
        [helper.make_node("Neg", ["r"], ["t"])], "then", [],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Abs", ["r"], ["e"])], "else", [],
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, None)],
    )  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Shape", ["r"], ["s"]),
        helper.make_node("Reshape", ["r", "s"], ["q"]),
        helper.make_node("ReduceMax", ["r"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["b"], to=TensorProto.BOOL),
        helper.make_node("If", ["b"], ["i"], then_branch=branch, else_branch=other),
        helper.make_node("Add", ["q", "i"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 8, 8])], [weight],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return bytes(model.SerializeToString())


VALID = _valid()


def _zipped(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.onnx", data)
        archive.writestr("weights.bin", b"\0" * 64)
    return buffer.getvalue()


ZIPPED = _zipped(VALID)


def _front_end(data: bytes) -> str:
    """The code of the refusal, or "ok"."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        path.write_bytes(data)
        try:
            simplify(bind(load_model(path, Limits()), {}))
        except CompilerError as error:
            assert error.entry.fault == "user", error.message
            return error.code
    return "ok"


def test_the_unmutated_inputs_are_accepted() -> None:
    assert _front_end(VALID) == "ok"
    assert _front_end(ZIPPED) == "ok"


@given(st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    assert _front_end(data).startswith("TW-MODEL-")


@given(
    st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), min_size=1, max_size=6)
)
def test_mutated_models(edits: list[tuple[int, int]]) -> None:
    data = bytearray(VALID)
    for at, byte in edits:
        data[at] = byte
    assert _front_end(bytes(data)).startswith(("ok", "TW-MODEL-"))


@given(st.integers(0, len(VALID) - 1))
def test_truncated_models(length: int) -> None:
    assert _front_end(VALID[:length]).startswith("TW-MODEL-")


@given(
    st.lists(st.tuples(st.integers(0, len(ZIPPED) - 1), st.integers(0, 255)), min_size=1,
             max_size=4)
)  # fmt: skip
def test_mutated_bundles(edits: list[tuple[int, int]]) -> None:
    data = bytearray(ZIPPED)
    for at, byte in edits:
        data[at] = byte
    assert _front_end(bytes(data)).startswith(("ok", "TW-MODEL-"))


@given(st.text(min_size=1, max_size=30))
def test_hostile_node_names_survive(name: str) -> None:
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return
    model = onnx.load_model_from_string(VALID)
    model.graph.node[0].name = encoded.decode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        path.write_bytes(model.SerializeToString())
        found = simplify(bind(load_model(path, Limits()), {}))
    assert name in [node.name for node in found.ir.graph]
