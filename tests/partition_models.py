"""Models and machines of a few lines for tests of capability rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import onnx
import onnx_ir
from onnx import TensorProto, helper, numpy_helper

from worker.compiler.frontend.model import OnnxModel
from worker.compiler.ir.dtype import DType
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import AcceleratorTarget, Capabilities, Machine, OpSupport
from worker.compiler.partition.rules import find_miss, sentence
from worker.compiler.rejection import Rejection

OPSET = 18


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Sequence[int]],
    outputs: Sequence[str],
    weights: dict[str, np.ndarray] | None = None,
) -> OnnxModel:
    """A float32 model with inferred shapes, as `simplify` hands it on."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=True)
    return OnnxModel(onnx_ir.serde.deserialize_model(inferred), "g", "0" * 64, OPSET)


def refusal(
    node: onnx_ir.Node,
    offered: AcceleratorTarget,
    stand_in: Mapping[onnx_ir.DataType, DType] = MappingProxyType({}),
    label: str | None = None,
    opset: int = OPSET,
) -> Rejection | None:
    """What a capability list says against a node: the first rule that refuses it."""
    miss = find_miss(node, offered, stand_in, label or offered.name, opset)
    if miss is None:
        return None
    return Rejection(miss.code, sentence(node, miss, offered.capabilities.support(node.op_type)))


def target(
    name: str,
    ops: Sequence[OpSupport | str],
    dtypes: tuple[DType, ...] = (DType.F32,),
    max_rank: int = 4,
    **changes: object,
) -> AcceleratorTarget:
    """A target that offers `ops`, plain where only a name is given."""
    listed = [OpSupport(op, ()) if isinstance(op, str) else op for op in ops]
    found = AcceleratorTarget(name, Capabilities(tuple(listed), dtypes, max_rank))
    return replace(found, **changes)  # type: ignore[arg-type]  # the caller knows the fields


def machine_of(*targets: AcceleratorTarget) -> Machine:
    """A machine with every engine rate of the a100, and these targets."""
    return replace(load_preset("a100"), targets=targets)
