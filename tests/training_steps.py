"""Training steps of small models: made, run by ONNX's reference evaluator, and differenced."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx_models import saved
from recurrent_cases import EVALUATORS

from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.train.options import TrainOptions
from worker.compiler.train.step import TrainingStep, training_step

Array = np.ndarray[Any, Any]
OPSET = 21


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    parameters: Mapping[str, Array],
    output: str,
    opset: int = OPSET,
    known: Mapping[str, Sequence[int]] | None = None,
) -> onnx.ModelProto:
    """A model whose inputs have the shapes and types of the arrays; the output's is inferred.

    `known` are shapes of inner values of float64, for operators that nothing is inferred of.
    """
    graph = helper.make_graph(
        list(nodes), "model",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in inputs.items()
        ],
        [onnx.ValueInfoProto(name=output)],
        [numpy_helper.from_array(array, name) for name, array in parameters.items()],
        value_info=[
            helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, shape)
            for name, shape in (known or {}).items()
        ],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made)


def step_of(
    model: onnx.ModelProto, folder: Path, symbols: Mapping[str, int] | None = None, **options: Any
) -> tuple[TrainingStep, onnx.ModelProto]:
    """The step and its file."""
    loaded = bind(load_model(saved(model, folder), Limits()), symbols or {})
    step = training_step(loaded, TrainOptions.from_json(options))
    proto = onnx_ir.serde.serialize_model(step.model.ir)
    onnx.checker.check_model(proto, full_check=True)
    return step, proto


class Erf(OpRun):
    """In float64: the package's own has the precision of float32."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.vectorize(math.erf, otypes=[x.dtype])(x),)


class Gelu(OpRun):
    """Because of Erf, which it is made of."""

    op_domain = ""

    def _run(self, x: Array, **_: Any) -> tuple[Array]:
        bell = np.vectorize(math.erf, otypes=[x.dtype])(x / math.sqrt(2))
        return (x * (1 + bell) / 2,)


class GroupNormalization(OpRun):
    """In the operands' precision: ONNX's definition computes in float32."""

    op_domain = ""

    def _run(
        self, x: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float, **_: Any
    ) -> tuple[Array]:
        apart = x.reshape(x.shape[0], num_groups, -1)
        apart = apart - apart.mean(2, keepdims=True)
        apart /= np.sqrt((apart**2).mean(2, keepdims=True) + epsilon)
        line = (-1, *[1] * (x.ndim - 2))
        return (apart.reshape(x.shape) * scale.reshape(line) + bias.reshape(line),)


class LRN(OpRun):
    """Of every channel: the package's own skips those from the number of samples on."""

    op_domain = ""

    def _run(self, x: Array, *, size: int, alpha: float, beta: float, bias: float) -> tuple[Array]:
        total = np.zeros_like(x)
        for c in range(x.shape[1]):
            first, last = max(0, c - (size - 1) // 2), c + size // 2
            total[:, c] = (x[:, first : last + 1] ** 2).sum(1)
        return (x / (bias + alpha / size * total) ** beta,)


class ConvTranspose(OpRun):
    """By its definition, each element sent through each tap: the package's own takes no groups."""

    op_domain = ""

    def _run(
        self, x: Array, w: Array, b: Array, *, group: int, strides: list[int],
        dilations: list[int], pads: list[int], **_: Any,
    ) -> tuple[Array]:  # fmt: skip
        size = [
            (n - 1) * s + (k - 1) * d + 1
            for n, k, s, d in zip(x.shape[2:], w.shape[2:], strides, dilations, strict=True)
        ]
        made = np.zeros((x.shape[0], group, w.shape[1], *size), x.dtype)
        each = x.shape[1] // group
        for taps in np.ndindex(*w.shape[2:]):
            where = tuple(
                slice(k * d, k * d + (n - 1) * s + 1, s)
                for k, d, n, s in zip(taps, dilations, x.shape[2:], strides, strict=True)
            )
            for g in range(group):
                mine = slice(g * each, (g + 1) * each)
                part = np.einsum("nc...,cm->nm...", x[:, mine], w[(mine, slice(None), *taps)])
                made[(slice(None), g, slice(None), *where)] += part
        count = len(size)
        crop = tuple(slice(pads[d], n - pads[count + d]) for d, n in enumerate(size))
        flat = made.reshape(x.shape[0], -1, *size)[(slice(None), slice(None), *crop)]
        return (flat + b.reshape(-1, *[1] * count),)


def run(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs, in the precision of the model's own types, by numpy."""
    names = [v.name for v in model.graph.output]
    wanted = {v.name for v in model.graph.input}
    mine = [Erf, Gelu, GroupNormalization, ConvTranspose, LRN, *EVALUATORS]
    evaluator = ReferenceEvaluator(model, new_ops=mine)
    made = evaluator.run(None, {k: v for k, v in feeds.items() if k in wanted})
    return dict(zip(names, map(np.asarray, made), strict=True))


def with_parameters(model: onnx.ModelProto, parameters: Mapping[str, Array]) -> onnx.ModelProto:
    """A copy with other initializers."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if tensor.name in parameters:
            tensor.CopyFrom(numpy_helper.from_array(parameters[tensor.name], tensor.name))
    return copy
