"""A whole quantised network: every operator is a cluster, and its kernels agree with the floats."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest

from benchmarks.zoo import ZOO, materialized
from worker.compiler.cache import NullCache
from worker.compiler.errors import Shortfall
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.express import Expressed, express_region
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.qdq import cluster_rejection, find_clusters
from worker.compiler.frontend.simplify import simplify
from worker.compiler.ir.op import TensorOp
from worker.compiler.ir.region import Cuts
from worker.compiler.ir.signature import canonicalize
from worker.compiler.judge.entrants import entrant
from worker.compiler.judge.units import Unit, UnitSolver
from worker.compiler.machine import load_preset
from worker.compiler.options import CompileOptions
from worker.compiler.package.build import build_library
from worker.compiler.package.emulator import Emulator
from worker.compiler.package.executable import level_specs

MODEL = next(m for m in ZOO if m.name == "resnet18_qdq_int8")
CORES = {
    "Conv": 20, "Add": 8, "MaxPool": 1, "GlobalAveragePool": 1, "Flatten": 1, "Gemm": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def path(shared_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    del shared_models
    return materialized(MODEL, tmp_path_factory.mktemp("qdq"))


def express(path: Path) -> tuple[list[ir.Node], Expressed]:
    model = simplify(bind(load_model(path, Limits(), "resnet18"), {}))
    nodes = list(model.ir.graph)
    outputs = [str(v.name) for v in model.ir.graph.outputs]
    clusters = find_clusters(nodes, outputs)
    assert Counter(c.op_type for c in clusters) == CORES
    assert all(cluster_rejection(nodes, c, model.opset) is None for c in clusters)
    inside = {k for c in clusters for k in c.nodes}
    outside = [n.op_type for k, n in enumerate(nodes) if k not in inside]
    assert outside == ["QuantizeLinear", "DequantizeLinear"]  # of the model's input and output
    return nodes, express_region(nodes, outputs, model.opset, clusters)


def test_every_operator_is_a_cluster(path: Path) -> None:
    nodes, expressed = express(path)
    graph = expressed.graph
    floats = [t.name for t in graph.tensors.values() if t.dtype.is_float]
    edges = [n for n in floats if n not in graph.constants]
    assert edges == [nodes_of_kind(nodes, "QuantizeLinear")[0], *graph.outputs]
    assert len(expressed.together) == 20 + 1 + 1  # Conv, Gemm, GlobalAveragePool


def nodes_of_kind(nodes: list[ir.Node], op_type: str) -> list[str]:
    """First inputs of the nodes of one kind."""
    return [str(n.inputs[0].name) for n in nodes if n.op_type == op_type and n.inputs[0]]


def quantised_values(path: Path, image: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """What ONNX Runtime, unoptimised, puts behind every QuantizeLinear."""
    import onnxruntime as ort

    model = onnx.load(path)
    names = [n.output[0] for n in model.graph.node if n.op_type == "QuantizeLinear"]
    for name in names:
        model.graph.output.append(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT8, None)
        )
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    results = session.run(names, {session.get_inputs()[0].name: image})
    return dict(zip(names, map(np.asarray, results), strict=True))


@pytest.mark.campaign
def test_kernels_of_every_layer_agree_with_floats(path: Path, tmp_path: Path) -> None:
    """Each layer on ONNX Runtime's own integers: one step apart at most, and rarely."""
    _, expressed = express(path)
    graph, machine = expressed.graph, load_preset("dpu-zu")
    image = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    values = quantised_values(path, image)
    arrays = {**{n: thunk() for n, thunk in expressed.constants.items()}, **values}
    options = CompileOptions()
    solver = UnitSolver.create(machine, entrant("naive", options), options, NullCache())
    cuts = Cuts.of(graph)
    plan: list[tuple[TensorOp, Unit, dict[str, str]]] = []
    for op in graph.ops:
        if op.origin.op_type in ("QuantizeLinear", "DequantizeLinear"):
            continue
        canonical = canonicalize(cuts.piece((op.name,)))
        unit = solver.solve(canonical, op.name)
        assert not isinstance(unit, Shortfall), unit
        plan.append((op, unit, dict(canonical.tensor_of)))
    library = build_library({u.kernel_name: u.kernel for _, u, _ in plan}, tmp_path)
    emulator = Emulator(library, level_specs(machine), [u.program for _, u, _ in plan])
    num_elems = num_different = 0
    for op, unit, names in plan:
        out = graph.tensors[op.write.tensor]
        found = np.zeros(out.shape, out.dtype.numpy)
        buffers = [
            found if names[o.tensor] == out.name else np.ascontiguousarray(arrays[names[o.tensor]])
            for o in unit.program.operands
        ]
        emulator.call(unit.kernel_name, unit.program, [b.ctypes.data for b in buffers])
        if out.name not in values:
            arrays[out.name] = found  # an i32 sum, for the operator that rescales it
            continue
        steps = np.abs(found.astype(np.int64) - values[out.name].astype(np.int64))
        assert steps.max() <= (0 if op.origin.op_type in ("Add", "MaxPool", "Flatten") else 1)
        num_elems += steps.size
        num_different += int((steps > 0).sum())
    assert num_different < 5e-4 * num_elems
