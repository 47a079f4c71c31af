"""An FP32 model as an FP16 one: what the paper compiles, without conversions at the border.

The compile option `precision=f16` keeps in FP32 what does not fit FP16's range; BERT's masks of
-3.4e38 then cut every attention layer in three.  A model exported in FP16 has -65504 there, as
this one: numbers beyond the range become the largest finite ones.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_REFUSED = frozenset({
    "If", "Loop", "Scan", "Resize", "Upsample", "QuantizeLinear", "DequantizeLinear",
    "RandomNormal", "RandomUniform", "EyeLike",
})  # fmt: skip
"""Operators with bodies, or with operands or types that must stay FP32."""
_LARGEST = float(np.finfo(np.float16).max)


def half(source: Path, out: Path) -> Path:
    """Write the model of `source` with every FP32 tensor in FP16 to `out`; gives `out`.

    Raises:
        ValueError: an operator that needs FP32.
    """
    model = onnx.load(str(source))
    graph = model.graph
    for tensor in graph.initializer:
        tensor.CopyFrom(_halved(tensor))
    for value in (*graph.input, *graph.output, *graph.value_info):
        kind = value.type.tensor_type
        if kind.elem_type == TensorProto.FLOAT:
            kind.elem_type = TensorProto.FLOAT16
    for node in graph.node:
        _convert(node)
    temporary = out.with_suffix(".part")
    temporary.write_bytes(model.SerializeToString())
    temporary.replace(out)
    return out


def _convert(node: onnx.NodeProto) -> None:
    if node.op_type in _REFUSED:
        raise ValueError(f"{node.op_type} {node.name}: not made FP16 here")
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.TENSOR:
            attribute.t.CopyFrom(_halved(attribute.t))
        elif node.op_type == "Cast" and attribute.name == "to":
            attribute.i = TensorProto.FLOAT16 if attribute.i == TensorProto.FLOAT else attribute.i
        elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            many = attribute.name == "value_floats"
            values = np.array(attribute.floats if many else attribute.f, np.float32)
            made = _halved(numpy_helper.from_array(values))
            attribute.CopyFrom(helper.make_attribute("value", made))
    if node.op_type == "ConstantOfShape" and not node.attribute:
        zero = numpy_helper.from_array(np.zeros(1, np.float16))
        node.attribute.append(helper.make_attribute("value", zero))


def _halved(tensor: TensorProto) -> TensorProto:
    if tensor.data_type != TensorProto.FLOAT:
        return tensor
    values = np.clip(numpy_helper.to_array(tensor), -_LARGEST, _LARGEST).astype(np.float16)
    return numpy_helper.from_array(values, tensor.name)
