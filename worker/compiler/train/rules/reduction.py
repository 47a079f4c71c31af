"""Reductions: the gradient is spread over what was reduced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import onnx_ir

from worker.compiler.train.rules.site import Derivative, Rule, Site


def _axes(site: Site) -> tuple[int, ...]:
    """Reduced axes, counted from the front; all where none are given and that means all."""
    rank = len(site.shape())
    given = site.integers("axes")
    if given is None and site.has(1):
        given = tuple(int(a) for a in site.constant(1).reshape(-1))
    if not given:
        return () if site.integer("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted(a % rank for a in given))


def _kept(site: Site, value: onnx_ir.Value) -> onnx_ir.Value:
    """A reduced value with the reduced axes as extents of 1."""
    axes = _axes(site)
    return site.emit.reshape(value, [1 if d in axes else n for d, n in enumerate(site.shape())])


def _spread(scaled: Callable[[Site, onnx_ir.Value], onnx_ir.Value]) -> Rule:
    """`scaled` gives the operand's gradient of the result's, broadcastable to it."""

    def rule(site: Site) -> Mapping[int, onnx_ir.Value]:
        made = scaled(site, _kept(site, site.grad))
        return {0: site.emit.expand(made, site.shape())}

    return rule


def _sum(_: Site, grad: onnx_ir.Value) -> onnx_ir.Value:
    return grad


def _mean(site: Site, grad: onnx_ir.Value) -> onnx_ir.Value:
    count = prod(site.shape()[a] for a in _axes(site))
    return site.emit.op("Mul", grad, site.emit.real(1 / count, grad))


def _square(site: Site, grad: onnx_ir.Value) -> onnx_ir.Value:
    double = site.emit.op("Mul", grad, site.emit.real(2, grad))
    return site.emit.op("Mul", double, site.x())


def _l1(site: Site, grad: onnx_ir.Value) -> onnx_ir.Value:
    return site.emit.op("Mul", grad, site.emit.op("Sign", site.x()))


def _l2(site: Site, grad: onnx_ir.Value) -> onnx_ir.Value:
    over = site.emit.op("Div", grad, _kept(site, site.y))
    return site.emit.op("Mul", over, site.x())


def _log_sum(site: Site, grad: onnx_ir.Value) -> onnx_ir.Value:
    """d ln(sum e^x) = e^(x - y)."""
    inner = site.emit.op("Sub", site.x(), _kept(site, site.y))
    return site.emit.op("Mul", grad, site.emit.op("Exp", inner))


def _extreme(site: Site, grad: onnx_ir.Value) -> onnx_ir.Value:
    """In equal parts to all elements that have the result."""
    emit = site.emit
    mine = emit.op("Cast", emit.op("Equal", site.x(), _kept(site, site.y)), to=int(grad.dtype or 1))
    share = emit.op("Div", grad, emit.total(mine, _axes(site)))
    return emit.op("Mul", mine, share)


def _product(site: Site, grad: onnx_ir.Value) -> onnx_ir.Value:
    """The product of the others: of those that are not 0 over the element's own, where no other is
    0; a 0 counts as 1 of them."""
    emit, x, axes = site.emit, site.x(), _axes(site)
    is_zero = emit.op("Equal", x, emit.real(0, x))
    zero = emit.op("Cast", is_zero, to=int(grad.dtype or 1))
    filled = emit.op("Where", is_zero, emit.real(1, x), x)
    whole = emit.op("ReduceProd", filled, emit.ints(*axes), keepdims=1) if axes else filled
    others = emit.op("Sub", emit.total(zero, axes), zero)
    made = emit.op("Mul", grad, emit.op("Div", whole, filled))
    is_whole = emit.op("Equal", others, emit.real(0, x))
    return emit.op("Where", is_whole, made, emit.real(0, x))


def _running(site: Site) -> Mapping[int, onnx_ir.Value]:
    """An element is in all sums behind it: summed up the other way."""
    back, exclusive = 1 - site.integer("reverse", 0), site.integer("exclusive", 0)
    made = site.emit.op("CumSum", site.grad, site.x(1), reverse=back, exclusive=exclusive)
    return {0: made}


RULES = {
    name: Derivative(_spread(scaled), frozenset({0}))
    for name, scaled in {
        "ReduceSum": _sum,
        "ReduceMean": _mean,
        "ReduceSumSquare": _square,
        "ReduceL1": _l1,
        "ReduceL2": _l2,
        "ReduceLogSumExp": _log_sum,
        "ReduceProd": _product,
        "ReduceMax": _extreme,
        "ReduceMin": _extreme,
    }.items()
} | {"CumSum": Derivative(_running, frozenset({0}))}
