"""Bring a model to the opset the rest of the compiler is written for.

One adapter per operator and version in which its form changed (attributes that became inputs,
defaults that moved).  Sub-graphs are converted too, and names stay.  Models newer than the target
keep their opset: nothing below depends on what came later.
Source: the ONNX operator change log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir

from worker.compiler.errors import ModelError
from worker.compiler.frontend.calls import inherit_call
from worker.compiler.frontend.edit import Names, add_constant, constant_of

TARGET_OPSET = 21
"""Understood by our operator families and by ONNX Runtime alike."""


@dataclass(frozen=True, slots=True)
class _Site:
    node: onnx_ir.Node
    main: onnx_ir.Graph
    names: Names

    def constant(self, suffix: str, array: np.ndarray, dtype: onnx_ir.DataType | None = None
                 ) -> onnx_ir.Value:  # fmt: skip
        base = self.node.outputs[0].name or self.node.op_type
        return add_constant(self.main, self.names.fresh(f"{base}_{suffix}"), array, dtype)

    def set_input(self, index: int, value: onnx_ir.Value | None) -> None:
        if index >= len(self.node.inputs):
            self.node.resize_inputs(index + 1)
        self.node.replace_input_with(index, value)

    def move_ints(self, attribute: str, index: int) -> None:
        """Turn an attribute of integers into input `index`."""
        found = self.node.attributes.pop(attribute, None)
        if found is None:
            return
        value = found.as_ints() if found.type == onnx_ir.AttributeType.INTS else [found.as_int()]
        self.set_input(index, self.constant(attribute, np.array(value, dtype=np.int64)))

    def default(self, attribute: onnx_ir.Attr) -> None:
        if attribute.name not in self.node.attributes:
            self.node.attributes[attribute.name] = attribute


_Adapter: TypeAlias = "Callable[[_Site], None]"


def convert_opset(model: onnx_ir.Model) -> int:
    """Convert `model` in place to TARGET_OPSET unless it is newer; give its opset.

    Raises:
        ModelError: TW-MODEL-009 naming the node whose old form has no equivalent.
    """
    source = model.opset_imports[""]
    if source >= TARGET_OPSET:
        return source
    names = Names(model.graph)
    for node in list(model.graph.all_nodes()):
        if node.domain != "":
            continue
        for version in range(source + 1, TARGET_OPSET + 1):
            adapter = _ADAPTERS.get((node.op_type, version))
            if adapter is not None:
                adapter(_Site(node, model.graph, names))
    for graph in model.graphs():
        graph.opset_imports[""] = TARGET_OPSET
    for node in model.graph.all_nodes():
        node.version = None
    return TARGET_OPSET


def changes_of(op_type: str) -> tuple[int, ...]:
    """Opsets, up to TARGET_OPSET, in which an operator of the standard took another form."""
    return tuple(sorted(version for name, version in _ADAPTERS if name == op_type))


def _no_equivalent(site: _Site, why: str) -> ModelError:
    return ModelError(
        "TW-MODEL-009", f"{site.node.op_type} cannot be brought to opset {TARGET_OPSET}: {why}",
        node=site.node.name, limit=TARGET_OPSET,
    )  # fmt: skip


def _axes(site: _Site) -> None:
    site.move_ints("axes", 1)


def _top_k(site: _Site) -> None:
    site.move_ints("k", 1)


def _split(site: _Site) -> None:
    site.move_ints("split", 1)


def _split_count(site: _Site) -> None:
    if len(site.node.inputs) < 2 or site.node.inputs[1] is None:
        site.default(onnx_ir.AttrInt64("num_outputs", len(site.node.outputs)))


def _slice(site: _Site) -> None:
    site.move_ints("starts", 1)
    site.move_ints("ends", 2)
    site.move_ints("axes", 3)


def _float_input(site: _Site, attribute: str, index: int) -> None:
    found = site.node.attributes.pop(attribute, None)
    if found is None:
        return
    data = site.node.inputs[0]
    dtype = data.dtype if data is not None and data.dtype is not None else onnx_ir.DataType.FLOAT
    array = np.array(found.as_float()).astype(dtype.numpy())
    site.set_input(index, site.constant(attribute, array, dtype))


def _clip(site: _Site) -> None:
    _float_input(site, "min", 1)
    _float_input(site, "max", 2)


def _pad(site: _Site) -> None:
    site.move_ints("pads", 1)
    _float_input(site, "value", 2)


def _upsample_scales(site: _Site) -> None:
    found = site.node.attributes.pop("scales", None)
    if found is not None:
        site.set_input(1, site.constant("scales", np.array(found.as_floats(), dtype=np.float32)))


def _upsample(site: _Site) -> None:
    # Resize changes its own form one version later; that adapter does the rest.
    site.node.op_type = "Resize"


def _resize(site: _Site) -> None:
    scales = site.node.inputs[1]
    site.set_input(2, scales)
    site.set_input(1, None)
    site.default(onnx_ir.AttrString("coordinate_transformation_mode", "asymmetric"))
    site.default(onnx_ir.AttrString("nearest_mode", "floor"))


def _dropout(site: _Site) -> None:
    # The ratio has no effect at inference, the only mode we run.
    site.node.attributes.pop("ratio", None)


def _batch_norm_spatial(site: _Site) -> None:
    spatial = site.node.attributes.pop("spatial", None)
    if spatial is not None and spatial.as_int() != 1:
        raise _no_equivalent(site, "spatial = 0")


def _batch_norm_outputs(site: _Site) -> None:
    outputs = site.node.outputs
    if any(v.uses() or v.is_graph_output() for v in outputs[1:]):
        raise _no_equivalent(site, "it returns training statistics")
    if len(outputs) > 1:
        site.node.resize_outputs(1)


def _scatter(site: _Site) -> None:
    site.node.op_type = "ScatterElements"


def _softmax(site: _Site) -> None:
    """Old form: the input seen as a matrix split at `axis`.  New form: along one axis."""
    node, data = site.node, site.node.inputs[0]
    found = node.attributes.pop("axis", None)
    axis = found.as_int() if found is not None else 1
    rank = len(data.shape) if data is not None and data.shape is not None else None
    if rank is not None and axis % max(rank, 1) == rank - 1:
        node.attributes["axis"] = onnx_ir.AttrInt64("axis", -1)
        return
    graph = node.graph
    assert graph is not None and data is not None
    out = node.outputs[0]
    base = out.name or node.op_type
    shape = onnx_ir.node("Shape", [data], name=f"{node.name}_shape")
    flat = onnx_ir.node("Flatten", [data], {"axis": axis}, name=f"{node.name}_flatten")
    back = onnx_ir.node("Reshape", [out, shape.outputs[0]], name=f"{node.name}_reshape")
    for made, suffix in ((shape, "shape"), (flat, "matrix")):
        made.outputs[0].name = site.names.fresh(f"{base}_{suffix}")
        kind = onnx_ir.TensorType(onnx_ir.DataType.INT64) if made is shape else data.type
        made.outputs[0].type = kind
    node.attributes["axis"] = onnx_ir.AttrInt64("axis", -1)
    graph.insert_before(node, [shape, flat])
    node.replace_input_with(0, flat.outputs[0])
    graph.insert_after(node, [back])
    _hand_over(site, graph, out, back, f"{base}_rows")
    inherit_call(node, (shape, flat, node, back), {id(data): 0}, {0: back.outputs[0]})


def _roi_align(site: _Site) -> None:
    site.default(onnx_ir.AttrString("coordinate_transformation_mode", "output_half_pixel"))


def _grid_sample(site: _Site) -> None:
    mode = site.node.attributes.get("mode")
    renamed = {"bilinear": "linear", "bicubic": "cubic"}
    if mode is not None and mode.as_string() in renamed:
        site.node.attributes["mode"] = onnx_ir.AttrString("mode", renamed[mode.as_string()])


def _dft(site: _Site) -> None:
    found = site.node.attributes.pop("axis", None)
    axis = np.array(found.as_int() if found is not None else 1, dtype=np.int64)
    site.set_input(2, site.constant("axis", axis))


def _group_norm(site: _Site) -> None:
    """Scale and bias were given per group; now they are given per channel."""
    data = site.node.inputs[0]
    channels = data.shape[1] if data is not None and data.shape is not None else None
    for index, suffix in ((1, "scale"), (2, "bias")):
        tensor = constant_of(site.node.inputs[index])
        if tensor is None or not isinstance(channels, int) or channels % tensor.size:
            raise _no_equivalent(site, f"its {suffix} is not a constant of known size")
        spread = np.repeat(tensor.numpy(), channels // tensor.size)
        site.set_input(index, site.constant(suffix, spread, tensor.dtype))


def _scan_batch(site: _Site) -> None:
    """Old form: a batch of sequences, each with its length.  New form: one sequence, no batch.

    A batch of one is taken off and put back; several would be several Scans.
    """
    node, graph = site.node, site.node.graph
    lengths, operands = node.inputs[0], node.inputs[1:]
    if lengths is not None:
        raise _no_equivalent(site, "each sequence of its batch has a length of its own")
    sizes = {None if v is None or v.shape is None else v.shape[0] for v in operands}
    if sizes != {1}:
        raise _no_equivalent(site, f"its batch is {sorted(map(str, sizes))}, not 1")
    assert graph is not None
    base = node.outputs[0].name or node.op_type
    axis = site.constant("batch", np.array([0], dtype=np.int64))
    for k, value in enumerate(operands):
        assert value is not None
        single = onnx_ir.node("Squeeze", [value, axis], name=f"{node.name}_squeeze{k}")
        single.outputs[0].name = site.names.fresh(f"{base}_single{k}")
        single.outputs[0].type = value.type
        graph.insert_before(node, [single])
        node.replace_input_with(k, single.outputs[0])
    node.resize_inputs(len(operands))
    found = node.attributes.pop("directions", None)
    if found is not None:
        node.attributes["scan_input_directions"] = onnx_ir.AttrInt64s(
            "scan_input_directions", found.as_ints()
        )
    for k, out in enumerate(node.outputs):
        if out.name:
            back = onnx_ir.node("Unsqueeze", [out, axis], name=f"{node.name}_unsqueeze{k}")
            graph.insert_after(node, [back])
            _hand_over(site, graph, out, back, f"{base}_made{k}")


def _hand_over(
    site: _Site, graph: onnx_ir.Graph, out: onnx_ir.Value, back: onnx_ir.Node, base: str
) -> None:
    """Let the result of `back` take the place and name of `out`, which it reads."""
    (result,) = back.outputs
    result.shape, result.type, name = out.shape, out.type, out.name
    out.shape = None
    out.name = site.names.fresh(base)
    for use in list(out.uses()):
        if use.node is not back:
            use.node.replace_input_with(use.idx, result)
    for position, value in enumerate(graph.outputs):
        if value is out:
            graph.outputs[position] = result
    result.name = name


_ADAPTERS: dict[tuple[str, int], _Adapter] = {
    ("BatchNormalization", 9): _batch_norm_spatial,
    ("Scan", 9): _scan_batch,
    ("Upsample", 9): _upsample_scales,
    ("Upsample", 10): _upsample,
    ("TopK", 10): _top_k,
    ("Slice", 10): _slice,
    ("Resize", 11): _resize,
    ("Clip", 11): _clip,
    ("Pad", 11): _pad,
    ("Scatter", 11): _scatter,
    ("Dropout", 12): _dropout,
    ("Squeeze", 13): _axes,
    ("Unsqueeze", 13): _axes,
    ("ReduceSum", 13): _axes,
    ("Split", 13): _split,
    ("Split", 18): _split_count,
    ("Softmax", 13): _softmax,
    ("LogSoftmax", 13): _softmax,
    ("Hardmax", 13): _softmax,
    ("BatchNormalization", 14): _batch_norm_outputs,
    ("RoiAlign", 16): _roi_align,
    ("GridSample", 20): _grid_sample,
    ("DFT", 20): _dft,
    ("GroupNormalization", 21): _group_norm,
    **{
        (f"Reduce{kind}", 18): _axes
        for kind in ("Max", "Min", "Mean", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
    },
}
