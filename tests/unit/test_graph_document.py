"""graph.json: every kind of constant and attribute has a digest or a value, and no name in it."""

from __future__ import annotations

import json
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from worker.compiler.frontend.model import OnnxModel
from worker.report.graph import graph_document


def told(node: onnx.NodeProto, *constants: onnx.TensorProto) -> dict[str, Any]:
    """The document of one node that reads x and some constants."""
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, "n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], list(constants),
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    model = OnnxModel(onnx_ir.from_proto(proto), "g", "0" * 64, 21)
    document = graph_document(SimpleNamespace(model=model, placement=()))  # type: ignore[arg-type]  # all it reads
    return dict(json.loads(json.dumps(document, allow_nan=False)))


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.arange(6, dtype="<f4").reshape(2, 3), "f32"),
        (np.arange(6, dtype=">i8"), "i64"),
        (np.array([True, False]), "bool"),
        (np.arange(4).astype(ml_dtypes.bfloat16), "bf16"),
        (np.arange(4).astype(ml_dtypes.float8_e4m3fn), "f8e4m3fn"),
        (np.zeros((0, 3), np.float16), "f16"),
    ],
)
def test_constants_have_the_digest_of_their_bytes(array: np.ndarray[Any, Any], dtype: str) -> None:
    native = array.astype(array.dtype.newbyteorder("<"))
    constant = onnx_ir.to_proto(onnx_ir.Tensor(native, name="c"))
    document = told(helper.make_node("Foo", ["x", "", "c"], ["y"], name="n"), constant)
    assert document["schema_version"] == 2
    assert document["nodes"][0]["inputs"] == ["x", "", "c"]
    assert document["tensors"]["c"] == {
        "dtype": dtype, "shape": list(array.shape), "sha256": sha256(native.tobytes()).hexdigest()
    }  # fmt: skip
    assert document["tensors"]["x"] == {"dtype": "f32", "shape": [2, "n"]}


@pytest.mark.parametrize(
    "make",
    [
        lambda n: helper.make_tensor("c", TensorProto.STRING, [2], [b"a", f"b{n}".encode()]),
        lambda n: numpy_helper.from_array(np.array([1j, n], np.complex64), "c"),
        lambda n: helper.make_tensor("c", TensorProto.INT4, [3], [1, 2, n]),
    ],
)
def test_constants_that_no_kernel_knows_have_one_too(make: Any) -> None:
    node = helper.make_node("Foo", ["x", "c"], ["y"], name="n")
    digests = [told(node, make(n))["tensors"]["c"]["sha256"] for n in (3, 3, 4)]
    assert digests[0] == digests[1] != digests[2]


def test_attributes_are_values() -> None:
    given: dict[str, Any] = {
        "i": 3, "f": float("inf"), "s": "text", "ints": [1, 2], "floats": [0.5, float("nan")],
        "strings": ["a", "b"],
    }  # fmt: skip
    tensor = numpy_helper.from_array(np.ones(2, np.float32), "named")
    node = helper.make_node("Foo", ["x"], ["y"], name="n", t=tensor, **given)
    found = told(node)["nodes"][0]["attributes"]
    assert found.pop("t") == {
        "dtype": "f32", "shape": [2],
        "sha256": sha256(np.ones(2, "<f4").tobytes()).hexdigest(),
    }  # fmt: skip
    assert found == {**given, "f": "inf", "floats": [0.5, "nan"]}


@pytest.mark.parametrize(("operator", "names", "is_same"), [
    ("Relu", "ab", True), ("Relu", "pq", True), ("Sigmoid", "ab", False),
])  # fmt: skip
def test_a_nested_graph_has_a_digest_without_its_names(
    operator: str, names: str, is_same: bool
) -> None:
    def of(kind: str, first: str, second: str) -> Any:
        info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in (first, second)]
        inner = helper.make_node(kind, [first], [second], name=f"{first}/node")
        body = helper.make_graph([inner], f"body of {first}", info[:1], info[1:])
        return told(helper.make_node("Foo", ["x"], ["y"], name="n", body=body))["nodes"][0]

    same = of(operator, *names)["attributes"] == of("Relu", "a", "b")["attributes"]
    assert same is is_same
