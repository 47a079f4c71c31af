"""Errors of values that are picked from others, which are as uncertain as those.

A column of a softmax may happen to be right in the reference to a tenth of what its other columns
are; who computes it in another order errs as much there as anywhere.  So what operators only move
is never taken for more exact, in absolute terms, than what they move it from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir

from worker.verification.measured import OwnErrors

Array = npt.NDArray[Any]

MOVING = frozenset(
    {"Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND",
     "Identity", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose",
     "Unsqueeze"}
)  # fmt: skip
"""Operators whose elements are elements of their first input, or of all in a Concat."""


def carried(
    own: OwnErrors, values: Mapping[str, Array], nodes: Iterable[onnx_ir.Node]
) -> OwnErrors:
    """The same, with what values carry on from those that they are picked from.

    `values`: the reference's; `nodes`: the model's, in topological order.  Cost: linear.
    """
    scale = {
        name: float(np.max(np.abs(value[np.isfinite(value)]), initial=0.0).astype(np.float64))
        for name, value in values.items()
        if name in own.of and value.dtype.kind == "f"
    }
    apart = {name: own.of[name] * size for name, size in scale.items()}
    of = dict(own.of)
    for node in nodes:
        if node.op_type not in MOVING:
            continue
        sources = node.inputs if node.op_type == "Concat" else node.inputs[:1]
        given = max((apart.get(v.name or "", 0.0) for v in sources if v is not None), default=0.0)
        for name in (v.name or "" for v in node.outputs):
            apart[name] = max(apart.get(name, 0.0), given)
            if scale.get(name, 0.0) > 0:
                of[name] = max(of[name], apart[name] / scale[name])
    return OwnErrors(of, own.method)
