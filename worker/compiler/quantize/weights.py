"""Constants of integer operators: quantised once, at compile time, behind DequantizeLinear."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir

from worker.compiler.frontend.edit import constant_of
from worker.compiler.frontend.work import static_shape
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import Conversion
from worker.compiler.quantize.insert import Inserter
from worker.compiler.quantize.parameters import (
    F32,
    QuantParameters,
    from_range,
    of_bias,
    of_scalar,
    of_weights,
    quantise,
)

Array = npt.NDArray[Any]

_BIAS_LIMIT = float(1 << 29)
"""Largest magnitude of a quantised bias: the rest of i32 is left to the products."""
_ONNX_TYPE = {
    DType.I8: onnx_ir.DataType.INT8,
    DType.U8: onnx_ir.DataType.UINT8,
    DType.I32: onnx_ir.DataType.INT32,
}


def onnx_type(dtype: DType) -> onnx_ir.DataType:
    """ONNX's name of an integer type."""
    return _ONNX_TYPE[dtype]


class ConstantQuantiser:
    """Quantises constants of one graph; equal requests share their tensors."""

    def __init__(self, inserter: Inserter) -> None:
        self._inserter = inserter
        self._made: dict[tuple[object, ...], onnx_ir.Value] = {}
        self.replaced: list[onnx_ir.Value] = []
        """Float constants that some node reads no more."""

    def contraction(
        self, node: onnx_ir.Node, input_scale: float | None, conversion: Conversion
    ) -> list[onnx_ir.Node]:
        """Quantise weights and bias of a Conv, ConvTranspose, Gemm or MatMul; give the new nodes.

        A channel whose bias would not fit i32 in units of sx * sw gets a larger weight scale:
        its weights are too small beside the bias to be seen in the result.

        Args:
            input_scale: of the computed operand; None when it is not known, or when both operands
                are computed: the bias stays float then.
        """
        made: list[onnx_ir.Node] = []
        at = next((k for k in (1, 0) if constant_of(node.inputs[k]) is not None), None)
        scale: F32 | None = None
        bias = _bias(node)
        if at is not None:
            weights = constant_of(node.inputs[at]).numpy()
            axis = _channel_axis(node, at, weights.ndim) if conversion.per_channel else None
            ratio = _ratio(node)
            least: npt.NDArray[np.float64] | float = 0.0
            if bias is not None and input_scale is not None:
                needed = np.abs(bias) / (input_scale * ratio * _BIAS_LIMIT)
                least = _per_weight_channel(node, needed, weights, axis)
            parameters = of_weights(
                weights, axis, conversion.dtype, power_of_two=conversion.power_of_two,
                node=node.name or "", least_scale=least,
            )  # fmt: skip
            scale = parameters.scale
            made.append(self._dequantised(node, at, weights, parameters))
            if bias is not None and input_scale is not None:
                along = np.asarray(scale * ratio, np.float32)
                if axis is not None and along.size != bias.size:
                    along = np.tile(along, bias.size // along.size)  # once per group
                grid = of_bias(np.float32(input_scale) * np.ones((), np.float32), along, 0)
                made.append(self._dequantised(node, 2, bias, grid))
        return made

    def operand(self, node: onnx_ir.Node, k: int, conversion: Conversion) -> onnx_ir.Node | None:
        """Quantise constant operand k of another operator; None for one without elements."""
        array = constant_of(node.inputs[k]).numpy()
        if not array.size:
            return None
        name = node.name or ""
        if array.size == 1:
            parameters = of_scalar(float(array.reshape(())), conversion.dtype, name)
        else:
            parameters = from_range(
                float(array.min()), float(array.max()), conversion.dtype,
                symmetric=conversion.symmetric, power_of_two=conversion.power_of_two, node=name,
            )  # fmt: skip
        return self._dequantised(node, k, array, parameters)

    def given(self, node: onnx_ir.Node, k: int, parameters: QuantParameters) -> onnx_ir.Node:
        """Quantise constant operand k with parameters of another tensor."""
        return self._dequantised(node, k, constant_of(node.inputs[k]).numpy(), parameters)

    def as_float32(self, node: onnx_ir.Node) -> None:
        """Let a node that now computes in f32 read its other float constants as f32."""
        for k, value in enumerate(node.inputs):
            tensor = constant_of(value)
            if value is None or tensor is None or not tensor.dtype.is_floating_point():
                continue
            if tensor.dtype == onnx_ir.DataType.FLOAT:
                continue
            key = (value.name, "f32")
            if key not in self._made:
                array = tensor.numpy().astype(np.float32)
                self._made[key] = self._inserter.constant(f"{value.name}/f32", array)
            node.replace_input_with(k, self._made[key])
            self.replaced.append(value)

    def scale_and_zero(
        self, base: str, parameters: QuantParameters
    ) -> tuple[onnx_ir.Value, onnx_ir.Value]:
        """Initializers of a set of parameters."""
        code = onnx_type(parameters.dtype)
        return (
            self._shared(f"{base}/scale", parameters.scale, onnx_ir.DataType.FLOAT),
            self._shared(f"{base}/zero_point", parameters.zero_point, code),
        )

    def _shared(self, base: str, array: Array, dtype: onnx_ir.DataType) -> onnx_ir.Value:
        key = (base, array.shape, array.tobytes(), dtype)
        if key not in self._made:
            self._made[key] = self._inserter.constant(base, array, dtype)
        return self._made[key]

    def _dequantised(
        self, node: onnx_ir.Node, k: int, array: Array, parameters: QuantParameters
    ) -> onnx_ir.Node:
        """DequantizeLinear of the integers of `array`, put in place of input k."""
        value = node.inputs[k]
        assert value is not None
        self.replaced.append(value)
        base = value.name or ""
        key = (base, parameters.dtype, parameters.axis, array.shape,
               parameters.scale.tobytes(), parameters.zero_point.tobytes())  # fmt: skip
        if key not in self._made:
            integers = quantise(array, parameters)
            self._made[key] = self._inserter.constant(
                f"{base}/quantized", integers, onnx_type(parameters.dtype)
            )
        scale, zero = self.scale_and_zero(base, parameters)
        attributes = {} if parameters.axis is None else {"axis": parameters.axis}
        made = self._inserter.node(
            "DequantizeLinear", "dequantize", node, [self._made[key], scale, zero],
            self._inserter.value_name(f"{base}/dequantized"), onnx_ir.DataType.FLOAT, **attributes,
        )  # fmt: skip
        node.replace_input_with(k, made.outputs[0])
        return made


def _bias(node: onnx_ir.Node) -> npt.NDArray[np.float64] | None:
    """A constant bias as one number per output channel, or None where there is no such thing."""
    if node.op_type == "MatMul" or len(node.inputs) < 3:
        return None
    tensor, shape = constant_of(node.inputs[2]), static_shape(node.outputs[0])
    if tensor is None or shape is None or _ratio(node) <= 0.0:
        return None
    array = tensor.numpy().astype(np.float64)
    channels = shape[1]
    if not np.isfinite(array).all() or array.size not in (1, channels):
        return None
    if array.ndim > 1 and array.shape[-1] != array.size:
        return None  # differs between rows
    return np.ascontiguousarray(np.broadcast_to(array.reshape(-1), (channels,)))


def _ratio(node: onnx_ir.Node) -> float:
    """A Gemm's alpha / beta, in which its bias is counted; 1 for other operators."""
    if node.op_type != "Gemm":
        return 1.0
    alpha, beta = node.attributes.get("alpha"), node.attributes.get("beta")
    factor = 1.0 if alpha is None else alpha.as_float()
    divisor = 1.0 if beta is None else beta.as_float()
    return factor / divisor if divisor else 0.0


def _channel_axis(node: onnx_ir.Node, k: int, rank: int) -> int | None:
    """Axis of the weights along which the output's channels lie; None: there is none."""
    match node.op_type:
        case "Conv" if k == 1:
            return 0
        case "ConvTranspose" if k == 1:
            return 1
        case "Gemm" if k == 1:
            turned = node.attributes.get("transB")
            return 0 if turned is not None and turned.as_int() else 1
        case "MatMul" if k == 1 and rank > 1:
            return rank - 1
        case _:
            return None  # a constant left operand: its rows are not channels


def _per_weight_channel(
    node: onnx_ir.Node, needed: npt.NDArray[np.float64], weights: Array, axis: int | None
) -> npt.NDArray[np.float64] | float:
    """The least scale per channel of the weights, from that per channel of the output."""
    if axis is None:
        return float(needed.max())
    if node.op_type == "ConvTranspose":  # every group has these channels
        return np.asarray(needed.reshape(-1, weights.shape[axis]).max(axis=0))
    return needed
