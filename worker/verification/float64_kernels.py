"""Which operators ONNX Runtime computes in float64: asked of its own table of kernels."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import onnx

DOUBLES = frozenset({"tensor(double)", "seq(tensor(double))", "optional(tensor(double))"})
_CLAIMED = frozenset({"LSTM", "GRU"})
"""Registered for float64, and refused when they run ("not implemented")."""


@cache
def _constraints() -> dict[tuple[str, str], list[tuple[int, int, dict[str, list[str]]]]]:
    """(domain, operator) -> (first version, last version, types by constraint) of CPU kernels."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found: dict[tuple[str, str], list[tuple[int, int, dict[str, list[str]]]]] = {}
    for kernel in state.get_all_opkernel_def():
        if kernel.provider == "CPUExecutionProvider":
            first, last = kernel.version_range
            row = (first, last, dict(kernel.type_constraints))
            found.setdefault((kernel.domain, kernel.op_name), []).append(row)
    return found


def has_float64_kernel(node: onnx.NodeProto, version: int, raised: Iterable[str]) -> bool:
    """Whether a kernel takes float64 in the place of every name of `raised` among the node's
    inputs and outputs.

    `version` is the model's, of the node's domain.
    """
    if node.op_type in _CLAIMED:
        return False
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return False
    names = frozenset(raised)
    kinds: set[str] = set()
    for actual, formal in ((node.input, schema.inputs), (node.output, schema.outputs)):
        for k, name in enumerate(actual):
            if name in names and formal:
                kinds.add(formal[min(k, len(formal) - 1)].type_str)
    if any("(" in kind for kind in kinds):  # a fixed type, not a constraint
        return False
    return any(
        first <= schema.since_version <= last
        and all(not DOUBLES.isdisjoint(types[kind]) for kind in kinds if kind in types)
        for first, last, types in _constraints().get((node.domain, node.op_type), ())
    )
