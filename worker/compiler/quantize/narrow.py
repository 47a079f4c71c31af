"""Let chosen nodes compute in f16 or bf16: casts at the edges, constants cast at compile time.

x ─ Cast ─ node ─ node ┬ next node
                       └ Cast ─ whoever reads the value outside the region, under its old name
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx.defs
import onnx_ir

from worker.compiler.frontend.edit import constant_of
from worker.compiler.frontend.ops.call import DTYPES
from worker.compiler.frontend.work import static_shape
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import Conversion
from worker.compiler.quantize.boundary import Boundary, BoundaryKind
from worker.compiler.quantize.insert import Inserter, drop_unused, take_over
from worker.compiler.quantize.ranges import Observed
from worker.compiler.quantize.roles import CONVERSIONS
from worker.compiler.quantize.sqnr import sqnr_db

_SCATTERS = frozenset({"ScatterElements", "ScatterND"})
_TYPES = {DType.F16: onnx_ir.DataType.FLOAT16, DType.BF16: onnx_ir.DataType.BFLOAT16}
_LARGEST = {DType.F16: 65504.0, DType.BF16: 3.3895313892515355e38}
"""Largest finite number of each type."""


@dataclass(frozen=True, slots=True)
class NarrowMember:
    """One node that computes in a narrower type."""

    node: onnx_ir.Node
    target: str
    dtype: DType
    inputs: tuple[int, ...]
    """Positions that change their type, constants included."""
    outputs: tuple[int, ...]


def select_narrow(
    nodes: Sequence[onnx_ir.Node],
    targets: Sequence[str],
    choices: Mapping[str, Conversion],
    opset: int,
    excluded: Mapping[str, str],
) -> tuple[tuple[NarrowMember, ...], tuple[tuple[str, str], ...]]:
    """Choose among `nodes`, which stand on `targets`; also give (node, why) of those left alone.

    A node is left alone when ONNX does not define it on the narrow type, or when one of its
    constants would overflow.

    Args:
        choices: conversions to F16 or BF16 by target name.
        excluded: nodes that must stay as they are, and why.

    Cost: linear; reads the constants of chosen nodes.
    """
    chosen: list[NarrowMember] = []
    left: list[tuple[str, str]] = []
    for node, target in zip(nodes, targets, strict=True):
        conversion = choices.get(target)
        if conversion is None or node.op_type in CONVERSIONS or not _touches(node, conversion):
            continue
        why = excluded.get(node.name or "", "")
        if not why and conversion.op_types and node.op_type not in conversion.op_types:
            why = f"the target converts only {', '.join(conversion.op_types)}"
        member = None if why else _member(node, target, conversion, opset)
        if isinstance(member, NarrowMember):
            why = _overflow(member)
        if isinstance(member, NarrowMember) and not why:
            chosen.append(member)
        else:
            left.append((node.name or "", why or str(member)))
    return tuple(chosen), tuple(left)


def observed_names(members: Sequence[NarrowMember]) -> tuple[str, ...]:
    """Computed values of static shape that change their type, each once, in model order."""
    found: dict[str, None] = {}
    for member in members:
        values = [member.node.inputs[k] for k in member.inputs]
        values += [member.node.outputs[k] for k in member.outputs]
        found.update(
            (v.name, None)
            for v in values
            if v is not None and v.name and constant_of(v) is None and static_shape(v) is not None
        )
    return tuple(found)


def overflowing(
    members: Sequence[NarrowMember], observed: Mapping[str, Observed]
) -> dict[str, str]:
    """Nodes that read or make a value too large for their type, and the sentence that says so.

    Infinite values are no reason: they stay what they are.
    """
    found: dict[str, str] = {}
    for member in members:
        for name in observed_names([member]):
            seen = observed[name]
            reach = max(-seen.low, seen.high)
            if not seen.is_finite:
                finite = seen.sample[np.isfinite(seen.sample)]
                reach = float(np.abs(finite).max()) if finite.size else 0.0
            if reach > _LARGEST[member.dtype]:
                found[member.node.name or ""] = (
                    f"{name} reaches {reach:g}, beyond {member.dtype}'s {_LARGEST[member.dtype]:g}"
                )
    return found


def rewrite_narrow(
    graph: onnx_ir.Graph,
    members: Sequence[NarrowMember],
    observed: Mapping[str, Observed],
    producers: Mapping[str, str],
) -> tuple[Boundary, ...]:
    """Edit `graph`; give the boundaries in the order of their nodes.

    Args:
        producers: name of the user's node that makes a value, by the value's name.

    Cost: linear in nodes and in the elements of their constants.
    """
    return _Rewriter(graph, members, observed, producers).run()


class _Rewriter:
    def __init__(
        self,
        graph: onnx_ir.Graph,
        members: Sequence[NarrowMember],
        observed: Mapping[str, Observed],
        producers: Mapping[str, str],
    ) -> None:
        self._graph = graph
        self._members = members
        self._observed = observed
        self._producers = producers
        self._inserter = Inserter(graph)
        self._casts: dict[tuple[onnx_ir.Value, DType], onnx_ir.Value] = {}
        self._replaced: dict[onnx_ir.Value, None] = {}
        self._inside = {(m.node, k, m.dtype) for m in members for k in m.inputs}
        self._boundaries: list[Boundary] = []

    def run(self) -> tuple[Boundary, ...]:
        for member in self._members:
            for k in member.inputs:
                self._read(member, k)
            for k in member.outputs:
                self._write(member, member.node.outputs[k])
            if member.node.op_type == "Cast" and member.outputs:
                kind = _TYPES[member.dtype]
                member.node.attributes["to"] = onnx_ir.AttrInt64("to", int(kind))
        drop_unused(self._graph, list(self._replaced))
        return tuple(self._boundaries)

    def _read(self, member: NarrowMember, k: int) -> None:
        node, kind = member.node, _TYPES[member.dtype]
        value = node.inputs[k]
        assert value is not None
        if value.dtype == kind:
            return
        key = (value, member.dtype)
        if key not in self._casts:
            tensor, name = constant_of(value), f"{value.name}/{member.dtype}"
            if tensor is not None:
                array = _narrowed(tensor.numpy(), member.dtype)
                self._casts[key] = self._inserter.constant(name, array, kind)
            else:
                cast = self._inserter.node(
                    "Cast", "cast", node, [value], self._inserter.value_name(name), kind,
                    to=int(kind),
                )  # fmt: skip
                self._graph.insert_before(node, cast)
                self._casts[key] = cast.outputs[0]
                wide = value.dtype or onnx_ir.DataType.FLOAT
                self._note(member, value, value.name or "", wide, kind)
        self._replaced[value] = None
        node.replace_input_with(k, self._casts[key])

    def _write(self, member: NarrowMember, value: onnx_ir.Value) -> None:
        wide, kind, name = value.dtype, _TYPES[member.dtype], value.name or ""
        assert wide is not None
        outside = [
            (use.node, use.idx)
            for use in value.uses()
            if (use.node, use.idx, member.dtype) not in self._inside
        ]
        value.type = onnx_ir.TensorType(kind)
        if not outside and not value.is_graph_output():
            return
        value.name = self._inserter.value_name(f"{name}/{member.dtype}")
        cast = self._inserter.node("Cast", "cast", member.node, [value], name, wide, to=int(wide))
        take_over(self._graph, value, cast.outputs[0], outside)
        self._graph.insert_after(member.node, cast)
        self._note(member, value, name, kind, wide)

    def _note(
        self,
        member: NarrowMember,
        value: onnx_ir.Value,
        name: str,
        before: onnx_ir.DataType,
        after: onnx_ir.DataType,
    ) -> None:
        elements = prod(static_shape(value) or ())
        db, reason = None, "its shape is not known"
        if name in self._observed:
            sample = self._observed[name].sample
            measured = sqnr_db(sample, _narrowed(sample, member.dtype).astype(np.float32))
            db, reason = measured.db, measured.reason
        self._boundaries.append(
            Boundary(
                name, self._producers.get(name, ""), member.target, BoundaryKind.CAST,
                member.dtype, None, None, elements, elements * before.bitwidth // 8,
                elements * after.bitwidth // 8, db, reason,
            )
        )  # fmt: skip


def _touches(node: onnx_ir.Node, conversion: Conversion) -> bool:
    return any(_is_wide(v, conversion) for v in (*node.inputs, *node.outputs))


def _is_wide(value: onnx_ir.Value | None, conversion: Conversion) -> bool:
    return (
        value is not None
        and value.dtype is not None
        and DTYPES.get(value.dtype) in conversion.sources
        and value.dtype.is_floating_point()
        and DTYPES.get(value.dtype) is not conversion.dtype
    )


def _member(
    node: onnx_ir.Node, target: str, conversion: Conversion, opset: int
) -> NarrowMember | str:
    """The member, or why ONNX has no such node in the narrow type."""
    if node.domain != "":
        return f"operators of {node.domain!r} have fixed types"
    reduction = node.attributes.get("reduction")
    if node.op_type in _SCATTERS and reduction is not None and reduction.as_string() != "none":
        return "ONNX Runtime does not accumulate scattered values in 16 bits"
    if any(a.type in (onnx_ir.AttributeType.GRAPH, onnx_ir.AttributeType.GRAPHS)
           for a in node.attributes.values()):  # fmt: skip
        return "it has a body of its own"
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return f"opset {opset} does not define {node.op_type}"
    wanted = f"tensor({_TYPES[conversion.dtype].name.lower()})"
    bound: set[str] = set()
    inputs: list[int] = []
    for k, value in enumerate(node.inputs):
        formal = schema.inputs[min(k, len(schema.inputs) - 1)]
        if _is_wide(value, conversion) and wanted in formal.types:
            inputs.append(k)
            bound.add(formal.type_str)
    outputs: list[int] = []
    for k, value in enumerate(node.outputs):
        formal = schema.outputs[min(k, len(schema.outputs) - 1)]
        follows = formal.type_str in bound or node.op_type == "Cast"
        if value.name and _is_wide(value, conversion) and wanted in formal.types and follows:
            outputs.append(k)
    if not inputs and not outputs:
        return f"{node.op_type} is not defined on {conversion.dtype} in opset {opset}"
    if node.op_type != "Cast" and all(constant_of(node.inputs[k]) is not None for k in inputs):
        return "all its operands are constant"
    return NarrowMember(node, target, conversion.dtype, tuple(inputs), tuple(outputs))


def _overflow(member: NarrowMember) -> str:
    """Which constant would become infinite; empty when none does."""
    for k in member.inputs:
        value = member.node.inputs[k]
        tensor = constant_of(value)
        if value is None or tensor is None or not tensor.size:
            continue
        array = tensor.numpy()
        reach = float(max(-array.min(), array.max()))
        if reach <= _LARGEST[member.dtype]:
            continue
        finite = np.abs(array[np.isfinite(array)])
        if finite.size and float(finite.max()) > _LARGEST[member.dtype]:
            return (
                f"its constant {value.name} reaches {float(finite.max()):g}, beyond"
                f" {member.dtype}'s {_LARGEST[member.dtype]:g}"
            )
    return ""


def _narrowed(array: npt.NDArray[Any], dtype: DType) -> npt.NDArray[Any]:
    with np.errstate(over="ignore"):  # values out of range have kept their node as it was
        return array.astype(_TYPES[dtype].numpy())
