"""Errors of values that are picked from others, which are as uncertain as those.

A column of a softmax may happen to be right in the reference to a tenth of what its other columns
are; who computes it in another order errs as much there as anywhere.  So what operators only move
is never taken for more exact, in absolute terms, than what they move it from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
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


def sources(names: Iterable[str], nodes: Sequence[onnx_ir.Node]) -> tuple[str, ...]:
    """Computed values that some of `names` are picked from, by any number of moves, and that are
    not among them; `nodes` in topological order.

    Cost: linear.
    """
    asked = set(names)
    wanted = set(asked)
    found: dict[str, None] = {}
    for node in reversed(nodes):
        made = [v.name or "" for v in node.outputs]
        if wanted.isdisjoint(made):
            continue
        if node.op_type in MOVING:
            wanted.update(v.name or "" for v in _moved(node) if v is not None)
        else:
            found.update((name, None) for name in made if name in wanted and name not in asked)
    return tuple(found)


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
        taken = [v.name or "" for v in _moved(node) if v is not None]
        given = max((apart.get(name, 0.0) for name in taken), default=0.0)
        for name in (v.name or "" for v in node.outputs):
            apart[name] = max(apart.get(name, 0.0), given)
            if scale.get(name, 0.0) > 0:
                of[name] = max(of[name], apart[name] / scale[name])
    return replace(own, of=of)


def _moved(node: onnx_ir.Node) -> Sequence[onnx_ir.Value | None]:
    """Inputs whose elements a moving node's output has."""
    return node.inputs if node.op_type == "Concat" else node.inputs[:1]
