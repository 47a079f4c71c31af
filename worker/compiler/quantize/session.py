"""An ONNX Runtime session on a model in memory, without copying its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir

from worker.compiler.errors import ModelError
from worker.compiler.frontend.exact_products import multiply_exactly

Array = npt.NDArray[Any]

_SHARED_FROM_BYTES = 1024
"""Initializers from this size on are handed to the runtime by address."""
_IR_VERSION_CEILING = 11
_NEWEST_OPSET_OF_CEILING = 23


class Session:
    """A loaded model that can be run again and again.

    Optimisations are off and one thread computes, so that a run gives the same bits everywhere.
    The runtime reads large weights where they are; `model` must stay unchanged meanwhile.
    """

    def __init__(
        self,
        model: onnx_ir.Model,
        rewrite: Callable[[onnx.ModelProto], onnx.ModelProto] | None = None,
    ) -> None:
        """Load what `rewrite` makes of the model; it leaves the initializers as they are.

        Raises:
            ModelError: TW-CAL-005 with ONNX Runtime's own words.
        """
        import onnxruntime

        stripped = model.clone()
        if stripped.opset_imports.get("", 0) <= _NEWEST_OPSET_OF_CEILING:
            # Runtimes refuse newer files; nothing in them needs more, except newer opsets.
            stripped.ir_version = min(max(model.ir_version or 0, 8), _IR_VERSION_CEILING)
        self._shared = _take_weights(stripped)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        # Both would hold copies: of the weights, and of the largest intermediates.
        options.enable_cpu_mem_arena = False
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.log_severity_level = 4
        # Keeps a value only until its last reader has run.
        options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
        values = [
            onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, kind)
            for array, kind in self._shared.values()
        ]
        proto = multiply_exactly(onnx_ir.serde.serialize_model(stripped))
        if rewrite is not None:
            proto = rewrite(proto)
        try:
            if values:
                options.add_external_initializers(list(self._shared), values)
            self._session = onnxruntime.InferenceSession(
                proto.SerializeToString(),
                options, providers=["CPUExecutionProvider"],
            )  # fmt: skip
        except _runtime_errors() as error:
            raise _cannot_run(error) from error
        self._values = values
        self.inputs = frozenset(value.name for value in self._session.get_inputs())
        self.outputs = tuple(output.name for output in self._session.get_outputs())

    def run(self, feeds: Mapping[str, Array], names: Sequence[str] | None = None) -> list[Array]:
        """Values of `names` (all outputs when None) for one batch.

        Raises:
            ModelError: TW-CAL-005 with ONNX Runtime's own words.
        """
        try:
            found = self._session.run(None if names is None else list(names), dict(feeds))
        except _runtime_errors() as error:
            raise _cannot_run(error) from error
        return [np.asarray(value) for value in found]


def _take_weights(model: onnx_ir.Model) -> dict[str, tuple[Array, int]]:
    """Replace large initializers of the main graph by references; give arrays and ONNX types."""
    taken: dict[str, tuple[Array, int]] = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if (
            tensor is None
            or tensor.dtype == onnx_ir.DataType.STRING
            or tensor.dtype.bitwidth < 8
            or tensor.nbytes < _SHARED_FROM_BYTES
        ):
            continue
        array = np.ascontiguousarray(tensor.numpy())
        if array.dtype.kind not in "fiub":  # bfloat16 and 8-bit floats travel as bit patterns
            array = array.view(f"u{array.dtype.itemsize}")
        taken[name] = (array, int(tensor.dtype))
        value.const_value = onnx_ir.ExternalTensor(
            location="weights", offset=0, length=tensor.nbytes, dtype=tensor.dtype,
            shape=onnx_ir.Shape(tensor.shape.numpy()), name=name,
        )  # fmt: skip
    return taken


def _runtime_errors() -> tuple[type[Exception], ...]:
    """What ONNX Runtime raises from C++ for models and feeds it does not like."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    names = (
        "Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NotImplemented",
        "RuntimeException", "NoSuchFile", "EPFail", "NoModel", "EngineError",
    )  # fmt: skip
    own = tuple(getattr(state, name) for name in names if hasattr(state, name))
    return (*own, ValueError, RuntimeError)


def _cannot_run(error: Exception) -> ModelError:
    text = " ".join(str(error).split())[:400]
    return ModelError("TW-CAL-005", f"ONNX Runtime cannot run the model: {text}")
