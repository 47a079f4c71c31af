"""`host.onnx` in a bundle: the user's host nodes, and one custom node per region."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from region_bundles import MODELS, bundled, made, members

from worker.compiler.frontend.host_graph import RegionNode, host_graph
from worker.compiler.frontend.model import OnnxModel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hosts")


def graph_of(files: Mapping[str, bytes]) -> onnx.GraphProto:
    return onnx.load_model_from_string(files["host.onnx"]).graph


@pytest.mark.parametrize("name", MODELS)
def test_host_nodes_are_the_models_and_every_region_is_one_node(name: str, folder: Path) -> None:
    files = members(bundled(name, folder))
    graph = graph_of(files)
    rows = [r for r in json.loads(files["manifest.json"])["regions"] if not r["program"]]
    custom = {
        next(a.i for a in node.attribute if a.name == "region"): node
        for node in graph.node
        if node.domain == "tilewright"
    }
    assert sorted(custom) == [row["index"] for row in rows]
    for row in rows:
        document, node = json.loads(files[row["graph"]]), custom[row["index"]]
        for side, found in (("inputs", node.input), ("outputs", node.output)):
            assert list(found) == [document["entries"][k]["name"] for k in document[side]]
    compiled = made(name, folder)
    hosted = {k for host in compiled.linked.hosts for k in host.nodes}
    own = {n.name: onnx_ir.serde.serialize_node(n) for k, n in enumerate(compiled.model.ir.graph)
           if k in hosted}  # fmt: skip
    assert {n.name: n for n in graph.node if n.domain != "tilewright"} == own
    ports = [(v.name, v.type) for v in (*graph.input, *graph.output)]
    model = compiled.model.ir.graph
    assert [n for n, _ in ports] == [v.name for v in (*model.inputs, *model.outputs)]
    assert all(kind.tensor_type.elem_type for _, kind in ports)


@pytest.mark.parametrize("name", MODELS)
def test_values_are_made_once_and_before_they_are_read(name: str, folder: Path) -> None:
    graph = graph_of(members(bundled(name, folder)))
    known = {v.name for v in (*graph.input, *graph.initializer)}
    for node in graph.node:
        assert {n for n in node.input if n} <= known
        assert not known & {*node.output}
        known |= {*node.output}
    assert {v.name for v in graph.output} <= known


def test_digests_tell_bundles_apart_and_not_runs(folder: Path) -> None:
    found = []
    for name in MODELS:
        nodes = graph_of(members(bundled(name, folder))).node
        own = {a.s for n in nodes for a in n.attribute if a.name == "digest"}
        assert len(own) == 1
        found += own
    assert len(set(found)) == len(MODELS)


def four_bit_model(kind: int) -> OnnxModel:
    """x -> Cast to 4 bits -> [region: Identity] -> Cast back -> y, as the partitioner hands it."""
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], name="in", to=kind),
        helper.make_node("Identity", ["a"], ["b"], name="region"),
        helper.make_node("Cast", ["b"], ["y"], name="out", to=TensorProto.FLOAT),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy"]
    inner = [helper.make_tensor_value_info(n, kind, [4]) for n in "ab"]
    spare = numpy_helper.from_array(np.zeros(1, np.float32), "unused")
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [spare], value_info=inner)
    imports = [helper.make_opsetid("", 23)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=11)
    return OnnxModel(onnx_ir.serde.deserialize_model(proto), "g", "", 23)


def test_narrow_integers_pass_a_region_as_bytes() -> None:
    model = four_bit_model(TensorProto.INT4)
    data = host_graph(model, [0, 2], [RegionNode(0, ("a",), ("b",))], "d")
    graph = onnx.load_model_from_string(data).graph
    assert [n.op_type for n in graph.node] == ["Cast", "Cast", "Region", "Cast", "Cast"]
    kinds = [next((a.i for a in n.attribute if a.name == "to"), 0) for n in graph.node]
    int4, int8 = TensorProto.INT4, TensorProto.INT8
    assert kinds == [int4, int8, 0, int4, TensorProto.FLOAT]
    assert not graph.initializer


def test_a_four_bit_float_at_a_regions_edge_has_no_host_graph() -> None:
    model = four_bit_model(TensorProto.FLOAT4E2M1)
    assert host_graph(model, [0, 2], [RegionNode(0, ("a",), ("b",))], "d") == b""
