"""Turn a model that was exported for one batch size into the same model for another.

    python -m benchmarks.papers.rebatch resnet18 bert_base_s128 --batch 3

GraphTurbo's tables run batches of 8 to 1024; most exports are of batch 1, with the batch written
into Reshape targets, index constants and recorded shapes.  One pass over the nodes infers every
shape twice, for the old and for the new batch: the axis in which the two differ carries the samples
(as its slowest part, where heads were folded into it), and from it the constants are rewritten.
What the pass cannot prove it refuses; `largest_error` then runs both models in ONNX Runtime, sample
by sample, which is what decides.  No loops or branches; no state whose batch is a constant.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TypeProto, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

Array = npt.NDArray[Any]
_FOLD_ELEMENTS = 1 << 16
"""Constants up to this size are known by value; larger ones (weights) by shape only."""


class RebatchError(ValueError):
    """The model's batch cannot be changed this way; the message names the node."""


def rebatch(source: Path, batch: int, out: Path, symbols: Mapping[str, int] | None = None) -> Path:
    """Write the model of `source` for `batch` samples to `out`; gives `out`.

    `symbols` binds symbolic dimensions other than the batch, which is the first dimension of the
    first input.  Shapes recorded inside the graph are dropped.

    Raises:
        RebatchError: control flow, samples that are mixed, or a constant with no rule.

    Cost: linear in nodes; weights are copied, not read.
    """
    if batch < 1:
        raise RebatchError(f"batch {batch} is not positive")
    model = onnx.load(str(source))
    step = _Pass(batch, {o.domain: o.version for o in model.opset_import})
    graph = model.graph
    step.start(graph, dict(symbols or {}))
    kept = [node for node in graph.node if step.visit(node)]
    step.finish(graph, kept)
    temporary = out.with_suffix(".part")
    temporary.write_bytes(model.SerializeToString())
    temporary.replace(out)
    return out


@dataclass(slots=True)
class _Pass:
    """What is known of every tensor so far, at the old batch and at the new one."""

    batch: int
    opsets: dict[str, int]
    old_batch: int = 1
    before: dict[str, TypeProto] = field(default_factory=dict)
    after: dict[str, TypeProto] = field(default_factory=dict)
    known: dict[str, Array] = field(default_factory=dict)
    """Values of small constants, at the old batch."""
    folded: set[str] = field(default_factory=set)
    """Constants that nodes made, which are gone."""
    fresh: dict[str, Array] = field(default_factory=dict)
    """New initializers."""

    def start(self, graph: onnx.GraphProto, symbols: dict[str, int]) -> None:
        """Take the initializers, and give the inputs their batch."""
        for tensor in graph.initializer:
            kind = helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
            self.before[tensor.name] = self.after[tensor.name] = kind
            if prod(tensor.dims) <= _FOLD_ELEMENTS:
                self.known[tensor.name] = numpy_helper.to_array(tensor)
        inputs = [v for v in graph.input if v.name not in self.before]
        first = inputs[0].type.tensor_type.shape.dim[0]
        batch_symbol = first.dim_param
        self.old_batch = first.dim_value or 1
        for value in inputs:
            old, new = [], []
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                is_batch = dim.dim_param == batch_symbol if batch_symbol else axis == 0
                size = self.old_batch if is_batch and batch_symbol else dim.dim_value
                size = size or symbols.get(dim.dim_param, 0)
                if not size:
                    raise RebatchError(f"input {value.name}: {dim.dim_param!r} has no value")
                if is_batch and size != self.old_batch:
                    raise RebatchError(f"input {value.name}: {size} samples, not {self.old_batch}")
                old.append(size)
                new.append(self.batch if is_batch else size)
                dim.dim_value = new[-1]
            kind = value.type.tensor_type.elem_type
            self.before[value.name] = helper.make_tensor_type_proto(kind, old)
            self.after[value.name] = helper.make_tensor_type_proto(kind, new)

    def visit(self, node: onnx.NodeProto) -> bool:
        """Rewrite `node` for the new batch; False: it was a constant and is not needed."""
        if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
               for a in node.attribute):  # fmt: skip
            raise RebatchError(f"{_where(node)}: control flow")
        if self._fold(node):
            return False
        before = self._infer(node, self.before)
        repair = _REPAIRS.get(node.op_type)
        if repair is not None and self.batch != self.old_batch:
            repair(self, node, before)
        after = self._infer(node, self.after)
        for name, kind in before.items():
            self.before[name], self.after[name] = kind, after[name]
            self.batch_axis(name)
        return True

    def finish(self, graph: onnx.GraphProto, kept: Sequence[onnx.NodeProto]) -> None:
        """Put nodes, new constants and output shapes into `graph`."""
        used = {name for node in kept for name in node.input} | {v.name for v in graph.output}
        nodes = list(kept)
        del graph.node[:]
        graph.node.extend(nodes)
        for name in sorted(self.folded & used):
            graph.initializer.append(numpy_helper.from_array(self.known[name], name))
        for name, value in self.fresh.items():
            graph.initializer.append(numpy_helper.from_array(value, name))
        weights = [t for t in graph.initializer if t.name in used]
        del graph.initializer[:]
        graph.initializer.extend(weights)
        del graph.value_info[:]
        for value in graph.output:
            value.type.CopyFrom(self.after[value.name])

    def batch_axis(self, name: str) -> int | None:
        """The axis that carries the samples; None: the tensor has none.

        Raises:
            RebatchError: more than one axis changed, or not in proportion.
        """
        old, new = _dims(self.before[name]), _dims(self.after[name])
        changed = [k for k, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
        if not changed:
            return None
        axis = changed[0]
        if len(changed) > 1 or new[axis] * self.old_batch != old[axis] * self.batch:
            raise RebatchError(f"{name}: {old} becomes {new}: samples are mixed")
        return axis

    def scaled(self, dims: Sequence[int], axis: int) -> list[int]:
        """`dims` with the samples on `axis`."""
        return [d * self.batch // self.old_batch if k == axis else d for k, d in enumerate(dims)]

    def constant(self, node: onnx.NodeProto, slot: int) -> Array:
        """The known value of an operand.

        Raises:
            RebatchError: it depends on data, or is large.
        """
        name = node.input[slot]
        if name not in self.known:
            raise RebatchError(f"{_where(node)}: {name} is not a small constant")
        return self.known[name]

    def replace_operand(self, node: onnx.NodeProto, slot: int, value: Array) -> None:
        """Give `node` an operand of its own, known at the new batch."""
        name = f"{node.output[0]}__batch{self.batch}_{slot}"
        value = np.ascontiguousarray(value)
        self.fresh[name] = value
        kind = helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(value.dtype),
                                             value.shape)  # fmt: skip
        self.before[name] = self.after[name] = kind
        self.known[name] = value
        node.input[slot] = name

    def _fold(self, node: onnx.NodeProto) -> bool:
        """Evaluate a node of small constants, and Shape of anything."""
        names = [name for name in node.input if name]
        if node.op_type == "Shape":
            dims = _dims(self.before[names[0]])
            marks = {a.name: a.i for a in node.attribute}
            dims = dims[marks.get("start", 0) : marks.get("end", len(dims))]
            self._know(node.output[0], np.array(dims, np.int64))
            return True
        if any(name not in self.known for name in names):
            return False
        graph = helper.make_graph(
            [node], "one",
            [helper.make_value_info(n, self.before[n]) for n in dict.fromkeys(names)],
            [helper.make_empty_tensor_value_info(n) for n in node.output],
        )  # fmt: skip
        imports = [helper.make_opsetid(d, v) for d, v in self.opsets.items()]
        runner = ReferenceEvaluator(helper.make_model(graph, opset_imports=imports))
        try:
            results = runner.run(None, {n: self.known[n] for n in names})
        except (IndexError, NotImplementedError, TypeError, ValueError):
            return False  # the reference lacks a case: known by its shape only
        if any(np.size(value) > _FOLD_ELEMENTS for value in results):
            return False
        for name, value in zip(node.output, results, strict=True):
            self._know(name, np.asarray(value))
        return True

    def _know(self, name: str, value: Array) -> None:
        element = helper.np_dtype_to_tensor_dtype(value.dtype)
        self.known[name] = value
        self.folded.add(name)
        self.before[name] = self.after[name] = helper.make_tensor_type_proto(element, value.shape)

    def _infer(self, node: onnx.NodeProto, types: Mapping[str, TypeProto]) -> dict[str, TypeProto]:
        names = [name for name in node.input if name]
        schema = onnx.defs.get_schema(node.op_type, self.opsets[node.domain], node.domain)
        try:
            found: dict[str, TypeProto] = shape_inference.infer_node_outputs(
                schema, node,
                {n: types[n] for n in names},
                {n: numpy_helper.from_array(self.known[n], n) for n in names if n in self.known},
                opset_imports=[helper.make_opsetid(d, v) for d, v in self.opsets.items()],
            )  # fmt: skip
        except shape_inference.InferenceError as error:
            raise RebatchError(f"{_where(node)}: {error}") from error
        for name in node.output:
            if name and (name not in found or any(d < 1 for d in _dims(found[name]))):
                raise RebatchError(f"{_where(node)}: the shape of {name} depends on data")
        return {name: found[name] for name in node.output if name}


def _dims(kind: TypeProto) -> list[int]:
    return [d.dim_value for d in kind.tensor_type.shape.dim]


def _where(node: onnx.NodeProto) -> str:
    return f"{node.op_type} {node.name or node.output[0]}"


def _repair_reshape(step: _Pass, node: onnx.NodeProto, before: Mapping[str, TypeProto]) -> None:
    """The samples go to the first axis with as many elements before it as they have now."""
    axis = step.batch_axis(node.input[0])
    if axis is None:
        return
    outer = prod(_dims(step.before[node.input[0]])[:axis])
    dims = _dims(before[node.output[0]])
    places = [
        k for k, d in enumerate(dims) if prod(dims[:k]) == outer and d % step.old_batch == 0
    ]  # fmt: skip
    if not places:
        raise RebatchError(f"{_where(node)}: no axis of {dims} can carry the samples")
    step.replace_operand(node, 1, np.array(step.scaled(dims, places[0]), np.int64))


def _repair_expand(step: _Pass, node: onnx.NodeProto, before: Mapping[str, TypeProto]) -> None:
    axis = step.batch_axis(node.input[0])
    if axis is None:
        return
    dims = _dims(before[node.output[0]])
    place = axis + len(dims) - len(_dims(step.before[node.input[0]]))
    step.replace_operand(node, 1, np.array(step.scaled(dims, place), np.int64))


def _repair_gather(step: _Pass, node: onnx.NodeProto, before: Mapping[str, TypeProto]) -> None:
    """Constant indices that walk the samples walk all of them."""
    del before
    data = _dims(step.before[node.input[0]])
    where = next((a.i for a in node.attribute if a.name == "axis"), 0) % len(data)
    if step.batch_axis(node.input[0]) != where:
        return
    per_sample = data[where] // step.old_batch
    indices = step.constant(node, 1)
    walk = _walk(step, node, indices, per_sample)
    step.replace_operand(node, 1, _walked(step, indices, walk, per_sample))


def _repair_gather_nd(step: _Pass, node: onnx.NodeProto, before: Mapping[str, TypeProto]) -> None:
    del before
    axis = step.batch_axis(node.input[0])
    first = next((a.i for a in node.attribute if a.name == "batch_dims"), 0)
    indices = step.known.get(node.input[1])
    if axis is None or axis < first or (indices is not None and axis >= first + indices.shape[-1]):
        return
    indices = step.constant(node, 1)
    column = axis - first
    per_sample = _dims(step.before[node.input[0]])[axis] // step.old_batch
    walk = _walk(step, node, indices[..., column], per_sample)
    others = np.delete(indices, column, -1)
    if not np.array_equal(others, np.broadcast_to(others.take([0], walk), others.shape)):
        raise RebatchError(f"{_where(node)}: indices differ between samples")
    made = np.repeat(indices.take([0], walk), step.batch, walk)
    made[..., column] = _walked(step, indices[..., column], walk, per_sample)
    step.replace_operand(node, 1, made)


def _walk(step: _Pass, node: onnx.NodeProto, indices: Array, per_sample: int) -> int:
    """The axis along which indices walk the samples: sample k's are k * per_sample above the first.

    Raises:
        RebatchError: there is none.
    """
    for axis, size in enumerate(indices.shape):
        first = indices.take([0], axis)
        shape = [-1 if k == axis else 1 for k in range(indices.ndim)]
        steps = np.arange(step.old_batch).reshape(shape) * per_sample
        inside = first.min() >= 0 and first.max() < per_sample
        if size == step.old_batch and inside and np.array_equal(first + steps, indices):
            return axis
    raise RebatchError(f"{_where(node)}: indices pick samples")


def _walked(step: _Pass, indices: Array, axis: int, per_sample: int) -> Array:
    """The same walk over the new batch."""
    shape = [-1 if k == axis else 1 for k in range(indices.ndim)]
    steps = np.arange(step.batch).reshape(shape) * per_sample
    made: Array = (indices.take([0], axis) + steps).astype(indices.dtype)
    return made


def _repair_concat(step: _Pass, node: onnx.NodeProto, before: Mapping[str, TypeProto]) -> None:
    """A constant beside samples (a class token) is given to every sample."""
    del before
    axes = [step.batch_axis(name) for name in node.input]
    axis = next((a for a in axes if a is not None), None)
    where = next(a.i for a in node.attribute if a.name == "axis")
    if axis is None or where % len(_dims(step.before[node.input[0]])) == axis:
        return
    for slot, name in enumerate(node.input):
        if axes[slot] is None and _dims(step.before[name])[axis] == step.old_batch:
            value = step.constant(node, slot)
            first = value.take([0], axis)
            if not np.array_equal(np.repeat(first, step.old_batch, axis), value):
                raise RebatchError(f"{_where(node)}: {name} differs between samples")
            step.replace_operand(node, slot, np.repeat(first, step.batch, axis))


_REPAIRS = {
    "Concat": _repair_concat,
    "Reshape": _repair_reshape,
    "Expand": _repair_expand,
    "Gather": _repair_gather,
    "GatherND": _repair_gather_nd,
}


def largest_error(source: Path, rebatched: Path, symbols: Mapping[str, int] | None = None,
                  seed: int = 0) -> float:  # fmt: skip
    """Largest |difference| / largest |value| over outputs and samples, in ONNX Runtime.

    The inputs of the rebatched model are cut into pieces of the source's batch, the last one
    filled up, which `source` runs one after the other.  The batch must be on axis 0 of all inputs
    and outputs.
    """
    import onnxruntime

    from worker.compiler.frontend.bind import bind
    from worker.compiler.frontend.limits import Limits
    from worker.compiler.frontend.load import load_model
    from worker.verification.inputs import seeded_inputs

    inputs = seeded_inputs(bind(load_model(rebatched, Limits(), "rebatched"), {}), seed)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if symbols:
        for name, value in symbols.items():
            options.add_free_dimension_override_by_name(name, value)
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(str(rebatched), options, providers)
    got = session.run(None, inputs)
    del session
    session = onnxruntime.InferenceSession(str(source), options, providers)
    first = session.get_inputs()[0].shape[0]
    step = first if isinstance(first, int) else 1
    batch = len(next(iter(inputs.values())))
    worst = 0.0
    for start in range(0, batch, step):
        piece = {k: _padded(v[start : start + step], step) for k, v in inputs.items()}
        want = session.run(None, piece)
        for a, b in zip(got, want, strict=True):
            part = a[start : start + step]
            scale = float(np.abs(b).max()) or 1.0
            worst = max(worst, float(np.abs(part - b[: len(part)]).max()) / scale)
    return worst


def _padded(values: Array, size: int) -> Array:
    """Repeat the last sample until there are `size`."""
    missing = size - len(values)
    return values if missing == 0 else np.concatenate([values, values[-1:].repeat(missing, 0)])


def main(argv: list[str] | None = None) -> int:
    from benchmarks.zoo import ZooModel, materialized

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stems", nargs="+", help="file stems of the models")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=N")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "tw-zoo")
    args = parser.parse_args(argv)
    symbols = {k: int(v) for k, v in (item.split("=") for item in args.set)}
    failed = False
    for stem in args.stems:
        source = materialized(ZooModel(stem, stem), args.scratch)
        with tempfile.TemporaryDirectory() as folder:
            try:
                made = rebatch(source, args.batch, Path(folder) / "model.onnx", symbols)
                error = f"largest error / scale {largest_error(source, made, symbols):.2e}"
            except RebatchError as problem:
                failed, error = True, f"refused: {problem}"
        sys.stdout.write(f"{stem} x{args.batch}: {error}\n")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
