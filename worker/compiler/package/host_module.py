"""The host sub-module: ONNX Runtime sessions, created once, on the data entries where they are.

A part whose values all have memory of their own reads and writes it in place (I/O binding): no
result is allocated and none is copied to the home memory.  Measured on one thread against a plain
run with copies: 2 us instead of 4-7 us for 10 elements, 11 us instead of 25-74 us for 100 000
floats, 0.29 ms instead of 0.58-0.87 ms for a million.
Source: BYOC section 3.4 (nodes on the host read and write data entries).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import memmove
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np

from worker.compiler.errors import CompilerError
from worker.compiler.ir.dtype import DType
from worker.compiler.isa.program import HostCall
from worker.compiler.package.executable import Array
from worker.compiler.package.metadata_module import DataEntry, MetadataModule

_MOST_NAMED = 4
_ONNX_TYPE = {
    DType.BF16: 16, DType.F8E4M3FN: 17, DType.F8E4M3FNUZ: 18, DType.F8E5M2: 19,
    DType.F8E5M2FNUZ: 20,
}  # fmt: skip
"""ONNX's numbers of the types that numpy has not."""
_BITS = {
    "tensor(bfloat16)": 16, "tensor(float8e4m3fn)": 17, "tensor(float8e4m3fnuz)": 18,
    "tensor(float8e5m2)": 19, "tensor(float8e5m2fnuz)": 20,
}  # fmt: skip
"""The same by ONNX Runtime's names."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """A session with the memory of all its values."""

    session: Any
    binding: Any
    model: bytes


class HostModule:
    """Sessions of a program's host parts.  Not thread-safe."""

    def __init__(self, host_models: Sequence[bytes], threads: int) -> None:
        self._sessions: list[Any] = [
            _session(data, threads) if data else None for data in host_models
        ]
        self._models = tuple(host_models)
        self._bound: dict[int, _Bound] = {}

    def run(self, host: int, outputs: Sequence[str], feeds: Mapping[str, Array]) -> list[Any]:
        """Run a part on arrays; results in the order of `outputs`.

        Types that numpy has not come and go as their bits.

        Raises:
            CompilerError: TW-RUN-003 with the user's node and ONNX Runtime's words.
        """
        session = self._sessions[host]
        with _blamed(self._models[host]):
            if _has_bits(session) and not any(isinstance(v, list) for v in feeds.values()):
                return _run_bits(session, outputs, feeds)
            found: list[Any] = session.run(list(outputs), dict(feeds))
        return found

    def bind(self, call: HostCall, metadata: MetadataModule) -> _Bound | None:
        """The part on its data entries; None where some value has no memory of its own.

        Cost: the first call of each part makes the bindings.
        """
        names = (*call.inputs, *call.outputs)
        if not all(metadata.is_allocated(name) for name in names):
            return None
        if any(not metadata.entries[name].array.size for name in names):
            return None
        if call.host not in self._bound:
            session = self._sessions[call.host]
            binding = session.io_binding()
            for name in call.inputs:
                binding.bind_input(name, *_memory(metadata.entries[name]))
            for name in call.outputs:
                binding.bind_output(name, *_memory(metadata.entries[name]))
            self._bound[call.host] = _Bound(session, binding, self._models[call.host])
        return self._bound[call.host]

    def run_bound(self, bound: _Bound) -> None:
        """Run a part in place.

        Raises: as `run`.
        """
        with _blamed(bound.model):
            bound.session.run_with_iobinding(bound.binding)


def _has_bits(session: Any) -> bool:
    """Whether some value that goes in or comes out has a type that numpy has not."""
    return any(v.type in _BITS for v in (*session.get_inputs(), *session.get_outputs()))


def _run_bits(session: Any, outputs: Sequence[str], feeds: Mapping[str, Array]) -> list[Any]:
    from onnxruntime import OrtValue

    number = {v.name: _BITS[v.type] for v in session.get_inputs() if v.type in _BITS}
    given = {
        name: OrtValue.ortvalue_from_numpy_with_onnx_type(value, number[name])
        if name in number
        else OrtValue.ortvalue_from_numpy(value)
        for name, value in feeds.items()
    }
    results = session.run_with_ort_values(list(outputs), given)
    return [_bits_of(v) if v.data_type() in _BITS else v.numpy() for v in results]


def _bits_of(value: Any) -> Array:
    """A copy of a tensor's bits: the runtime gives no array of such a type."""
    shape = tuple(value.shape())
    kind = np.uint16 if value.data_type() == "tensor(bfloat16)" else np.uint8
    size = prod(shape) * np.dtype(kind).itemsize
    found: Array = np.zeros(shape, dtype=kind)
    if size:
        memmove(found.ctypes.data, value.data_ptr(), size)
    return found


def _memory(entry: DataEntry) -> tuple[str, int, Any, list[int], int]:
    """(device, its number, element type, shape, address) as bindings want them."""
    array = entry.array
    known = entry.dtype in DType.__members__.values()
    kind = _ONNX_TYPE.get(DType(entry.dtype)) if known else None
    return "cpu", 0, kind or array.dtype.type, [*array.shape], array.ctypes.data


def _session(model: bytes, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Moving quantisations through other operators gives i8 values u8 zero points, which the
    # runtime then refuses; and host parts must round where the model says.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    if b"QuantizeLinear" in model:
        # Optimised kernels add in another order; a sum on the other side of a rounding edge is a
        # step away, and deep models amplify it: SSD's scores were 0.17 off, now they are equal.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    with _blamed(model):
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@contextmanager
def _blamed(model: bytes) -> Iterator[None]:
    """Turn what ONNX Runtime raises into an error that names the user's node.

    Host parts keep the names of the model's nodes, and the runtime's messages give them; where a
    message does not, the part's nodes are listed.
    """
    try:
        yield
    except _raised_by_runtime() as error:
        text = " ".join(str(error).split())
        nodes = _node_names(model)
        named = _named_in(text, nodes)
        if named is None and len(nodes) == 1:
            named = nodes[0]
        place = "" if named else f" (nodes {_listed(nodes)})"
        raise CompilerError(
            "TW-RUN-003",
            f"ONNX Runtime cannot run a part of the model on the host{place}: {text[:400]}",
            node=named,
        ) from error


@cache
def _raised_by_runtime() -> tuple[type[Exception], ...]:
    """What ONNX Runtime raises: types of its own, made in C++ and with no base of theirs, and what
    its Python and its binding raise of the language's."""
    from onnxruntime.capi import onnxruntime_pybind11_state as binding

    kinds = (value for _, value in sorted(vars(binding).items()) if isinstance(value, type))
    own = (kind for kind in kinds if issubclass(kind, Exception))
    return (*own, RuntimeError, ValueError, TypeError)


def _node_names(model: bytes) -> tuple[str, ...]:
    """Names of a part's nodes, those of bodies after their owners; none where it is no model."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # has no stubs

    try:
        stack = [onnx.load_model_from_string(model).graph]
    except DecodeError:
        return ()
    names: dict[str, None] = {}
    while stack:
        for node in stack.pop(0).node:
            names.update({node.name: None} if node.name else {})
            for attribute in node.attribute:
                stack += [attribute.g] if attribute.HasField("g") else [*attribute.graphs]
    return tuple(names)


def _named_in(text: str, nodes: Sequence[str]) -> str | None:
    """The node that a message names; a fusion of the runtime's is called after one of its nodes."""
    found = [
        name
        for name in nodes
        if re.search(rf"""(?:[('":]|: ){re.escape(name)}(?:[)'"/_, ]|$)""", text) is not None
    ]
    return max(found, key=len, default=None)


def _listed(nodes: Sequence[str]) -> str:
    more = len(nodes) - _MOST_NAMED
    return ", ".join(nodes[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
