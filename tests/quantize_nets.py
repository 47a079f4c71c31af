"""Small float nets to be converted, and the placements that convert them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir
from onnx import TensorProto, helper, numpy_helper

from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.simplify import simplify
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import Conversion
from worker.compiler.partition.plan import HOST, Placement
from worker.compiler.quantize.ranges import Observed, observe
from worker.compiler.quantize.session import Session
from worker.compiler.quantize.sqnr import Sqnr, sqnr_db
from worker.compiler.rejection import ReasonCode

Array = npt.NDArray[Any]
Build = Callable[["Net"], str]

I8 = Conversion(DType.I8, (DType.F32, DType.F16), automatic=False)
U8 = Conversion(DType.U8, (DType.F32,), automatic=False)
F16 = Conversion(DType.F16, (DType.F32,), automatic=False)
BF16 = Conversion(DType.BF16, (DType.F32,), automatic=False)


class Net:
    """Builds a chain of nodes; every method gives the name of its result."""

    def __init__(self, *shape: int, seed: int = 11, dtype: int = TensorProto.FLOAT) -> None:
        self.rng = np.random.default_rng(seed)
        self.shape = shape
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.dtype = dtype

    def constant(self, array: Array) -> str:
        """An initializer."""
        name = f"c{len(self.constants)}"
        kind = helper.tensor_dtype_to_np_dtype(self.dtype)
        array = array.astype(kind) if array.dtype.kind == "f" else array
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weights(self, *shape: int, spread: Array | float = 1.0) -> str:
        """Random weights whose products keep the scale of the input."""
        fan = max(1, int(np.prod(shape[1:])))
        return self.constant(self.rng.standard_normal(shape) / np.sqrt(fan) * spread)

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Any node."""
        k = len(self.nodes)
        name = f"{op_type.lower()}{k}"
        self.nodes.append(
            helper.make_node(op_type, list(inputs), [f"v{k}"], name=name, **attributes)
        )
        return f"v{k}"

    def conv(self, x: str, cin: int, cout: int, **attributes: Any) -> str:
        """3x3 convolution with bias, shape kept unless `strides` says otherwise."""
        groups = attributes.get("group", 1)
        bias = self.constant(self.rng.standard_normal(cout) * 0.1)
        weights = self.weights(cout, cin // groups, 3, 3)
        return self.op("Conv", x, weights, bias, pads=[1, 1, 1, 1], **attributes)

    def model(self, *outputs: str, opset: int = 21) -> onnx.ModelProto:
        """The finished model with input `x`."""
        graph = helper.make_graph(
            self.nodes, "net",
            [helper.make_tensor_value_info("x", self.dtype, self.shape)],
            [helper.make_tensor_value_info(o, self.dtype, None) for o in outputs],
            self.constants,
        )  # fmt: skip
        opsets = [helper.make_opsetid("", opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def chain(net: Net) -> str:
    y = net.op("Relu", net.conv("x", 3, 8))
    return net.conv(y, 8, 8)


def residual(net: Net) -> str:
    trunk = net.op("Relu", net.conv("x", 3, 8))
    branch = net.conv(net.op("Relu", net.conv(trunk, 8, 8)), 8, 8)
    return net.op("Relu", net.op("Add", branch, trunk))


def depthwise(net: Net) -> str:
    low, high = net.constant(np.array(0.0)), net.constant(np.array(6.0))
    y = net.op("Clip", net.conv("x", 3, 6), low, high)
    y = net.op("Clip", net.conv(y, 6, 6, group=6), low, high)
    return net.op("Conv", y, net.weights(4, 6, 1, 1))


def head(net: Net) -> str:
    y = net.op("GlobalAveragePool", net.op("Relu", net.conv("x", 3, 16)))
    bias = net.constant(net.rng.standard_normal(10))
    return net.op("Gemm", net.op("Flatten", y), net.weights(10, 16), bias, transB=1, beta=0.5)


def joined(net: Net) -> str:
    stem = net.op("Relu", net.conv("x", 3, 4))
    wide = net.op("Mul", net.conv(stem, 4, 4), net.constant(np.array(20.0)))
    return net.conv(net.op("Concat", stem, net.conv(stem, 4, 4), wide, axis=1), 12, 4)


def pools(net: Net) -> str:
    y = net.op("MaxPool", net.conv("x", 3, 8), kernel_shape=[2, 2], strides=[2, 2])
    y = net.op("AveragePool", y, kernel_shape=[2, 2], strides=[1, 1])
    return net.op("Transpose", net.op("Sigmoid", y), perm=[0, 2, 3, 1])


def transposed(net: Net) -> str:
    y = net.op("Relu", net.conv("x", 3, 8))
    bias = net.constant(net.rng.standard_normal(6) * 0.1)
    weights = net.weights(8, 3, 2, 2, spread=3.0)
    return net.op("ConvTranspose", y, weights, bias, strides=[2, 2], group=2)


def attention(net: Net) -> str:
    flat = net.op("Reshape", "x", net.constant(np.array([1, 3, -1], np.int64)))
    turned = net.op("Transpose", flat, perm=[0, 2, 1])
    q = net.op("MatMul", turned, net.weights(3, 8))
    k = net.op("MatMul", turned, net.weights(3, 8))
    scores = net.op("MatMul", q, net.op("Transpose", k, perm=[0, 2, 1]))
    return net.op("MatMul", net.op("Softmax", scores, axis=-1), q)


NETS: Mapping[str, Build] = {
    "chain": chain, "residual": residual, "depthwise": depthwise, "head": head, "joined": joined,
    "pools": pools, "transposed": transposed, "attention": attention,
}  # fmt: skip


def built(build: Build, seed: int = 11, **settings: Any) -> onnx.ModelProto:
    """A net of NETS as a model."""
    net = Net(1, 3, 8, 8, seed=seed, **settings)
    return net.model(build(net))


def loaded(proto: onnx.ModelProto, folder: Path) -> OnnxModel:
    """A model as the compiler sees it."""
    path = folder / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    return simplify(load_model(path, Limits()))


def placed(model: OnnxModel, targets: Sequence[str] | str = "npu") -> tuple[Placement, ...]:
    """Every node on one target, or on the one named at its position."""
    nodes = list(model.ir.graph)
    names = [targets] * len(nodes) if isinstance(targets, str) else targets
    return tuple(
        Placement(n.name or "", n.op_type, target, _code(target), "")
        for n, target in zip(nodes, names, strict=True)
    )


def _code(target: str) -> ReasonCode:
    return ReasonCode.CAPABILITY_OP if target == HOST else ReasonCode.OFFLOADED


def inputs(model: OnnxModel, count: int = 1, seed: int = 1) -> list[dict[str, Array]]:
    """Batches of standard normal inputs."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        batch: dict[str, Array] = {}
        for value in model.ir.graph.inputs:
            assert value.shape is not None and value.dtype is not None
            array = rng.standard_normal(value.shape.numpy())
            batch[value.name or ""] = array.astype(value.dtype.numpy())
        found.append(batch)
    return found


def calibrated(
    model: OnnxModel, batches: Sequence[Mapping[str, Array]]
) -> Callable[[Sequence[str]], Mapping[str, Observed]]:
    """A calibration that runs the model."""
    return lambda names: observe(model, names, batches)


def run_model(model: OnnxModel, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs in ONNX Runtime, optimisations off, from the serialised bytes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        serialised(model), options, providers=["CPUExecutionProvider"]
    )
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def serialised(model: OnnxModel) -> bytes:
    """The model's bytes."""
    proto = onnx_ir.serde.serialize_model(model.ir)
    proto.ir_version = min(proto.ir_version, 10)
    return bytes(proto.SerializeToString(deterministic=True))


def noise_db(exact: Array, found: Array) -> float:
    """Signal to noise in decibels, written independently of the product."""
    noise = float(np.mean((exact.astype(np.float64) - found.astype(np.float64)) ** 2))
    return float(10 * np.log10(np.mean(exact.astype(np.float64) ** 2) / max(noise, 1e-300)))


def output_sqnr(
    model: OnnxModel, converted: OnnxModel, batches: Sequence[Mapping[str, Array]]
) -> tuple[Sqnr, ...]:
    """How far each output of a converted model is from the model's, over all batches together."""
    names = [output.name or "" for output in model.ir.graph.outputs]
    exact, approximate = (
        [session.run(batch, names) for batch in batches]
        for session in (Session(model.ir), Session(converted.ir))
    )
    return tuple(
        sqnr_db(*(np.stack([run[k] for run in runs]) for runs in (exact, approximate)))
        for k in range(len(names))
    )
