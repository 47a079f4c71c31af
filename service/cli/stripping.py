"""A copy of a model without what it has learnt: the graph can be shared, the weights stay home.

Every large floating-point tensor, of initializers and of attributes, also in sub-graphs and
functions, is replaced by seeded noise of the same shape, type and spread, so that the copy still
gives finite, uneven outputs.  Small and integer ones stay: they are shapes, axes, indices and
scales, and the graph needs their values.  Names may go, too: each is replaced by a number, the same
wherever it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import onnx


def strip_weights(
    source: Path, target: Path, *, seed: int, keep_elems: int, names: bool = False
) -> tuple[int, int]:
    """Write the copy; give how many tensors were replaced and how many kept.

    With `names`, those of nodes, values, graphs and functions are replaced.  Names of symbolic
    dimensions stay, because whoever compiles the model has to set them; so do operators.

    Raises:
        ModelError: the file is not an ONNX model, or its external data cannot be read.
    """
    import numpy as np
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # has no stubs

    from worker.compiler.errors import ModelError

    try:
        model = onnx.load(source)
    except DecodeError as error:
        raise ModelError("TW-MODEL-001", f"{source} is not an ONNX model: {error}") from error
    except (FileNotFoundError, onnx.checker.ValidationError) as error:
        raise ModelError("TW-MODEL-010", f"{source}: {error}") from error
    if not model.graph.node:
        raise ModelError("TW-MODEL-013", f"{source} has no nodes")
    generator = np.random.default_rng(seed)
    noises: dict[tuple[object, ...], np.ndarray[Any, Any]] = {}
    replaced = [_is_replaced(t, generator, keep_elems, noises) for t in _tensors(model)]
    if names:
        _rename(model)
        for field in ("producer_name", "producer_version", "domain"):
            model.ClearField(field)
    model.ClearField("doc_string")
    del model.metadata_props[:]
    for graph in _graphs(model):
        graph.ClearField("doc_string")
        for node in graph.node:
            node.ClearField("doc_string")
            del node.metadata_props[:]
    target.write_bytes(model.SerializeToString(deterministic=True))
    return sum(replaced), len(replaced) - sum(replaced)


def _graphs(model: onnx.ModelProto) -> Iterator[Any]:
    """The graph, functions, and all graphs within: outer ones first."""
    left: list[Any] = [model.graph, *model.functions]
    while left:
        graph = left.pop(0)
        yield graph
        for attribute in _attributes(graph):
            left += [attribute.g] if attribute.HasField("g") else []
            left += attribute.graphs


def _attributes(graph: Any) -> Iterable[onnx.AttributeProto]:
    return chain.from_iterable(node.attribute for node in graph.node)


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    for graph in _graphs(model):
        yield from getattr(graph, "initializer", ())
        for sparse in getattr(graph, "sparse_initializer", ()):
            yield sparse.values
        for attribute in _attributes(graph):
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _is_replaced(
    tensor: onnx.TensorProto,
    generator: np.random.Generator,
    keep_elems: int,
    noises: dict[tuple[object, ...], np.ndarray[Any, Any]],
) -> bool:
    """Replace a large floating-point tensor by noise, equal ones by equal noise: a compiler shares
    them.  One that has the same value throughout (zeros, ones) was not learnt, and may vanish."""
    from onnx import numpy_helper

    values = numpy_helper.to_array(tensor)
    if values.size <= keep_elems or values.dtype.kind != "f" or (values == values.flat[0]).all():
        return False
    known_as = (values.dtype.str, values.shape, sha256(values.tobytes()).digest())
    if known_as not in noises:
        noises[known_as] = _noise(values, generator)
    tensor.CopyFrom(numpy_helper.from_array(noises[known_as], tensor.name))
    return True


def _noise(values: np.ndarray[Any, Any], generator: np.random.Generator) -> np.ndarray[Any, Any]:
    import numpy as np

    spread = float(values.astype(np.float64).std()) or 1.0
    noise = generator.standard_normal(values.shape, dtype=np.float32) * np.float32(spread)
    if values.min() >= 0:
        # Variances and other non-negative values must stay so, or square roots turn to NaN.
        noise = np.abs(noise)
    found: np.ndarray[Any, Any] = noise.astype(values.dtype)
    return found


def _rename(model: onnx.ModelProto) -> None:
    """Number all names.  One name has one number in all scopes, so what sees what stays."""
    known: dict[str, str] = {}

    def renamed(name: str) -> str:
        return known.setdefault(name, f"v{len(known)}") if name else ""

    functions = {(f.domain, f.name): f"f{k}" for k, f in enumerate(model.functions)}
    num_nodes = 0
    for number, graph in enumerate(_graphs(model)):
        if hasattr(graph, "initializer"):  # a graph; the values of a function are plain names
            for value in (
                *graph.input, *graph.output, *graph.value_info, *graph.initializer,
                *(sparse.values for sparse in graph.sparse_initializer),
            ):  # fmt: skip
                value.name = renamed(value.name)
            for note in graph.quantization_annotation:
                note.tensor_name = renamed(note.tensor_name)
                for pair in note.quant_parameter_tensor_names:
                    pair.value = renamed(pair.value)
            graph.name = f"g{number}"
        else:
            graph.input[:] = map(renamed, graph.input)
            graph.output[:] = map(renamed, graph.output)
            graph.name = functions[graph.domain, graph.name]
        for node in graph.node:
            node.input[:] = map(renamed, node.input)
            node.output[:] = map(renamed, node.output)
            node.op_type = functions.get((node.domain, node.op_type), node.op_type)
            node.name = f"n{num_nodes}"
            num_nodes += 1
        for attribute in _attributes(graph):
            for tensor in ([attribute.t] if attribute.HasField("t") else [], attribute.tensors):
                for one in tensor:
                    one.ClearField("name")
