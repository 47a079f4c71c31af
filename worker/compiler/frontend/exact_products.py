"""Products of 8-bit integers that ONNX Runtime computes exactly on every processor.

On x86-64 without VNNI the runtime multiplies u8 by i8 with an instruction that adds two products in
16 saturating bits: a product of 64 random elements was off by up to 38 000 on a Haswell, and the
runtime's own option against it changes constants alone, and only where the graph is optimised.  u8
by u8 is exact on all of them.  Adding 128 to an i8 operand and to its zero point leaves each
difference, and so each result, what it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from mmap import mmap
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper

from worker.compiler.frontend.functions import written_out

_U8, _I8, _I32 = onnx.TensorProto.UINT8, onnx.TensorProto.INT8, onnx.TensorProto.INT32
_PREFIX = "tilewright/raised/"
_MICROSOFT = "com.microsoft"


@dataclass(frozen=True, slots=True)
class _Operand:
    """An operand that must not be i8 where its partner is u8, by positions of a node's inputs."""

    value: int
    zero_point: int
    partner: int | None
    """None: the runtime quantises it to u8 itself."""
    scale: int | None = None
    """Whose shape a zero point has that is left out; None: a scalar does."""


_OPERANDS: Mapping[tuple[str, str], tuple[_Operand, ...]] = {
    ("", "MatMulInteger"): (_Operand(1, 3, 0),),
    ("", "QLinearMatMul"): (_Operand(3, 5, 0, 4),),
    # Weights come first in the runtime's product; QLinearConv has kernels of either order.
    ("", "ConvInteger"): (_Operand(0, 2, 1), _Operand(1, 3, 0)),
    ("", "QLinearConv"): (_Operand(3, 5, 0, 4),),
    (_MICROSOFT, "QLinearConv"): (_Operand(3, 5, 0, 4),),
    (_MICROSOFT, "QGemm"): (_Operand(3, 5, 0, 4),),
    (_MICROSOFT, "MatMulIntegerToFloat"): (_Operand(1, 5, 0, 3),),
    (_MICROSOFT, "DynamicQuantizeMatMul"): (_Operand(1, 3, None, 2),),
    (_MICROSOFT, "QAttention"): (_Operand(1, 7, 0, 4),),
    (_MICROSOFT, "DynamicQuantizeLSTM"): (_Operand(1, 9, None), _Operand(2, 11, None)),
}  # fmt: skip
_KINDS = frozenset(op_type for _, op_type in _OPERANDS)

Types: TypeAlias = MutableMapping[str, int]


def may_have_products(data: bytes | mmap) -> bool:
    """Whether the file of a model names an operator that `multiply_exactly` may change."""
    return any(data.find(kind.encode()) >= 0 for kind in sorted(_KINDS))


def multiply_exactly(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with no product of u8 by i8 in it; itself, edited, and its functions inlined.

    Values of the graph keep their names.  Stored weights whose data the model holds are stored
    anew; others are raised by three nodes at each run.  Types are followed as far as products need
    them: where one cannot be told (a sequence's elements), a node is left as it is.

    Cost: linear in the nodes, sub-graphs included, and in the weights changed.
    """
    bodies = [model.graph.node, *(function.node for function in model.functions)]
    if not any(_has_product(nodes) for nodes in bodies):
        return model
    if any(_has_product(function.node) for function in model.functions):
        model = written_out(model)
    _Scope(model.graph, {}, count()).rewrite()
    return model


def _has_product(nodes: Iterable[onnx.NodeProto]) -> bool:
    return any(
        node.op_type in _KINDS or any(_has_product(graph.node) for graph in _graphs(node))
        for node in nodes
    )


def _graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


@dataclass(slots=True)
class _Scope:
    """One graph, with the types of what it sees."""

    graph: onnx.GraphProto
    types: Types
    numbers: Iterator[int]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    raised: dict[str, str] = field(default_factory=dict)
    """u8 values by the i8 values that they are 128 above."""
    stored: dict[str, onnx.TensorProto] = field(default_factory=dict)
    """Constants whose data is here."""

    def rewrite(self) -> None:
        for value in (*self.graph.input, *self.graph.value_info, *self.graph.output):
            if value.type.tensor_type.elem_type:
                self.types[value.name] = value.type.tensor_type.elem_type
        given = {value.name for value in self.graph.input}
        for tensor in self.graph.initializer:
            self.types[tensor.name] = tensor.data_type
            # What a caller may replace is no constant.
            if tensor.name not in given and tensor.data_location != onnx.TensorProto.EXTERNAL:
                self.stored[tensor.name] = tensor
        for node in self.graph.node:
            inner = [_Scope(g, dict(self.types), self.numbers) for g in _graphs(node)]
            for scope in inner:
                scope.rewrite()
            for place, name in enumerate(node.output):
                if name:
                    self.types.setdefault(name, _type_of(node, place, self.types, inner))
            self._take(node)
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)
        self._drop_unread()

    def _take(self, node: onnx.NodeProto) -> None:
        for operand in _OPERANDS.get((node.domain, node.op_type), ()):
            # A node that lacks operands is for ONNX Runtime to refuse.
            partner: int = _U8
            if operand.partner is not None:
                partner = self.types.get(_input(node, operand.partner), 0)
            if self.types.get(_input(node, operand.value), 0) != _I8 or partner != _U8:
                continue
            zero = _input(node, operand.zero_point)
            place = operand.zero_point
            node.input.extend([""] * (place + 1 - len(node.input)))
            node.input[place] = self._raise(zero) if zero else self._all_128(node, operand)
            node.input[operand.value] = self._raise(node.input[operand.value])
        self.nodes.append(node)

    def _raise(self, name: str) -> str:
        """The u8 value 128 above an i8 one."""
        if name in self.raised:
            return self.raised[name]
        tensor = self.stored.get(name)
        if tensor is not None:
            made = self._fresh()
            values = numpy_helper.to_array(tensor).view(np.uint8) ^ np.uint8(128)
            self.graph.initializer.append(numpy_helper.from_array(values, made))
        else:
            wide = self._node("Cast", [name], to=_I32)
            above = self._node("Add", [wide, self._constant(np.array(128, np.int32))])
            made = self._node("Cast", [above], to=_U8)
        self.types[made] = _U8
        self.raised[name] = made
        return made

    def _all_128(self, node: onnx.NodeProto, operand: _Operand) -> str:
        """A zero point of 128 where there was none."""
        value = np.array(128, np.uint8)
        if operand.scale is None:
            return self._constant(value)
        shape = self._node("Shape", [node.input[operand.scale]])
        filled = numpy_helper.from_array(value.reshape(1))
        return self._node("ConstantOfShape", [shape], value=filled)

    def _constant(self, value: np.ndarray[Any, Any]) -> str:
        return self._node("Constant", [], value=numpy_helper.from_array(value))

    def _node(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        made = self._fresh()
        self.nodes.append(onnx.helper.make_node(kind, inputs, [made], **attributes))
        return made

    def _fresh(self) -> str:
        return f"{_PREFIX}{next(self.numbers)}"

    def _drop_unread(self) -> None:
        """Remove stored weights that only products read; the new ones are as large."""
        gone = {name for name in self.raised if name in self.stored} - set(_reads(self.graph))
        kept = [tensor for tensor in self.graph.initializer if tensor.name not in gone]
        if gone:
            del self.graph.initializer[:]
            self.graph.initializer.extend(kept)


def _reads(graph: onnx.GraphProto) -> Iterator[str]:
    """Names that a graph's nodes, their sub-graphs and its outputs read."""
    yield from (value.name for value in graph.output)
    for node in graph.node:
        yield from node.input
        for inner in _graphs(node):
            yield from _reads(inner)


def _input(node: onnx.NodeProto, place: int) -> str:
    return node.input[place] if place < len(node.input) else ""


def _type_of(node: onnx.NodeProto, place: int, types: Types, inner: Sequence[_Scope]) -> int:
    """Element type of an output as far as 8-bit products need it; 0 where it is not told.

    ONNX's own inference stops at operators of other domains.  Those that give 8-bit integers have
    them from a constant, a body, or an operand of the same type.
    """
    given = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type in ("Cast", "QuantizeLinear", "ConstantOfShape", "Constant"):
        if "to" in given:
            return int(given["to"].i)
        if given.get("output_dtype") and given["output_dtype"].i:
            return int(given["output_dtype"].i)
        if "value" in given:
            return int(given["value"].t.data_type)
        if node.op_type == "QuantizeLinear":
            zero = _input(node, 2)
            return types.get(zero, 0) if zero else _U8
        return 0
    if node.op_type == "DynamicQuantizeLinear":
        return _U8 if place in (0, 2) else 0
    if node.op_type == "CastLike":
        return types.get(_input(node, 1), 0)
    if inner:
        return _body_type(node, place, inner)
    kinds = (types.get(name, 0) for name in node.input)
    return next((kind for kind in kinds if kind in (_U8, _I8)), 0)


def _body_type(node: onnx.NodeProto, place: int, inner: Sequence[_Scope]) -> int:
    """Type of an output of If, Loop (its condition comes first) or Scan."""
    body = inner[0]
    at = place + (1 if node.op_type == "Loop" else 0)
    return body.types.get(body.graph.output[at].name, 0) if at < len(body.graph.output) else 0
