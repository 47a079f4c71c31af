"""Rewrite chosen nodes into QDQ form: the interchange form of integer operators.

    x ─ Q ─ DQ ─ node ─ Q ┬ DQ ─ next node
                          └ DQ ─ whoever reads the value outside the region, under its old name

One QuantizeLinear per value and target, one DequantizeLinear per reading node.  Every float between
a DQ and a Q is f32, whatever the model's type; casts stand outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import onnx_ir

from worker.compiler.frontend.edit import constant_of
from worker.compiler.frontend.work import static_shape
from worker.compiler.machine.machine import Conversion
from worker.compiler.quantize.boundary import Boundary, BoundaryKind
from worker.compiler.quantize.insert import Inserter, drop_unused, take_over
from worker.compiler.quantize.parameters import QuantParameters, dequantise, quantise
from worker.compiler.quantize.ranges import Observed
from worker.compiler.quantize.roles import CONVERSIONS, Role, data_inputs
from worker.compiler.quantize.select import Key, Member, Selection
from worker.compiler.quantize.sqnr import sqnr_db
from worker.compiler.quantize.weights import ConstantQuantiser, onnx_type

_F32 = onnx_ir.DataType.FLOAT


def rewrite_integer(
    graph: onnx_ir.Graph,
    selection: Selection,
    choices: Mapping[str, Conversion],
    parameters: Mapping[Key, QuantParameters],
    observed: Mapping[str, Observed],
) -> tuple[Boundary, ...]:
    """Edit `graph`; give the boundaries in the order of their nodes.

    Args:
        parameters: of every key of the selection.
        observed: of every value of the selection, by its name before the rewrite.

    Cost: linear in nodes and in the elements of their constants.
    """
    return _Rewriter(graph, selection, choices, parameters, observed).run()


class _Rewriter:
    def __init__(
        self,
        graph: onnx_ir.Graph,
        selection: Selection,
        choices: Mapping[str, Conversion],
        parameters: Mapping[Key, QuantParameters],
        observed: Mapping[str, Observed],
    ) -> None:
        self._graph = graph
        self._selection = selection
        self._choices = choices
        self._parameters = parameters
        self._observed = observed
        self._inserter = Inserter(graph)
        self._constants = ConstantQuantiser(self._inserter)
        self._quantised: dict[Key, onnx_ir.Value] = {}
        self._name_of = {key[0]: key[0].name or "" for key in selection.keys}
        self._type_of = {key[0]: key[0].dtype or _F32 for key in selection.keys}
        self._inside = {
            (member.node, k, member.target) for member in selection.members for k, _ in member.reads
        }
        self._boundaries: list[Boundary] = []

    def run(self) -> tuple[Boundary, ...]:
        for member in self._selection.members:
            self._read(member)
            self._take_constants(member)
            self._write(member)
        drop_unused(self._graph, list(dict.fromkeys(self._constants.replaced)))
        return tuple(self._boundaries)

    def _read(self, member: Member) -> None:
        node = member.node
        made: dict[onnx_ir.Value, onnx_ir.Value] = {}
        for k, value in member.reads:
            key = (value, member.target)
            if key not in self._quantised:
                source = node.inputs[k]
                assert source is not None
                self._enter(key, source, node)
            if value not in made:
                name = self._inserter.value_name(f"{self._name_of[value]}/dequantized")
                made[value] = self._dequantise(key, node, name, before=node)
            node.replace_input_with(k, made[value])

    def _enter(self, key: Key, source: onnx_ir.Value, node: onnx_ir.Node) -> None:
        """Quantise a value that comes from outside the target's nodes, before `node`."""
        if source.dtype != _F32:
            cast = self._inserter.node(
                "Cast", "cast", node, [source],
                self._inserter.value_name(f"{source.name}/f32"), _F32, to=int(_F32),
            )  # fmt: skip
            self._graph.insert_before(node, cast)
            source = cast.outputs[0]
        self._graph.insert_before(node, self._quantise(key, source, node))
        self._note(key, BoundaryKind.QUANTIZE)

    def _quantise(self, key: Key, source: onnx_ir.Value, owner: onnx_ir.Node) -> onnx_ir.Node:
        parameters = self._parameters[key]
        base = self._name_of[key[0]]
        scale, zero = self._constants.scale_and_zero(base, parameters)
        made = self._inserter.node(
            "QuantizeLinear", "quantize", owner, [source, scale, zero],
            self._inserter.value_name(f"{base}/quantized"), onnx_type(parameters.dtype),
        )  # fmt: skip
        self._quantised[key] = made.outputs[0]
        return made

    def _dequantise(
        self, key: Key, owner: onnx_ir.Node, name: str, before: onnx_ir.Node
    ) -> onnx_ir.Value:
        made = self._dequantisation(key, owner, name)
        self._graph.insert_before(before, made)
        return made.outputs[0]

    def _dequantisation(self, key: Key, owner: onnx_ir.Node, name: str) -> onnx_ir.Node:
        base = self._name_of[key[0]]
        scale, zero = self._constants.scale_and_zero(base, self._parameters[key])
        return self._inserter.node(
            "DequantizeLinear", "dequantize", owner, [self._quantised[key], scale, zero], name, _F32
        )

    def _take_constants(self, member: Member) -> None:
        node, conversion = member.node, self._choices[member.target]
        made: list[onnx_ir.Node] = []
        if member.role is Role.CONTRACTION:
            made = self._constants.contraction(node, self._input_scale(member), conversion)
        else:
            for k in data_inputs(node):
                tensor = constant_of(node.inputs[k])
                if tensor is None or not tensor.dtype.is_floating_point():
                    continue
                if member.role is Role.JOINED and member.writes:
                    own = self._parameters[member.writes[0], member.target]
                    made.append(self._constants.given(node, k, own))
                else:
                    quantised = self._constants.operand(node, k, conversion)
                    made += [] if quantised is None else [quantised]
        self._graph.insert_before(node, made)
        self._constants.as_float32(node)

    def _input_scale(self, member: Member) -> float | None:
        """Scale of the one computed operand of a contraction, the model's own DQ included."""
        node = member.node
        computed = [v for v in node.inputs[:2] if v is not None and constant_of(v) is None]
        if len(computed) != 1:
            return None
        producer = computed[0].producer()
        if producer is None or producer.op_type not in CONVERSIONS:
            return None
        scale = constant_of(producer.inputs[1])
        return None if scale is None or scale.size != 1 else float(scale.numpy().reshape(()))

    def _write(self, member: Member) -> None:
        node = member.node
        last = node
        for value in member.writes:
            key = (value, member.target)
            outside = [
                (use.node, use.idx)
                for use in value.uses()
                if (use.node, use.idx, member.target) not in self._inside
            ]
            leaves = bool(outside) or value.is_graph_output()
            if leaves:
                value.name = self._inserter.value_name(f"{self._name_of[value]}/float")
            made = [self._quantise(key, value, node)]
            if leaves:
                made += self._leave(key, node)
                take_over(self._graph, value, made[-1].outputs[0], outside)
                self._note(key, BoundaryKind.DEQUANTIZE)
            self._graph.insert_after(last, made)
            last = made[-1]
        for value in node.outputs:
            if value.dtype is not None and value.dtype.is_floating_point():
                value.type = onnx_ir.TensorType(_F32)

    def _leave(self, key: Key, node: onnx_ir.Node) -> list[onnx_ir.Node]:
        """Dequantise a result under its old name and type."""
        name, dtype = self._name_of[key[0]], self._type_of[key[0]]
        if dtype == _F32:
            return [self._dequantisation(key, node, name)]
        inner = self._inserter.value_name(f"{name}/f32")
        back = self._dequantisation(key, node, inner)
        cast = self._inserter.node(
            "Cast", "cast", node, [back.outputs[0]], name, dtype, to=int(dtype)
        )
        return [back, cast]

    def _note(self, key: Key, kind: BoundaryKind) -> None:
        value, target = key
        parameters, name = self._parameters[key], self._name_of[value]
        elements = prod(static_shape(value) or ())
        floats = elements * self._type_of[value].bitwidth // 8
        integers = elements * parameters.dtype.size_bytes
        enters = kind is BoundaryKind.QUANTIZE
        sample = self._observed[name].sample
        measured = sqnr_db(sample, dequantise(quantise(sample, parameters), parameters))
        producer = value.producer()
        self._boundaries.append(
            Boundary(
                name, (producer.name if producer is not None else "") or "", target, kind,
                parameters.dtype, float(np.float32(parameters.scale)), int(parameters.zero_point),
                elements, floats if enters else integers, integers if enters else floats,
                measured.db, measured.reason,
            )
        )  # fmt: skip
