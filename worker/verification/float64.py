"""A model in float64, for ONNX Runtime: how far the reference's own roundings take it.

Every float of 16 or 32 bits becomes a float64: weights and inputs are cast where they are first
used (so the file keeps its weights), nodes compute in float64 where ONNX Runtime can.  A node that
it cannot compute so stays as it is between casts: it rounds once, where the reference does too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from worker.compiler.frontend.functions import written_out
from worker.verification.float64_bodies import body_of
from worker.verification.float64_conv import FIRST_OPSET, emit_conv
from worker.verification.float64_kernels import has_float64_kernel
from worker.verification.float64_lrn import emit_lrn
from worker.verification.float64_nodes import PREFIX, Emitter
from worker.verification.value_types import LOW, Untyped, inferred, tensor_type, types_of

_DOUBLE = onnx.TensorProto.DOUBLE
_AXES_ARE_INPUTS = 18
"""Of ReduceMean, from this opset on."""
FORCED = f"{PREFIX}given/"
"""Begins the names of extra inputs that stand in for values of the model."""


class NoFloat64(Exception):
    """The model cannot be said in float64; the text says why."""


@dataclass(slots=True)
class Float64Model:
    """A model whose floats are float64."""

    model: onnx.ModelProto
    outputs: tuple[str, ...]
    """Of the names asked for, those it gives."""
    kept: int
    """Nodes that compute in the model's own types."""


@dataclass(slots=True)
class _Names:
    """What a graph sees of the graphs around it."""

    types: dict[str, onnx.TypeProto]
    """In the user's model."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Weights and inputs -> their float64 form."""
    raised: set[str] = field(default_factory=set)
    """Values that are float64 now, by the user's names."""

    def inner(self) -> _Names:
        return _Names(dict(self.types), dict(self.renamed), set(self.raised))


def in_float64(
    model: onnx.ModelProto, names: Sequence[str], forced: Mapping[str, Sequence[str]]
) -> Float64Model:
    """The model with `names` (values that nodes make) as its outputs, in float64.

    `forced` has, by operator type, values that nodes of that type take from extra inputs
    (`FORCED` + name, of the value's own type) instead of from the graph.  The result may share
    messages with `model`.

    Raises:
        NoFloat64: a type is not known, or a sequence of floats would have to change its type.
    Cost: linear in the nodes; weights stay where they are.
    """
    model = written_out(model)
    try:
        typed = inferred(model)
    except Untyped as error:
        raise NoFloat64(str(error)) from error
    versions = {entry.domain: entry.version for entry in model.opset_import}
    walk = _Walk(versions, forced)
    made = {name for node in model.graph.node for name in node.output}
    scope = _Names({})
    graph = walk.graph(model.graph, typed, scope, is_main=True)
    asked = tuple(n for n in dict.fromkeys(names) if n in made)
    del graph.output[:]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in asked)
    for name in sorted(walk.given):
        extra = graph.input.add(name=FORCED + name)
        extra.type.CopyFrom(scope.types[name])
    result = onnx.ModelProto(ir_version=max(model.ir_version, 4), graph=graph)
    result.opset_import.extend(model.opset_import)
    return Float64Model(result, asked, walk.kept)


class _Walk:
    def __init__(self, versions: Mapping[str, int], forced: Mapping[str, Sequence[str]]) -> None:
        self._versions = versions
        self._forced = forced
        self._names = [0]
        self.given: set[str] = set()
        self.kept = 0

    def graph(
        self, graph: onnx.GraphProto, inferred: onnx.GraphProto, scope: _Names, is_main: bool
    ) -> onnx.GraphProto:
        scope.types.update(types_of(inferred))
        nodes: list[onnx.NodeProto] = []
        emit = Emitter(nodes, self._names)
        result = onnx.GraphProto(name=graph.name)
        result.initializer.extend(graph.initializer)
        result.sparse_initializer.extend(graph.sparse_initializer)
        waiting = {t.name for t in graph.initializer if t.data_type in LOW}
        for value in graph.input:
            kept = result.input.add()
            kept.CopyFrom(value)
            low = tensor_type(value.type) in LOW
            if is_main and low:
                waiting.add(value.name)
            elif low:
                kept.type.tensor_type.elem_type = _DOUBLE
                scope.raised.add(value.name)
            elif _has_low(value.type):
                raise NoFloat64(f"{value.name} is no tensor")
        inner = _inner_graphs(inferred)
        for number, node in enumerate(graph.node):
            self._raise_inputs(node, waiting, scope, emit)
            self._node(node, inner.get(number, {}), scope, emit)
        for value in graph.output:
            self._raise(value.name, waiting, scope, emit)
            kept = result.output.add(name=scope.renamed.get(value.name, value.name))
            if not is_main and value.HasField("type"):
                kept.type.CopyFrom(value.type)
                if tensor_type(kept.type) in LOW:
                    kept.type.tensor_type.elem_type = _DOUBLE
        result.node.extend(nodes)
        return result

    def _raise_inputs(
        self, node: onnx.NodeProto, waiting: set[str], scope: _Names, emit: Emitter
    ) -> None:
        for name in sorted(_reads(node) & waiting):
            self._raise(name, waiting, scope, emit)

    def _raise(self, name: str, waiting: set[str], scope: _Names, emit: Emitter) -> None:
        """Cast a weight or an input where it is first used."""
        if name in waiting:
            waiting.discard(name)
            scope.renamed[name] = emit.node("Cast", [name], to=_DOUBLE)
            scope.raised.add(name)

    def _node(
        self,
        node: onnx.NodeProto,
        inner: Mapping[str, onnx.GraphProto],
        scope: _Names,
        emit: Emitter,
    ) -> None:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        taken = self._forced.get(node.op_type, ())
        for k, name in enumerate(node.input):
            if name in taken:
                copy.input[k] = self._given(name, scope, emit)
            else:
                copy.input[k] = scope.renamed.get(name, name)
        for found in copy.attribute:
            if found.type == onnx.AttributeProto.GRAPH:
                body = self.graph(found.g, inner[found.name], scope.inner(), is_main=False)
                found.g.CopyFrom(body)
        low_in = [k for k, name in enumerate(node.input) if name in scope.raised]
        low_out = [k for k, name in enumerate(node.output) if name and _is_low(name, scope)]
        names = {*(copy.input[k] for k in low_in), *(copy.output[k] for k in low_out)}
        scope.raised.update(node.output[k] for k in low_out)
        if not names or inner:
            emit.take(copy)
        elif node.op_type == "Cast":
            _set_double(copy, "to")
            emit.take(copy)
        elif node.op_type == "SequenceEmpty":
            _set_double(copy, "dtype")
            emit.take(copy)
        elif node.domain == "" and self._spelled_out(node, copy, scope, emit):
            pass
        elif low_in and has_float64_kernel(copy, self._versions.get(node.domain, 1), names):
            emit.take(copy)
        elif not self._by_body(node, scope, emit):
            self._keep(node, copy, low_in, low_out, scope, emit)

    def _by_body(self, node: onnx.NodeProto, scope: _Names, emit: Emitter) -> bool:
        """Whether what the node is defined by stands in its place, in float64 as far as it goes."""
        if node.domain != "":
            return False
        body = body_of(node, scope.types, self._versions.get("", 1), emit.fresh)
        if body is None:
            return False
        scope.types.update(body.types)
        for inner in body.nodes:
            self._node(inner, {}, scope, emit)
        return True

    def _spelled_out(
        self, node: onnx.NodeProto, copy: onnx.NodeProto, scope: _Names, emit: Emitter
    ) -> bool:
        """Whether operators that ONNX Runtime has in float64 do what it has in float32 only."""
        match node.op_type:
            case "Conv":
                return self._conv(node, copy, scope, emit)
            case "GlobalAveragePool":
                return self._mean(node, copy, scope, emit)
            case "LRN":
                return emit_lrn(emit, copy, _shape(scope.types.get(node.input[0])))
            case _:
                return False

    def _conv(
        self, node: onnx.NodeProto, copy: onnx.NodeProto, scope: _Names, emit: Emitter
    ) -> bool:
        shapes = [_shape(scope.types.get(name)) for name in node.input[:2]]
        return self._versions.get("", 1) >= FIRST_OPSET and emit_conv(emit, copy, *shapes)

    def _mean(
        self, node: onnx.NodeProto, copy: onnx.NodeProto, scope: _Names, emit: Emitter
    ) -> bool:
        """A mean over all but samples and channels."""
        shape = _shape(scope.types.get(node.input[0]))
        if shape is None:
            return False
        axes = list(range(2, len(shape)))
        mean = onnx.NodeProto(op_type="ReduceMean", input=copy.input[:1], output=copy.output)
        if self._versions.get("", 1) >= _AXES_ARE_INPUTS:
            mean.input.append(emit.constant(np.array(axes, np.int64)))
        else:
            mean.attribute.add(name="axes", type=onnx.AttributeProto.INTS, ints=axes)
        emit.take(mean)
        return True

    def _keep(
        self,
        node: onnx.NodeProto,
        copy: onnx.NodeProto,
        low_in: Sequence[int],
        low_out: Sequence[int],
        scope: _Names,
        emit: Emitter,
    ) -> None:
        """The node between casts to its own types and back."""
        self.kept += bool(low_in)
        for k in low_in:
            kind = tensor_type(scope.types.get(node.input[k]))
            if kind not in LOW:
                raise NoFloat64(f"{node.op_type} {node.name} takes a sequence of floats")
            copy.input[k] = emit.node("Cast", [copy.input[k]], to=kind)
        own = {k: emit.fresh() for k in low_out}
        for k, name in own.items():
            if tensor_type(scope.types.get(node.output[k])) not in LOW:
                raise NoFloat64(f"{node.op_type} {node.name} makes a sequence of floats")
            copy.output[k] = name
        emit.take(copy)
        for k, name in own.items():
            emit.node("Cast", [name], output=node.output[k], to=_DOUBLE)

    def _given(self, name: str, scope: _Names, emit: Emitter) -> str:
        """The value of an extra input, in float64 where it is a float."""
        if name not in scope.types:
            raise NoFloat64(f"the type of {name} is not known")
        self.given.add(name)
        if _is_low(name, scope):
            return emit.node("Cast", [FORCED + name], to=_DOUBLE)
        return FORCED + name


def _inner_graphs(graph: onnx.GraphProto) -> dict[int, dict[str, onnx.GraphProto]]:
    """By position of a node: its bodies by attribute name, with what inference found."""
    found: dict[int, dict[str, onnx.GraphProto]] = {}
    for number, node in enumerate(graph.node):
        for entry in node.attribute:
            if entry.type == onnx.AttributeProto.GRAPH:
                found.setdefault(number, {})[entry.name] = entry.g
    return found


def _reads(node: onnx.NodeProto) -> set[str]:
    """Names a node reads, those that its bodies capture included."""
    names = set(node.input)
    for entry in node.attribute:
        if entry.type == onnx.AttributeProto.GRAPH:
            for inner in entry.g.node:
                names |= _reads(inner)
            names.update(value.name for value in entry.g.output)
    return names


def _has_low(kind: onnx.TypeProto) -> bool:
    """Whether floats are anywhere inside a type."""
    if kind.HasField("sequence_type"):
        return _has_low(kind.sequence_type.elem_type)
    if kind.HasField("optional_type"):
        return _has_low(kind.optional_type.elem_type)
    return tensor_type(kind) in LOW


def _is_low(name: str, scope: _Names) -> bool:
    if name not in scope.types:
        raise NoFloat64(f"the type of {name} is not known")
    return _has_low(scope.types[name])


def _set_double(node: onnx.NodeProto, name: str) -> None:
    """Let an attribute that names a float type name float64."""
    for found in node.attribute:
        if found.name == name and found.i in LOW:
            found.i = _DOUBLE


def _shape(kind: onnx.TypeProto | None) -> list[int | None] | None:
    if kind is None or not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    return [d.dim_value if d.HasField("dim_value") else None for d in dims]
