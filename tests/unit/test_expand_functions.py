"""Operators that ONNX defines by others: bodies in place, names kept, the same numbers, bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from region_bundles import compiled_from

from worker.compiler.assembly.packing import kernel_texts, program_contents
from worker.compiler.errors import ModelError
from worker.compiler.frontend import expand
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.simplify import simplify
from worker.compiler.package.build import build_library
from worker.compiler.package.runtime import load_program
from worker.compiler.partition.plan import HOST

FLOAT = TensorProto.FLOAT
QKV = ["q", "k", "v"]


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int]],
    outputs: list[str],
    opset: int,
    weights: dict[str, Any] | None = None,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, FLOAT, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def two_attentions() -> onnx.ModelProto:
    """The same operator twice, once with grouped heads and a mask, and a named result between."""
    nodes = [
        helper.make_node("Attention", QKV, ["a"], name="first", is_causal=1),
        helper.make_node("Attention", ["a", "k", "v", "mask"], ["y"], name="second", scale=0.5),
    ]
    shapes = {"q": [1, 4, 6, 8], "k": [1, 2, 6, 8], "v": [1, 2, 6, 8]}
    mask = np.where(np.tri(6) > 0, 0, -5).astype(np.float32)
    return model_of(nodes, shapes, ["y", "a"], 23, {"mask": mask})


def negative_cap() -> onnx.ModelProto:
    """ONNX's body would apply the cap; its reference and ONNX Runtime leave it out."""
    nodes = [
        helper.make_node("Attention", QKV, ["y"], name="off", softcap=-1.0),
        helper.make_node("Attention", QKV, ["z"], name="on", softcap=1.0),
    ]
    return model_of(nodes, {key: [1, 2, 6, 8] for key in QKV}, ["y", "z"], 23)


def rotary() -> onnx.ModelProto:
    angles = np.random.default_rng(0).uniform(0, 3, (2, 5, 4))
    nodes = [helper.make_node("RotaryEmbedding", ["x", "cos", "sin"], ["y"], name="rope")]
    weights = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    return model_of(nodes, {"x": [2, 3, 5, 8]}, ["y"], 23, weights)


def loss() -> onnx.ModelProto:
    """A function whose body calls another one, with an optional output that nobody asked for."""
    nodes = [
        helper.make_node(
            "SoftmaxCrossEntropyLoss", ["x", "labels"], ["y"], name="loss", reduction="mean"
        )
    ]
    return model_of(
        nodes, {"x": [3, 5, 2]}, ["y"], 17, {"labels": np.array([[1, 4], [0, 2]] * 2)[:3]}
    )


def window() -> onnx.ModelProto:
    nodes = [
        helper.make_node("HannWindow", ["size"], ["w"], name="window"),
        helper.make_node("Mul", ["x", "w"], ["y"], name="apply"),
    ]
    return model_of(nodes, {"x": [2, 9]}, ["y", "w"], 17, {"size": np.array(9)})


MODELS = {
    "attention": two_attentions, "negative cap": negative_cap, "rotary": rotary, "loss": loss,
    "window": window,
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_bodies_compute_the_same_on_the_accelerator(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    compiled = compiled_from(model, "a100", tmp_path)
    on_host = [row.op_type for row in compiled.placement if row.target == HOST]
    assert set(on_host) <= {"Split", "GatherElements"}  # the preset does not list them
    rng = np.random.default_rng(1)
    feeds = {
        v.name: rng.standard_normal([d.dim_value for d in v.type.tensor_type.shape.dim]).astype(
            np.float32
        )
        for v in model.graph.input
    }
    library = build_library(kernel_texts(compiled), tmp_path)
    found = load_program(program_contents(compiled), library).run(feeds)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for value, wanted in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(found[value.name], wanted, rtol=1e-5, atol=1e-6)


def simplified(model: onnx.ModelProto, folder: Path) -> onnx_ir.Model:
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return simplify(bind(load_model(path, Limits()), {})).ir


def test_nodes_of_a_body_are_called_after_the_users_node(tmp_path: Path) -> None:
    nodes = list(simplified(two_attentions(), tmp_path).graph)
    assert {(node.name or "").partition("/")[0] for node in nodes} == {"first", "second"}
    names = [node.name for node in nodes] + [v.name for node in nodes for v in node.outputs]
    assert len(set(names)) == len(names)


def test_a_random_operator_stays_one_node(tmp_path: Path) -> None:
    model = model_of([helper.make_node("Bernoulli", ["x"], ["y"])], {"x": [3]}, ["y"], 17)
    assert [node.op_type for node in simplified(model, tmp_path).graph] == ["Bernoulli"]


def test_a_body_that_makes_the_model_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expand, "Limits", lambda: Limits(max_nodes=10))
    with pytest.raises(ModelError) as caught:
        simplified(two_attentions(), tmp_path)
    assert (caught.value.code, caught.value.place.node) == ("TW-MODEL-014", "first")
