"""Splitting the axes of an operator so that blocked tensors are indexed without // and %.

A tensor blocked by 16 along c is indexed by c // 16 and c % 16.  When c is an axis (or a sum such
as 32*g + ci) the axes are split into digits instead, ci = 16*ci.0 + ci.1, and the two indices are
2*g + ci.0 and ci.1: linear, so that boxes, splits and strides stay exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import gcd

from worker.compiler.ir.affine import Affine, Var, var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.layout import Layout
from worker.compiler.ir.op import Access, TensorOp


@dataclass(slots=True)
class Digits:
    """The factors at which the axes of one operator are split; grows while accesses are added."""

    op: TensorOp
    factors: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Ascending per axis; each divides the next, and the last divides the extent."""

    def accept(self, access: Access, layout: Layout) -> bool:
        """Split further so that `access` indexes a tensor of `layout` linearly.

        Returns False, and changes nothing, when the blocked dimensions would need // or %.
        Cost: linear in the index expressions.
        """
        grown = dict(self.factors)
        for letter in layout.blocked_letters:
            expr = access.index[layout.position(letter)]
            if not expr.is_linear:
                return False
            below = 1
            for block in reversed(layout.blocks(letter)):
                below *= block
                if not self._split(expr, below, grown):
                    return False
        for letter in layout.blocked_letters:
            expr = access.index[layout.position(letter)]
            below = 1
            for block in reversed(layout.blocks(letter)):
                below *= block
                if not self._separates(expr, below, grown):
                    return False
        self.factors = grown
        return True

    def _separates(self, expr: Affine, block: int, factors: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether the digits that are no multiples of `block` always stay within one block.

        Then expr // block is the sum of the other digits, and expr % block of these.
        """
        low = high = expr.const % block
        for atom, coeff in expr.terms:
            assert isinstance(atom, Var)
            for weight, extent in _weights(self.op.axis(atom.name), factors):
                step = coeff * weight
                if step % block:
                    low += min(step, 0) * (extent - 1)
                    high += max(step, 0) * (extent - 1)
        return low >= 0 and high < block

    def _split(self, expr: Affine, block: int, grown: dict[str, tuple[int, ...]]) -> bool:
        for atom, coeff in expr.terms:
            assert isinstance(atom, Var)
            axis = self.op.axis(atom.name)
            factor = block // gcd(block, coeff)
            if factor == 1 or factor >= axis.extent:
                continue
            chain = tuple(sorted({*grown.get(axis.name, ()), factor}))
            ends = (*chain, axis.extent)
            if axis.kind is AxisKind.SCAN or any(
                b % a for a, b in zip(chain, ends[1:], strict=True)
            ):
                return False
            grown[axis.name] = chain
        return True

    def axes(self) -> tuple[Axis, ...]:
        """The split domain: digits stand where their axis stood, so the order of points stays."""
        return tuple(d for axis in self.op.domain for d in _digits(self.op, axis, self.factors))

    def values(self) -> dict[str, Affine]:
        """What to substitute for the axes that were split."""
        found: dict[str, Affine] = {}
        for axis in self.op.domain:
            if self.factors.get(axis.name):
                digits = _digits(self.op, axis, self.factors)
                weights = [weight for weight, _ in _weights(axis, self.factors)]
                found[axis.name] = sum(
                    (var(d.name) * w for d, w in zip(digits, weights, strict=True)), Affine()
                )
        return found


def _weights(axis: Axis, factors: Mapping[str, tuple[int, ...]]) -> list[tuple[int, int]]:
    """(weight, extent) of the digits of one axis, most significant first."""
    chain = (1, *factors.get(axis.name, ()), axis.extent)
    return [(a, b // a) for a, b in pairwise(chain)][::-1]


def _digits(op: TensorOp, axis: Axis, factors: Mapping[str, tuple[int, ...]]) -> tuple[Axis, ...]:
    """Digits of one axis, most significant first."""
    if not factors.get(axis.name):
        return (axis,)
    weights = _weights(axis, factors)
    taken = {a.name for a in op.domain}
    base = axis.name
    while any(f"{base}.{k}" in taken for k in range(len(weights))):
        base += "_"
    return tuple(Axis(f"{base}.{k}", extent, axis.kind) for k, (_, extent) in enumerate(weights))
