"""Which conversion each target gets: the one asked for, or its automatic one where it must."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir

from worker.compiler.errors import Detail, OptionError
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.ops.call import DTYPES
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import AcceleratorTarget, Conversion, Machine
from worker.compiler.options import Precision
from worker.compiler.partition.rules import element_type

_QUANTIZED_FORM = frozenset({"DequantizeLinear", "QuantizeLinear", "QLinearConv", "QLinearMatMul"})


def choose_conversions(
    model: OnnxModel, machine: Machine, precision: Precision
) -> Mapping[str, Conversion]:
    """Conversion by target name; targets that compute in the model's own types are absent.

    NATIVE: a target's first automatic conversion, where the model computes in a type that the
    target lacks and the model brings no quantisation of its own.

    Raises:
        OptionError: TW-OPT-003, no target has the conversion asked for.
    """
    used = _float_types(model)
    if precision is Precision.NATIVE:
        found = {t.name: _automatic(t, used, model) for t in machine.targets}
        return {name: conversion for name, conversion in found.items() if conversion is not None}
    wanted = DType(str(precision))
    chosen = {
        target.name: conversion
        for target in machine.targets
        for conversion in target.conversions
        if conversion.dtype is wanted and used & set(conversion.sources)
    }
    if not chosen and wanted not in used:
        offered = sorted({str(c.dtype) for t in machine.targets for c in t.conversions})
        raise OptionError(
            "TW-OPT-003",
            f"{machine.name} has no conversion to {wanted} (it has {', '.join(offered) or 'none'})",
            pointer="/options/precision",
            limit=list[Detail](["native", *offered]),
            actual=str(precision),
        )
    return chosen


def _automatic(
    target: AcceleratorTarget, used: frozenset[DType], model: OnnxModel
) -> Conversion | None:
    lacking = used - set(target.capabilities.dtypes)
    if any(node.op_type in _QUANTIZED_FORM for node in model.ir.graph):
        return None
    return next((c for c in target.conversions if c.automatic and lacking & set(c.sources)), None)


def _float_types(model: OnnxModel) -> frozenset[DType]:
    """Float types that values of the graph have."""
    found: set[onnx_ir.DataType | None] = set()
    for node in model.ir.graph:
        found.update(element_type(v) for v in (*node.inputs, *node.outputs) if v is not None)
    dtypes = {DTYPES[t] for t in found if t is not None and t in DTYPES}
    return frozenset(d for d in dtypes if d.is_float)
