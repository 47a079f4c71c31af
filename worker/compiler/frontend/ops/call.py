"""One ONNX node as its family sees it: typed inputs, constants, outputs, and where to emit."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from worker.compiler.frontend.ops.attributes import Attributes
from worker.compiler.frontend.ops.emitter import Emitter
from worker.compiler.frontend.ops.nest import Nest
from worker.compiler.frontend.ops.refusal import Refusal, data_dependent, shape_mismatch
from worker.compiler.ir.bits import store
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Origin, Tensor
from worker.compiler.ir.scalar import Const
from worker.compiler.ir.scalar_type import promoted
from worker.compiler.rejection import ReasonCode

DTYPES: dict[ir.DataType, DType] = {
    ir.DataType.DOUBLE: DType.F64,
    ir.DataType.FLOAT: DType.F32,
    ir.DataType.FLOAT16: DType.F16,
    ir.DataType.BFLOAT16: DType.BF16,
    ir.DataType.INT64: DType.I64,
    ir.DataType.INT32: DType.I32,
    ir.DataType.INT16: DType.I16,
    ir.DataType.INT8: DType.I8,
    ir.DataType.UINT64: DType.U64,
    ir.DataType.UINT32: DType.U32,
    ir.DataType.UINT16: DType.U16,
    ir.DataType.UINT8: DType.U8,
    ir.DataType.BOOL: DType.BOOL,
    ir.DataType.FLOAT8E4M3FN: DType.F8E4M3FN,
    ir.DataType.FLOAT8E4M3FNUZ: DType.F8E4M3FNUZ,
    ir.DataType.FLOAT8E5M2: DType.F8E5M2,
    ir.DataType.FLOAT8E5M2FNUZ: DType.F8E5M2FNUZ,
    ir.DataType.FLOAT4E2M1: DType.F4E2M1,
    ir.DataType.INT4: DType.I4,
    ir.DataType.UINT4: DType.U4,
    ir.DataType.INT2: DType.I2,
    ir.DataType.UINT2: DType.U2,
}

Operand: TypeAlias = "Tensor | Const"
"""What a pointwise body may use: a tensor to read, or a scalar constant."""

Expression: TypeAlias = "Callable[[Call], None]"
"""A family's function: emits the node's operators, or raises Refusal."""


class Call:
    """A node, its attributes, and the emitter of its region."""

    def __init__(self, node: ir.Node, opset: int, emitter: Emitter) -> None:
        self.node = node
        self.opset = opset
        self.attrs = Attributes(node)
        self._emitter = emitter
        self._origin = Origin((node.name or "",), node.op_type)
        self._base = next((o.name for o in node.outputs if o.name), node.op_type)

    @property
    def num_inputs(self) -> int:
        """Input positions, absent trailing ones not counted."""
        inputs = list(self.node.inputs)
        while inputs and (inputs[-1] is None or not inputs[-1].name):
            inputs.pop()
        return len(inputs)

    def _value(self, k: int) -> ir.Value:
        value = self.node.inputs[k] if k < len(self.node.inputs) else None
        if value is None or not value.name:
            raise Refusal(ReasonCode.UNSUPPORTED_INPUT, f"{self.node.op_type} lacks its input {k}")
        return value

    def has_input(self, k: int) -> bool:
        """Whether optional input k is present."""
        value = self.node.inputs[k] if k < len(self.node.inputs) else None
        return value is not None and bool(value.name)

    def uses_output(self, k: int) -> bool:
        """Whether output k has a name and somebody reads it."""
        if k >= len(self.node.outputs) or not self.node.outputs[k].name:
            return False
        value = self.node.outputs[k]
        return bool(value.uses()) or value.is_graph_output()

    def tensor(self, k: int) -> Tensor:
        """Input k as a tensor of the region; a constant is registered as such."""
        value = self._value(k)
        name = str(value.name)
        if name in self._emitter.tensors:
            return self._emitter.tensors[name]
        dtype = element_type(value)
        constant = value.const_value
        if constant is not None:
            shape = constant_shape(constant)
            return self._emitter.model_constant(
                name, shape, dtype, lambda: storage(constant.numpy(), dtype)
            )
        return self._emitter.external(name, static_shape(value), dtype)

    def shape(self, k: int) -> tuple[int, ...]:
        """Shape of input k, without making it an operand."""
        value = self._value(k)
        known = self._emitter.tensors.get(str(value.name))
        if known is not None:
            return known.shape
        if value.const_value is not None:
            return constant_shape(value.const_value)
        return static_shape(value)

    def dtype(self, k: int) -> DType:
        """Element type of input k."""
        value = self._value(k)
        known = self._emitter.tensors.get(str(value.name))
        return element_type(value) if known is None else known.dtype

    def operand(self, k: int) -> Operand:
        """Input k for a pointwise body: a Const when it is a finite single-element constant."""
        constant = self._value(k).const_value
        if constant is None or constant.size != 1:
            return self.tensor(k)
        value, kind = self.array(k).reshape(())[()], promoted(self.dtype(k))
        if kind.is_float and isnan(float(value)):
            return self.tensor(k)
        return Const(float(value) if kind.is_float else int(value), kind)

    def is_constant(self, k: int) -> bool:
        """Whether input k is present and known at compile time."""
        return self.has_input(k) and self._value(k).const_value is not None

    def array(self, k: int) -> npt.NDArray[Any]:
        """Value of constant input k (bf16 as ml_dtypes).  Refuses when it is not constant."""
        constant = self._value(k).const_value
        if constant is None:
            raise data_dependent(
                f"input {k} ({self._value(k).name!r}) of {self.node.op_type} must be a constant"
            )
        return np.asarray(constant.numpy())

    def integers(self, k: int) -> tuple[int, ...]:
        """Value of constant integer input k, flattened."""
        return tuple(int(v) for v in self.array(k).reshape(-1))

    def output(self, k: int, shape: tuple[int, ...], dtype: DType) -> Tensor:
        """Declare output k.  Refuses when the model recorded another static shape or type."""
        value = self.node.outputs[k]
        self.check_output_shape(k, shape)
        if value.dtype is not None and element_type(value) is not dtype:
            raise Refusal(
                ReasonCode.UNSUPPORTED_DTYPE,
                f"output {value.name!r} is recorded as {value.dtype.name} but is {dtype}",
            )
        if not value.name:
            return self.temp(f"unused{k}", shape, dtype)
        return self._emitter.result(value.name, shape, dtype)

    def check_output_shape(self, k: int, shape: tuple[int, ...]) -> None:
        """Refuse when the model recorded another static shape for output k."""
        value = self.node.outputs[k]
        if value.shape is None:
            return
        recorded = tuple(value.shape.dims)
        if len(recorded) != len(shape) or any(
            isinstance(r, int) and r != s for r, s in zip(recorded, shape, strict=True)
        ):
            raise shape_mismatch(
                f"output {value.name!r} of {self.node.op_type} is recorded as"
                f" {value.shape} but its definition gives {shape}"
            )

    def output_dtype(self, k: int = 0) -> DType | None:
        """Recorded element type of output k, if any."""
        value = self.node.outputs[k]
        return None if value.dtype is None else element_type(value)

    def temp(self, suffix: str, shape: tuple[int, ...], dtype: DType) -> Tensor:
        """An intermediate tensor named after the node's first output."""
        return self._emitter.intermediate(f"{self._base}.{suffix}", shape, dtype)

    def constant(
        self,
        suffix: str,
        shape: tuple[int, ...],
        dtype: DType,
        thunk: Callable[[], npt.NDArray[Any]],
    ) -> Tensor:
        """A derived constant; `thunk` gives values, stored in `dtype` when they are asked for."""
        return self._emitter.derived_constant(
            f"{self._base}.{suffix}", shape, dtype, lambda: storage(thunk(), dtype)
        )

    def nest(self) -> Nest:
        """Start an operator that originates from this node."""
        return Nest(self._emitter, self._origin)


def element_type(value: ir.Value) -> DType:
    """Element type of a value.  Refuses what the algebra does not carry."""
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"{value.name!r} is not a dense tensor")
    dtype = value.dtype
    if dtype is None and value.const_value is not None:
        dtype = value.const_value.dtype
    if dtype is None:
        raise Refusal(ReasonCode.DYNAMIC_SHAPE, f"the type of {value.name!r} is not known")
    if dtype not in DTYPES:
        raise Refusal(
            ReasonCode.UNSUPPORTED_DTYPE, f"{value.name!r} has elements of type {dtype.name}"
        )
    return DTYPES[dtype]


def constant_shape(constant: ir.TensorProtocol) -> tuple[int, ...]:
    """Shape of a constant, always static."""
    return tuple(int(n) for n in constant.shape.numpy())


def static_shape(value: ir.Value) -> tuple[int, ...]:
    """Shape of a value.  Refuses an unknown or symbolic one."""
    if value.shape is None:
        raise Refusal(ReasonCode.DYNAMIC_SHAPE, f"the shape of {value.name!r} is not known")
    dims = tuple(value.shape.dims)
    if not all(isinstance(d, int) for d in dims):
        raise Refusal(
            ReasonCode.DYNAMIC_SHAPE, f"the shape of {value.name!r} is {value.shape}, not static"
        )
    return tuple(int(str(d)) for d in dims)


def storage(values: npt.NDArray[Any], dtype: DType) -> npt.NDArray[Any]:
    """Values as the algebra stores them: bf16 and narrow floats as bit patterns."""
    array = np.asarray(values)
    if dtype is DType.BF16:
        if array.dtype.itemsize == 2 and array.dtype != np.float16:
            return array.view(np.uint16)
        return store(array.astype(np.float32), dtype)
    if dtype.is_narrow_float:
        # a type of its own (ml_dtypes) has the bits; numbers are rounded to it
        is_bits = array.dtype.itemsize == 1
        return array.view(np.uint8) if is_bits else store(array.astype(np.float32), dtype)
    return array.astype(dtype.numpy, copy=False)
