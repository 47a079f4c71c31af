"""The nodes of a quantised cluster by their role, and the core as its family sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan, prod

import onnx_ir as ir

from worker.compiler.frontend.ops.call import Call
from worker.compiler.frontend.ops.emitter import Emitter
from worker.compiler.frontend.ops.qcluster_scheme import Scheme, read_scheme
from worker.compiler.frontend.ops.refusal import Refusal, data_dependent
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Origin, Tensor, TensorOp
from worker.compiler.rejection import ReasonCode

CONTRACTIONS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Summed in i32, then rescaled; inputs 0 and 1 are dequantised."""

MEANS = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum"})
"""Summed in i32, then rescaled."""

MAXIMA = frozenset({"MaxPool", "GlobalMaxPool", "ReduceMax"})
"""Compared as integers: quantisation with a positive scale keeps the order."""

POINTWISE = frozenset(
    {"Abs", "Add", "BatchNormalization", "Celu", "Clip", "Cos", "Div", "Elu", "Erf", "Exp", "Gelu",
     "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Max", "Mean", "Min", "Mish", "Mul", "Neg",
     "PRelu", "Pow", "Reciprocal", "Relu", "Selu", "Sigmoid", "Sign", "Sin", "Softplus",
     "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tanh", "ThresholdedRelu"}
)  # fmt: skip
"""Composed into one operator on integers whose body computes in float."""

REARRANGEMENTS = frozenset(
    {"Concat", "DepthToSpace", "Expand", "Flatten", "Identity", "Pad", "Reshape", "Resize", "Slice",
     "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Upsample"}
)  # fmt: skip
"""Composed likewise; a plain copy of integers where the parameters agree."""

CORES = CONTRACTIONS | MEANS | MAXIMA | POINTWISE | REARRANGEMENTS
ACTIVATIONS = frozenset({"Relu", "Clip"})


@dataclass(frozen=True, slots=True)
class Chain:
    """What follows one output of the core: an optional activation, then the quantisation."""

    activation: ir.Node | None
    quantize: ir.Node


@dataclass(frozen=True, slots=True)
class Members:
    """The nodes of one cluster by their role."""

    core: ir.Node
    sources: Mapping[int, ir.Node]
    """DequantizeLinear node by the core's input position."""
    chains: tuple[Chain, ...]
    """One per output of the core that is used, in order."""

    @property
    def origin(self) -> Origin:
        """All nodes, the core first: it names the layer."""
        nodes = [self.core]
        for chain in self.chains:
            nodes += [n for n in (chain.activation, chain.quantize) if n is not None]
        nodes += self.sources.values()
        names = dict.fromkeys(n.name or "" for n in nodes)
        return Origin(tuple(names), self.core.op_type)


class ClusterCall(Call):
    """The core as its family sees it, with quantised inputs where it has dequantised ones."""

    def __init__(self, members: Members, opset: int, emitter: Emitter) -> None:
        super().__init__(members.core, opset, emitter)
        self._origin = members.origin
        self._members = members
        self._writes_result = False

    def _value(self, k: int) -> ir.Value:
        source = self._members.sources.get(k)
        if source is None:
            return super()._value(k)
        value = source.inputs[0]
        if value is None:
            raise Refusal(ReasonCode.UNSUPPORTED_INPUT, "DequantizeLinear of nothing")
        return value

    def scheme(self, k: int) -> Scheme:
        """Parameters of dequantised input k."""
        source = self._members.sources.get(k)
        if source is None:
            raise Refusal(
                ReasonCode.UNSUPPORTED_INPUT,
                f"input {k} of {self.node.op_type} is not dequantised from integers",
            )
        return read_scheme(Call(source, self.opset, self._emitter), len(self.shape(k)))

    def is_dequantised(self, k: int) -> bool:
        """Whether input k comes from a DequantizeLinear node of the cluster."""
        return k in self._members.sources

    def result(self, shape: tuple[int, ...]) -> Tensor:
        """The cluster's quantised output, to be written with the shape of the core's."""
        quantize = Call(self._members.chains[0].quantize, self.opset, self._emitter)
        self.check_output_shape(0, shape)
        return quantize.output(0, shape, self.quantisation(len(shape)).dtype)

    def quantisation(self, rank: int) -> Scheme:
        """Parameters of the quantised output."""
        quantize = Call(self._members.chains[0].quantize, self.opset, self._emitter)
        return read_scheme(quantize, rank)

    def limits(self) -> tuple[float, float]:
        """Float limits that the activation imposes on the result."""
        activation = self._members.chains[0].activation
        if activation is None:
            return float("-inf"), float("inf")
        return _limits(Call(activation, self.opset, self._emitter))

    def summands(self) -> int:
        """Points that the operator emitted last reduces per element of its result."""
        return prod(axis.extent for axis in self._emitter.ops[-1].reduce_axes)

    def write_result(self) -> None:
        """Let the core's family write the quantised output itself (it has the input's type)."""
        self._writes_result = True

    def output(self, k: int, shape: tuple[int, ...], dtype: DType) -> Tensor:
        """As the core's family declares it: the quantised output, or a new integer tensor."""
        if self._writes_result:
            return self.result(shape)
        self.check_output_shape(k, shape)
        return self.temp("integer", shape, dtype)

    def known(self, name: str) -> Tensor:
        """A tensor of the region by name."""
        return self._emitter.tensors[name]

    @property
    def emitted(self) -> list[TensorOp]:
        """Operators of the region so far."""
        return self._emitter.ops


def _limits(call: Call) -> tuple[float, float]:
    low, high = float("-inf"), float("inf")
    if call.node.op_type == "Relu":
        return 0.0, high
    if call.attrs.has("min") or call.attrs.has("max"):
        return call.attrs.real("min", low), call.attrs.real("max", high)
    found = [low, high]
    for k in (1, 2):
        if call.has_input(k):
            found[k - 1] = float(call.array(k).reshape(()))
    if any(isnan(v) for v in found):
        raise data_dependent(f"a limit of {call.node.op_type} is not a number")
    return found[0], found[1]
