"""Products of u8 by i8 leave a model before ONNX Runtime runs it, and no result changes."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from worker.compiler.frontend.exact_products import may_have_products, multiply_exactly
from worker.verification.reference import reference_outputs

U8, I8, F32, I32 = TensorProto.UINT8, TensorProto.INT8, TensorProto.FLOAT, TensorProto.INT32
NUMPY = {U8: np.dtype(np.uint8), I8: np.dtype(np.int8)}
DOMAIN = "com.microsoft"
RNG = np.random.default_rng(11)

PRODUCTS: dict[str, tuple[str, str, int, int]] = {
    # domain, inputs (x, w and their parameters), places of the two operands
    "MatMulInteger": ("", "x w xz wz", 0, 1),
    "ConvInteger": ("", "x w xz wz", 0, 1),
    "QLinearMatMul": ("", "x xs xz w ws wz ys yz", 0, 3),
    "QLinearConv": ("", "x xs xz w ws wz ys yz", 0, 3),
    "QGemm": (DOMAIN, "x xs xz w ws wz  ys yz", 0, 3),
    "MatMulIntegerToFloat": (DOMAIN, "x w xs ws xz wz", 0, 1),
    "DynamicQuantizeMatMul": (DOMAIN, "f w ws wz", 0, 1),
}


def random(kind: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    limits = np.iinfo(NUMPY[kind])
    return RNG.integers(limits.min, limits.max + 1, shape).astype(NUMPY[kind])


def model_of(
    op_type: str,
    kinds: tuple[int, int],
    fed: bool,
    zero_points: bool = True,
    columns: bool = False,
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """One product, and what is fed to it."""
    domain, text, _, _ = PRODUCTS[op_type]
    conv = "Conv" in op_type
    x = random(kinds[0], (1, 16, 9, 9) if conv else (12, 70))
    w = random(kinds[1], (32, 16 // attributes.get("group", 1), 3, 3) if conv else (70, 33))
    sizes = (w.shape[0] if conv else w.shape[1],) if columns else ()
    values = {
        "w": w, "xs": np.float32(0.03), "ws": np.full(sizes, 0.02, np.float32),
        "ys": np.float32(3.0), "xz": np.array(5, NUMPY[kinds[0]]),
        "wz": np.full(sizes, -3 if kinds[1] == I8 else 130, NUMPY[kinds[1]]),
        "yz": np.array(7, NUMPY[kinds[0]]),
    }  # fmt: skip
    names = text.split(" ")
    if not zero_points:
        names = ["" if name in ("xz", "wz") else name for name in names]
        while not names[-1]:
            names.pop()
    feeds: dict[str, Any] = {"x": x}
    inputs = [helper.make_tensor_value_info("x", kinds[0], x.shape)]
    if "f" in names:
        feeds = {"f": RNG.normal(size=x.shape).astype(np.float32)}
        inputs = [helper.make_tensor_value_info("f", F32, x.shape)]
    if fed:
        feeds["w"] = values.pop("w")
        inputs.append(helper.make_tensor_value_info("w", kinds[1], w.shape))
    node = helper.make_node(op_type, names, ["y"], name="product", domain=domain, **attributes)
    graph = helper.make_graph(
        [node], "g", inputs, [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in values.items() if k in names],
    )  # fmt: skip
    return wrapped(graph), feeds


def wrapped(graph: onnx.GraphProto) -> onnx.ModelProto:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def run(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = model.SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(None, feeds)
    return found


class Recorder:
    """What the products of a model are given, run by ONNX's own implementation of operators."""

    def __init__(self, model: onnx.ModelProto, feeds: dict[str, Any]) -> None:
        extra = [n for node in model.graph.node for n in node.input if n]
        wider = onnx.ModelProto()
        wider.CopyFrom(model)
        # The product itself may be of a domain that ONNX does not implement.
        kept = [n for n in wider.graph.node if n.op_type not in PRODUCTS]
        made = {v.name for v in model.graph.input} | {v.name for v in model.graph.initializer}
        made |= {name for node in kept for name in node.output}
        del wider.graph.node[:], wider.graph.output[:]
        wider.graph.node.extend(kept)
        wanted = [n for n in dict.fromkeys(extra) if n in made]
        wider.graph.output.extend(onnx.ValueInfoProto(name=n) for n in wanted)
        found = ReferenceEvaluator(wider).run(None, feeds)
        self.values = dict(zip(wanted, found, strict=True))

    def operands(self, node: onnx.NodeProto) -> tuple[Any, Any]:
        _, text, first, second = PRODUCTS[node.op_type]
        names = text.split(" ")
        zero = [names.index(name) if name in names else None for name in ("xz", "wz")]
        pairs = []
        for place, zero_place in zip((first, second), zero, strict=True):
            stored = self.values[node.input[place]]
            if stored.dtype == np.float32:
                pairs.append((np.dtype(np.uint8), None))
                continue
            given = zero_place is not None and zero_place < len(node.input)
            name = node.input[zero_place] if given and zero_place is not None else ""
            offset = self.values[name].astype(np.int64) if name else np.int64(0)
            pairs.append((stored.dtype, (stored.astype(np.int64), offset)))
        return pairs[0], pairs[1]


def saturating(model: onnx.ModelProto, feeds: dict[str, Any]) -> bool:
    """Whether some product multiplies u8 by i8."""
    record = Recorder(model, feeds)
    mixed = {np.dtype(np.uint8), np.dtype(np.int8)}
    products = [node for node in model.graph.node if node.op_type in PRODUCTS]
    return any({kind for kind, _ in record.operands(node)} == mixed for node in products)


CASES: list[tuple[str, tuple[int, int], dict[str, Any]]] = [
    *((op_type, (U8, I8), {}) for op_type in PRODUCTS),
    ("ConvInteger", (I8, U8), {}),
    ("ConvInteger", (I8, U8), {"pads": [1, 2, 1, 0], "strides": [2, 1]}),
    ("QLinearConv", (U8, I8), {"group": 16}),
    ("QLinearConv", (U8, I8), {"pads": [1, 1, 1, 1], "columns": True}),
    ("MatMulInteger", (U8, I8), {"zero_points": False}),
    ("MatMulInteger", (U8, I8), {"columns": True}),
    ("ConvInteger", (I8, U8), {"zero_points": False, "pads": [1, 1, 1, 1]}),
    ("DynamicQuantizeMatMul", (U8, I8), {"columns": True}),
    ("DynamicQuantizeMatMul", (U8, I8), {"columns": True, "zero_points": False}),
    ("MatMulIntegerToFloat", (U8, I8), {"zero_points": False}),
    ("MatMulIntegerToFloat", (U8, I8), {"columns": True, "zero_points": False}),
]


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("number", range(len(CASES)))
def test_each_product_is_of_equal_types_and_values(number: int, fed: bool) -> None:
    op_type, kinds, options = CASES[number]
    model, feeds = model_of(op_type, kinds, fed, **options)
    assert saturating(model, feeds)
    before = Recorder(model, feeds).operands(model.graph.node[0])
    changed = multiply_exactly(onnx.ModelProto.FromString(model.SerializeToString()))
    assert not saturating(changed, feeds)
    (product,) = [node for node in changed.graph.node if node.name == "product"]
    after = Recorder(changed, feeds).operands(product)
    for (_, old), (_, new) in zip(before, after, strict=True):
        if old is not None and new is not None:
            assert np.array_equal(old[0] - _spread(old), new[0] - _spread(new))
    (found,) = run(changed, feeds)
    assert found.size
    if op_type == "MatMulInteger":  # an oracle that no processor saturates
        (x, xz), (w, wz) = before[0][1], before[1][1]
        assert np.array_equal(found, (x - xz) @ (w - wz))


def _spread(pair: tuple[Any, Any]) -> Any:
    """Zero points along the axis they belong to."""
    values, zero = pair
    if zero.ndim == 0 or zero.size == 1:
        return zero
    return zero if values.ndim == 2 else zero.reshape(-1, *(1,) * (values.ndim - 1))


WHOLE: dict[str, tuple[list[str], dict[str, Any]]] = {
    "QAttention": (["x", "w", "b", "xs", "ws", "", "xz", "wz"], {"num_heads": 4}),
    "DynamicQuantizeLSTM": (
        ["f", "l", "r", "", "", "", "", "", "ls", "lz", "rs", "rz"], {"hidden_size": 32}
    ),
    "QLinearConv": (["i", "xs", "xz", "k", "ws", "wz", "ys", "xz"], {"channels_last": 1}),
}  # fmt: skip
"""Inputs and attributes of operators of many operands."""


@pytest.mark.parametrize(
    ("op_type", "has_zero"), [*((op_type, True) for op_type in WHOLE), ("QAttention", False)]
)
def test_weights_of_larger_operators_are_as_if_they_had_been_u8(
    op_type: str, has_zero: bool
) -> None:
    """Written as u8 here, 128 higher with their zero points, they are the same weights."""
    names, attributes = WHOLE[op_type]
    values: dict[str, Any] = {
        "w": random(I8, (64, 192)), "b": RNG.normal(size=192).astype(np.float32),
        "l": random(I8, (1, 48, 128)), "r": random(I8, (1, 32, 128)),
        "k": random(I8, (8, 16, 3, 3)), "xs": np.float32(0.02), "ws": np.float32(0.01),
        "ys": np.float32(3.0), "ls": np.full(1, 0.01, np.float32),
        "rs": np.full(1, 0.01, np.float32), "xz": np.array(120, np.uint8),
        "wz": np.array(-4 if has_zero else 0, np.int8), "lz": np.array([3], np.int8),
        "rz": np.array([-2], np.int8),
    }  # fmt: skip
    feeds = {"x": random(U8, (1, 6, 64)), "i": random(U8, (1, 9, 9, 16)),
             "f": RNG.normal(size=(5, 1, 48)).astype(np.float32)}  # fmt: skip
    inputs = {"x": U8, "i": U8, "f": F32}

    def built(stored: dict[str, Any], said: list[str]) -> onnx.ModelProto:
        given = [n for n in said if n in inputs]
        node = helper.make_node(op_type, said, ["y"], domain=DOMAIN, **attributes)
        return wrapped(helper.make_graph(
            [node], "g",
            [helper.make_tensor_value_info(n, inputs[n], feeds[n].shape) for n in given],
            [onnx.ValueInfoProto(name="y")],
            [numpy_helper.from_array(np.asarray(v), n) for n, v in stored.items() if n in said],
        ))  # fmt: skip

    unsigned = {
        name: (value.astype(np.int16) + 128).astype(np.uint8) if value.dtype == np.int8 else value
        for name, value in values.items()
    }
    fed = {name: feeds[name] for name in names if name in feeds}
    told = [n for n in names if has_zero or n != "wz"]
    changed = multiply_exactly(built(values, told))
    assert I8 not in {tensor.data_type for tensor in changed.graph.initializer}
    assert np.array_equal(run(changed, fed)[0], run(built(unsigned, names), fed)[0])


@pytest.mark.parametrize("kinds", [(U8, U8), (I8, I8), (I8, U8)])
def test_others_are_left_alone(kinds: tuple[int, int]) -> None:
    model, _ = model_of("MatMulInteger", kinds, False)
    before = model.SerializeToString(deterministic=True)
    assert may_have_products(before)
    assert multiply_exactly(model).SerializeToString(deterministic=True) == before
    assert not may_have_products(wrapped(helper.make_graph([], "g", [], [])).SerializeToString())


@pytest.mark.parametrize("op_type", PRODUCTS)
def test_a_node_that_lacks_operands_is_left_to_the_runtime(op_type: str) -> None:
    for inputs in ([], ["x"], ["", "", "", ""]):
        node = helper.make_node(op_type, inputs, ["", "y"], domain=PRODUCTS[op_type][0])
        graph = helper.make_graph(
            [node], "g", [helper.make_tensor_value_info("x", I8, (4, 4))], []
        )  # fmt: skip
        assert multiply_exactly(wrapped(graph)).graph.node[0] == node


def test_replaced_weights_are_stored_once() -> None:
    model, _ = model_of("MatMulInteger", (U8, I8), False)
    size = len(model.SerializeToString())
    changed = multiply_exactly(model)
    assert len(changed.SerializeToString()) < size + 200
    assert [node.op_type for node in changed.graph.node] == ["MatMulInteger"]


def test_weights_that_others_read_stay() -> None:
    model, feeds = model_of("MatMulInteger", (U8, I8), False)
    (weights,) = [numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "w"]
    model.graph.output.append(helper.make_tensor_value_info("w", I8, weights.shape))
    found = run(multiply_exactly(model), feeds)
    assert np.array_equal(found[1], weights)


def body(weights: np.ndarray[Any, Any]) -> onnx.GraphProto:
    node = helper.make_node("MatMulInteger", ["q", "w"], ["inside"])
    return helper.make_graph(
        [node], "body", [], [onnx.ValueInfoProto(name="inside")],
        [numpy_helper.from_array(weights, "w")],
    )  # fmt: skip


def test_types_are_followed_into_bodies() -> None:
    """Through an operator that ONNX knows no types of, into a branch."""
    weights = random(I8, (70, 9))
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["f"], ["a", "s", "z"]),
        helper.make_node("QLinearAdd", ["a", "s", "z", "a", "s", "z", "s", "z"], ["sum"],
                         domain=DOMAIN),
        helper.make_node("Transpose", ["sum"], ["q"], perm=[1, 0]),
        helper.make_node("If", ["c"], ["y"], then_branch=body(weights),
                         else_branch=body(weights[::-1].copy())),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("f", F32, (70, 5)),
                     helper.make_tensor_value_info("c", TensorProto.BOOL, ())],
        [helper.make_tensor_value_info("y", I32, (5, 9)), onnx.ValueInfoProto(name="q")],
    )  # fmt: skip
    changed = multiply_exactly(wrapped(graph))
    stored = [t for n in changed.graph.node for a in n.attribute for t in a.g.initializer]
    assert {t.data_type for t in stored} == {U8}
    for taken in (True, False):
        feeds = {"f": RNG.normal(size=(70, 5)).astype(np.float32), "c": np.array(taken)}
        y, q = run(changed, feeds)
        used = weights if taken else weights[::-1]
        assert np.array_equal(y, q.astype(np.int32) @ used.astype(np.int32))


def test_a_function_of_the_model_is_followed() -> None:
    function = helper.make_function(
        "own", "product", ["a", "b"], ["c"], [helper.make_node("MatMulInteger", ["a", "b"], ["c"])],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    x, w = random(U8, (4, 80)), random(I8, (80, 6))
    graph = helper.make_graph(
        [helper.make_node("product", ["x", "w"], ["y"], domain="own")], "g",
        [helper.make_tensor_value_info("x", U8, x.shape)],
        [helper.make_tensor_value_info("y", I32, (4, 6))], [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    model = wrapped(graph)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    changed = multiply_exactly(model)
    assert [t.data_type for t in changed.graph.initializer] == [U8]
    assert np.array_equal(run(changed, {"x": x})[0], x.astype(np.int32) @ w.astype(np.int32))


def test_the_reference_reads_weights_of_a_bundle(tmp_path: Path) -> None:
    """Weights in a file of their own stay there; nodes raise them."""
    model, feeds = model_of("MatMulInteger", (U8, I8), False, zero_points=False)
    (weights,) = [numpy_helper.to_array(t) for t in model.graph.initializer]
    path = tmp_path / "net.onnx"
    onnx.save(model, path, save_as_external_data=True, location="net.bin", size_threshold=0)
    changed = multiply_exactly(onnx.load(path, load_external_data=False))
    assert [t.external_data[0].value for t in changed.graph.initializer] == ["net.bin"]
    with zipfile.ZipFile(tmp_path / "net.zip", "w") as archive:
        for name in ("net.onnx", "net.bin"):
            archive.write(tmp_path / name, name)
    outputs, _ = reference_outputs(tmp_path / "net.zip", feeds)
    wide = feeds["x"].astype(np.int32) @ weights.astype(np.int32)
    assert np.array_equal(outputs["y"], wide)
