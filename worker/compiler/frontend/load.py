"""Bytes to a checked model: size, bundle, wire format, own checks, external data, types."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # has no stubs

from worker.compiler.errors import Finding, ModelError
from worker.compiler.frontend.bundle_files import ModelFile, open_model_file, unsafe_name
from worker.compiler.frontend.checks import check_model, refuse
from worker.compiler.frontend.functions import inline_functions
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.passes import require_names
from worker.compiler.frontend.rules.check import Checker
from worker.compiler.frontend.tensor_checks import num_bytes
from worker.compiler.frontend.type_checks import check_types
from worker.compiler.frontend.wire import nesting_depth, strip

__all__ = ["Limits", "load_model"]

_PARSER_DEPTH = 25
"""Nested graphs at which the parser gives up (protocol buffers stop at 100 messages)."""


def load_model(
    path: Path, limits: Limits, name: str = "model", whole: AbstractSet[str] = frozenset()
) -> OnnxModel:
    """Load and check one uploaded file: an .onnx file, or a zip bundle with external data.

    Weights stay in the file's memory map; nothing is written.  `whole`: as `inline_functions`.

    Raises:
        ModelError: TW-MODEL-001 to -022; all problems of one kind of check in one answer.

    Cost: one sha256 over the file, then linear in nodes and small tensors.
    """
    file = open_model_file(path, limits)
    skeleton = strip(file.model, limits)
    proto = _parse(skeleton.stripped, file.model, limits)
    try:
        _require_text(proto)
        declared = _declared(proto)
        inline_functions(proto, limits, whole)
        views = {
            position: file.model[start : start + size]
            for position, (start, size) in skeleton.extents.items()
        }
        refuse(_attach_external(proto, file, views), limits)
        check_model(proto, {position: len(view) for position, view in views.items()}, limits)
        model = _build(proto, views)
        # Before inference looks: a batch count of -1000 makes it read outside its memory.
        Checker(limits, is_certain=False).check_model(model, model.opset_imports.get("", 0))
        check_types(proto, limits)
        require_names("load", declared, model)
    except UnicodeError:
        raise ModelError("TW-MODEL-016", "a name in the model is not valid UTF-8") from None
    except MemoryError:
        raise ModelError("TW-MODEL-014", "the model needs more memory than allowed") from None
    opset = model.opset_imports.get("", 0)
    mapped = file.model.obj
    source = mapped if isinstance(mapped, mmap) and not file.is_bundle else None
    return OnnxModel(model, name, file.sha256, opset, source)


def _parse(stripped: bytes, whole: memoryview, limits: Limits) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(stripped)
    except MemoryError:
        raise ModelError("TW-MODEL-014", "the model needs more memory than allowed") from None
    except (DecodeError, ValueError) as error:
        depth = nesting_depth(whole, _PARSER_DEPTH)
        if depth >= _PARSER_DEPTH:
            raise ModelError(
                "TW-MODEL-014", f"graphs are nested {depth} deep or more",
                limit=limits.max_depth, actual=depth,
            ) from None  # fmt: skip
        raise ModelError("TW-MODEL-001", f"the file is not an ONNX model: {error}") from None
    return proto


def _require_text(message: Any) -> None:
    """Refuse strings that are not UTF-8: the parser hands those on as bytes, to fail anywhere.

    Raises:
        UnicodeError: such a string is somewhere in `message`.
    """
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            texts = [value] if isinstance(value, str | bytes) else value
            if any(isinstance(text, bytes) for text in texts):
                raise UnicodeError(field.name)
        elif field.type == field.TYPE_MESSAGE:
            single = hasattr(value, "ListFields")
            for inner in [value] if single else value:
                _require_text(inner)


def _declared(proto: onnx.ModelProto) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the inputs without a value, and of the outputs, as the file lists them."""
    given = {tensor.name for tensor in proto.graph.initializer}
    given.update(sparse.values.name for sparse in proto.graph.sparse_initializer)
    inputs = tuple(v.name for v in proto.graph.input if v.name not in given)
    return inputs, tuple(v.name for v in proto.graph.output)


def _attach_external(
    proto: onnx.ModelProto, file: ModelFile, views: dict[int, memoryview]
) -> list[Finding]:
    """Point main-graph initializers at members of the bundle; refuse every other place.

    Edits the message: afterwards no tensor is marked external.
    """
    findings: list[Finding] = []
    contents: dict[str, memoryview] = {}
    for position, tensor in enumerate(proto.graph.initializer):
        if tensor.data_location != onnx.TensorProto.EXTERNAL and not tensor.external_data:
            continue
        found = _external_view(tensor, file, contents)
        if isinstance(found, Finding):
            findings.append(found)
        else:
            views[position] = found
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
    stack = list(proto.graph.node)
    while stack:
        node = stack.pop()
        for attribute in node.attribute:
            for graph in [attribute.g, *attribute.graphs]:
                stack += graph.node
                inner = list(graph.initializer)
                findings += [_only_at_top(t, node.name) for t in inner if _is_external(t)]
            tensors = [attribute.t, *attribute.tensors]
            findings += [_only_at_top(t, node.name) for t in tensors if _is_external(t)]
    return findings


def _is_external(tensor: Any) -> bool:
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data)


def _only_at_top(tensor: Any, node: str) -> Finding:
    return Finding(
        "TW-MODEL-010",
        f"tensor {tensor.name!r} inside a node has external data; only the main graph's"
        " initializers may",
        None,
        node or None,
    )


def _external_view(
    tensor: Any, file: ModelFile, contents: dict[str, memoryview]
) -> memoryview | Finding:
    """The bytes of one external tensor, found by name in the table of contents only."""

    def bad(why: str) -> Finding:
        return Finding("TW-MODEL-010", f"external data of {tensor.name!r}: {why}")

    if not file.is_bundle:
        return bad("a bare .onnx file cannot have any; upload a zip bundle")
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    why = unsafe_name(location)
    if why is not None:
        return bad(f"the location {location!r} is not allowed: {why}")
    member = f"{file.folder}/{location}" if file.folder else location
    if member not in file.members:
        return bad(f"{location!r} is not in the bundle")
    if member not in contents:
        contents[member] = file.members[member].content()
    size = len(contents[member])
    numbers: list[int] = []
    for key in ("offset", "length"):
        text = entries.get(key, "0" if key == "offset" else "-1")
        if text != "-1" and not (text.isascii() and text.isdigit() and len(text) < 20):
            return bad(f"{key} {text!r} is not a number")
        numbers.append(int(text))
    offset, length = numbers
    if length == -1:
        length = num_bytes(tensor.data_type, tuple(tensor.dims)) or 0
    if offset < 0 or offset + length > size or length < 0:
        return bad(f"bytes {offset} to {offset + length} are outside {location!r} ({size} bytes)")
    return contents[member][offset : offset + length]


def _build(proto: onnx.ModelProto, views: dict[int, memoryview]) -> onnx_ir.Model:
    """The IR model, its large initializers reading straight from the file's memory map."""
    names = {proto.graph.initializer[position].name: position for position in views}
    for entry in proto.opset_import:
        if entry.domain == "ai.onnx":
            entry.domain = ""
    try:
        model = onnx_ir.serde.deserialize_model(proto)
    except (onnx_ir.serde.SerdeError, ValueError, TypeError, KeyError) as error:
        raise ModelError("TW-MODEL-001", f"the model cannot be read: {str(error)[:300]}") from None
    for name, position in names.items():
        value = model.graph.initializers[name]
        value.const_value = _tensor(proto.graph.initializer[position], views[position])
    for value in list(model.graph.inputs):
        if value.name in model.graph.initializers:
            # An initializer with an input's name is its default; for a compiler, its value.
            model.graph.inputs.remove(value)
    for node in model.graph.all_nodes():
        if node.domain == "ai.onnx":
            node.domain = ""
    return model


def _tensor(proto: Any, data: memoryview) -> Any:
    kind = onnx_ir.DataType(proto.data_type)
    shape = tuple(proto.dims)
    if kind.bitwidth < 8:
        packed = np.frombuffer(data, dtype=np.uint8)
        return onnx_ir.PackedTensor(packed, kind, shape=onnx_ir.Shape(shape), name=proto.name)
    array = np.frombuffer(data, dtype=kind.numpy()).reshape(shape)
    return onnx_ir.Tensor(array, dtype=kind, name=proto.name)
