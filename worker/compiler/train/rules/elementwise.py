"""Arithmetic of several operands: each gets the gradient summed over what it was repeated along."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import onnx_ir

from worker.compiler.train.rules.site import Derivative, NoRule, Rule, Site

_Partial: TypeAlias = "Callable[[Site, int], onnx_ir.Value]"
"""Gradient of one operand, in the shape of the result."""


def _broadcast(partial: _Partial) -> Rule:
    def rule(site: Site) -> Mapping[int, onnx_ir.Value]:
        return site.like(lambda k: site.emit.unbroadcast(partial(site, k), site.shape(k)))

    return rule


def _add(site: Site, _: int) -> onnx_ir.Value:
    return site.grad


def _sub(site: Site, index: int) -> onnx_ir.Value:
    return site.emit.op("Neg", site.grad) if index else site.grad


def _mul(site: Site, index: int) -> onnx_ir.Value:
    return site.emit.op("Mul", site.grad, site.x(1 - index))


def _div(site: Site, index: int) -> onnx_ir.Value:
    """d(a / b) = da / b - (a / b) / b db; the quotient is the forward pass's."""
    over = site.emit.op("Div", site.grad, site.x(1))
    return site.emit.op("Neg", site.emit.op("Mul", over, site.y)) if index else over


def _pow(site: Site, index: int) -> onnx_ir.Value:
    """d(a^b) = b a^(b - 1) da + a^b ln(a) db."""
    emit, a, b = site.emit, site.x(0), site.x(1)
    if index == 1:
        return emit.op("Mul", emit.op("Mul", site.grad, site.y), emit.op("Log", a))
    if b.dtype != a.dtype:
        b = emit.op("Cast", b, to=int(a.dtype or 1))
    lower = emit.op("Pow", a, emit.op("Sub", b, emit.real(1, b)))
    return emit.op("Mul", site.grad, emit.op("Mul", b, lower))


def _mean(site: Site, _: int) -> onnx_ir.Value:
    count = len(site.node.inputs)
    return site.emit.op("Mul", site.grad, site.emit.real(1 / count, site.grad))


def _extreme(site: Site, index: int) -> onnx_ir.Value:
    """Max, Min: to the first operand that has the result."""
    emit = site.emit
    mine = emit.op("Equal", site.x(index), site.y)
    for earlier in range(index):
        taken = emit.op("Equal", site.x(earlier), site.y)
        mine = emit.op("And", mine, emit.op("Not", taken))
    return emit.op("Where", mine, site.grad, emit.real(0, site.grad))


def _where(site: Site, index: int) -> onnx_ir.Value:
    zero = site.emit.real(0, site.grad)
    sides = (site.grad, zero) if index == 1 else (zero, site.grad)
    return site.emit.op("Where", site.x(0), *sides)


def _mod(site: Site, index: int) -> onnx_ir.Value:
    if index:
        raise NoRule("the divisor is trained; hold it constant with freeze")
    return site.grad


def _prelu(site: Site, index: int) -> onnx_ir.Value:
    emit, x = site.emit, site.x(0)
    below = emit.op("Less", x, emit.real(0, x))
    if index == 0:
        return emit.op("Where", below, emit.op("Mul", site.grad, site.x(1)), site.grad)
    return emit.op("Where", below, emit.op("Mul", site.grad, x), emit.real(0, x))


RULES = {
    "Add": Derivative(_broadcast(_add)),
    "Sum": Derivative(_broadcast(_add)),
    "Sub": Derivative(_broadcast(_sub)),
    "Mul": Derivative(_broadcast(_mul)),
    "Div": Derivative(_broadcast(_div)),
    "Pow": Derivative(_broadcast(_pow)),
    "Mean": Derivative(_broadcast(_mean)),
    "Max": Derivative(_broadcast(_extreme)),
    "Min": Derivative(_broadcast(_extreme)),
    "Where": Derivative(_broadcast(_where), frozenset({1, 2})),
    "Mod": Derivative(_broadcast(_mod)),
    "PRelu": Derivative(_broadcast(_prelu)),
}
