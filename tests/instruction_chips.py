"""A quantised convolution with ReLU, and chips whose instruction runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from worker.compiler.cache import MemoryCache, NullCache
from worker.compiler.frontend.limits import Limits
from worker.compiler.machine import load_machine, preset_document
from worker.compiler.options import CompileOptions
from worker.compiler.oracles import asked
from worker.compiler.partition.plan import CompositeKind
from worker.compiler.pipeline import compile_model
from worker.job.ports import open_ports
from worker.job.request import NoProgress

Document = dict[str, Any]
CONV_RELU = {
    "name": "conv_relu", "intrinsic": "cv",
    "match": {"op": "Relu", "inputs": [
        {"op": "Conv", "inputs": ["any", "constant"], "attributes": {"strides": {"max": 1}}},
    ]},
}  # fmt: skip


def quantised(path: Path, stride: int, *, folded: bool = False) -> Path:
    """One convolution and ReLU inside QDQ: x[1, 16, 16, 16] by w[32, 16, 3, 3].

    `folded`: the quantisation begins at zero, and the ReLU is left out.
    """
    rng = np.random.default_rng(0)
    weights = {
        "s": np.array(0.1, np.float32), "z": np.array(0, np.int8),
        "end": np.array(-128 if folded else 0, np.int8),
        "w": rng.integers(-8, 8, (32, 16, 3, 3)).astype(np.int8),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q0"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="dq0"),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["dw"], name="dqw"),
        helper.make_node(
            "Conv", ["d", "dw"], ["c"], name="conv", pads=[1] * 4, strides=[stride] * 2
        ),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("QuantizeLinear", ["c" if folded else "r", "s", "end"], ["q1"], name="q1"),
        helper.make_node("DequantizeLinear", ["q1", "s", "end"], ["y"], name="dq1"),
    ]
    nodes = [node for node in nodes if not (folded and node.name == "relu")]
    side = 16 // stride
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 32, side, side])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def chip(*intrinsics: Document, patterns: tuple[Document, ...] = (CONV_RELU,)) -> Document:
    document: Document = json.loads(json.dumps(preset_document("ethos-u65")))
    engine = next(e for e in document["engines"] if e["kind"] == "matrix")
    engine["intrinsics"] = list(intrinsics)
    document["capabilities"]["patterns"] = list(patterns)
    return document


def cv(cycles: int, name: str = "cv") -> Document:
    return {"name": name, "op": "conv", "extents": [1, 32, 8, 8, 3, 3, 16], "cycles": cycles}


def priced(
    folder: Path, document: Document, stride: int = 1, *, folded: bool = False
) -> tuple[int, str, str | None]:
    """(cycles of the product's computes, schedule, instruction of the cluster)."""
    machine = asked(load_machine(document), NullCache())
    ports = open_ports(machine, CompileOptions(), MemoryCache(), NoProgress())
    path = quantised(folder / "m.onnx", stride, folded=folded)
    found = compile_model(path, "m", machine, CompileOptions(), ports, Limits())
    (region,) = found.partitioning.regions
    (cluster,) = (c for c in region.composites if c.kind is CompositeKind.CLUSTER)
    units = found.units
    rows = [row for unit in units for row in unit.program.instructions if row["macs"] > 0]
    spent = sum(int(row["cycles"]) for row in rows)
    return spent, "\n".join(unit.schedule_text for unit in units), cluster.intrinsic
