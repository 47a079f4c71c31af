"""Corrections after the rewrite: constants that make up for what rounding does to the results.

Operators are taken in the order of execution, each as it is fed by those already corrected, so that
a later one makes up for what the earlier ones left.  Only constants change: integers of weights and
of biases; scales, zero points and the graph stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir

from worker.compiler.frontend.edit import constant_of, is_graph
from worker.compiler.ir.dtype import DType
from worker.compiler.quantization import Correction
from worker.compiler.quantize.boundary import Corrected
from worker.compiler.quantize.insert import Inserter
from worker.compiler.quantize.parameters import QuantParameters, dequantise, integer_range, quantise
from worker.compiler.quantize.rounding import rounded, second_moments
from worker.compiler.quantize.walk import Walk
from worker.compiler.quantize.windows import (
    groups_of,
    is_product,
    matrix_of,
    rows_of,
    weights_of,
)

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]

_MOST_ROWS = 8192
"""Places of a result that a correction looks at, over all batches."""
_MOST_ELEMENTS = 8192
"""Summed up by one result: their moments take 512 MiB."""
_MOST_BATCHES = 32


def correct(
    converted: onnx_ir.Model,
    source: onnx_ir.Model,
    names: Collection[str],
    batches: Sequence[Mapping[str, Array]],
    wanted: Collection[Correction],
) -> tuple[tuple[Corrected, ...], tuple[tuple[str, str], ...]]:
    """Edit constants of `converted`; give what was done, and (node, why) of what was left.

    Args:
        converted: in QDQ form; runnable.
        source: the same model in floats, nodes by the same names.
        names: operators to look at; those that are no products of constant weights are passed over.
        batches: of calibration.
        wanted: BIAS, ROUNDING or both.

    Cost: about two runs of both models per batch; ROUNDING channels * elements^2 per operator.
    """
    if any(is_graph(a) for node in source.graph for a in node.attributes.values()):
        return (), tuple((name, "the model has control flow") for name in names)
    floats = {node.name: node for node in source.graph}
    products = [_Product(n) for n in converted.graph if n.name in names and _weights(n) is not None]
    products = [p for p in products if is_product(p.node, p.integers)]
    left = [(p.node.name or "", why) for p in products if (why := p.obstacle())]
    products = [p for p in products if not p.obstacle()]
    few = [batches[k] for k in _spread(len(batches), _MOST_BATCHES)]
    operands = Walk(converted, [p.operand for p in products], few)
    results = Walk(source, [floats[p.node.name].outputs[0] for p in products], few)
    inserter = Inserter(converted.graph)
    done: list[Corrected] = []
    for k, product in enumerate(products):
        xs, ys = operands.step(k), results.step(k)
        most = max(1, _MOST_ROWS // len(few))
        pairs = [
            rows_of(product.node, x, y, product.integers, most) for x, y in zip(xs, ys, strict=True)
        ]
        done.append(_corrected(product, pairs, wanted, inserter, floats[product.node.name]))
    return tuple(done), tuple(left)


def _spread(count: int, most: int) -> list[int]:
    return sorted({int(k) for k in np.linspace(0, count - 1, min(count, most)).round()})


def _weights(node: onnx_ir.Node) -> onnx_ir.Node | None:
    """The DequantizeLinear of constant integers that gives the node its second operand."""
    if node.op_type not in ("Conv", "Gemm", "MatMul") or len(node.inputs) < 2:
        return None
    value = node.inputs[1]
    producer = None if value is None else value.producer()
    if producer is None or producer.op_type != "DequantizeLinear":
        return None
    return producer if constant_of(producer.inputs[0]) is not None else None


class _Product:
    """One operator of the converted model, and its quantised constants."""

    def __init__(self, node: onnx_ir.Node) -> None:
        self.node = node
        weights = _weights(node)
        assert weights is not None
        self.dequantise = weights
        self.integers: Array = constant_of(weights.inputs[0]).numpy()
        scale: Array = constant_of(weights.inputs[1]).numpy()
        axis = weights.attributes.get("axis")
        kind = DType.U8 if self.integers.dtype == np.uint8 else DType.I8
        zero = np.full(scale.shape, 128 if kind is DType.U8 else 0, kind.numpy)
        channels = None if scale.ndim == 0 or axis is None else axis.as_int()
        self.parameters = QuantParameters(scale, zero, channels, kind)

    @property
    def operand(self) -> onnx_ir.Value:
        value = self.node.inputs[0]
        assert value is not None
        return value

    def obstacle(self) -> str:
        """Why its constants must stay; empty: they need not."""
        tensor = self.dequantise.inputs[0]
        assert tensor is not None
        if len(tensor.uses()) > 1 or len(self.dequantise.outputs[0].uses()) > 1:
            return "its weights serve several operators"
        if matrix_of(self.node, self.integers).shape[1] > _MOST_ELEMENTS:
            return f"a result sums up more than {_MOST_ELEMENTS} elements"
        return ""

    def bias(self) -> tuple[onnx_ir.Node, F64] | None:
        """The DequantizeLinear of an i32 bias, and its values per channel."""
        if self.node.op_type == "MatMul" or len(self.node.inputs) < 3:
            return None
        value = self.node.inputs[2]
        producer = None if value is None else value.producer()
        if producer is None or producer.op_type != "DequantizeLinear":
            return None
        integers, scale = (constant_of(producer.inputs[k]) for k in (0, 1))
        if integers is None or scale is None or len(producer.outputs[0].uses()) > 1:
            return None
        return producer, integers.numpy().astype(np.float64) * scale.numpy()


def _corrected(
    product: _Product,
    pairs: Sequence[tuple[F64, F64]],
    wanted: Collection[Correction],
    inserter: Inserter,
    exact: onnx_ir.Node,
) -> Corrected:
    node = product.node
    bias = product.bias() if Correction.BIAS in wanted else None
    matrix = matrix_of(node, product.integers)
    groups = groups_of(node)
    operand = np.concatenate([x for x, _ in pairs], axis=1)
    moved = 0
    if Correction.ROUNDING in wanted:
        values = constant_of(exact.inputs[1]).numpy().astype(np.float64)
        found = _rounded(product, matrix_of(node, values), operand, centred=bias is not None)
        moved = int((found != matrix).sum())
        if moved:
            integers = weights_of(node, found, product.integers)
            matrix, product.integers = found, integers
            _replace(product.dequantise, inserter, integers)
    shift = 0.0
    if bias is not None:
        weights = _floats(product, matrix).reshape(groups, -1, matrix.shape[1])
        means = []
        for x, y in pairs:
            made = np.concatenate([x[g] @ weights[g].T for g in range(groups)], axis=1)
            means.append((y - made).mean(axis=0))
        dequantised, old = bias
        shift = _set_bias(dequantised, old, np.stack(means), inserter)
    return Corrected(node.name or "", moved, shift)


def _floats(product: _Product, matrix: Array) -> F64:
    like = weights_of(product.node, matrix, product.integers)
    return matrix_of(product.node, dequantise(like, product.parameters)).astype(np.float64)


def _rounded(product: _Product, exact: F64, operand: F64, *, centred: bool) -> Array:
    """Integers as a matrix of the operator's; `centred`: a bias takes what is constant."""
    kind = product.parameters.dtype
    zero = 128 if kind is DType.U8 else 0
    lowest, highest = integer_range(kind)
    scale = product.parameters.scale.astype(np.float64).reshape(-1, 1)
    steps = (exact / scale).reshape(len(operand), -1, exact.shape[1])
    rows = operand - operand.mean(axis=1, keepdims=True) if centred else operand
    found = [
        rounded(part, second_moments(x), max(lowest - zero, -127), highest - zero)
        for part, x in zip(steps, rows, strict=True)
    ]
    return np.asarray(np.concatenate(found) + zero, kind.numpy)


def _set_bias(dequantised: onnx_ir.Node, old: F64, missing: F64, inserter: Inserter) -> float:
    """Put the mean of what batches miss [batches, channels] in place of a bias.

    Of few batches the mean is uncertain: each channel's shift is shrunk by the share that chance
    has in it (the positive part of James and Stein's estimate).
    """
    wanted = missing.mean(axis=0)
    shift = wanted - old.reshape(-1)
    if len(missing) > 1:
        chance = missing.var(axis=0, ddof=1) / len(missing)
        square = np.square(shift)
        share = np.divide(chance, square, out=np.ones_like(square), where=square > 0.0)
        shift = shift * np.maximum(0.0, 1.0 - share)
    scale = constant_of(dequantised.inputs[1]).numpy().astype(np.float32)
    axis = dequantised.attributes.get("axis")
    grid = QuantParameters(
        scale, np.zeros(scale.shape, np.int32),
        None if scale.ndim == 0 else (0 if axis is None else axis.as_int()), DType.I32,
    )  # fmt: skip
    _replace(dequantised, inserter, quantise(old + shift.reshape(old.shape), grid))
    return float(np.sqrt(np.square(shift).mean()))


def _replace(dequantised: onnx_ir.Node, inserter: Inserter, integers: Array) -> None:
    """Let a DequantizeLinear read other integers of the same shape and type."""
    old = dequantised.inputs[0]
    assert old is not None
    made = inserter.constant(old.name or "", integers)
    dequantised.replace_input_with(0, made)
    if not old.uses() and not old.is_graph_output():
        graph = dequantised.graph
        assert graph is not None
        graph.initializers.pop(old.name or "", None)
