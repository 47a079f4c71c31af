"""Scale and zero point of a QuantizeLinear or DequantizeLinear node, as numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker.compiler.frontend.ops.call import DTYPES, Call, element_type
from worker.compiler.frontend.ops.reduce import normal_axis
from worker.compiler.frontend.ops.refusal import Refusal, shape_mismatch, unsupported_attribute
from worker.compiler.ir.dtype import DType
from worker.compiler.rejection import ReasonCode

QUANTIZED = (DType.I8, DType.U8, DType.I16, DType.U16)


@dataclass(frozen=True, slots=True, eq=False)
class Scheme:
    """value = (integer - zero) * scale, for the whole tensor or per index of one axis."""

    dtype: DType
    """Of the integers."""
    scales: npt.NDArray[np.float32]
    """Shape () or (channels,)."""
    zeros: npt.NDArray[np.int64]
    """Shape of `scales`."""
    axis: int | None
    """None: one scale and zero point for the whole tensor."""

    @property
    def zero(self) -> int:
        """The one zero point; refuses when channels differ."""
        if np.unique(self.zeros).size != 1:
            raise Refusal(ReasonCode.UNSUPPORTED_INPUT, "zero points that differ between channels")
        return int(self.zeros.reshape(-1)[0])

    @property
    def scale(self) -> float:
        """The one scale; refuses when channels differ."""
        if self.axis is not None:
            raise Refusal(ReasonCode.UNSUPPORTED_INPUT, "scales that differ between channels")
        return float(self.scales)

    @property
    def limits(self) -> tuple[int, int]:
        """Lowest and highest integer of the type."""
        info = np.iinfo(str(self.dtype.numpy))
        return int(info.min), int(info.max)

    @property
    def reach(self) -> int:
        """Largest magnitude of integer - zero."""
        low, high = self.limits
        return int(max(high - self.zeros.min(), self.zeros.max() - low))

    def quantised(self, value: float) -> int:
        """The integer for one float, as QuantizeLinear gives it (infinities saturate)."""
        low, high = self.limits
        with np.errstate(over="ignore", divide="ignore"):
            steps = float(np.rint(np.float32(value) / np.float32(self.scale)))
        return int(min(max(steps + self.zero, low), high))


def read_scheme(call: Call, rank: int) -> Scheme:
    """Parameters of a QuantizeLinear or DequantizeLinear node on a tensor of `rank`.

    Raises:
        Refusal: run-time, blocked, non-positive or non-finite parameters, types other than 8 and
            16 bits (and 32 for a bias), computation in another type than f32.
    """
    node = call.node
    is_quantize = node.op_type == "QuantizeLinear"
    dtype = _integer_type(call)
    scales = np.asarray(call.array(1))
    if scales.dtype != np.float32 or element_type_of(call) is not DType.F32:
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"{node.op_type} with scales or data not f32")
    zeros = np.asarray(call.array(2) if call.has_input(2) else np.zeros(scales.shape), np.int64)
    if call.attrs.integer("block_size", 0):
        raise unsupported_attribute(f"{node.op_type} with a scale per block in an integer cluster")
    if scales.shape != zeros.shape or scales.ndim > 1:
        raise shape_mismatch(f"zero points of {zeros.shape} for scales of {scales.shape}")
    if not np.isfinite(scales).all() or not (scales >= np.finfo(np.float32).tiny).all():
        raise Refusal(
            ReasonCode.UNSUPPORTED_INPUT,
            f"{node.op_type} with a scale that is not a positive normal number",
        )
    axis = call.attrs.integer("axis", 1)
    call.attrs.ignore("saturate" if is_quantize else "")
    call.attrs.ignore("output_dtype", "precision")
    call.attrs.finish()
    if scales.size == 1 or (np.unique(scales).size == 1 and np.unique(zeros).size == 1):
        return Scheme(dtype, scales.reshape(-1)[0], zeros.reshape(-1)[0], None)
    return Scheme(dtype, scales, zeros, normal_axis(axis, rank))


def _integer_type(call: Call) -> DType:
    node = call.node
    value = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
    if value is None or value.dtype not in DTYPES:
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"{node.op_type} of an unknown integer type")
    dtype = DTYPES[value.dtype]
    if dtype not in QUANTIZED and not (dtype is DType.I32 and node.op_type == "DequantizeLinear"):
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"{node.op_type} with integers of type {dtype}")
    return dtype


def element_type_of(call: Call) -> DType:
    """Type of the float side of a QuantizeLinear or DequantizeLinear node."""
    if call.node.op_type == "QuantizeLinear":
        return call.dtype(0)
    return element_type(call.node.outputs[0])
