"""Functions of one operand: the gradient times a derivative, written with the forward result
wherever that saves the operand from being kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import onnx_ir

from worker.compiler.train.rules.site import Derivative, Rule, Site

_Slope: TypeAlias = "Callable[[Site], onnx_ir.Value]"


def _times(slope: _Slope) -> Rule:
    """The rule of a function whose derivative is `slope`."""

    def rule(site: Site) -> Mapping[int, onnx_ir.Value]:
        return {0: site.emit.op("Mul", site.grad, slope(site))}

    return rule


def _kept(where: _Slope, other: _Slope | None = None) -> Rule:
    """The gradient where the condition holds; elsewhere `other`, zero by default."""

    def rule(site: Site) -> Mapping[int, onnx_ir.Value]:
        rest = site.emit.real(0, site.grad) if other is None else other(site)
        return {0: site.emit.op("Where", where(site), site.grad, rest)}

    return rule


def _n(site: Site, number: float) -> onnx_ir.Value:
    return site.emit.real(number, site.x())


def _positive(site: Site) -> onnx_ir.Value:
    return site.emit.op("Greater", site.x(), _n(site, 0))


def _result_positive(site: Site) -> onnx_ir.Value:
    return site.emit.op("Greater", site.y, _n(site, 0))


def _inside(site: Site, low: onnx_ir.Value | None, high: onnx_ir.Value | None) -> onnx_ir.Value:
    """Whether the operand lies between the limits, which are inside."""
    emit, parts = site.emit, []
    if low is not None:
        parts.append(emit.op("GreaterOrEqual", site.x(), low))
    if high is not None:
        parts.append(emit.op("LessOrEqual", site.x(), high))
    return parts[0] if len(parts) == 1 else emit.op("And", *parts)


def _clip(site: Site) -> Mapping[int, onnx_ir.Value]:
    low, high = (site.x(k) if site.has(k) else None for k in (1, 2))
    if low is None and high is None:
        return {0: site.grad}
    inside = _inside(site, low, high)
    return {0: site.emit.op("Where", inside, site.grad, _n(site, 0))}


def _sigmoid(site: Site) -> onnx_ir.Value:
    return site.emit.op("Mul", site.y, site.emit.op("Sub", _n(site, 1), site.y))


def _tanh(site: Site) -> onnx_ir.Value:
    return site.emit.op("Sub", _n(site, 1), site.emit.op("Mul", site.y, site.y))


def _tan(site: Site) -> onnx_ir.Value:
    return site.emit.op("Add", _n(site, 1), site.emit.op("Mul", site.y, site.y))


def _square_and(
    square: int, plus: int, *, root: bool, sign: int = 1
) -> Callable[[Site], onnx_ir.Value]:
    """sign / (square x x + plus), or over its root: slopes of inverse functions."""

    def slope(site: Site) -> onnx_ir.Value:
        emit = site.emit
        under = emit.op("Mul", site.x(), site.x())
        under = under if square == 1 else emit.op("Neg", under)
        under = emit.op("Add", under, _n(site, plus))
        return emit.op("Div", _n(site, sign), emit.op("Sqrt", under) if root else under)

    return slope


def _erf(site: Site) -> onnx_ir.Value:
    emit = site.emit
    bell = emit.op("Exp", emit.op("Neg", emit.op("Mul", site.x(), site.x())))
    return emit.op("Mul", bell, _n(site, 2 / math.sqrt(math.pi)))


def _sqrt(site: Site) -> Mapping[int, onnx_ir.Value]:
    half = site.emit.op("Mul", site.grad, _n(site, 0.5))
    return {0: site.emit.op("Div", half, site.y)}


def _log(site: Site) -> Mapping[int, onnx_ir.Value]:
    return {0: site.emit.op("Div", site.grad, site.x())}


def _reciprocal(site: Site) -> onnx_ir.Value:
    return site.emit.op("Neg", site.emit.op("Mul", site.y, site.y))


def _leaky(site: Site) -> onnx_ir.Value:
    return site.emit.op("Mul", site.grad, _n(site, site.number("alpha", 0.01)))


def _elu(site: Site) -> onnx_ir.Value:
    """alpha (e^x - 1) has the derivative y + alpha."""
    slope = site.emit.op("Add", site.y, _n(site, site.number("alpha", 1.0)))
    return site.emit.op("Mul", site.grad, slope)


def _hard_sigmoid(site: Site) -> Mapping[int, onnx_ir.Value]:
    """The slope alpha where the result is neither 0 nor 1."""
    emit = site.emit
    alpha = _n(site, site.number("alpha", 0.2))
    inner = emit.op("And", _result_positive(site), emit.op("Less", site.y, _n(site, 1)))
    return {0: emit.op("Where", inner, emit.op("Mul", site.grad, alpha), _n(site, 0))}


def _softsign(site: Site) -> onnx_ir.Value:
    """1 / (1 + |x|)^2."""
    emit = site.emit
    over = emit.op("Reciprocal", emit.op("Add", emit.op("Abs", site.x()), _n(site, 1)))
    return emit.op("Mul", over, over)


RULES: dict[str, Derivative] = {
    "Relu": Derivative(_kept(_result_positive)),
    "LeakyRelu": Derivative(_kept(_positive, _leaky)),
    "Elu": Derivative(_kept(_positive, _elu)),
    "Clip": Derivative(_clip, frozenset({0})),
    "HardSigmoid": Derivative(_hard_sigmoid),
    "Sigmoid": Derivative(_times(_sigmoid)),
    "Tanh": Derivative(_times(_tanh)),
    "Tan": Derivative(_times(_tan)),
    "Sinh": Derivative(_times(lambda s: s.emit.op("Cosh", s.x()))),
    "Cosh": Derivative(_times(lambda s: s.emit.op("Sinh", s.x()))),
    "Asin": Derivative(_times(_square_and(-1, 1, root=True))),
    "Acos": Derivative(_times(_square_and(-1, 1, root=True, sign=-1))),
    "Atan": Derivative(_times(_square_and(1, 1, root=False))),
    "Asinh": Derivative(_times(_square_and(1, 1, root=True))),
    "Acosh": Derivative(_times(_square_and(1, -1, root=True))),
    "Atanh": Derivative(_times(_square_and(-1, 1, root=False))),
    "Erf": Derivative(_times(_erf)),
    "Exp": Derivative(_times(lambda s: s.y)),
    "Log": Derivative(_log),
    "Sqrt": Derivative(_sqrt),
    "Reciprocal": Derivative(_times(_reciprocal)),
    "Neg": Derivative(lambda s: {0: s.emit.op("Neg", s.grad)}),
    "Abs": Derivative(_times(lambda s: s.emit.op("Sign", s.x()))),
    "Sin": Derivative(_times(lambda s: s.emit.op("Cos", s.x()))),
    "Cos": Derivative(_times(lambda s: s.emit.op("Neg", s.emit.op("Sin", s.x())))),
    "Softplus": Derivative(_times(lambda s: s.emit.op("Sigmoid", s.x()))),
    "Softsign": Derivative(_times(_softsign)),
}
