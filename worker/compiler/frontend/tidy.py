"""Remove what does nothing: identities, inference-time dropout, duplicates, dead code.

The library's passes for identities and duplicates lose a graph output whenever two outputs have one
source (`y = Relu(x), z = Identity(y)`), and merge nodes of which one lacks an output the other has.
"""

from __future__ import annotations

import onnx_ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from worker.compiler.frontend.calls import number_of
from worker.compiler.frontend.edit import constant_of
from worker.compiler.frontend.evaluate_node import RANDOM
from worker.compiler.frontend.passes import run_pass

_COMPARED_ELEMENTS = 10
"""Tensor attributes up to this size are compared; larger ones keep their nodes apart."""
_Key = tuple[object, ...]


def tidy(model: onnx_ir.Model) -> None:
    """Dropout, empty pieces, identities, common sub-expressions, dead code, in this order.

    In place.
    """
    run_pass("dropout", model, drop_dropout)
    run_pass("empty pieces", model, drop_empty_pieces)
    run_pass("identities", model, drop_identities)
    run_pass("duplicates", model, merge_duplicates)
    run_pass("dead code", model, RemoveUnusedNodesPass())


def drop_dropout(model: onnx_ir.Model) -> None:
    """Replace Dropout by its input where it does not train and nobody reads its mask."""
    for node in list(model.graph.all_nodes()):
        if node.op_type != "Dropout" or node.domain != "" or node.inputs[0] is None:
            continue
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            training = constant_of(node.inputs[2])
            if training is None or bool(training.numpy().any()):
                continue
        if any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
            continue
        # Identity keeps graph outputs and names right; it is eliminated next.
        node.op_type = "Identity"
        node.attributes.clear()
        node.resize_inputs(1)
        if len(node.outputs) > 1:
            node.resize_outputs(1)


def drop_empty_pieces(model: onnx_ir.Model) -> None:
    """Join only what has elements: a Concat loses inputs whose extent is 0.

    Function bodies write such pieces for what a special case leaves nothing of (RotaryEmbedding
    that rotates the whole head).
    """
    for node in list(model.graph.all_nodes()):
        if node.op_type != "Concat" or node.domain != "" or "axis" not in node.attributes:
            continue
        axis = node.attributes["axis"].as_int()
        kept = [value for value in node.inputs if not _is_empty(value, axis)]
        if kept and len(kept) < len(node.inputs):
            node.resize_inputs(len(kept))
            for k, value in enumerate(kept):
                node.replace_input_with(k, value)


def _is_empty(value: onnx_ir.Value | None, axis: int) -> bool:
    """Whether a value is known to have no elements along `axis`."""
    if value is None or value.shape is None or not -len(value.shape) <= axis < len(value.shape):
        return False
    return value.shape[axis] == 0


def drop_identities(model: onnx_ir.Model) -> None:
    """Remove every Identity that no graph output needs.

    One stays where its result is a graph output and its source has a name to keep: it is an
    output, an input or a constant itself, or belongs to an outer graph.
    """
    for node in list(model.graph.all_nodes()):
        if node.op_type != "Identity" or node.domain != "":
            continue
        (source,), (result,) = node.inputs, node.outputs
        if source is None:
            continue
        if result.is_graph_output():
            maker = source.producer()
            if maker is None or maker.graph is not node.graph or source.is_graph_output():
                continue
        _learn(source, result)
        name, is_output = result.name, result.is_graph_output()
        result.replace_all_uses_with(source, replace_graph_outputs=True)
        assert node.graph is not None
        node.graph.remove(node, safe=True)
        if is_output:
            source.name = name


def _learn(source: onnx_ir.Value, copy: onnx_ir.Value) -> None:
    """What is recorded of a value's copy holds of the value."""
    if source.type is None:
        source.type = copy.type
    if source.shape is None:
        source.shape = copy.shape
    elif copy.shape is not None and len(copy.shape) == len(source.shape):
        source.shape = onnx_ir.Shape(
            [ours if isinstance(ours, int) or not isinstance(theirs, int) else theirs
             for ours, theirs in zip(source.shape, copy.shape, strict=True)]
        )  # fmt: skip


def merge_duplicates(model: onnx_ir.Model) -> None:
    """Let nodes of the main graph that compute the same thing share one computation.

    Where both results are graph outputs, an Identity keeps the second one's name.
    """
    first: dict[_Key, onnx_ir.Node] = {}
    for node in list(model.graph):
        key = _key(node)
        if key is None:
            continue
        kept = first.setdefault(key, node)
        if kept is not node:
            _take_over(model.graph, node, kept)


def _key(node: onnx_ir.Node) -> _Key | None:
    """Equal for nodes that compute the same; None for those that may not be merged."""
    if node.domain not in ("", "ai.onnx.ml") or (node.domain == "" and node.op_type in RANDOM):
        return None
    attributes: list[tuple[str, object, object]] = []
    for name, attribute in sorted(node.attributes.items()):
        value = attribute.value
        match attribute.type:
            case onnx_ir.AttributeType.INT | onnx_ir.AttributeType.STRING:
                pass
            case onnx_ir.AttributeType.FLOAT:
                value = value.hex()  # -0.0 is not 0.0
            case onnx_ir.AttributeType.FLOATS:
                value = tuple(number.hex() for number in value)
            case onnx_ir.AttributeType.INTS | onnx_ir.AttributeType.STRINGS:
                value = tuple(value)
            case onnx_ir.AttributeType.TENSOR if (
                value.size <= _COMPARED_ELEMENTS and value.dtype != onnx_ir.DataType.STRING
            ):
                value = (value.dtype, tuple(value.shape.numpy()), value.numpy().tobytes())
            case (
                _
            ):  # graphs, large tensors, text (numpy has its addresses), and what has no equality
                return None
        attributes.append((name, attribute.type, value))
    inputs = tuple(id(value) for value in node.inputs)
    present = tuple(bool(value.name) for value in node.outputs)
    return (*node.op_identifier(), number_of(node), inputs, present, tuple(attributes))


def _take_over(graph: onnx_ir.Graph, node: onnx_ir.Node, kept: onnx_ir.Node) -> None:
    """Give the readers of `node`, and the graph's outputs, the results of `kept`; remove it."""
    for old, new in zip(node.outputs, kept.outputs, strict=True):
        is_output, name = old.is_graph_output(), old.name
        if is_output and new.is_graph_output():
            copy = onnx_ir.node("Identity", [new], name=f"{node.name}/copy")
            (result,) = copy.outputs
            result.type, result.shape = old.type, old.shape
            graph.insert_before(node, [copy])
            for position, value in enumerate(graph.outputs):
                if value is old:
                    graph.outputs[position] = result
            old.name = None
            result.name = name
            old.replace_all_uses_with(new)
            continue
        _learn(new, old)
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        if is_output:
            new.name = name
    graph.remove(node, safe=True)
