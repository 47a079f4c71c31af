"""Softmax and its logarithm; what subtracts means is rewritten first (`standardise`)."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir

from worker.compiler.train.rules.site import Derivative, Site


def _softmax(site: Site) -> Mapping[int, onnx_ir.Value]:
    """dx = y (dy - sum(dy y))."""
    emit = site.emit
    total = emit.total(emit.op("Mul", site.grad, site.y), (site.axis(-1),))
    return {0: emit.op("Mul", site.y, emit.op("Sub", site.grad, total))}


def _log_softmax(site: Site) -> Mapping[int, onnx_ir.Value]:
    """dx = dy - e^y sum(dy)."""
    emit = site.emit
    total = emit.total(site.grad, (site.axis(-1),))
    return {0: emit.op("Sub", site.grad, emit.op("Mul", emit.op("Exp", site.y), total))}


RULES = {"Softmax": Derivative(_softmax), "LogSoftmax": Derivative(_log_softmax)}
