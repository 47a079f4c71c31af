"""Cross-layer equalisation: channels between two products get sizes that one scale suits.

One scale serves all channels of a value, so the integers of a channel that stays small are coarse.
Between two products, with only operators in between that pass a positive factor through, channel c
can be divided by any f(c) > 0 where it is made and its weights multiplied by f(c) where it is read.
Factors are powers of two: the model in floats computes the same bits as before.

Source: Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction (2019),
section 4.1.  Deviation: they balance the weights of both layers, which then have one scale each;
weights with a scale per channel don't need that on the side that makes the channel, so what is
balanced there is what the samples make of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir

from worker.compiler.frontend.edit import Names, add_constant, constant_of, is_graph
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.quantize.boundary import Equalised
from worker.compiler.quantize.walk import Walk
from worker.compiler.quantize.windows import groups_of, is_product, matrix_of, weights_of

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]

_ELEMENTWISE = frozenset({"Relu", "LeakyRelu", "PRelu", "Identity", "Dropout"})
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})
"""Both: channels stay apart, and f(a x) = a f(x) for a > 0."""


@dataclass(frozen=True, slots=True)
class _Constant:
    """An operand whose elements belong to channels."""

    node: onnx_ir.Node
    position: int

    @property
    def array(self) -> Array:
        found: Array = constant_of(self.node.inputs[self.position]).numpy()
        return found


@dataclass(frozen=True, slots=True)
class _Pair:
    """A product, and the next one."""

    maker: onnx_ir.Node
    reader: onnx_ir.Node
    read: onnx_ir.Value
    """What the reader takes."""
    added: tuple[_Constant, ...]
    """One number a channel: the maker's bias, and what is added behind it."""


def equalised(
    model: OnnxModel,
    names: Collection[str],
    batches: Sequence[Mapping[str, Array]],
    *,
    per_channel: bool,
) -> tuple[OnnxModel, tuple[Equalised, ...]]:
    """The model with other constants, and what was done; the model itself where nothing was.

    Args:
        model: in floats; not changed.
        names: operators that become integers: both products of a pair, and all between, are.
        batches: of calibration.
        per_channel: weights have a scale for every channel of the result.

    Cost: a run of the model per batch.
    """
    if any(is_graph(a) for node in model.ir.graph for a in node.attributes.values()):
        return model, ()
    clone = model.ir.clone()
    pairs = [p for node in clone.graph if (p := _pair(node, names)) is not None]
    if not pairs:
        return model, ()
    walk = Walk(model.ir, [_twin(model.ir, pair.read) for pair in pairs], batches)
    fresh = Names(clone.graph)
    done: list[Equalised] = []
    for number, pair in enumerate(pairs):
        sizes = _sizes(pair.reader, walk.step(number))
        factors = _factors(pair, sizes, per_channel=per_channel)
        changed = int((factors != 1.0).sum())
        if changed:
            _scale(pair, factors, clone.graph, fresh)
            done.append(Equalised(pair.maker.name or "", pair.reader.name or "", changed,
                                  float(factors.max() / factors.min())))  # fmt: skip
    return (replace(model, ir=clone), tuple(done)) if done else (model, ())


def _pair(maker: onnx_ir.Node, names: Collection[str]) -> _Pair | None:
    """The product that alone reads what `maker` makes, if every channel can take a factor."""
    if maker.name not in names or not _has_own_weights(maker):
        return None
    channels = len(_matrix(maker))
    added: list[_Constant] = []
    if len(maker.inputs) > 2 and maker.inputs[2] is not None:
        added.append(_Constant(maker, 2))
    node = maker
    while True:
        value = node.outputs[0]
        uses = [(use.node, use.idx) for use in value.uses()]
        if len(uses) != 1 or value.is_graph_output():
            return None
        node, position = uses[0]
        if node.name not in names or node.domain != "":
            return None
        if node.op_type == "Add":
            added.append(_Constant(node, 1 - position))
        elif position != 0:
            return None
        elif node.op_type not in _ELEMENTWISE and not (
            maker.op_type == "Conv" and node.op_type in _POOLS
        ):
            break
    if not _has_own_weights(node) or (maker.op_type == "Conv") != (node.op_type == "Conv"):
        return None
    last = maker.op_type != "Conv"
    if _channels_in(node) != channels or not all(
        _is_own(c, channels, channels_last=last) for c in added
    ):
        return None
    return _Pair(maker, node, value, tuple(added))


def _has_own_weights(node: onnx_ir.Node) -> bool:
    """Whether it is a product with constant weights that serve nothing else."""
    weights = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    return (
        node.domain == "" and node.op_type in ("Conv", "Gemm", "MatMul") and weights is not None
        and is_product(node, weights.numpy()) and _uses(node, 1) == 1
    )  # fmt: skip


def _is_own(constant: _Constant, channels: int, *, channels_last: bool) -> bool:
    """Whether it has one element a channel, along the channels, and serves nothing else."""
    node, k = constant.node, constant.position
    if constant_of(node.inputs[k]) is None or _uses(node, k) != 1:
        return False
    shape, result = constant.array.shape, node.outputs[0].shape
    if constant.array.size != channels or result is None:
        return False
    if node.op_type == "Conv":
        return len(shape) == 1
    from_last = 1 if channels_last else len(result) - 1
    return channels == 1 or (len(shape) >= from_last and shape[-from_last] == channels)


def _uses(node: onnx_ir.Node, k: int) -> int:
    value = node.inputs[k]
    return 0 if value is None else len(value.uses())


def _matrix(node: onnx_ir.Node) -> F64:
    weights: Array = constant_of(node.inputs[1]).numpy()
    return matrix_of(node, weights).astype(np.float64)


def _channels_in(node: onnx_ir.Node) -> int:
    weights: Array = constant_of(node.inputs[1]).numpy()
    if node.op_type == "Conv":
        return int(weights.shape[1]) * groups_of(node)
    return int(matrix_of(node, weights).shape[1])


def _by_channel(node: onnx_ir.Node, matrix: F64) -> F64:
    """Weights as [groups, results of a group, channels of the operand in a group, rest]."""
    groups = groups_of(node)
    channels = _channels_in(node) // groups
    return matrix.reshape(groups, len(matrix) // groups, channels, -1)


def _sizes(node: onnx_ir.Node, arrays: Sequence[Array]) -> F64:
    """The largest magnitude of each channel of what a product reads."""
    axis = 1 if node.op_type == "Conv" else -1
    rows = [
        np.abs(np.moveaxis(a, axis, 0).reshape(a.shape[axis], -1)).max(axis=1, initial=0.0)
        for a in arrays
    ]
    found: F64 = np.max(rows, axis=0).astype(np.float64)
    return found


def _factors(pair: _Pair, sizes: F64, *, per_channel: bool) -> F64:
    """What each channel is divided by: the root of how large it is over how large its weights are,
    each over the largest of all channels; 1 where a constant would not stay exact."""
    made, read = _matrix(pair.maker), _by_channel(pair.reader, _matrix(pair.reader))
    first = _share(sizes)
    if not per_channel:
        first = np.maximum(first, _share(np.abs(made).max(axis=1)))
    second = _share(np.abs(read).max(axis=(1, 3)).reshape(-1))
    usable = (first > 0.0) & (second > 0.0)
    ratio = np.divide(first, second, out=np.ones_like(first), where=usable)
    factors = np.exp2(np.rint(0.5 * np.log2(ratio)))
    kind = constant_of(pair.maker.inputs[1]).numpy().dtype
    exact = _stays(made, 1.0 / factors[:, None], kind).all(axis=1)
    for constant in pair.added:
        exact &= _stays(constant.array.reshape(-1), 1.0 / factors, kind)
    along = factors.reshape(len(read), 1, -1, 1)
    exact &= _stays(read, along, kind).all(axis=(1, 3)).reshape(-1)
    return np.where(exact, factors, 1.0)


def _share(sizes: F64) -> F64:
    largest = float(sizes.max(initial=0.0))
    return sizes / largest if np.isfinite(largest) and largest > 0.0 else np.zeros_like(sizes)


def _stays(values: Array, factors: F64, kind: np.dtype[Any]) -> npt.NDArray[np.bool_]:
    """Whether products by powers of two keep all bits in a float type."""
    exact = values.astype(np.float64) * factors
    with np.errstate(over="ignore"):
        kept: npt.NDArray[np.bool_] = exact.astype(kind).astype(np.float64) == exact
    return kept


def _scale(pair: _Pair, factors: F64, graph: onnx_ir.Graph, fresh: Names) -> None:
    """Divide the channels where they are made, and multiply them back where they are read."""
    _put(pair.maker, _matrix(pair.maker) / factors[:, None], graph, fresh)
    for constant in pair.added:
        old = constant.array
        scaled = old.astype(np.float64).reshape(-1) / factors
        _replace(constant, scaled.reshape(old.shape).astype(old.dtype), graph, fresh)
    matrix = _matrix(pair.reader)
    laid = _by_channel(pair.reader, matrix)
    laid = laid * factors.reshape(len(laid), 1, -1, 1)
    _put(pair.reader, laid.reshape(matrix.shape), graph, fresh)


def _put(node: onnx_ir.Node, matrix: F64, graph: onnx_ir.Graph, fresh: Names) -> None:
    weights = _Constant(node, 1)
    array = weights_of(node, matrix, weights.array).astype(weights.array.dtype)
    _replace(weights, np.ascontiguousarray(array), graph, fresh)


def _replace(constant: _Constant, array: Array, graph: onnx_ir.Graph, fresh: Names) -> None:
    old = constant.node.inputs[constant.position]
    assert old is not None
    made = add_constant(graph, fresh.fresh(f"{old.name}/equalised"), array)
    constant.node.replace_input_with(constant.position, made)
    graph.initializers.pop(old.name or "", None)


def _twin(model: onnx_ir.Model, value: onnx_ir.Value) -> onnx_ir.Value:
    """The value of the same name."""
    producer = value.producer()
    assert producer is not None
    at = next(node for node in model.graph if node.name == producer.name)
    return next(v for v in at.outputs if v.name == value.name)
