"""Evaluate one ONNX node on constant inputs, never producing more than a stated size.

The size of the result is estimated before anything is computed: a few bytes of model can ask for
terabytes (ConstantOfShape, Expand, Range, Tile, doubling Concats).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir

from worker.compiler.frontend.work import node_steps

MAX_FOLDED_ELEMENTS = 1 << 22
"""Of one folded tensor: 16 MB of float32."""
MAX_FOLDED_STEPS = 1 << 30
"""Multiply-accumulates of one folded node: about a second."""
_MODEL_ELEMENTS = 1 << 26
"""Folded in one model beside as many elements as its own constants have."""
_MODEL_STEPS = 1 << 32
"""Multiply-accumulates of folding one model."""
RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial",
     "Bernoulli", "Dropout"}
)  # fmt: skip
_HEAVY = frozenset(
    {"If", "Loop", "Scan", "SequenceMap", "Conv", "ConvTranspose", "LSTM", "GRU", "RNN",
     "DequantizeLinear", "QuantizeLinear", "Optional", "ImageDecoder"}
)  # fmt: skip
"""Not folded: control flow, work better done by the device, or pairs the back end matches."""

Array = npt.NDArray[Any]


@dataclass(slots=True)
class FoldBudget:
    """What folding may still make of one model, all its nodes and sweeps together.

    Each node is small for itself; thousands of them would still take the machine's memory.
    """

    elements: int
    steps: int

    @classmethod
    def of(cls, graph: onnx_ir.Graph) -> FoldBudget:
        """The allowance of a model."""
        constants = (value.const_value for value in graph.initializers.values())
        own = sum(tensor.size for tensor in constants if tensor is not None)
        return cls(_MODEL_ELEMENTS + own, _MODEL_STEPS)

    @classmethod
    def of_one_node(cls) -> FoldBudget:
        """The allowance of a node that is folded alone."""
        return cls(MAX_FOLDED_ELEMENTS, MAX_FOLDED_STEPS)

    def allows(self, elements: int, steps: int) -> bool:
        """Whether a node of at most so many elements and steps may be evaluated."""
        return elements <= min(MAX_FOLDED_ELEMENTS, self.elements) and steps <= min(
            MAX_FOLDED_STEPS, self.steps
        )


def may_fold(node: onnx_ir.Node) -> bool:
    """Whether the operator is a pure function worth evaluating at compile time."""
    return (
        node.domain == ""
        and node.op_type not in RANDOM | _HEAVY
        and not any(
            a.type in (onnx_ir.AttributeType.GRAPH, onnx_ir.AttributeType.GRAPHS)
            for a in node.attributes.values()
        )
    )


def estimated_elements(node: onnx_ir.Node, inputs: Sequence[Array | None]) -> int | None:
    """Upper bound of the elements of the largest output, from the input values; None: unknown."""
    known = [o.shape for o in node.outputs if o.shape is not None]
    if len(known) == len(node.outputs) and all(
        isinstance(d, int) for shape in known for d in shape
    ):
        return max((math.prod(shape.numpy()) for shape in known), default=0)
    sizes = [a.size for a in inputs if a is not None]
    first = inputs[0] if inputs else None
    match node.op_type:
        case "ConstantOfShape":
            return None if first is None else math.prod(int(d) for d in first.flat)
        case "Expand" | "Tile":
            second = inputs[1]
            if first is None or second is None:
                return None
            return first.size * math.prod(max(int(d), 1) for d in second.flat)
        case "Range":
            start, limit, delta = (float(a.flat[0]) if a is not None else 0.0 for a in inputs)
            return None if delta == 0 else max(0, math.ceil((limit - start) / delta))
        case "Concat":
            return sum(sizes)
        case "Shape" | "Size":
            return 64
        case ("Gather" | "Slice" | "Reshape" | "Squeeze" | "Unsqueeze" | "Transpose" | "Cast"
              | "Identity" | "Flatten" | "Split" | "Not" | "Neg" | "Abs" | "Sqrt" | "Floor" | "Ceil"
              | "ReduceProd" | "ReduceSum" | "ReduceMax" | "ReduceMin" | "NonZero"
              | "GatherElements"
              | "GatherND" | "ScatterND" | "ScatterElements" | "CumSum" | "Trilu"):  # fmt: skip
            rank = max((a.ndim for a in inputs if a is not None), default=1)
            index = sizes[1] if node.op_type == "Gather" and len(sizes) > 1 else 1
            largest = max(sizes, default=0) * max(index, 1)
            return largest * rank if node.op_type == "NonZero" else largest
        case ("Add" | "Sub" | "Mul" | "Div" | "Mod" | "Pow" | "Equal" | "Less" | "Greater"
              | "And" | "Or" | "Xor" | "Where" | "Min" | "Max" | "LessOrEqual"
              | "GreaterOrEqual"):  # fmt: skip
            shape: tuple[int, ...] = ()
            for array in inputs:
                if array is not None:
                    try:
                        shape = np.broadcast_shapes(shape, array.shape)
                    except ValueError:
                        return None
            return math.prod(shape)
    return None


def evaluate_node(
    node: onnx_ir.Node, inputs: Sequence[Array | None], opset: int, budget: FoldBudget
) -> list[Array] | None:
    """Outputs of `node`, or None when it is too large, unknown, or cannot be computed.

    `may_fold(node)` must hold.  What is made is taken from `budget`.
    """
    bound, steps = estimated_elements(node, inputs), node_steps(node)
    if bound is None or not budget.allows(bound, steps):
        return None
    budget.steps -= steps
    quick = _quick(node, inputs)
    outputs = [quick] if quick is not None else _reference(node, inputs, opset)
    if outputs is None or any(o.size > MAX_FOLDED_ELEMENTS for o in outputs):
        return None
    budget.elements -= sum(o.size for o in outputs)
    return outputs


def _quick(node: onnx_ir.Node, inputs: Sequence[Array | None]) -> Array | None:
    """The handful of operators that shape arithmetic is made of."""
    first = inputs[0] if inputs else None
    if first is None:
        return None
    attributes = node.attributes
    try:
        match node.op_type:
            case "Concat" if all(a is not None for a in inputs):
                return np.concatenate(
                    [a for a in inputs if a is not None], axis=attributes["axis"].as_int()
                )
            case "Gather" if inputs[1] is not None:
                axis = attributes["axis"].as_int() if "axis" in attributes else 0
                return np.asarray(np.take(first, inputs[1], axis=axis))
            case "Unsqueeze" if inputs[1] is not None:
                return np.expand_dims(first, tuple(int(a) for a in inputs[1].flat))
            case "Cast" if node.outputs[0].dtype is None and "saturate" not in attributes:
                kind = onnx_ir.DataType(attributes["to"].as_int())
                whole = kind in (onnx_ir.DataType.INT64, onnx_ir.DataType.INT32)
                if whole and first.dtype.kind in "iub":
                    return first.astype(kind.numpy())
    except (ValueError, IndexError, KeyError, TypeError):
        return None
    return None


def _reference(
    node: onnx_ir.Node, inputs: Sequence[Array | None], opset: int
) -> list[Array] | None:
    """Evaluate by ONNX's reference implementation (imported late: 0.2 s)."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    proto = onnx_ir.serde.serialize_node(node)
    names = list(dict.fromkeys(name for name in proto.input if name))
    graph = onnx.helper.make_graph(
        [proto], "one",
        [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in names],
        [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in proto.output if name],
    )  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    feeds: dict[str, Any] = {
        v.name or "": a for v, a in zip(node.inputs, inputs, strict=True) if v is not None
    }
    try:
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(model).run(None, feeds)
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, NotImplementedError,
            AttributeError, ZeroDivisionError, OverflowError, AssertionError,
            MemoryError, ImportError):  # fmt: skip
        # Left in the graph: the run-time, or a later stage, says what is wrong with it.
        return None
    arrays: list[Array] = []
    for value in found:
        if not isinstance(value, np.ndarray | np.generic):
            return None
        arrays.append(np.asarray(value))
    return arrays
