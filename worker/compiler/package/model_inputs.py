"""Compare what a user feeds a model with what the model wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from worker.compiler.errors import Finding, InputError
from worker.compiler.ir.dtype import DType
from worker.compiler.package.executable import Array, Port

_OWN_NAME = {
    DType.BF16: "bfloat16", DType.F8E4M3FN: "float8_e4m3fn", DType.F8E4M3FNUZ: "float8_e4m3fnuz",
    DType.F8E5M2: "float8_e5m2", DType.F8E5M2FNUZ: "float8_e5m2fnuz",
    DType.F4E2M1: "float4_e2m1fn", DType.I4: "int4", DType.U4: "uint4", DType.I2: "int2",
    DType.U2: "uint2",
}  # fmt: skip
"""What ml_dtypes calls a type that numpy has not.  Its arrays do as well as the stored bytes."""


def stored(value: Array) -> Array:
    """An array as kernels store it: of ml_dtypes' types the bits, or the integers.

    Shapes: unchanged.
    """
    kind = next((k for k, name in _OWN_NAME.items() if name == str(value.dtype)), None)
    if kind is None:
        return value
    return value.view(kind.numpy) if kind.is_float else value.astype(kind.numpy)


def check_inputs(ports: Sequence[Port], inputs: Mapping[str, Array]) -> None:
    """Compare given arrays with the model's inputs.

    Raises:
        InputError: TW-RUN-002 with one finding per missing, unknown or ill-typed array.
    """
    findings: list[Finding] = []
    expected = {port.name: port for port in ports}
    findings.extend(
        Finding("TW-RUN-002", f"the model has no input {name!r}", allowed=list(expected))
        for name in sorted(set(inputs) - set(expected))
    )
    for port in ports:
        want = f"{port.dtype}{_dims(port)}"
        if port.name not in inputs:
            findings.append(Finding("TW-RUN-002", f"input {port.name!r} is missing", allowed=want))
            continue
        value = np.asarray(inputs[port.name])
        have = f"{value.dtype}{list(value.shape)}"
        if not _agrees(value.shape, port.shape) or not _fits(value, port.dtype):
            findings.append(
                Finding("TW-RUN-002", f"input {port.name!r} must be {want}, got {have}",
                        allowed=want, actual=have)
            )  # fmt: skip
    if findings:
        raise InputError(
            "TW-RUN-002",
            findings[0].message,
            limit=findings[0].allowed,
            actual=findings[0].actual,
            findings=tuple(findings),
        )


def _dims(port: Port) -> str:
    if port.shape is None:
        return " of any shape"
    return f"[{', '.join('?' if d < 0 else str(d) for d in port.shape)}]"


def _agrees(shape: tuple[int, ...], want: tuple[int, ...] | None) -> bool:
    return want is None or (
        len(shape) == len(want) and all(d in (s, -1) for s, d in zip(shape, want, strict=True))
    )


def _fits(value: Array, dtype: str) -> bool:
    if dtype in DType.__members__.values():
        kind = DType(dtype)
        return value.dtype == kind.numpy or str(value.dtype) == _OWN_NAME.get(kind)
    return str(value.dtype) == dtype or (dtype == "string" and value.dtype.kind in "OSU")
