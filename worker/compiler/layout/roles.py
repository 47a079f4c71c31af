"""Which operators want the accelerator's layout, and what role each operand plays in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from worker.compiler.ir.op import Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Fn, Scalar, children, slots_read

CHANNEL_OPS = frozenset(
    {
        "AveragePool", "BatchNormalization", "Conv", "ConvInteger", "ConvTranspose",
        "DepthToSpace", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "GroupNormalization",
        "InstanceNormalization", "LRN", "LpPool", "MaxPool", "QLinearAveragePool", "QLinearConv",
        "QLinearGlobalAveragePool", "Resize", "SpaceToDepth", "Upsample",
    }
)  # fmt: skip
"""Op types whose tensors are N, C and then space: a layout's letters mean nothing for others."""

_INPUT_FIRST = frozenset({"ConvTranspose"})
"""Op types that keep their weights as I, O, space."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """An operator that wants its operands in the policy's layouts."""

    activations: tuple[int, ...]
    """Read slots of activations; the result is one, too."""
    weight: int | None
    """Read slot of the weights of a convolution."""
    weight_order: str
    """Leading letters of the weights in ONNX: OI, or IO."""


def anchor_of(op: TensorOp, tensors: Mapping[str, Tensor], constants: Collection[str]) -> Anchor:
    """Roles of the operands of `op`, which is known to want a layout.

    Activations are the operands of the result's rank; the weights are the right factor of a
    contraction.  Cost: linear in the operator.
    """
    rank = len(tensors[op.write.tensor].shape)
    alike = [k for k, r in enumerate(op.reads) if len(tensors[r.tensor].shape) == rank]
    weight = _weight(op, alike)
    activations = tuple(k for k in alike if k != weight and op.reads[k].tensor not in constants)
    order = "IO" if op.origin.op_type in _INPUT_FIRST else "OI"
    return Anchor(activations, weight, order)


def _weight(op: TensorOp, alike: list[int]) -> int | None:
    """The slot of full rank in the right factor of the product that `op` sums up."""
    if op.reduce is not Reduce.ADD:
        return None
    product = _first_product(op.body)
    if product is None:
        return None
    left, right = ([s for s in slots_read(arg) if s in alike] for arg in product.args)
    if not left or len(right) != 1 or right[0] in left:
        return None
    return right[0]


def _first_product(body: Scalar) -> Apply | None:
    """The outermost product, looking through conversions and selections."""
    if isinstance(body, Apply):
        return body if body.fn is Fn.MUL and len(body.args) == 2 else None
    for child in children(body):
        found = _first_product(child)
        if found is not None:
            return found
    return None
