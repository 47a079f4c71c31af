"""From a sample to an ONNX model: the plain operator, or its quantised form.

The quantised form is ONNX's own: DequantizeLinear before every float operand, QuantizeLinear after
every result, so that the same model means the same to ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from worker.compiler.frontend.exact_products import may_have_products, multiply_exactly
from worker.compiler.frontend.functions import written_out
from worker.compiler.frontend.ops.qcluster_call import CONTRACTIONS, MAXIMA, REARRANGEMENTS
from worker.compiler.machine.operator import split_foreign
from worker.conformance.sample import NOTHING, Array, Sample

Functions: TypeAlias = "Mapping[str, onnx.FunctionProto]"
"""Definitions of operators of foreign domains, by `domain::op type`."""
NO_FUNCTIONS: Functions = MappingProxyType({})
NODE = "node"
"""Name of the node under test."""
ACTIVATION = "node/activation"
"""Name of the activation behind it, where there is one."""
REJECTED = "ONNX rejects"
"""How the sentence of a model that ONNX's own checks refuse begins."""
_IR_VERSION = 10
_BIAS_INPUT = 2


class NoForm(ValueError):
    """The operator does not exist on these operands; the sentence says why."""


@dataclass(frozen=True, slots=True)
class Built:
    """A model and its inputs."""

    model: bytes
    feeds: Mapping[str, Array]


def native_form(op_type: str, sample: Sample) -> Built:
    """The operator alone, on operands as they are.

    Raises:
        NoForm: ONNX does not define the operator for these types.
    """
    check_types(op_type, sample)
    feeds: dict[str, Array] = {}
    tensors: list[onnx.TensorProto] = []
    names: list[str] = []
    for k, array in enumerate(sample.inputs):
        names.append("" if array is None else f"x{k}")
        if array is None:
            continue
        if k in sample.constants:
            tensors.append(tensor(array, f"x{k}"))
        else:
            feeds[f"x{k}"] = array
    results = [f"y{k}" for k in range(sample.outputs)]
    node = helper.make_node(op_type, names, results, name=NODE, **attributes_of(sample))
    alike = dict(zip(results, _results_like(op_type, sample), strict=False))
    return Built(assemble([node], feeds, tensors, results, sample.opset, alike), feeds)


@dataclass(frozen=True, slots=True)
class Tail:
    """An activation behind the operator, in front of its quantisation."""

    node: onnx.NodeProto
    """Its first input and its result are given other names."""
    tensors: tuple[onnx.TensorProto, ...]
    """Its own operands."""
    result: Array
    """What it gives in float."""


def quantized_form(
    op_type: str, sample: Sample, dtype: np.dtype[Any], tail: Tail | None = None
) -> Built:
    """The operator (its sample in f32) as integers of `dtype`; `tail`: with an activation.

    Scales of results come from one run of the float operator in ONNX Runtime.

    Raises:
        NoForm: ONNX or ONNX Runtime does not have the float operator on these operands.
    """
    plain = native_form(op_type, sample)
    results = [f"y{k}" for k in range(sample.outputs)]
    found = run_onnx(plain.model, plain.feeds)
    nodes: list[onnx.NodeProto] = []
    tensors: list[onnx.TensorProto] = []
    feeds: dict[str, Array] = {}
    names: list[str] = []
    scales: list[tuple[Array, Array]] = []
    for k, array in enumerate(sample.inputs):
        names.append("" if array is None else f"x{k}")
        if array is None:
            continue
        is_constant = k in sample.constants
        is_weight = op_type in CONTRACTIONS
        if array.dtype != np.float32 or (is_constant and not is_weight):
            if is_constant:
                tensors.append(tensor(array, f"x{k}"))
            else:
                feeds[f"x{k}"] = array
            continue
        if is_weight and k == _BIAS_INPUT:
            scale = np.asarray(scales[0][0] * scales[1][0], np.float32)
            limit = float(np.iinfo(np.int32).max)
            stored = np.clip(np.rint(array / np.float64(scale)), -limit, limit).astype(np.int32)
            axis: int | None = 0 if scale.ndim else None
            zero = np.zeros(scale.shape, np.int32)
        else:
            axis = _weight_axis(op_type, sample) if k == 1 and is_weight and is_constant else None
            # beside 16-bit activations weights have 8 bits: sums of 32-bit products leave i32
            kind = np.dtype(np.int8) if is_weight and k == 1 and dtype.itemsize > 1 else dtype
            if kind.kind == "u":
                axis = None
            scale, zero = _parameters(array, kind, axis)
            stored = _quantized(array, scale, zero, axis)
            scales.append((scale, zero))
        tensors += [tensor(scale, f"x{k}_scale"), tensor(zero, f"x{k}_zero")]
        if is_constant:
            tensors.append(tensor(stored, f"x{k}_integer"))
        else:
            feeds[f"x{k}_integer"] = stored
        along: dict[str, Any] = {} if axis is None else {"axis": axis}
        nodes.append(
            helper.make_node(
                "DequantizeLinear", [f"x{k}_integer", f"x{k}_scale", f"x{k}_zero"], [f"x{k}"],
                name=f"{NODE}/dequantize_{k}", **along,
            )
        )  # fmt: skip
    if not nodes:
        raise NoForm(f"{op_type} has no float operand to quantise")
    nodes.append(helper.make_node(op_type, names, results, name=NODE, **attributes_of(sample)))
    if tail is not None:
        activation = onnx.NodeProto()
        activation.CopyFrom(tail.node)
        activation.name, activation.input[0], activation.output[0] = ACTIVATION, "y0", "a0"
        nodes.append(activation)
        tensors += tail.tensors
        results, found = ["a0"], {"a0": tail.result}
    keeps_scale = op_type in MAXIMA | REARRANGEMENTS and len(scales) == 1 and tail is None
    for k, name in enumerate(results):
        if found[name].dtype != np.float32:
            raise NoForm(f"{op_type} gives {found[name].dtype}, which is not quantised")
        scale, zero = scales[0] if keeps_scale else _parameters(found[name], dtype, None)
        tensors += [tensor(scale, f"z{k}_scale"), tensor(zero, f"z{k}_zero")]
        nodes.append(
            helper.make_node(
                "QuantizeLinear", [name, f"z{k}_scale", f"z{k}_zero"], [f"z{k}"],
                name=f"{NODE}/quantize_{k}",
            )
        )  # fmt: skip
    outputs = [f"z{k}" for k in range(sample.outputs)]
    return Built(assemble(nodes, feeds, tensors, outputs, sample.opset), feeds)


def _results_like(op_type: str, sample: Sample) -> tuple[Array, ...]:
    """Per result the operand whose element type ONNX ties it to; empty where it ties none."""
    schema = schema_of(op_type, sample.opset)
    found: list[Array] = []
    for result in schema.outputs[: sample.outputs]:
        like = next(
            (
                array
                for formal, array in zip(schema.inputs, sample.inputs, strict=False)
                if formal.type_str == result.type_str and array is not None
            ),
            None,
        )
        if like is None:
            return ()
        found.append(like)
    return tuple(found)


def check_types(op_type: str, sample: Sample) -> None:
    """Compare operand types with ONNX's schema.

    Raises:
        NoForm: with the first operand that has no such type.
    """
    schema = schema_of(op_type, sample.opset)
    for k, array in enumerate(sample.inputs):
        if array is None:
            continue
        formal = schema.inputs[min(k, len(schema.inputs) - 1)]
        allowed = formal.types
        code = helper.np_dtype_to_tensor_dtype(array.dtype)
        name = f"tensor({onnx.TensorProto.DataType.Name(code).lower()})"
        if name not in allowed:
            raise NoForm(f"ONNX has no {op_type} whose {formal.name} is {array.dtype}")


@cache
def schema_of(op_type: str, opset: int) -> onnx.defs.OpSchema:
    """ONNX's definition of an operator.

    Raises:
        NoForm: there is none in this opset.
    """
    try:
        return onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError as error:
        raise NoForm(f"ONNX has no {op_type} in opset {opset}") from error


def attributes_of(sample: Sample) -> dict[str, Any]:
    """Attributes as ONNX's helper takes them."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in sorted(sample.attributes.items())
    }


def tensor(array: Array, name: str) -> onnx.TensorProto:
    """An initializer."""
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def assemble(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, Array],
    tensors: Sequence[onnx.TensorProto],
    outputs: Sequence[str],
    opset: int,
    alike: Mapping[str, Array] = NOTHING,
    functions: Functions = NO_FUNCTIONS,
) -> bytes:
    """A serialised model; types and shapes of its outputs are inferred.

    `alike`: arrays of the type and shape of outputs that ONNX's inference knows nothing about
    (normalisations that it defines as functions).  `functions`: definitions of foreign operators,
    by name; the model has them all where it calls one.

    Raises:
        NoForm: the nodes contradict ONNX's definitions.
    """
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in feeds.items()
    ]
    graph = helper.make_graph(list(nodes), "case", inputs, [], list(tensors))
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=_IR_VERSION
    )
    if any(node.domain for node in nodes):
        add_functions(model, functions)
    try:
        inferred = onnx.shape_inference.infer_shapes(written_out(model), True, True, True)
    except onnx.shape_inference.InferenceError as error:
        text = " ".join(str(error).split())[:200]
        raise NoForm(f"{REJECTED} the instance: {text}") from error
    known = {value.name: value for value in inferred.graph.value_info}
    for name in outputs:
        if name in alike and not _has_shape(known.get(name)):
            known[name] = helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(alike[name].dtype), alike[name].shape
            )
        if name not in known:
            raise NoForm(f"the type of {name} does not follow from the operands")
        model.graph.output.append(known[name])
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def add_functions(model: onnx.ModelProto, functions: Functions) -> None:
    """Let the model define what it calls; their domains are imported."""
    domains = {split_foreign(name) or ("", "") for name in functions}
    names = sorted({domain for domain, _ in domains})
    model.opset_import.extend(helper.make_opsetid(domain, 1) for domain in names)
    for function in functions.values():
        made = model.functions.add()
        made.CopyFrom(function)
        inside = {entry.domain for entry in made.opset_import}
        made.opset_import.extend(helper.make_opsetid(d, 1) for d in names if d not in inside)


def _has_shape(value: onnx.ValueInfoProto | None) -> bool:
    return value is not None and value.type.tensor_type.HasField("shape")


def run_onnx(model: bytes, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs in ONNX Runtime, unoptimised, by name.

    Raises:
        NoForm: ONNX Runtime has no kernel for it, or refuses the model.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        if may_have_products(model):
            exact = multiply_exactly(onnx.load_model_from_string(model))
            model = exact.SerializeToString()
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        results = session.run(names, dict(feeds))
    except Exception as error:  # onnxruntime raises its own types from C++
        text = " ".join(str(error).split())[:300]
        raise NoForm(f"ONNX Runtime cannot run it: {text}") from error
    return {name: np.asarray(value) for name, value in zip(names, results, strict=True)}


def _weight_axis(op_type: str, sample: Sample) -> int | None:
    """Axis of a contraction's weights with one scale per element; None: one scale."""
    if op_type == "Conv":
        return 0
    if op_type == "ConvTranspose" and sample.attributes.get("group", 1) == 1:
        return 1
    return None


def _parameters(array: Array, dtype: np.dtype[Any], axis: int | None) -> tuple[Array, Array]:
    """(scale, zero point) that cover the values: symmetric for signed types."""
    bounds = np.iinfo(dtype)
    others = tuple(k for k in range(array.ndim) if k != axis) if axis is not None else None
    if dtype.kind == "i":
        largest = np.abs(array).max(axis=others)
        scale = np.where(largest > 0, largest / bounds.max, 1.0).astype(np.float32)
        return np.asarray(scale), np.zeros(scale.shape, dtype)
    low, high = min(float(array.min()), 0.0), max(float(array.max()), 0.0)
    step = np.float32((high - low) / bounds.max if high > low else 1.0)
    zero = np.clip(np.rint(-low / float(step)), 0, bounds.max)
    return np.asarray(step), np.asarray(zero, dtype)


def _quantized(array: Array, scale: Array, zero: Array, axis: int | None) -> Array:
    shape = tuple(-1 if k == axis else 1 for k in range(array.ndim)) if axis is not None else ()
    wide = scale.reshape(shape) if axis is not None else scale
    offset = zero.reshape(shape) if axis is not None else zero
    bounds = np.iinfo(zero.dtype)
    found = np.rint(array / wide) + offset.astype(np.float64)
    return np.clip(found, bounds.min, bounds.max).astype(zero.dtype)
