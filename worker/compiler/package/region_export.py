"""From a part of the compiled ONNX model to the region's graph document.

Constants stay where they are: those that kernels read under their own name in `weights.safetensors`
of the program, the others (operators' parameters that became literals, weights that the kernels
want in another layout, tensors in attributes) in one `regions/constants.safetensors`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256

import numpy as np
import onnx_ir

from worker.compiler.errors import InternalError
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.ops.call import DTYPES
from worker.compiler.layout.change import LayoutChange
from worker.compiler.package.executable import Array, HomeTensor
from worker.compiler.package.manifest import CONSTANTS_NAME
from worker.compiler.package.region_graph import (
    GRAPH_FORMAT_VERSION,
    Attribute,
    CompositeRow,
    Entry,
    LayoutRow,
    Node,
    Quantization,
    RegionGraph,
    Scalar,
    StoredTensor,
)
from worker.compiler.package.weights import WEIGHTS_NAME, stored_bytes
from worker.compiler.partition.plan import Part

_INTEGER_OF = {"QuantizeLinear": 1, "DequantizeLinear": 0}
"""Which side of the node is the integer: its output or its input."""


class ConstantStore:
    """Collects the constants of a program's regions that its weights do not hold already."""

    def __init__(self, prefix: str, weights: Mapping[str, HomeTensor]) -> None:
        self._prefix = prefix
        self._weights = weights
        self._stored: dict[str, StoredTensor] = {}
        self.tensors: list[HomeTensor] = []
        """In the order of the member; addresses are offsets into its data."""
        self.values: dict[str, Callable[[], Array]] = {}

    def put(
        self, name: str, tensor: onnx_ir.TensorProtocol, is_shared: bool = False
    ) -> StoredTensor:
        """Where the tensor is to be found.  `is_shared`: kernels of the region read this very
        tensor, so the program's weights have it under its name.

        Cost: one pass over its bytes.
        """
        if name not in self._stored:
            self._stored[name] = self._new(name, tensor, is_shared)
        return self._stored[name]

    def _new(self, name: str, tensor: onnx_ir.TensorProtocol, is_shared: bool) -> StoredTensor:
        dtype = DTYPES.get(tensor.dtype)
        if dtype is None:
            raise InternalError(
                "TW-INT-001", f"constant {name!r} has type {tensor.dtype.name}", stage="package"
            )
        shape = tuple(int(d) for d in tensor.shape.numpy())
        size_bytes = math.prod(shape) * dtype.size_bytes
        home = self._weights.get(name) if is_shared else None
        in_weights = home is not None and (home.dtype, home.shape) == (str(dtype), shape)
        if not in_weights:
            address = sum(t.size_bytes for t in self.tensors[-1:]) + (
                self.tensors[-1].address if self.tensors else 0
            )
            home = HomeTensor(name, str(dtype), shape, address, size_bytes)
            self.tensors.append(home)
            self.values[name] = tensor.numpy
        assert home is not None
        digest = sha256(stored_bytes(home, tensor.numpy())).hexdigest()
        member = self._prefix + (WEIGHTS_NAME if in_weights else CONSTANTS_NAME)
        return StoredTensor(member, name, digest, str(dtype), shape)


def export_region(
    index: int,
    part: Part,
    model: OnnxModel,
    layouts: Sequence[LayoutChange],
    kernel_constants: Sequence[str],
    store: ConstantStore,
) -> RegionGraph:
    """The region's document; its constants go into `store`.

    `kernel_constants` are the constants that the region's own kernels read, by name.
    Cost: linear in nodes, one pass over the constants.
    """
    nodes = list(model.ir.graph)
    members = [nodes[k] for k in part.nodes]
    table = _Entries(part, members, model, frozenset(kernel_constants), store)
    local = {position: k for k, position in enumerate(part.nodes)}
    composite_of = {
        local[position]: number
        for number, composite in enumerate(part.composites)
        for position in composite.nodes
        if position in local
    }
    rows = tuple(
        Node(
            k,
            node.name or "",
            node.op_type,
            "" if node.domain == "ai.onnx" else node.domain,
            tuple(_attribute(attribute, store) for attribute in node.attributes.values()),
            tuple(table.id_of(value) for value in node.inputs),
            tuple(table.id_of(value) for value in node.outputs),
            composite_of.get(k),
        )
        for k, node in enumerate(members)
    )
    return RegionGraph(
        GRAPH_FORMAT_VERSION,
        index,
        part.target,
        dict(sorted(model.ir.opset_imports.items())),
        tuple(table.ids[name] for name in part.inputs),
        tuple(table.ids[name] for name in part.outputs),
        table.rows(members),
        rows,
        tuple(
            CompositeRow(
                k, c.name, str(c.kind), c.intrinsic,
                tuple(local[position] for position in c.nodes if position in local),
            )
            for k, c in enumerate(part.composites)
        ),
        tuple(
            LayoutRow(
                table.ids.get(row.tensor), row.tensor, row.from_layout, row.to_layout,
                str(row.kind), row.reason,
            )
            for row in layouts
        ),
    )  # fmt: skip


class _Entries:
    """The values of a region in the order of their ids: inputs, then by first use."""

    def __init__(
        self,
        part: Part,
        nodes: Sequence[onnx_ir.Node],
        model: OnnxModel,
        kernel_constants: frozenset[str],
        store: ConstantStore,
    ) -> None:
        self._part = part
        self._store = store
        self._kernel_constants = kernel_constants
        self._initializers = model.ir.graph.initializers
        self._value_of: dict[str, onnx_ir.Value] = {}
        for node in nodes:
            for value in (*node.inputs, *node.outputs):
                if value is not None and value.name:
                    self._value_of.setdefault(value.name, value)
        names = dict.fromkeys((*part.inputs, *self._value_of))
        self.ids = {name: k for k, name in enumerate(names)}

    def id_of(self, value: onnx_ir.Value | None) -> int | None:
        return self.ids[value.name] if value is not None and value.name else None

    def rows(self, nodes: Sequence[onnx_ir.Node]) -> tuple[Entry, ...]:
        quantized = self._quantized(nodes)
        return tuple(self._row(name, quantized.get(name)) for name in self.ids)

    def _row(self, name: str, quantization: Quantization | None) -> Entry:
        value = self._value_of[name]
        stored = None
        kind, shape = value.dtype, value.shape
        if name in self._part.inputs:
            role = "input"
        elif name in self._initializers:
            role = "constant"
            tensor = self._initializers[name].const_value
            assert tensor is not None
            # A constant says its own type: a file may declare it as an input without a shape.
            kind, shape = tensor.dtype, onnx_ir.Shape(tensor.shape.numpy())
            stored = self._store.put(name, tensor, name in self._kernel_constants)
        else:
            role = "output" if name in self._part.outputs else "intermediate"
        dtype = DTYPES.get(kind) if kind is not None else None
        if shape is None or dtype is None:
            raise InternalError(
                "TW-INT-001", f"value {name!r} of a region has no static type", stage="package"
            )
        dims = tuple(int(extent) for extent in shape.numpy())
        return Entry(self.ids[name], name, role, str(dtype), dims, stored, quantization)

    def _quantized(self, nodes: Sequence[onnx_ir.Node]) -> dict[str, Quantization]:
        """Parameters of every value that is the integer side of a Q/DQ node, by name."""
        found: dict[str, Quantization] = {}
        for node in nodes:
            side = _INTEGER_OF.get(node.op_type)
            if side is None or node.domain not in ("", "ai.onnx"):
                continue
            value = (node.inputs, node.outputs)[side][0]
            scale = node.inputs[1]
            zero = node.inputs[2] if len(node.inputs) > 2 else None
            scale_id = self.id_of(scale)
            if value is None or not value.name or scale_id is None:
                continue
            is_scalar = scale is not None and scale.shape is not None and not len(scale.shape)
            axis = node.attributes.get("axis")
            found.setdefault(
                value.name,
                Quantization(
                    scale_id,
                    self.id_of(zero),
                    None if is_scalar else axis.as_int() if axis is not None else 1,
                    self._floats(scale),
                    self._integers(zero),
                ),
            )
        return found

    def _constant(self, value: onnx_ir.Value | None) -> Array | None:
        if value is None or not value.name or value.name not in self._initializers:
            return None
        tensor = self._initializers[value.name].const_value
        return None if tensor is None else np.asarray(tensor.numpy())

    def _floats(self, value: onnx_ir.Value | None) -> tuple[float, ...] | None:
        array = self._constant(value)
        return None if array is None else tuple(float(v) for v in array.reshape(-1))

    def _integers(self, value: onnx_ir.Value | None) -> tuple[int, ...] | None:
        array = self._constant(value)
        return None if array is None else tuple(int(v) for v in array.reshape(-1))


def _attribute(attribute: onnx_ir.Attr, store: ConstantStore) -> Attribute:
    kind = onnx_ir.AttributeType(attribute.type)
    name, word = attribute.name, kind.name.lower()
    match kind:
        case onnx_ir.AttributeType.INT:
            return Attribute(name, word, attribute.as_int())
        case onnx_ir.AttributeType.FLOAT:
            return Attribute(name, word, _number(attribute.as_float()))
        case onnx_ir.AttributeType.STRING:
            return Attribute(name, word, attribute.as_string())
        case onnx_ir.AttributeType.INTS:
            return Attribute(name, word, tuple(attribute.as_ints()))
        case onnx_ir.AttributeType.FLOATS:
            return Attribute(name, word, tuple(_number(v) for v in attribute.as_floats()))
        case onnx_ir.AttributeType.STRINGS:
            return Attribute(name, word, tuple(attribute.as_strings()))
        case onnx_ir.AttributeType.TENSOR:
            tensor = attribute.as_tensor()
            digest = sha256(tensor.tobytes()).hexdigest()
            label = f"attribute:{tensor.dtype.name}:{list(tensor.shape)}:{digest}"
            return Attribute(name, word, store.put(label, tensor))
        case _:
            raise InternalError(
                "TW-INT-001", f"attribute {name!r} of type {word} is inside a region",
                stage="package",
            )  # fmt: skip


def _number(value: float) -> Scalar:
    return float(value) if math.isfinite(value) else str(float(value))
