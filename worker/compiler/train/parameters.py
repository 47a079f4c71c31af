"""Which initializers a step trains, and the dropouts: before anything is simplified.

A trained initializer becomes an input, so that nothing folds it into another; so do running
statistics, which a step keeps up to date.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir

from worker.compiler.errors import Finding, ModelError
from worker.compiler.frontend.edit import Names, constant_of, is_graph
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.shapes import infer_model, is_static
from worker.compiler.frontend.slice import captured
from worker.compiler.train.derive import flows, reaching
from worker.compiler.train.emit import FLOATS
from worker.compiler.train.options import Loss, TrainOptions
from worker.compiler.train.rules.registry import NO_VALUES, STEPS

_QUANTISED = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger"}
)
_NARROW = (onnx_ir.DataType.FLOAT16, onnx_ir.DataType.BFLOAT16)


@dataclass(frozen=True, slots=True)
class Mask:
    """A dropout, which a step takes as an input."""

    input: str
    """Of the dropout's operand's shape: 0 where it drops, 1 / (1 - ratio) where it keeps."""
    ratio: float


@dataclass(slots=True)
class Lifted:
    """What became an input."""

    tensors: dict[str, Any] = field(default_factory=dict)
    """Initializer -> its tensor in the user's file."""
    statistics: list[str] = field(default_factory=list)
    """Running means and variances of BatchNormalization."""
    masks: list[Mask] = field(default_factory=list)


def lift_parameters(model: OnnxModel, options: TrainOptions) -> Lifted:
    """Make the value that the loss is taken of the only output, and inputs of what is trained.

    Edits `model.ir`, which is bound.  Every float initializer of rank 1 or more that a gradient may
    flow to is lifted; scalars are constants of the exporter's.

    Raises:
        ModelError: TW-TRAIN-001, -002; TW-MODEL-017, a dropout of unknown shape.
    """
    graph = model.ir.graph
    infer_model(model.ir)
    _require_floats(graph)
    output = _output(graph, options)
    graph.outputs.clear()
    graph.outputs.append(output)
    _require_frozen(graph, options.freeze)
    lifted = Lifted()
    _mask_dropouts(model, lifted)
    output = graph.outputs[0]  # the last node may have been a dropout
    for node in graph:
        if node.op_type == "BatchNormalization" and node.domain == "":
            lifted.statistics += [
                str(v.name) for v in node.inputs[3:5] if v is not None and v.is_initializer()
            ]
    candidates = [
        value for name, value in graph.initializers.items()
        if name not in options.freeze and value.dtype in FLOATS and value.shape is not None
        and len(value.shape) > 0
    ]  # fmt: skip
    passed = reaching(list(graph), output, candidates)
    wanted = {v for node in passed for k in flows(node) if (v := node.inputs[k]) is not None}
    touched = _touched(list(graph), output)
    for value in candidates:
        name = str(value.name)
        if value in wanted or name in lifted.statistics or (value in touched):
            _lift(graph, value, lifted)
    return lifted


def restore(model: OnnxModel, lifted: Lifted, names: Iterable[str]) -> None:
    """Make constants of inputs again."""
    graph = model.ir.graph
    values = {v.name: v for v in graph.inputs}
    for name in names:
        value = values[name]
        graph.inputs.remove(value)
        value.const_value = lifted.tensors.pop(name)
        graph.register_initializer(value)


def require_slopes(
    nodes: Sequence[onnx_ir.Node], output: onnx_ir.Value, left: Sequence[onnx_ir.Value]
) -> None:
    """Refuse parameters that reach the loss through integers or steps only.

    Raises:
        ModelError: TW-TRAIN-004, a finding for each at the first node without a slope.
    """
    touched = _touched(nodes, output)
    findings = []
    for value in left:
        if value not in touched:
            continue
        seen = {value}
        for node in nodes:
            if not any(v in seen for v in node.inputs) or not touched & set(node.outputs):
                continue
            if node.op_type in STEPS or not any(v.dtype in FLOATS for v in node.outputs):
                findings.append(
                    Finding(
                        "TW-TRAIN-004",
                        f"{value.name!r} reaches the loss only through {node.op_type}"
                        f" {node.name!r}, whose slope is zero",
                        None, node.name, None, value.name,
                    )
                )  # fmt: skip
                break
            seen.update(node.outputs)
    if findings:
        raise ModelError(
            "TW-TRAIN-004", "; ".join(f.message for f in findings[:10]), node=findings[0].node,
            findings=tuple(findings),
        )  # fmt: skip


def _touched(nodes: Sequence[onnx_ir.Node], output: onnx_ir.Value) -> set[onnx_ir.Value]:
    """What the value of `output` depends on, through integers too.

    Not what steers an operator: limits of a Clip, scales of a Resize.
    """
    touched = {output}
    for node in reversed(nodes):
        if not touched & set(node.outputs) or node.op_type in NO_VALUES:
            continue
        slopes = set(flows(node)) if node.op_type not in STEPS else {0}
        touched.update(
            v for k, v in enumerate(node.inputs)
            if v is not None and (k in slopes or v.dtype not in FLOATS or not _has_slope(node))
        )  # fmt: skip
        if any(map(is_graph, node.attributes.values())):
            touched.update(captured([node]))
    return touched


def _has_slope(node: onnx_ir.Node) -> bool:
    return any(v.dtype in FLOATS for v in node.outputs)


def _lift(graph: onnx_ir.Graph, value: onnx_ir.Value, lifted: Lifted) -> None:
    name = str(value.name)
    lifted.tensors[name] = value.const_value
    graph.initializers.pop(name)
    value.const_value = None
    graph.inputs.append(value)


def _require_floats(graph: onnx_ir.Graph) -> None:
    findings = [
        Finding("TW-TRAIN-001", f"{node.op_type} computes with integers", None, node.name, None,
                node.op_type)
        for node in graph.all_nodes()
        if node.op_type in _QUANTISED or node.op_type.startswith("QLinear")
    ]  # fmt: skip
    findings += [
        Finding("TW-TRAIN-001", f"initializer {name!r} has 16 bits", None, None, None, name)
        for name, value in graph.initializers.items()
        if value.dtype in _NARROW and value.shape is not None and len(value.shape) > 0
    ]
    if findings:
        first = findings[0]
        raise ModelError(
            "TW-TRAIN-001", f"{first.message}: {len(findings)} such in the model",
            node=first.node, findings=tuple(findings),
        )  # fmt: skip


def _output(graph: onnx_ir.Graph, options: TrainOptions) -> onnx_ir.Value:
    """The value that the loss is taken of."""
    named = [v.name for v in graph.outputs]
    if options.output is None and len(named) > 1:
        raise ModelError(
            "TW-TRAIN-002", f"the model has {len(named)} outputs, and none is named",
            limit=[str(n) for n in named], remedy="Name one of them as output.",
        )  # fmt: skip
    wanted = options.output or named[0]
    found = next((v for node in graph for v in node.outputs if v.name == wanted), None)
    if found is None:
        raise ModelError(
            "TW-TRAIN-002", f"no node of the model gives {wanted!r}",
            limit=[str(n) for n in named], actual=wanted,
        )  # fmt: skip
    maker = found.producer()
    if found.dtype is not None and found.dtype not in FLOATS:
        raise ModelError(
            "TW-TRAIN-002", f"{wanted!r} has type {found.dtype}: a loss has no slope by integers",
            node=maker.name if maker else None, actual=str(found.dtype),
            remedy="Name the float value before it as output.",
        )  # fmt: skip
    if options.loss is Loss.CROSS_ENTROPY and maker and maker.op_type == "Softmax":
        logits = maker.inputs[0]
        raise ModelError(
            "TW-TRAIN-002", f"{wanted!r} has probabilities; cross entropy is taken of logits",
            node=maker.name, actual=wanted,
            remedy=f"Name {logits.name if logits else ''!r}, what Softmax reads, as output.",
        )  # fmt: skip
    return found


def _require_frozen(graph: onnx_ir.Graph, freeze: Sequence[str]) -> None:
    for name in freeze:
        if name not in graph.initializers or graph.initializers[name].dtype not in FLOATS:
            raise ModelError(
                "TW-TRAIN-002", f"freeze: the model has no float initializer {name!r}",
                actual=name, remedy="Name an initializer of the model, or leave it out.",
            )  # fmt: skip


def _mask_dropouts(model: OnnxModel, lifted: Lifted) -> None:
    """Replace each Dropout that drops by a product with a mask, under the node's name."""
    graph = model.ir.graph
    names = Names(graph)
    for node in list(graph):
        if node.op_type != "Dropout" or node.domain != "" or (ratio := _ratio(node)) == 0:
            continue
        x = node.inputs[0]
        if x is None or not is_static(x) or any(v.uses() for v in node.outputs[1:]):
            raise ModelError(
                "TW-TRAIN-003",
                f"Dropout {node.name!r}: the shape of its operand must be known and its mask"
                " unread, for a step takes the mask as an input",
                node=node.name,
            )
        mask = onnx_ir.Value(
            name=names.fresh(f"{node.name or node.outputs[0].name}/mask"),
            shape=x.shape, type=x.type,
        )  # fmt: skip
        graph.inputs.append(mask)
        product = onnx_ir.node("Mul", [x, mask], name=node.name)
        graph.insert_before(node, [product])
        made, old = product.outputs[0], node.outputs[0]
        made.shape, made.type = old.shape, old.type
        name, is_output = old.name, old.is_graph_output()
        old.replace_all_uses_with(made, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        made.name = name if is_output else names.fresh(f"{mask.name}ed")
        lifted.masks.append(Mask(str(mask.name), ratio))


def _ratio(node: onnx_ir.Node) -> float:
    attribute = node.attributes.get("ratio")
    if attribute is not None:
        return attribute.as_float()
    if len(node.inputs) < 2 or node.inputs[1] is None:
        return 0.5
    value = node.inputs[1]
    maker = value.producer()
    if maker is not None and maker.op_type == "Constant":
        inner = maker.attributes.get("value") or maker.attributes.get("value_float")
        if inner is not None:
            is_tensor = inner.type == onnx_ir.AttributeType.TENSOR
            return float(inner.as_tensor().numpy()) if is_tensor else inner.as_float()
    tensor = constant_of(value)
    if tensor is None:
        raise ModelError(
            "TW-TRAIN-003", f"Dropout {node.name!r}: its ratio is computed", node=node.name
        )
    return float(tensor.numpy())
