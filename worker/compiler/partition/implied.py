"""Activations that a quantised operator has without a node of its own: its saturation is one.

`QuantizeLinear` limits its result to what its integers can say, [(least - zero) * scale,
(most - zero) * scale].  A Clip to that range in front of it changes no bit, so a row that ends in a
Clip runs an operator without one; a row that ends in a Relu does where the least integer stands for
zero, which is what exporters leave of a Relu that they fold away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir

from worker.compiler.machine.pattern import Alternatives, OpMatch, PathTo, PatternRule, ValueRule

_CLIP, _RELU = "Clip", "Relu"


def implied_rules(
    rules: Sequence[PatternRule], quantize: onnx_ir.Node | None
) -> tuple[PatternRule, ...]:
    """Rows without the activation that they end in, as far as `quantize` has it by saturation.

    Left out: rows that ask something of the activation (its limits, its result), which no node
    could answer.  `quantize` None: as if its least integer stood for zero.  Cost: linear in rows,
    and in the zero points.
    """
    is_relu = quantize is None or _starts_at_zero(quantize)
    found = []
    for rule in rules:
        root = rule.root
        if not isinstance(root, OpMatch) or not (
            _CLIP in root.op_types or (is_relu and _RELU in root.op_types)
        ):
            continue
        asks = root.attributes or root.value != ValueRule() or len(root.inputs) != 1
        if not asks and isinstance(root.inputs[0], OpMatch | Alternatives | PathTo):
            found.append(replace(rule, root=root.inputs[0]))
    return tuple(found)


def _starts_at_zero(quantize: onnx_ir.Node) -> bool:
    """Whether no integer of the result stands for a number below zero."""
    dtype = quantize.outputs[0].dtype
    if dtype is None:
        return False
    zero = quantize.inputs[2] if len(quantize.inputs) > 2 else None
    least = np.iinfo(dtype.numpy()).min
    if zero is None:
        return bool(least == 0)
    return zero.const_value is not None and bool((zero.const_value.numpy() == least).all())
