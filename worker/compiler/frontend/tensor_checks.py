"""Are a tensor's stored bytes what its type and shape say?  Also: dimensions and NaN scalars."""

from __future__ import annotations

import math
from typing import Any

import onnx
import onnx_ir

from worker.compiler.errors import Finding
from worker.compiler.frontend.limits import Limits

_P = onnx.TensorProto
_FIELD_OF_TYPE: dict[int, tuple[str, int]] = {
    _P.FLOAT: ("float_data", 1), _P.COMPLEX64: ("float_data", 2), _P.DOUBLE: ("double_data", 1),
    _P.COMPLEX128: ("double_data", 2), _P.INT64: ("int64_data", 1), _P.UINT64: ("uint64_data", 1),
    _P.UINT32: ("uint64_data", 1), _P.STRING: ("string_data", 1),
}  # fmt: skip
"""Typed field and stored numbers per element; every other type uses int32_data."""
_TYPED_FIELDS = (
    "float_data", "double_data", "int32_data", "int64_data", "uint64_data", "string_data",
)  # fmt: skip


def bits_of(data_type: int) -> int | None:
    """Bits per element of an ONNX element type; None for strings and unknown types."""
    try:
        return onnx_ir.DataType(data_type).bitwidth
    except (ValueError, TypeError):
        return None


def num_bytes(data_type: int, dims: tuple[int, ...]) -> int | None:
    """Bytes of a densely packed tensor; None for strings."""
    bits = bits_of(data_type)
    return None if bits is None else (math.prod(dims) * bits + 7) // 8


def check_dims(dims: tuple[int, ...], where: str, limits: Limits) -> Finding | None:
    """A finding for a negative or absurd dimension or element count."""
    for dim in dims:
        if dim < 0 or dim > limits.max_dim:
            return Finding(
                "TW-MODEL-007", f"{where} has dimension {dim}", None, None, limits.max_dim, dim
            )
    count = math.prod(dims)
    if count > limits.max_elements:
        return Finding(
            "TW-MODEL-007", f"{where} has {count} elements", None, None, limits.max_elements,
            str(count),
        )  # fmt: skip
    return None


def check_tensor(
    tensor: Any, where: str, limits: Limits, stored_bytes: int | None
) -> list[Finding]:
    """Findings of one TensorProto; `stored_bytes` when its data lies outside the message."""
    dims = tuple(tensor.dims)
    bad = check_dims(dims, where, limits)
    if bad is not None:
        return [bad]
    kind = tensor.data_type
    bits = bits_of(kind)
    if kind == _P.UNDEFINED or (bits is None and kind != _P.STRING):
        return [Finding("TW-MODEL-015", f"{where} has the unknown element type {kind}")]
    filled = [name for name in _TYPED_FIELDS if len(getattr(tensor, name))]
    has_raw = stored_bytes is not None or tensor.HasField("raw_data")
    count = math.prod(dims)
    if kind == _P.STRING:
        if has_raw or filled not in ([], ["string_data"]) or len(tensor.string_data) != count:
            return [Finding("TW-MODEL-015", f"{where} does not hold {count} strings")]
        return []
    if has_raw:
        need = num_bytes(kind, dims)
        have = len(tensor.raw_data) if stored_bytes is None else stored_bytes
        if need != have or filled:
            return [
                Finding(
                    "TW-MODEL-015",
                    f"{where} stores {have} bytes, its type and shape need {need}",
                    None,
                    None,
                    need,
                    have,
                )
            ]
        return []
    field, per_element = _FIELD_OF_TYPE.get(kind, ("int32_data", 1))
    if bits is not None and bits < 8:
        per_byte = 8 // bits
        need = (count + per_byte - 1) // per_byte
    else:
        need = count * per_element
    have = len(getattr(tensor, field))
    if have != need or filled not in ([], [field]):
        return [
            Finding(
                "TW-MODEL-015",
                f"{where} stores {have} numbers, its type and shape need {need}",
                None,
                None,
                need,
                have,
            )
        ]
    return []


def has_nan(tensor: Any, *, infinite_too: bool = False) -> bool:
    """Whether a sound small floating-point tensor holds a NaN (or an infinity)."""
    if tensor.data_type not in (_P.FLOAT, _P.DOUBLE, _P.FLOAT16, _P.BFLOAT16):
        return False
    import numpy as np

    values = onnx.numpy_helper.to_array(tensor).astype(np.float64)
    return not bool(np.isfinite(values).all()) if infinite_too else bool(np.isnan(values).any())
