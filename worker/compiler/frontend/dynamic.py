"""Which values may have shapes that only data decides, and the refusal of all others."""

from __future__ import annotations

import onnx_ir

from worker.compiler.errors import Finding, ModelError
from worker.compiler.frontend.edit import constant_of
from worker.compiler.frontend.origin import origin_of
from worker.compiler.frontend.shapes import is_static

_BY_DATA = frozenset(
    {"NonZero", "NonMaxSuppression", "Unique", "Compress", "Loop", "If", "Scan", "SequenceMap",
     "StringSplit", "ImageDecoder", "TfIdfVectorizer"}
)  # fmt: skip
SHAPE_INPUTS: dict[str, tuple[int, ...]] = {
    "Reshape": (1,), "Expand": (1,), "Tile": (1,), "ConstantOfShape": (0,), "Range": (0, 1, 2),
    "Slice": (1, 2, 3, 4), "TopK": (1,), "Pad": (1,), "Resize": (1, 2, 3), "OneHot": (1,),
    "Split": (1,), "Squeeze": (1,), "Unsqueeze": (1,), "CenterCropPad": (1,), "MaxUnpool": (2,),
    "AffineGrid": (1,), "Col2Im": (1, 2), "DFT": (1, 2), "STFT": (1, 3), "Upsample": (1,),
    "HannWindow": (0,), "HammingWindow": (0,), "BlackmanWindow": (0,), "MelWeightMatrix": (0, 1, 2),
}  # fmt: skip
"""Inputs whose values decide the output shape."""


def refuse_unknown_shapes(model: onnx_ir.Model) -> None:
    """Refuse a model in which a shape is unknown for no reason that lies in the data.

    Raises:
        ModelError: TW-MODEL-017 with a finding per tensor.
    """
    # Binding gives every input of a user's model its shape; bodies of loops may have open ones.
    dynamic = {value for value in model.graph.inputs if not is_static(value)}
    findings: list[Finding] = []
    for node in model.graph:
        unknown = [v for v in node.outputs if v.name and not is_static(v)]
        if not unknown:
            continue
        if (
            any(v in dynamic for v in node.inputs)
            or node.op_type in _BY_DATA
            or any(isinstance(v.type, onnx_ir.SequenceType | onnx_ir.OptionalType)
                   for v in (*node.inputs, *node.outputs) if v is not None)
            or _has_computed_shape(node)
        ):  # fmt: skip
            dynamic.update(unknown)
            continue
        # What lies downstream is unknown because of this one; naming it too would be noise,
        # but every tensor without a shape is asked for, so it is listed.
        findings += [
            Finding(
                "TW-MODEL-017",
                f"tensor {v.name!r} of {node.op_type} has no static shape",
                None,
                origin_of(node),
                None,
                str(v.shape),
            )
            for v in unknown
        ]
    if findings:
        raise ModelError(
            "TW-MODEL-017",
            f"{findings[0].message} ({len(findings)} tensors in all)",
            node=findings[0].node,
            actual=len(findings),
            findings=tuple(findings[:1000]),
        )


def _has_computed_shape(node: onnx_ir.Node) -> bool:
    for index in SHAPE_INPUTS.get(node.op_type, ()):
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is not None and constant_of(value) is None:
            return True
    # A constant that is too large to fold also leaves shapes below it open.
    return False
